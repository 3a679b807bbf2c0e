//! The cost in instructions of the parts of the hot path that do no I/O. Valgrind counts them, with the same result on
//! a slow or busy machine.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The parts that `benches/instructions.rs` can run.
const PARTS: [&str; 5] = ["expand", "judge", "render", "classify", "sign"];

/// Two counts are subtracted, which cancels the cost of starting.
const FEW: u64 = 200;
const MANY: u64 = 1200;

/// A count above the table by more than this share fails. The count itself is stable; compilers and C libraries differ
/// a little.
const TOLERANCE: f64 = 0.10;

/// The C library chooses its copy and compare functions by the processor. This setting makes the choice the same
/// everywhere.
const PLAIN_PROCESSOR: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM,-RTM");

fn ran(what: &str, command: &mut Command) -> Output {
    let output = match command.output() {
        Ok(output) => output,
        Err(problem) if problem.kind() == ErrorKind::NotFound => {
            panic!("{what} is missing; ./scripts/test installs what the tests need (Debian's package: {what})")
        }
        Err(problem) => panic!("{what}: {problem}"),
    };
    assert!(output.status.success(), "{what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

/// Builds the program, optimised, in the target directory of the tests. With low priority, because other tests run in
/// the meantime.
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(cargo).args([
        "build",
        "--quiet",
        "--message-format",
        "json",
        "--profile",
        "instructions",
    ]);
    command.args(["--bench", "instructions", "--features", "bench-points", "--manifest-path"]).arg(manifest);
    let built = ran("coreutils", &mut command);
    let messages = String::from_utf8(built.stdout).unwrap();
    let program =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["executable"].as_str().map(PathBuf::from);
    messages.lines().find_map(program).expect("cargo tells where the program is")
}

fn count(program: &Path, part: &str, times: u64) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).args([part, &times.to_string()]);
    let counted = ran("valgrind", command.env(PLAIN_PROCESSOR.0, PLAIN_PROCESSOR.1));
    let told = String::from_utf8(counted.stderr).unwrap();
    let collected = told.lines().find_map(|line| line.split_once("Collected : "));
    collected
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("valgrind told no count: {told}"))
}

fn compiler() -> String {
    let output = ran("rustc", Command::new("rustc").arg("--version"));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The table that is checked in: comments, then lines of `architecture part instructions`.
struct Golden {
    path: PathBuf,
    head: String,
    rows: BTreeMap<(String, String), u64>,
}

impl Golden {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/instructions.golden");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let (head, rows): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        let row = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some(((words.next()?, words.next()?), words.next()?.parse().ok()?))
        };
        Self { path, head: head.join("\n"), rows: rows.into_iter().filter_map(row).collect() }
    }

    fn of(&self, part: &str) -> Option<u64> {
        self.rows.get(&(ARCH.to_owned(), part.to_owned())).copied()
    }

    fn renew(mut self, counted: &[(&str, u64)]) {
        self.rows.extend(counted.iter().map(|(part, count)| ((ARCH.to_owned(), (*part).to_owned()), *count)));
        let rows: String = self.rows.iter().map(|((arch, part), count)| format!("{arch} {part} {count}\n")).collect();
        let head = "# Instructions of one call of each part of the hot path, by architecture. To renew, and then to read what changed:\n\
            # UPDATE_GOLDEN=1 ./scripts/test --fast -p postcommit-channel instructions";
        std::fs::write(&self.path, format!("{head}\n# Counted with {}\n{rows}", compiler())).unwrap();
    }
}

#[test]
fn the_hot_path_takes_no_more_instructions_than_it_did() {
    let (program, golden) = (build(), Golden::read());
    let each = |part| (part, (count(&program, part, MANY) - count(&program, part, FEW)) / (MANY - FEW));
    let counted = PARTS.map(each);
    println!("{:<10} {:>10} {:>10}  instructions of one call", "", "table", "now");
    let mut worse = Vec::new();
    for (part, now) in counted {
        let then = golden.of(part);
        println!("{part:<10} {:>10} {now:>10}", then.map_or("none".into(), |then| then.to_string()));
        if then.is_none_or(|then| now as f64 > then as f64 * (1.0 + TOLERANCE)) {
            worse.push(format!("{part}: {now}, the table says {then:?}"));
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return golden.renew(&counted);
    }
    assert!(
        worse.is_empty(),
        "more than 10 % above tests/it/instructions.golden: {worse:?}. If it is worth it, run this test with UPDATE_GOLDEN=1; so too if only the compiler \
         is another one: {} here, and there {:?}",
        compiler(),
        golden.head.lines().last()
    );
}
