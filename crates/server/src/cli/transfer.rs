//! Import and export of users, members of lists and suppressions, as CSV and JSONL.
//!
//! An import continues after a refused line: it names the line and the field on stderr, and ends with exit code 7.
//! Importing the same file again changes nothing.

pub mod members;
pub mod suppressions;
pub mod users;

use std::collections::HashSet;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};

use clap::Args;
use futures_util::stream::{self, StreamExt};
use postcommit_engine::store::EditError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::table_file::{self, FileFormat, Line, Record};
use crate::telemetry::say;

/// The number of rows that an export reads per query.
const PAGE: i64 = 500;
/// The number of lines of a file that are written concurrently.
const CONCURRENT: usize = 16;
/// The maximum number of refused lines that are named. Further lines are only counted.
const NAMED: u64 = 100;

/// The file of an import.
#[derive(Debug, Args)]
pub struct Source {
    /// File to import; - reads stdin
    file: String,
    /// Format of the file [default: from the extension of the file name]
    #[arg(long, value_enum)]
    format: Option<FileFormat>,
    /// Check every line and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// The options of an export. The export is written to stdout.
#[derive(Debug, Args)]
pub struct Target {
    /// Format of the export
    #[arg(long, value_enum, default_value = "csv")]
    format: FileFormat,
}

/// An import into a tenant.
#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(flatten)]
    pub source: Source,
    /// Tenant to import into
    #[arg(long, default_value = "default")]
    pub tenant: String,
}

/// An export of a tenant.
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub target: Target,
    /// Tenant to export from
    #[arg(long, default_value = "default")]
    pub tenant: String,
}

/// The counts of an import.
#[derive(Debug, Default, Serialize)]
struct Imported {
    lines: u64,
    created: u64,
    changed: u64,
    unchanged: u64,
    refused: u64,
    dry_run: bool,
}

/// The result of one line.
enum Outcome {
    Created,
    Changed,
    Unchanged,
}

impl Imported {
    fn note(&mut self, line: u64, outcome: Result<Outcome, String>) {
        self.lines += 1;
        match outcome {
            Ok(Outcome::Created) => self.created += 1,
            Ok(Outcome::Changed) => self.changed += 1,
            Ok(Outcome::Unchanged) => self.unchanged += 1,
            Err(problem) => {
                self.refused += 1;
                if self.refused <= NAMED {
                    say!("line {line}: {problem}");
                }
            }
        }
        if self.lines.is_multiple_of(1000) && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K{} lines, {} refused", self.lines, self.refused);
        }
    }

    fn print(&self, format: Format) -> CommandResult {
        if std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        if self.refused > NAMED {
            say!("{} more lines were refused", self.refused - NAMED);
        }
        output::one(format, self, |all| {
            let done = if all.dry_run { ", nothing was written" } else { "" };
            format!(
                "{} lines: {} created, {} changed, {} unchanged, {} refused{done}",
                all.lines, all.created, all.changed, all.unchanged, all.refused
            )
        });
        Ok(if self.refused == 0 { Exit::Ok } else { Exit::Partly })
    }
}

impl Source {
    fn lines(&self, columns: &[&str]) -> Result<Box<dyn Iterator<Item = Line>>, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let format = FileFormat::of(&self.file, self.format).map_err(usage)?;
        let file: Box<dyn Read> = match self.file.as_str() {
            "-" => Box::new(std::io::stdin()),
            path => Box::new(File::open(path).map_err(|problem| usage(format!("{path}: {problem}")))?),
        };
        table_file::read(file, format, columns).map_err(|problem| usage(format!("{}: {problem}", self.file)))
    }

    /// Imports each line separately, several of them concurrently. Lines with the same key keep their order.
    async fn import<T, F>(
        &self,
        format: Format,
        columns: &[&str],
        key: fn(&T) -> String,
        write: impl Fn(T) -> F,
    ) -> CommandResult
    where
        T: DeserializeOwned,
        F: Future<Output = Result<Outcome, EditError>>,
    {
        let mut done = Imported { dry_run: self.dry_run, ..Imported::default() };
        let mut batch: Vec<(u64, T)> = vec![];
        let mut keys = HashSet::new();
        let mut lines = self.lines(columns)?;
        loop {
            let next = lines.next().map(|(line, record)| (line, record.and_then(typed::<T>)));
            // Write the batch before a refused line, so that results are printed in file order, and before a line whose
            // key is in the batch.
            let waits = match &next {
                Some((_, Ok(one))) => keys.contains(&key(one)),
                None | Some((_, Err(_))) => true,
            };
            if waits || batch.len() >= CONCURRENT {
                write_all(&mut done, &mut batch, &write).await?;
                keys.clear();
            }
            match next {
                None => break,
                Some((line, Err(problem))) => done.note(line, Err(problem)),
                Some((line, Ok(one))) => {
                    keys.insert(key(&one));
                    batch.push((line, one));
                }
            }
        }
        done.print(format)
    }
}

/// Writes lines concurrently. If the database cannot be reached, the import ends.
async fn write_all<T, F>(done: &mut Imported, batch: &mut Vec<(u64, T)>, write: &impl Fn(T) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<Outcome, EditError>>,
{
    let written: Vec<(u64, Result<Outcome, EditError>)> = stream::iter(batch.drain(..))
        .map(|(line, one)| {
            let written = write(one);
            async move { (line, written.await) }
        })
        .buffered(CONCURRENT)
        .collect()
        .await;
    for (line, outcome) in written {
        match outcome {
            Err(EditError::Database(problem)) => {
                say!("line {line}: not written; {} lines before it are done", done.lines);
                return Err(problem.into());
            }
            outcome => done.note(line, outcome.map_err(|problem| problem.to_string())),
        }
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(record: Record) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(record)).map_err(|problem| match problem.path().to_string() {
        path if path == "." => problem.inner().to_string(),
        path => format!("{path}: {}", problem.inner()),
    })
}
