//! The command line of `postcommit-bench`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Parser;
use postcommit_engine::db::Address;
use postcommit_server::cli::GlobalOptions;
use postcommit_server::output::{self, Column, Exit, Format};
use postcommit_server::settings::{LogSettings, Settings, without_password};
use postcommit_server::telemetry;
use serde_json::json;

use crate::failure::Failure;
use crate::report::{Finding, Peer, Report, Series, Suite, Threshold};
use crate::run::RunOptions;
use crate::suites::{ALL, SuiteSpec};
use crate::{html, run, sink};

/// Measure this build of Postcommit on this machine, and compare every figure with its bar, the value that it must
/// reach.
///
/// The benchmark creates its own database on the given server, or its own file next to the given SQLite file, and
/// removes it at the end.
///
/// Exits 1 when a bar is missed, 7 when a suite could not be measured. Compare only ratios that were measured in one
/// run; see docs/benchmark.md.
#[derive(Debug, Parser)]
#[command(name = "postcommit-bench", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    /// The suites to run [default: every suite that supports the database]
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// How many times each pair of Postcommit and its comparison is measured, alternately; the medians are compared
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Multiplies all counts and durations; use a small value for a quick look
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Folder of other programs to compare with [default: bench/peers, if it exists]
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Do not compare with other programs
    #[arg(long, conflicts_with = "peers")]
    no_peers: bool,
    /// Also write the report to this HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// List the suites with their bars, then exit
    #[arg(long)]
    list: bool,
    /// The `postcommit` program to measure [default: the one in the same folder as this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Run the receiver of the webhooks until stdin ends
    #[arg(long, hide = true)]
    sink: bool,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "not a number; 0.0001 to 100 are allowed".to_owned())?;
    if (0.0001..=100.0).contains(&scale) { Ok(scale) } else { Err("out of range; 0.0001 to 100 are allowed".into()) }
}

impl Cli {
    pub async fn run(&self) -> Result<Exit, Failure> {
        if self.sink {
            return sink::serve().await;
        }
        let (format, settings) =
            (self.global.output, &self.global.layers(None)?.settings().map_err(|e| Failure::new(Exit::Usage, e))?);
        if self.list {
            list(format);
            return Ok(Exit::Ok);
        }
        // Log lines of the engine would disturb the progress line, and writing them would disturb the measurement.
        telemetry::start(&LogSettings { level: "error".into(), format: settings.log.format.clone() });
        let suites = self.chosen(settings)?;
        let options = RunOptions {
            suites,
            rounds: self.rounds.into(),
            scale: self.scale,
            peers: self.peers()?,
            program: self.program()?,
            command: command(),
        };
        if let Some(file) = &self.html {
            writable(file).map_err(|e| Failure::new(Exit::Usage, format!("--html {}: {e}", file.display())))?;
        }
        let report = run::run(options, settings).await?;
        if let Some(file) = &self.html {
            let written = std::fs::write(file, html::page(&report));
            written.map_err(|e| Failure::new(Exit::Failed, format!("{}: {e}", file.display())))?;
        }
        output::one(format, &report, text);
        Ok(verdict(&report))
    }

    /// Returns the program to measure. The default is the one in the same folder as this program, because cargo puts
    /// both there.
    fn program(&self) -> Result<PathBuf, Failure> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("postcommit"),
        };
        if program.is_file() {
            return Ok(std::path::absolute(program)?);
        }
        let missing = format!(
            "the program {} does not exist; build it with `cargo build --release`, or give its path with --program",
            program.display()
        );
        Err(Failure::new(Exit::Usage, missing))
    }

    /// Returns the folder of the peers, or the reason why there is none. A folder that the user named must exist.
    fn peers(&self) -> Result<Result<PathBuf, String>, Failure> {
        let usual = Path::new("bench/peers");
        match &self.peers {
            _ if self.no_peers => Ok(Err("--no-peers was given".into())),
            Some(folder) if folder.is_dir() => Ok(Ok(folder.clone())),
            Some(folder) => Err(Failure::new(
                Exit::Usage,
                format!(
                    "--peers {}: is not a folder; give the folder of the peers, or use --no-peers",
                    folder.display()
                ),
            )),
            None if usual.is_dir() => Ok(Ok(usual.to_owned())),
            None => Ok(Err(format!("the folder {} does not exist; give another one with --peers", usual.display()))),
        }
    }

    fn chosen(&self, settings: &Settings) -> Result<Vec<&'static SuiteSpec>, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let postgres = matches!(Address::parse(&settings.database.url)?, Address::Postgres(_));
        let fits = |suite: &&SuiteSpec| if postgres { suite.fits.postgres() } else { suite.fits.sqlite() };
        if self.suites.is_empty() {
            return Ok(ALL.iter().filter(fits).collect());
        }
        let find = |name: &String| {
            let known = || ALL.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
            let suite = ALL.iter().find(|suite| suite.name == *name);
            let suite =
                suite.ok_or_else(|| usage(format!("there is no suite {name:?}; the suites are {}", known())))?;
            if fits(&suite) {
                Ok(suite)
            } else {
                Err(usage(format!(
                    "suite {name} needs {}; give such a database with --database-url",
                    suite.fits.name()
                )))
            }
        };
        let mut chosen: Vec<&'static SuiteSpec> = vec![];
        for name in &self.suites {
            let suite = find(name)?;
            // A suite that is named twice is measured once.
            if !chosen.iter().any(|known| known.name == suite.name) {
                chosen.push(suite);
            }
        }
        Ok(chosen)
    }
}

