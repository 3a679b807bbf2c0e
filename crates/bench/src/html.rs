//! The report as one HTML document. It loads nothing and runs no scripts, so it can be mailed, archived and printed.

mod svg;

use postcommit_server::html::escape as esc;
use postcommit_server::ui::chart::{self, duration, exact, plain, ratio, spread, told_apart, value};

use crate::report::{Chart, Finding, Peer, Report, Series, Suite, Threshold};

pub fn page(report: &Report) -> String {
    let verdict = BarSummary::of(report);
    let suites: String = report.suites.iter().enumerate().map(|(i, s)| suite(i, s)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n{}<body>\n<header>\n<h1>Benchmark of postcommit {}</h1>\n\
         <p class=\"verdict\">{}</p>\n{}\n</header>\n<main>\n{}{suites}</main>\n</body>\n</html>\n",
        head(&verdict.text),
        esc(&report.version),
        verdict.html(),
        facts(report),
        summary(report),
    )
}

/// Returns the head of the page. Its policy forbids scripts and requests, even if the name of a peer contains markup.
fn head(verdict: &str) -> String {
    format!(
        r#"<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{verdict} – postcommit bench</title>
<style>
{}</style>
</head>
"#,
        include_str!("html/report.css")
    )
}

/// How many figures keep their bar (the limit that a figure must keep), and which do not.
struct BarSummary {
    text: String,
    missed: Vec<String>,
    unjudged: Vec<String>,
    failures: Vec<String>,
}

impl BarSummary {
    fn of(report: &Report) -> Self {
        let bars: Vec<&Finding> = report.suites.iter().flat_map(|s| &s.findings).filter(|f| counts(f)).collect();
        let ids = |held: Option<bool>| bars.iter().filter(|f| f.held == held).map(|f| f.id.clone()).collect::<Vec<_>>();
        let held = bars.iter().filter(|f| f.held == Some(true)).count();
        let text = match bars.len() {
            0 => "No bars were measured".to_owned(),
            1 => format!("{held} of 1 bar holds"),
            all => format!("{held} of {all} bars hold"),
        };
        Self { text, missed: ids(Some(false)), unjudged: ids(None), failures: report.failures() }
    }

