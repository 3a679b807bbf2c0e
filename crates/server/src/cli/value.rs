//! The values of options: a text as it is, the text of a file or of stdin, and JSON.

use std::io::Read;

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::output::{Exit, Failure};

/// Returns the given text, the content of the file for `@FILE`, or the content of stdin for `-`.
pub fn read_text(given: &str) -> Result<String, String> {
    if let Some(path) = given.strip_prefix('@') {
        return std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    }
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut all = String::new();
    std::io::stdin().read_to_string(&mut all).map_err(|e| format!("stdin: {e}"))?;
    Ok(all)
}

/// JSON that is given as text, as `@FILE` or as `-` for stdin. `example` is a value of the option in JSON.
///
/// # Errors
/// Names the option, the position, the problem and how to write the value.
pub fn json<T: DeserializeOwned>(option: &str, example: &str, given: &str) -> Result<T, Failure> {
    let usage = |problem: String| Failure::new(Exit::Usage, format!("{option}: {problem}"));
    let text = read_text(given).map_err(usage)?;
    serde_json::from_str(&text).map_err(|error| usage(refused(given, &text, example, &error)))
}

fn refused(given: &str, text: &str, example: &str, error: &serde_json::Error) -> String {
    let problem = format!("{}{}", source(given), problem(text, error));
    let forms = format!("write JSON such as '{example}', @FILE to read a file, or - to read stdin");
    match quoting(text, example).filter(|_| source(given).is_empty()) {
        Some(hint) => format!("{problem}; {forms}. {hint}"),
        None => format!("{problem}; {forms}"),
    }
}

/// The source of the text, as a prefix for errors: the path, or `stdin`. Empty for a text on the command line.
fn source(given: &str) -> String {
    match given.strip_prefix('@') {
        Some(path) => format!("{path}: "),
        None if given == "-" => "stdin: ".to_owned(),
        None => String::new(),
    }
}

/// The problem of the text, with its line and column.
fn problem(text: &str, error: &serde_json::Error) -> String {
    if text.trim().is_empty() {
        return "is empty".to_owned();
    }
    let (line, column) = (error.line(), error.column());
    let told = error.to_string();
    let said = told.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&told);
    let said = said.replace("EOF while parsing", "the text ends within");
    match error.classify() {
        Category::Data => format!("line {line}, column {column}: {said}"),
        _ => format!("is not JSON: line {line}, column {column}: {said}"),
    }
}

/// A hint for a text whose quotes the shell seems to have changed. `None` for any other text.
fn quoting(text: &str, example: &str) -> Option<String> {
    let windows = format!("in cmd.exe and Windows PowerShell write \"{}\"", example.replace('"', "\\\""));
    if text.starts_with('\'') {
        return Some(format!(
            "The single quotes are a part of the text, because cmd.exe does not remove them: {windows}"
        ));
    }
    if text.contains("\\\"") {
        return Some("The text has \\\" where \" is meant: within single quotes leave out the backslash".to_owned());
    }
    let lacks_quotes = text.starts_with(['{', '[']) && !text.contains('"') && text.contains(char::is_alphabetic);
    lacks_quotes.then(|| format!("The text has no \": the shell may have removed them; {windows}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_names_the_place_and_the_form() {
        let said = |given: &str| json::<serde_json::Value>("--data", r#"{"room": 7}"#, given).unwrap_err().to_string();
        let forms = r#"; write JSON such as '{"room": 7}', @FILE to read a file, or - to read stdin"#;
        let windows = r#"in cmd.exe and Windows PowerShell write "{\"room\": 7}""#;
        for (given, problem, hint) in [
            ("", "is empty", String::new()),
            (r#"{"a": 1"#, "is not JSON: line 1, column 7: the text ends within an object", String::new()),
            ("{\n\"a\": x}", "is not JSON: line 2, column 6: expected value", String::new()),
            (
                "{room: 7}",
                "is not JSON: line 1, column 2: key must be a string",
                format!(". The text has no \": the shell may have removed them; {windows}"),
            ),
            (
                "'{room:",
                "is not JSON: line 1, column 1: expected value",
                format!(". The single quotes are a part of the text, because cmd.exe does not remove them: {windows}"),
            ),
            (
                r#"{\"room\": 7}"#,
                "is not JSON: line 1, column 2: key must be a string",
                r#". The text has \" where " is meant: within single quotes leave out the backslash"#.to_owned(),
            ),
        ] {
            assert_eq!(said(given), format!("--data: {problem}{forms}{hint}"));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{room: 7}").unwrap();
        let path = file.path().display().to_string();
        let expected = format!("--data: {path}: is not JSON: line 1, column 2: key must be a string{forms}");
        assert_eq!(said(&format!("@{path}")), expected);
        let wrong = json::<Vec<i32>>("--data", "[1]", r#"["a"]"#).unwrap_err().to_string();
        assert!(wrong.starts_with("--data: line 1, column 4: invalid type: string"), "{wrong}");
    }
}
