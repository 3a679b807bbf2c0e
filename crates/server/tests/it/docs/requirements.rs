//! docs/requirements.md names every test that carries the number of a requirement, under that requirement, and no other.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/requirements.md";

/// The requirements: A1 to A11 and so on.
const ROWS: [(char, usize); 5] = [('A', 11), ('B', 15), ('C', 16), ('D', 8), ('E', 15)];

/// What the page says of a requirement that no test shows.
const NOT_BUILT: &str = "Not built yet";

const DATABASES: [&str; 4] = ["both", "SQLite", "PostgreSQL", "neither"];

/// The macros that run each of their tests on both databases.
const ON_BOTH: [&str; 2] = ["on_both!", "on_every_adapter!"];

/// A test that carries the number of a requirement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    /// The crate's folder, the modules and the function.
    path: String,
    /// Whether it stands in one of `ON_BOTH`.
    on_both: bool,
}

impl Shown {
    fn rows(&self) -> Vec<String> {
        self.path.rsplit("::").next().map(rows_of).unwrap_or_default()
    }
}

/// The requirements of which a test's name carries the numbers: `e3_and_e13_the_status` shows E3 and E13.
fn rows_of(name: &str) -> Vec<String> {
    let is_row = |word: &&str| {
        let (letter, number) = word.split_at(word.len().min(1));
        matches!(letter, "a" | "b" | "c" | "d" | "e") && number.parse::<usize>().is_ok()
    };
    let words = name.split('_').take_while(|word| is_row(word) || *word == "and");
    words.filter(is_row).map(str::to_uppercase).collect()
}

/// The tests of a source file whose names carry a number.
fn tests_in(module: &str, source: &str) -> Vec<Shown> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut found, mut block, mut marked) = (Vec::new(), None, false);
    for line in source.lines() {
        let function = line.trim_start().trim_start_matches("pub ").trim_start_matches("async ").strip_prefix("fn ");
        let function = function.and_then(|rest| rest.split(|c| !is_name(c)).next());
        if let Some(rest) = ON_BOTH.iter().find_map(|name| line.strip_prefix(name)) {
            block = rest.trim_start().chars().next();
        }
        let names: Vec<&str> = match block {
            // The names alone: their functions stand elsewhere.
            Some('(') => line.split(|c| !is_name(c)).collect(),
            // The functions themselves.
            Some(_) => function.filter(|_| !line.starts_with("     ")).into_iter().collect(),
            None => function.filter(|_| marked).into_iter().collect(),
        };
        let shown = names.into_iter().filter(|name| !rows_of(name).is_empty());
        found.extend(shown.map(|name| Shown { path: format!("{module}::{name}"), on_both: block.is_some() }));
        if line.starts_with('}') || line.ends_with(");") && !line.starts_with(' ') {
            block = None;
        }
        let line = line.trim_start();
        marked = line.starts_with("#[test]") || line.starts_with("#[tokio::test") || marked && function.is_none();
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `engine::it::dispatch` for `engine/tests/it/dispatch.rs`, and `channel::model::policy` for `channel/src/model/policy.rs`.
fn module(path: &Path) -> String {
    let path = path.with_extension("");
    let parts = path.iter().map(|part| part.to_str().unwrap()).enumerate();
    // Without the folder `src` or `tests` of the crate.
    let kept = parts.filter(|(at, part)| *at != 1 && !["main", "lib"].contains(part));
    kept.map(|(_, part)| part).collect::<Vec<_>>().join("::")
}

/// All tests of the crates whose names carry a number.
fn tests_of_the_crates() -> Vec<Shown> {
    let crates = root().join("crates");
    let folders = std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path());
    let mut open: Vec<PathBuf> = folders.flat_map(|path| [path.join("src"), path.join("tests")]).collect();
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                found.extend(tests_in(&module(path.strip_prefix(&crates).unwrap()), &source));
            }
        }
    }
    found.sort();
    found
}

/// The line of the page for a test. `databases` is `?` where neither the source nor the page says it.
fn line_of(path: &str, databases: &str) -> String {
    format!("| | `{path}` | {databases} |")
}

/// The test and its databases in a line of the page.
fn read_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("| | `")?.strip_suffix(" |")?.split_once("` | ")
}

/// The requirement that a line of the page begins.
fn read_row(line: &str) -> Option<&str> {
    Some(line.strip_prefix("| **")?.split_once("** | ")?.0)
}

