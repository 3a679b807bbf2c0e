//! CSV and JSONL files for import and export. A spreadsheet never reads a cell of an exported CSV file as a formula.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

/// The maximum number of bytes of one line or record.
const RECORD_BYTES: usize = 1024 * 1024;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FileFormat {
    /// Comma-separated values with a header
    Csv,
    /// One JSON object per line
    Jsonl,
}

impl FileFormat {
    /// The given format, or else the format from the extension of the file name.
    pub fn of(path: &str, given: Option<Self>) -> Result<Self, String> {
        let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or("");
        match (given, ending.to_ascii_lowercase().as_str()) {
            (Some(given), _) => Ok(given),
            (None, "csv") => Ok(Self::Csv),
            (None, "jsonl" | "ndjson") => Ok(Self::Jsonl),
            _ => Err(format!("{path}: the name does not end with .csv or .jsonl; name the format with --format")),
        }
    }
}

/// The fields of one record by name. In a CSV file every value is a string, and an empty cell is null.
pub type Record = Map<String, Value>;

/// The number of a line, and its record or its error.
pub type Line = (u64, Result<Record, String>);

/// Reads a file record by record. `columns` are the columns that a CSV file may have.
///
/// # Errors
/// The header of a CSV file is wrong. The error names the column.
pub fn read<'a>(
    file: impl Read + 'a,
    format: FileFormat,
    columns: &[&str],
) -> Result<Box<dyn Iterator<Item = Line> + 'a>, String> {
    match format {
        FileFormat::Csv => Ok(Box::new(csv_records(file, columns)?)),
        FileFormat::Jsonl => Ok(Box::new(json_lines(BufReader::new(file)))),
    }
}

fn csv_records<'a>(file: impl Read + 'a, columns: &[&str]) -> Result<impl Iterator<Item = Line> + 'a, String> {
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(file);
    let header = reader.headers().map_err(|problem| format!("line 1: {}", csv_problem(&problem)))?.clone();
    // Spreadsheets write a byte order mark before the first column.
    let names: Vec<String> = header.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
    if let Some(unknown) = names.iter().find(|name| !columns.contains(&name.as_str())) {
        return Err(format!("line 1: column {unknown:?} is unknown; allowed are {}", columns.join(", ")));
    }
    if let Some((_, twice)) = names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        return Err(format!("line 1: column {twice:?} is given twice; remove one of them"));
    }
    let mut line = 1;
    Ok(reader.into_records().map(move |record| {
        let record = record.map_err(|problem| {
            line = problem.position().map_or(line + 1, csv::Position::line);
            csv_problem(&problem)
        });
        let cells = record.and_then(|record| {
            line = record.position().map_or(line + 1, csv::Position::line);
            if record.as_slice().len() > RECORD_BYTES {
                return Err(too_long());
            }
            let cell = |text: &str| if text.is_empty() { Value::Null } else { without_guard(text).into() };
            Ok(names.iter().cloned().zip(record.iter().map(cell)).collect())
        });
        (line, cells)
    }))
}

fn csv_problem(problem: &csv::Error) -> String {
    match problem.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("has {len} fields; the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "is not UTF-8".into(),
        _ => problem.to_string(),
    }
}

fn too_long() -> String {
    format!("is longer than {RECORD_BYTES} bytes, which is the limit")
}

fn json_lines(mut file: impl BufRead) -> impl Iterator<Item = Line> {
    let mut line = 0;
    let mut is_over = false;
    std::iter::from_fn(move || {
        while !is_over {
            line += 1;
            let mut bytes = Vec::new();
            let read = file.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut bytes);
            match read {
                Err(problem) => {
                    is_over = true;
                    return Some((line, Err(problem.to_string())));
                }
                Ok(0) => is_over = true,
                // Reading stops here, because the beginning of the next record cannot be found.
                Ok(length) if length > RECORD_BYTES => {
                    is_over = true;
                    return Some((line, Err(format!("{}; the rest of the file is not read", too_long()))));
                }
                Ok(_) if bytes.trim_ascii().is_empty() => {}
                Ok(_) => return Some((line, object(&bytes))),
            }
        }
        None
    })
}