    fn html(&self) -> String {
        let mut html = format!("<strong>{}</strong>", self.text);
        if !self.missed.is_empty() {
            html += &format!(r#" · <span class="missed">✗ missed:</span> {}"#, esc(&self.missed.join(", ")));
        }
        if !self.unjudged.is_empty() {
            html += &format!(r#" · <span class="unknown">? not judged:</span> {}"#, esc(&self.unjudged.join(", ")));
        }
        for failure in &self.failures {
            html += &format!(r#" · <span class="missed">✗ failed:</span> {}"#, esc(failure));
        }
        html
    }
}

/// Returns whether the summary counts a finding: it has a bar (a limit), or it was judged without one.
fn counts(finding: &Finding) -> bool {
    finding.bar.is_some() || finding.held.is_some()
}

fn facts(report: &Report) -> String {
    let machine = &report.machine;
    let cores = if machine.cores == 1 { "1 core".to_owned() } else { format!("{} cores", machine.cores) };
    let machine = format!(
        "{} · {cores} · {} of memory · {}",
        machine.cpu,
        value(machine.memory_mib as f64 / 1024.0, "GiB"),
        machine.system
    );
    let peers: String = report.peers.iter().map(peer).collect();
    let peers = if peers.is_empty() { String::new() } else { format!("<dt>Peers</dt>{peers}") };
    format!(
        "<dl><dt>Started</dt><dd>{}</dd><dt>Machine</dt><dd>{}</dd><dt>Database</dt><dd>{}</dd>{peers}<dt>Rounds</dt><dd>{}</dd>\
         <dt>Repeat with</dt><dd><code>{}</code></dd></dl>",
        esc(&report.started_at),
        esc(&machine),
        esc(&report.database),
        report.extent(),
        esc(&report.command),
    )
}

fn peer(peer: &Peer) -> String {
    let settings = if peer.settings.is_empty() {
        String::new()
    } else {
        format!(r#" <span class="quiet">({})</span>"#, esc(&peer.settings))
    };
    let problem =
        peer.problem.as_deref().map_or(String::new(), |p| format!(r#" <span class="missed">✗</span> {}"#, esc(p)));
    format!("<dd>{} {}{settings}{problem}</dd>", esc(&peer.name), esc(&peer.version))
}

fn summary(report: &Report) -> String {
    let suites = report.suites.iter().enumerate();
    let links: String = suites.clone().map(|(i, s)| format!("<a href=\"#suite-{i}\">{}</a>\n", esc(&s.name))).collect();
    let rows: String =
        suites.flat_map(|(i, s)| s.findings.iter().filter(|f| counts(f)).map(move |f| summary_row(i, f))).collect();
    let nav = if links.is_empty() { links } else { format!("<nav aria-label=\"Suites\">Suites: {links}</nav>\n") };
    let head = columns(&["Id", "What", "Figure>", "Bar>", "Held"]);
    let table = if rows.is_empty() {
        "<p>No figure with a bar was measured.</p>".to_owned()
    } else {
        scroll_table("Summary of all bars", "", &head, &rows)
    };
    format!("<section>\n<h2>Summary</h2>\n{table}{nav}</section>\n")
}

fn summary_row(i: usize, f: &Finding) -> String {
    // The reason for a missed bar gets a row of its own across the table, because a narrow screen has no room for it in
    // a column.
    let why = f.note.as_deref().filter(|_| f.held != Some(true)).map_or(String::new(), |n| {
        format!(
            "<tr class=\"{}why\"><td></td><td colspan=\"4\">{}</td></tr>\n",
            if f.held.is_some() { "miss " } else { "" },
            esc(n)
        )
    });
    format!(
        "<tr{}><th scope=\"row\"><a href=\"#suite-{i}\">{}</a></th><td class=\"what\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n{why}",
        miss_class(f),
        esc(&f.id),
        esc(&f.what),
        esc(&figure(f)),
        esc(&bar(f)),
        held(f)
    )
}

fn suite(i: usize, suite: &Suite) -> String {
    let rows: String = suite.findings.iter().map(finding_row).collect();
    let head = columns(&["Id", "What", "Ours>", "Against>", "Ratio or figure>", "Bar>", "Held"]);
    let table = if rows.is_empty() {
        String::new()
    } else {
        scroll_table(&format!("Findings of {}", suite.name), "wide", &head, &rows)
    };
    let cards: String = suite.findings.iter().map(card).chain(suite.charts.iter().map(chart_card)).collect();
    let cards = if cards.is_empty() { cards } else { format!("<div class=\"cards\">\n{cards}</div>\n") };
    let problem = suite
        .problem
        .as_deref()
        .map_or(String::new(), |p| format!("<p><span class=\"missed\">✗ not measured:</span> {}</p>\n", esc(p)));
    format!(
        "<section id=\"suite-{i}\">\n<h2>{}</h2>\n<p>{}</p>\n<p class=\"quiet\">Took {}.</p>\n{problem}{table}{cards}</section>\n",
        esc(&suite.name),
        esc(&suite.about),
        duration(suite.seconds)
    )
}

fn finding_row(f: &Finding) -> String {
    format!(
        "<tr{}><th scope=\"row\">{}</th><td class=\"what\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
        miss_class(f),
        esc(&f.id),
        esc(&f.what),
        measured(&f.ours),
        f.against.as_ref().map_or("–".to_owned(), measured),
        esc(&figure(f)),
        esc(&bar(f)),
        held(f)
    )
}

/// Returns the table cell of a series: the median, and below it the spread and the name.
fn measured(s: &Series) -> String {
    let range = if s.values.len() > 1 { format!("<small>{}</small>", spread(s.spread)) } else { String::new() };
    format!("{}{range}<small class=\"name\">{}</small>", esc(&value(s.median, &s.unit)), esc(&s.name))
}

/// Returns the details of a finding that the table cannot show: the single values, the distance to the bar, and the
/// note.
fn card(f: &Finding) -> String {
    let drawings = format!("{}{}", bullet(f), strips(f));
    let note = f
        .note
        .as_deref()
        .map_or(String::new(), |n| format!("<p class=\"note\"><strong>Note:</strong> {}</p>\n", esc(n)));
    if drawings.is_empty() && note.is_empty() {
        return String::new();
    }
    let verdict = if counts(f) { format!(" {} · bar {}", held(f), esc(&bar(f))) } else { String::new() };
    format!(
        "<article{}>\n<h3>{} · {}</h3>\n<p><strong>{}</strong>{verdict}</p>\n{drawings}{note}</article>\n",
        miss_class(f),
        esc(&f.id),
        esc(&f.what),
        esc(&figure(f))
    )
}

fn bullet(f: &Finding) -> String {
    let Some(goal) = f.bar else { return String::new() };
    let name = if f.against.is_some() { "ratio" } else { "figure" };
    let label = format!("{name} {}, bar {}, {}", figure(f), bar(f), held_word(f));
    svg::bullet(f.figure, goal, (name, &format!("bar {}", bar(f))), &label)
}

/// Draws the series on one scale if their units are equal. A single value is already in the table.
fn strips(f: &Finding) -> String {
    let rows: Vec<(&str, &Series)> =
        [("ours", &f.ours)].into_iter().chain(f.against.as_ref().map(|a| ("against", a))).collect();
    if rows.iter().all(|(_, s)| s.values.len() < 2) {
        return String::new();
    }
    let legend: String = rows
        .iter()
        .enumerate()
        .map(|(i, (name, s))| format!("<li>{}{name}: {}</li>", chart::key(i), esc(&series_text(s))))
        .collect();
    let label = |rows: &[(&str, &Series)]| {
        rows.iter().map(|(name, s)| format!("{name}: {}", series_text(s))).collect::<Vec<_>>().join("; ")
    };
    let same_unit = rows.iter().all(|(_, s)| s.unit == f.ours.unit);
    let groups: Vec<&[(&str, &Series)]> = if same_unit { vec![&rows] } else { rows.chunks(1).collect() };
    let plots: String = groups.iter().map(|group| svg::strips(group, &label(group))).collect();
    format!("<ul class=\"legend\">{legend}</ul>\n{plots}")
}

fn series_text(s: &Series) -> String {
    match s.values.len() {
        0 | 1 => format!("{}, {}", s.name, value(s.median, &s.unit)),
        n => format!("{}, median {} of {n} ({})", s.name, value(s.median, &s.unit), spread(s.spread)),
    }
}

fn chart_card(chart: &Chart) -> String {
    let legend: String = chart
        .lines
        .iter()
        .enumerate()
        .map(|(i, (name, _))| format!("<li>{}{}</li>", chart::key(i), esc(name)))
        .collect();
    let legend = if legend.is_empty() { legend } else { format!("<ul class=\"legend\">{legend}</ul>\n") };
    let told: Vec<_> = chart.lines.iter().map(|(name, points)| line_text(name, points)).collect();
    let label = format!("{}: {} over {}. {}", chart.title, chart.y, chart.x, told.join("; "));
    format!(
        "<article>\n<h3>{}</h3>\n{legend}<p class=\"quiet\">{}</p>\n{}\n<p class=\"quiet n\">{}</p>\n{}</article>\n",
        esc(&chart.title),
        esc(&chart.y),
        chart::lines(&chart.lines, &label),
        esc(&chart.x),
        chart_table(chart)
    )
}

fn line_text(name: &str, points: &[(f64, f64)]) -> String {
    match (points.first(), points.last()) {
        (Some(a), Some(b)) => {
            format!("{name}: from {} at {} to {} at {}", plain(a.1), plain(a.0), plain(b.1), plain(b.0))
        }
        _ => format!("{name}: no points"),
    }
}

/// Returns the chart as a table, for readers who cannot see it or want the numbers.
fn chart_table(chart: &Chart) -> String {
    let rows: String =
        chart.lines.iter().flat_map(|(name, points)| points.iter().map(move |p| (name, p))).map(point_row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = columns(&["Line", &format!("{}>", chart.x), &format!("{}>", chart.y)]);
    let table = scroll_table(&format!("Figures of {}", chart.title), "", &head, &rows);
    format!("<details><summary>As a table</summary>\n{table}</details>\n")
}

fn point_row((name, point): (&String, &(f64, f64))) -> String {
    format!(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        esc(name),
        plain(point.0),
        plain(point.1)
    )
}

/// Returns the column heads of a table. A name that ends with `>` makes a right-aligned column; the `>` is not shown.
fn columns(names: &[&str]) -> String {
    let column = |name: &&str| match name.strip_suffix('>') {
        Some(name) => format!(r#"<th scope="col" class="n">{}</th>"#, esc(name)),
        None => format!(r#"<th scope="col">{}</th>"#, esc(name)),
    };
    names.iter().map(column).collect()
}

/// A table that scrolls horizontally on a narrow page, also by keyboard.
fn scroll_table(label: &str, class: &str, head: &str, rows: &str) -> String {
    let label = esc(label);
    format!(
        "<div class=\"scroll\" role=\"region\" aria-label=\"{label}\" tabindex=\"0\">\n<table class=\"{class}\">\n\
         <thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}

fn figure(f: &Finding) -> String {
    let text = if f.against.is_some() { ratio(f.figure) } else { plain(f.figure) };
    let text = match f.bar {
        Some(Threshold::AtLeast(goal) | Threshold::AtMost(goal)) => told_apart(text, f.figure, goal),
        None => text,
    };
    chart::with_unit(text, f.figure, unit(f))
}

fn bar(f: &Finding) -> String {
    match f.bar {
        Some(Threshold::AtLeast(goal)) => format!("≥\u{a0}{}", exact(goal, unit(f))),
        Some(Threshold::AtMost(goal)) => format!("≤\u{a0}{}", exact(goal, unit(f))),
        None => "–".to_owned(),
    }
}

/// Returns the unit of the figure and its bar. A ratio has no unit.
fn unit(f: &Finding) -> &str {
    if f.against.is_some() { "" } else { &f.ours.unit }
}

fn held_word(f: &Finding) -> &'static str {
    match f.held {
        Some(true) => "✓ held",
        Some(false) => "✗ missed",
        None => "? not judged",
    }
}

fn held(f: &Finding) -> String {
    let class = match f.held {
        Some(true) => "held",
        Some(false) => "missed",
        None if f.bar.is_none() => return "–".to_owned(),
        None => "unknown",
    };
    format!(r#"<span class="{class}">{}</span>"#, held_word(f))
}

fn miss_class(f: &Finding) -> &'static str {
    if f.held == Some(false) { r#" class="miss""# } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Machine;

    fn series(name: &str, unit: &str, values: &[f64]) -> Series {
        let median = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
        let spread = (values.first().copied().unwrap_or(f64::NAN), values.last().copied().unwrap_or(f64::NAN));
        Series { name: name.into(), unit: unit.into(), values: values.to_vec(), median, spread }
    }

    fn finding(id: &str, figure: f64, bar: Option<Threshold>, held: Option<bool>) -> Finding {
        let (ours, against) =
            (series("engine", "/s", &[39_000.0, 41_000.0, 44_000.0]), series("bare", "/s", &[48_000.0, 50_000.0]));
        Finding {
            id: id.into(),
            what: format!("what {id} is"),
            ours,
            against: Some(against),
            figure,
            bar,
            held,
            note: None,
        }
    }

    fn report(findings: Vec<Finding>, charts: Vec<Chart>) -> Report {
        let machine = Machine { cores: 2, memory_mib: 24_576, cpu: "CPU".into(), system: "Linux".into() };
        let suite =
            Suite { name: "drain".into(), about: "Drains.".into(), seconds: 83.0, findings, charts, problem: None };
        Report {
            version: "0.1.0".into(),
            started_at: "2026-01-01T00:00:00Z".into(),
            command: "postcommit bench".into(),
            rounds: 3,
            scale: 1.0,
            machine,
            database: "PostgreSQL 15".into(),
            peers: vec![Peer {
                name: "peer".into(),
                version: "1".into(),
                settings: "2 processes".into(),
                problem: None,
            }],
            suites: vec![suite],
            problems: vec![],
        }
    }

    /// Returns the page, and checks that all tags are balanced and that no invalid number is drawn.
    fn sound(report: &Report) -> String {
        let page = page(report);
        let body = page.split_once("</style>").unwrap().1;
        assert!(!body.contains("NaN") && !body.contains("inf%"), "{body}");
        let mut open = Vec::new();
        for tag in body.split('<').skip(1).map(|rest| rest.split_once('>').expect("a tag ends").0) {
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            match tag.strip_prefix('/') {
                Some(name) if ["head", "html"].contains(&name) => {
                    assert!(open.is_empty(), "{name} closes before {open:?}");
                }
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split_whitespace().next().unwrap_or_default()),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        page
    }

    fn chart(points: &[(f64, f64)]) -> Chart {
        Chart {
            title: "Over time".into(),
            x: "seconds".into(),
            y: "drained/s".into(),
            lines: vec![("ours".into(), points.to_vec())],
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(esc("<a href=\"x\" id='y'>&\0"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;\u{fffd}");
    }

    #[test]
    fn names_and_texts_never_become_markup() {
        let evil = || "\"'><script>alert(1)</script>".to_owned();
        let mut f = finding("P1", 1.0, Some(Threshold::AtLeast(2.0)), Some(false));
        (f.id, f.what, f.note) = (evil(), evil(), Some(evil()));
        (f.ours.name, f.ours.unit) = (evil(), evil());
        let mut g = finding("P2", 1.0, Some(Threshold::AtLeast(2.0)), Some(false));
        (g.ours.unit, g.against) = (evil(), None);
        let mut r = report(
            vec![f, g],
            vec![Chart { title: evil(), x: evil(), y: evil(), lines: vec![(evil(), vec![(0.0, 1.0)])] }],
        );
        (r.version, r.started_at, r.command, r.database) = (evil(), evil(), evil(), evil());
        r.machine = Machine { cores: 1, memory_mib: 1, cpu: evil(), system: evil() };
        r.peers = vec![Peer { name: evil(), version: evil(), settings: evil(), problem: Some(evil()) }];
        (r.suites[0].name, r.suites[0].about, r.suites[0].problem) = (evil(), evil(), Some(evil()));
        r.problems = vec![evil()];
        assert!(!sound(&r).contains("<script"));
    }

    #[test]
    fn a_missed_bar_is_named_in_words() {
        let mut missed = finding("P8", 0.798, Some(Threshold::AtLeast(0.8)), Some(false));
        missed.note = Some("the doorbell's lock".into());
        let page = sound(&report(vec![finding("P1", 0.83, Some(Threshold::AtLeast(0.6)), Some(true)), missed], vec![]));
        assert!(page.contains("<strong>1 of 2 bars hold</strong>"));
        assert!(page.contains("✗ missed:</span> P8"));
        let heads = r#"<th scope="col" class="n">Bar</th><th scope="col">Held</th>"#;
        assert_eq!(page.matches(heads).count(), 2, "in the summary and in the suite's table");
        assert!(page.contains(r#"<span class="missed">✗ missed</span>"#));
        assert!(page.contains("0.798") && page.contains("≥\u{a0}0.8"));
        assert_eq!(page.matches("the doorbell&#39;s lock").count(), 2);
    }

    #[test]
    fn an_unjudged_bar_is_not_held() {
        let page = sound(&report(vec![finding("P5", f64::NAN, Some(Threshold::AtMost(1.0)), None)], vec![]));
        assert!(page.contains("0 of 1 bar holds") && page.contains("? not judged:</span> P5"));
    }

    #[test]
    fn a_suite_that_failed_says_why() {
        let mut failed = report(vec![], vec![]);
        failed.suites[0].problem = Some("no room".into());
        let page = sound(&failed);
        assert!(page.contains("✗ failed:</span> drain: no room") && page.contains("✗ not measured:</span> no room"));
    }

    #[test]
    fn an_empty_report_is_a_page() {
        let mut empty = report(vec![], vec![]);
        assert!(sound(&empty).contains("No bars were measured"));
        empty.suites.clear();
        empty.peers.clear();
        sound(&empty);
    }

    #[test]
    fn unusual_numbers_do_not_break_the_page() {
        for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 0.0, -1.0] {
            let mut alone = finding("P13", v, Some(Threshold::AtMost(v)), Some(true));
            (alone.ours, alone.against) = (series("size", "MB", &[v]), None);
            let mut pair = finding("P5", v, Some(Threshold::AtLeast(1.0)), Some(false));
            (pair.ours, pair.against) = (series("p50", "ms", &[v, 1.0]), Some(series("p50", "ms", &[])));
            let mut odd =
                report(vec![alone, pair], vec![chart(&[(v, v), (1.0, v), (v, 1.0)]), chart(&[(v, 1.0)]), chart(&[])]);
            odd.suites[0].seconds = v;
            sound(&odd);
        }
    }

    #[test]
    fn series_of_different_units_do_not_share_a_scale() {
        let mut f = finding("x", 1.0, None, None);
        assert_eq!(strips(&f).matches("role=\"img\"").count(), 1);
        f.ours.unit = "ms".into();
        assert_eq!(strips(&f).matches("role=\"img\"").count(), 2);
        (f.ours.values, f.against) = (vec![1.0], None);
        assert_eq!(strips(&f), "");
    }
}