/// The page with the tests that there are. What a person wrote stays: the sentences, and the databases of tests outside
/// `ON_BOTH`.
fn written(page: &str, tests: &[Shown]) -> String {
    let said = |path: &str| page.lines().filter_map(read_line).find(|(of, _)| *of == path).map_or("?", |(_, on)| on);
    let mut whole = String::new();
    for line in page.lines().filter(|line| read_line(line).is_none()) {
        writeln!(whole, "{line}").unwrap();
        let Some(row) = read_row(line) else { continue };
        for test in tests.iter().filter(|test| test.rows().iter().any(|of| of == row)) {
            let databases = if test.on_both { "both" } else { said(&test.path) };
            writeln!(whole, "{}", line_of(&test.path, databases)).unwrap();
        }
    }
    whole
}

/// The lines of tests, each with its requirement.
fn test_lines(page: &str) -> BTreeSet<(&str, &str)> {
    let mut row = "no requirement";
    let mut lines = BTreeSet::new();
    for line in page.lines() {
        row = read_row(line).unwrap_or(row);
        lines.extend(read_line(line).map(|_| (row, line)));
    }
    lines
}

/// What a person has to change so that each requirement stands on the page once, and each number is one of a requirement.
fn about_rows(page: &str, tests: &[Shown]) -> Vec<String> {
    let rows: Vec<String> = ROWS.iter().flat_map(|(letter, n)| (1..=*n).map(move |i| format!("{letter}{i}"))).collect();
    let there: Vec<&str> = page.lines().filter_map(read_row).collect();
    let mut all = Vec::new();
    for row in &rows {
        let times = there.iter().filter(|of| *of == row).count();
        if times != 1 {
            all.push(format!("{row} stands on the page {times} times: it needs one line `| **{row}** | **…** | |`"));
        }
    }
    let unknown = there.iter().filter(|of| !rows.iter().any(|row| row == *of));
    all.extend(unknown.map(|row| format!("remove the line of {row}: there is no such requirement")));
    for test in tests {
        let unknown = test.rows().into_iter().filter(|of| !rows.contains(of));
        all.extend(unknown.map(|row| format!("rename {}: there is no requirement {row}", test.path)));
    }
    all
}

/// What a person has to change so that the page says “not built yet” where no test shows a requirement, and only there.
fn about_claims(page: &str, lines: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let mut all = Vec::new();
    for line in page.lines() {
        let Some(row) = read_row(line) else { continue };
        let has_tests = lines.iter().any(|(of, _)| *of == row);
        if has_tests == line.contains(NOT_BUILT) {
            let but = if has_tests { "remove" } else { "no test carries its number: add a test, or write" };
            all.push(format!("{row}: {but} “{NOT_BUILT}”"));
        }
    }
    all
}

/// What a person has to change on the page.
fn complaints(page: &str, tests: &[Shown]) -> Vec<String> {
    let mut all = about_rows(page, tests);
    let right = written(page, tests);
    let (present, wanted) = (test_lines(page), test_lines(&right));
    all.extend(present.difference(&wanted).map(|(row, line)| format!("remove under {row}: {line}")));
    all.extend(wanted.difference(&present).map(|(row, line)| format!("add under {row}: {line}")));
    if all.is_empty() && right != page {
        all.push("a line of a test stands twice, or not in the order of the names".to_owned());
    }
    for (row, line) in &wanted {
        let databases = read_line(line).map_or("", |(_, databases)| databases);
        if !DATABASES.contains(&databases) {
            all.push(format!("write the databases into a line under {row}, one of {}: {line}", DATABASES.join(", ")));
        }
    }
    all.extend(about_claims(page, &wanted));
    all
}

#[test]
fn every_numbered_test_is_on_the_page_of_requirements_and_every_test_there_exists() {
    let (file, tests) = (root().join(PAGE), tests_of_the_crates());
    assert!(tests.len() > 350, "only {} tests were found: has their form changed?", tests.len());
    let mut page = std::fs::read_to_string(&file).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        page = written(&page, &tests);
        std::fs::write(&file, &page).unwrap();
    }
    let found = complaints(&page, &tests);
    assert!(found.is_empty(), "{PAGE}; UPDATE_GOLDEN=1 adds and removes the lines of tests\n{}", found.join("\n"));
}