fn object(bytes: &[u8]) -> Result<Record, String> {
    serde_json::from_slice(bytes).map_err(|problem| format!("is not a JSON object: {problem}"))
}

/// Whether a cell with this first character needs a guard, because a spreadsheet reads it as a formula. A quote needs
/// it, too, because the guard itself is a quote.
fn is_risky(first: char) -> bool {
    // The last four are the full-width forms of `=`, `+`, `-` and `@`, which a spreadsheet may also read as a formula.
    matches!(first, '=' | '+' | '-' | '@' | '\t' | '\r' | '\'' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}')
}

/// Adds a quote before a cell that a spreadsheet would read as a formula.
fn guarded(cell: &str) -> String {
    if cell.starts_with(is_risky) { format!("'{cell}") } else { cell.to_owned() }
}

/// Removes the quote that [`guarded`] adds before a cell.
fn without_guard(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|rest| rest.starts_with(is_risky)).unwrap_or(cell)
}

/// One line of a CSV file, without its line break.
pub fn csv_line<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b'\n')).from_writer(vec![]);
    // Writing to memory cannot fail.
    let _ = writer.write_record(cells.into_iter().map(guarded));
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default().trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, format: FileFormat) -> Vec<Line> {
        read(text.as_bytes(), format, &["a", "b"]).unwrap().collect()
    }

    #[test]
    fn no_exported_cell_is_a_formula_and_every_cell_comes_back() {
        let cells = ["=1+1", "+919876543210", "-5", "@x", "\tx", "'quoted", "''", "plain", "a,b", "a\"b", "a\nb", ""];
        for cell in cells {
            let line = csv_line([cell, "x"]);
            let first = line.trim_start_matches('"').chars().next();
            assert!(!first.is_some_and(|first| first != '\'' && is_risky(first)), "{line}");
            let read = all(&format!("a,b\n{line}\n"), FileFormat::Csv);
            let back = read[0].1.as_ref().unwrap()["a"].as_str().unwrap_or("").to_owned();
            assert_eq!(back, cell, "{line}");
        }
        assert_eq!(all("a,b\n+91,'hello\n", FileFormat::Csv)[0].1.as_ref().unwrap()["b"], "'hello");
    }

    #[test]
    fn errors_have_the_number_of_their_line() {
        let lines = all("\u{feff}a,b\n1,2\n\"3\n3\",4\n5\n6,7\n", FileFormat::Csv);
        let said: Vec<(u64, Option<&str>)> =
            lines.iter().map(|(line, read)| (*line, read.as_ref().err().map(String::as_str))).collect();
        assert_eq!(said, [(2, None), (3, None), (5, Some("has 1 fields; the header has 2")), (6, None)]);
        let lines = all("{\"a\": 1}\n\nnonsense\n[1]\n{\"a\": 2}", FileFormat::Jsonl);
        let said: Vec<(u64, bool)> = lines.iter().map(|(line, read)| (*line, read.is_ok())).collect();
        assert_eq!(said, [(1, true), (3, false), (4, false), (5, true)]);
    }

    #[test]
    fn a_header_with_unknown_columns_is_refused() {
        let refused = |text: &str| read(text.as_bytes(), FileFormat::Csv, &["a", "b"]).err().unwrap();
        assert_eq!(refused("a,c\n1,2\n"), "line 1: column \"c\" is unknown; allowed are a, b");
        assert_eq!(refused("a,a\n1,2\n"), "line 1: column \"a\" is given twice; remove one of them");
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_file() {
        let text = format!("{{\"a\": \"{}\"}}\n{{}}\n", "x".repeat(RECORD_BYTES));
        let lines = all(&text, FileFormat::Jsonl);
        assert!(lines.len() == 1 && lines[0].1.as_ref().unwrap_err().starts_with("is longer than 1048576 bytes"));
    }

    #[test]
    fn the_format_follows_from_the_name() {
        assert_eq!(FileFormat::of("users.CSV", None), Ok(FileFormat::Csv));
        assert_eq!(FileFormat::of("users.jsonl", Some(FileFormat::Csv)), Ok(FileFormat::Csv));
        assert!(FileFormat::of("-", None).unwrap_err().contains("--format"));
    }
}