/// Checks early that the file can be written at the end of a long run. An existing file is not changed, and a missing
/// file is not created.
fn writable(file: &Path) -> std::io::Result<()> {
    match std::fs::OpenOptions::new().append(true).open(file) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            drop(std::fs::File::create_new(file)?);
            std::fs::remove_file(file)
        }
        opened => opened.map(drop),
    }
}

/// The command line without passwords.
fn command() -> String {
    let arguments = std::env::args().skip(1).map(|argument| match argument.split_once('=') {
        Some((flag, url)) if flag == "--database-url" => format!("{flag}={}", without_password(url)),
        _ if argument.contains("://") => without_password(&argument),
        _ => argument,
    });
    std::iter::once("postcommit-bench".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn list(format: Format) {
    let rows: Vec<_> = ALL
        .iter()
        .map(|k| json!({"suite": k.name, "database": k.fits.name(), "about": k.about, "bars": k.bars}))
        .collect();
    let columns: [Column<serde_json::Value>; 4] = [
        ("suite", |k| k["suite"].as_str().unwrap_or_default().to_owned()),
        ("database", |k| k["database"].as_str().unwrap_or_default().to_owned()),
        ("bars", |k| k["bars"].as_str().unwrap_or_default().to_owned()),
        ("what it does", |k| k["about"].as_str().unwrap_or_default().to_owned()),
    ];
    output::list(format, &rows, &columns);
}

/// The exit code of the run. A failed suite takes precedence over a missed bar (a figure that does not reach its
/// required value), because a failed suite has not measured its bars.
fn verdict(report: &Report) -> Exit {
    if !report.failures().is_empty() {
        Exit::Partly
    } else if !judged(report, Some(false)).is_empty() {
        Exit::Failed
    } else {
        Exit::Ok
    }
}

/// Returns the ids of the bars that were held, missed or not judged.
fn judged(report: &Report, held: Option<bool>) -> Vec<&str> {
    let bars = report.suites.iter().flat_map(|suite| &suite.findings).filter(|finding| finding.bar.is_some());
    bars.filter(|finding| finding.held == held).map(|finding| finding.id.as_str()).collect()
}

/// The last lines of the report: how many bars were held, and which were not.
fn closing(report: &Report) -> String {
    let (held, missed, unjudged) =
        (judged(report, Some(true)).len(), judged(report, Some(false)), judged(report, None));
    let mut line = format!("{held} {} held, {} missed", if held == 1 { "bar" } else { "bars" }, missed.len());
    if !missed.is_empty() {
        line += &format!(": {}", missed.join(", "));
    }
    if !unjudged.is_empty() {
        let link = if missed.is_empty() { "," } else { ";" };
        line += &format!("{link} {} not measured: {}", unjudged.len(), unjudged.join(", "));
    }
    let failures = report.failures().into_iter().map(|failure| format!("failed: {failure}"));
    std::iter::once(line).chain(failures).collect::<Vec<_>>().join("\n")
}

fn text(report: &Report) -> String {
    let machine = &report.machine;
    let mut parts = vec![format!(
        "postcommit {}  {}\n{}\n{} cores, {} MiB, {}\n{}\nrounds: {}",
        report.version,
        report.started_at,
        report.database,
        machine.cores,
        machine.memory_mib,
        machine.cpu,
        machine.system,
        report.extent()
    )];
    if !report.peers.is_empty() {
        let peer = |peer: &Peer| {
            let problem = peer.problem.as_ref().map_or_else(String::new, |problem| format!("\n  {problem}"));
            let known =
                if peer.version.is_empty() { String::new() } else { format!(" {}: {}", peer.version, peer.settings) };
            format!("{}{known}{problem}", peer.name)
        };
        parts.push(report.peers.iter().map(peer).collect::<Vec<_>>().join("\n"));
    }
    parts.extend(report.suites.iter().map(suite_text));
    parts.push(closing(report));
    parts.join("\n\n")
}

fn suite_text(suite: &Suite) -> String {
    let columns: [Column<Finding>; 7] = [
        ("id", |f| f.id.clone()),
        ("what", |f| f.what.clone()),
        ("ours", |f| series(&f.ours)),
        ("against", |f| f.against.as_ref().map_or_else(|| "-".into(), series)),
        ("ratio", |f| f.against.as_ref().map_or_else(|| "-".into(), |_| number(f.figure))),
        ("bar", |f| f.bar.map_or_else(|| "-".into(), bar)),
        ("held", |f| f.held.map_or("", |held| if held { "✓" } else { "✗" }).to_owned()),
    ];
    let notes = suite
        .findings
        .iter()
        .filter_map(|f| f.note.as_ref().map(|note| format!("\n{}: {note}", f.id)))
        .collect::<String>();
    let found = match &suite.problem {
        Some(problem) => format!("not measured: {problem}"),
        None => output::table(&suite.findings, &columns),
    };
    format!("{} ({:.0} s): {}\n{found}{notes}", suite.name, suite.seconds, suite.about)
}

fn series(series: &Series) -> String {
    if series.values.is_empty() {
        return "-".into();
    }
    let (low, high) = series.spread;
    let unit = if series.unit.starts_with('/') { series.unit.clone() } else { format!(" {}", series.unit) };
    format!("{}{unit} ({}–{})", number(series.median), number(low), number(high))
}

fn bar(bar: Threshold) -> String {
    match bar {
        Threshold::AtLeast(least) => format!("≥ {least}"),
        Threshold::AtMost(most) => format!("≤ {most}"),
    }
}

/// Writes a number with two decimals below 100, and with thousands separators above.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let commas = |(place, digit): (usize, char)| {
        if place > 0 && (digits.len() - place).is_multiple_of(3) { format!(",{digit}") } else { digit.to_string() }
    };
    digits.chars().enumerate().map(commas).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let shown: Vec<String> = [0.617, 12.5, 100.0, 1234.4, 1_234_567.0, f64::NAN].into_iter().map(number).collect();
        assert_eq!(shown, ["0.62", "12.50", "100", "1,234", "1,234,567", "-"]);
    }

    fn finding(id: &str, figure: f64) -> Finding {
        Finding::figure(id, "x", Series::of("x", "ms", vec![figure])).must(Threshold::AtMost(1.0))
    }

    fn report(findings: Vec<Finding>) -> Report {
        let suite =
            Suite { name: "x".into(), about: "x".into(), seconds: 1.0, findings, charts: vec![], problem: None };
        let machine = crate::report::Machine { cores: 1, memory_mib: 1, cpu: "x".into(), system: "x".into() };
        Report {
            version: "1".into(),
            started_at: "now".into(),
            command: "x".into(),
            rounds: 1,
            scale: 1.0,
            machine,
            database: "x".into(),
            peers: vec![],
            suites: vec![suite],
            problems: vec![],
        }
    }

    #[test]
    fn a_missed_bar_is_named() {
        let report = report(vec![finding("P5", 2.0), finding("P6", 1.0)]);
        assert_eq!(verdict(&report), Exit::Failed);
        assert!(text(&report).ends_with("\n1 bar held, 1 missed: P5"));
    }

    #[test]
    fn a_suite_that_failed_leaves_the_others_and_has_a_code_of_its_own() {
        let mut report = report(vec![finding("P6", 1.0), finding("P7", 1.0)]);
        assert_eq!(verdict(&report), Exit::Ok);
        let broken = Suite {
            name: "drain".into(),
            findings: vec![],
            problem: Some("no room".into()),
            ..report.suites[0].clone()
        };
        report.suites.insert(0, broken);
        assert_eq!(verdict(&report), Exit::Partly);
        let text = text(&report);
        assert!(text.contains("not measured: no room\n\nx (1 s)"), "{text}");
        assert!(text.ends_with("\n2 bars held, 0 missed\nfailed: drain: no room"), "{text}");
    }
}