/// A page with every requirement, of which A1 and E3 have the test `tests`.
fn page_with(tests: &str) -> String {
    let mut page = String::new();
    for (letter, last) in ROWS {
        for number in 1..=last {
            let row = format!("{letter}{number}");
            let shown = row == "A1" || row == "E3";
            let (said, tests) = if shown { ("Works.", tests) } else { ("Not built yet.", "") };
            writeln!(page, "| **{row}** | **{said}** | |\n{tests}").unwrap();
        }
    }
    page.replace("\n\n", "\n")
}

#[test]
fn tests_are_found_in_every_form_in_which_they_are_written() {
    let source = "on_both! {\n    /// Why.\n    async fn a1_one(world) {\n        fn a2_inside() {}\n    }\n\n    fn other(kind) {}\n}\n\n\
        fn a3_helper() {}\n\n#[test]\n#[allow(x)]\nfn a4_e5_plain() {}\n\non_both!(a6_listed, other,\n    a7_below,\n);\n\n\
        mod check {\n    pub async fn a6_listed() {}\n    #[tokio::test(x)]\n    async fn b1_and_b2_deep() {}\n}\n";
    let found = tests_in("m", source);
    let names: Vec<(&str, bool)> = found.iter().map(|test| (test.path.as_str(), test.on_both)).collect();
    let plain = [("m::a4_e5_plain", false), ("m::b1_and_b2_deep", false)];
    assert_eq!(names, [("m::a1_one", true), plain[0], ("m::a6_listed", true), ("m::a7_below", true), plain[1]]);
    assert_eq!(rows_of("b1_and_b2_deep"), ["B1", "B2"]);
    assert_eq!(rows_of("a4_e5_plain"), ["A4", "E5"]);
    assert!(rows_of("e2e_x").is_empty() && rows_of("a_b1").is_empty());
    assert_eq!(module(Path::new("engine/tests/it/content/parts.rs")), "engine::it::content::parts");
    assert_eq!(module(Path::new("channel/src/template/tests.rs")), "channel::template::tests");
    assert_eq!(module(Path::new("server/tests/it/main.rs")), "server::it");
}

#[test]
fn a_difference_between_page_and_tests_names_the_line_to_change() {
    let test = |on_both| [Shown { path: "m::a1_e3_works".to_owned(), on_both }];
    let line = |databases| line_of("m::a1_e3_works", databases);
    let none: [String; 0] = [];
    assert_eq!(complaints(&page_with(&line("both")), &test(true)), none);
    assert_eq!(complaints(&page_with(&line("SQLite")), &test(false)), none);

    // The test is gone, is new, runs on other databases, or nobody has said on which.
    let gone = complaints(&page_with(&line("both")), &[]);
    assert_eq!(gone[..2], [format!("remove under A1: {}", line("both")), format!("remove under E3: {}", line("both"))]);
    assert!(gone[2].starts_with("A1: no test carries its number"), "{gone:?}");
    let new = complaints(&page_with(""), &test(true));
    assert_eq!(new, [format!("add under A1: {}", line("both")), format!("add under E3: {}", line("both"))]);
    let moved = complaints(&page_with(&line("SQLite")), &test(true));
    assert_eq!((moved.len(), &moved[0]), (4, &format!("remove under A1: {}", line("SQLite"))), "{moved:?}");
    let unsaid = complaints(&page_with(&line("?")), &test(false));
    assert_eq!(unsaid.len(), 2, "{unsaid:?}");
    assert!(unsaid[0].starts_with("write the databases into a line under A1, one of both"), "{unsaid:?}");

    // A line stands twice, a requirement is missing, stands twice or does not exist, or is built after all.
    let twice = complaints(&page_with(&format!("{0}\n{0}", line("both"))), &test(true));
    assert_eq!(twice, ["a line of a test stands twice, or not in the order of the names"]);
    let page = page_with(&line("both"));
    let missing = complaints(&page.replace("| **B2** | **Not built yet.** | |\n", ""), &test(true));
    assert_eq!(missing, ["B2 stands on the page 0 times: it needs one line `| **B2** | **…** | |`"]);
    let unknown = complaints(&page.replace("**B2**", "**B99**"), &test(true));
    assert_eq!((unknown.len(), unknown[1].as_str()), (2, "remove the line of B99: there is no such requirement"));
    let built = complaints(&page.replace("**Works.**", "**Not built yet.**"), &test(true));
    assert_eq!(built, ["A1: remove “Not built yet”", "E3: remove “Not built yet”"]);
    let numbered = [test(true)[0].clone(), Shown { path: "m::a99_x".to_owned(), on_both: true }];
    assert_eq!(complaints(&page, &numbered), ["rename m::a99_x: there is no requirement A99"]);
}
