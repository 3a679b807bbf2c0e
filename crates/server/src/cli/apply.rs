//! The command `postcommit apply`: changes the configuration of a tenant so that it matches a folder of files.

use std::borrow::Borrow;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::acting;
use super::providers::egress;
use super::templates::say_warnings;
use crate::app;
use crate::folder::{Action, Difference, Kind, Rehearsal, State, Stored};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::Workshop;
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Apply {
    /// Folder, in the form that `postcommit export` writes
    #[arg(short = 'f', long = "folder", value_name = "DIR")]
    folder: PathBuf,
    /// Tenant to change
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Show the differences and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete event types, layouts, partials, lists, providers and templates that have no file, but only of the kinds
    /// that have a subfolder
    #[arg(long)]
    prune: bool,
    /// Do not ask for confirmation before --prune deletes
    #[arg(short, long)]
    yes: bool,
}

impl Apply {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let wanted = State::read(&self.folder).map_err(|problem| Failure::new(Exit::Usage, problem))?;
        let store = acting(settings).await?;
        let tenant = match self.dry_run {
            true => super::known_tenant(&store, &self.tenant).await?,
            false => store.tenant_or_new(&self.tenant).await?,
        };
        let (keys, egress) = (app::keys(settings), egress(settings)?);
        let (is_local, new_key) = (true, false);
        let workshop =
            Workshop { store: &store, installation: store.clone(), keys: &keys, egress: &egress, is_local, new_key };
        let stored = Stored { store: &store, tenant, workshop };
        let present = stored.read().await?;
        let mut differences = present.differences(&wanted, self.prune);
        if self.dry_run {
            let mut rehearsal = Rehearsal::new(&stored, &present).await?;
            let rehearse = async |one: &Difference| rehearse_one(&mut rehearsal, &wanted, one).await;
            let result = make(&differences, &mut vec![], rehearse).await;
            // A dry run cannot compare secrets, so it does not print an update that may set nothing but secrets.
            differences.retain(|difference| difference.action != Action::Update || !difference.fields.is_empty());
            print(format, &differences);
            return result.map(|()| Exit::Ok);
        }
        self.agree(&differences)?;
        let mut made = Vec::new();
        let make_one = async |one: &Difference| make_one(&stored, &wanted, one).await;
        let result = make(&differences, &mut made, make_one).await;
        // If a change failed and none was made, do not print "no differences".
        if result.is_ok() || !made.is_empty() || format != Format::Text {
            print(format, &made);
        }
        match result {
            Err(failure) if !made.is_empty() => {
                say!("the changes above were made before the error and are kept");
                Err(failure)
            }
            Err(failure) => Err(failure),
            Ok(()) => Ok(Exit::Ok),
        }
    }

    /// Lists the objects that will be removed, and asks for confirmation.
    fn agree(&self, differences: &[Difference]) -> Result<(), Failure> {
        let removed: Vec<_> = differences.iter().filter(|one| one.action == Action::Delete).map(removal).collect();
        if removed.is_empty() {
            return Ok(());
        }
        say!("{}", output::harmless(&format!("to be removed:\n  {}", removed.join("\n  "))));
        match self.yes {
            true => Ok(()),
            false => super::confirm(&format!("{} will be removed", removed.len()), " (--dry-run shows all changes)"),
        }
    }
}

/// Makes the changes, one kind of objects after the other. A failed change is tried again as long as another change of
/// the same kind succeeds, because it may depend on that change: a layout needs its partials.
async fn make<'a>(
    differences: &'a [Difference],
    made: &mut Vec<&'a Difference>,
    mut make_one: impl AsyncFnMut(&Difference) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut left: Vec<_> = differences.iter().collect();
    while !left.is_empty() {
        let step = (left[0].kind, left[0].action == Action::Delete);
        let (mut now, later): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|one| (one.kind, one.action == Action::Delete) == step);
        while !now.is_empty() {
            let (before, mut failed, mut problems) = (now.len(), Vec::new(), Vec::new());
            for difference in now {
                match make_one(difference).await {
                    Ok(true) => made.push(difference),
                    Ok(false) => {}
                    Err(failure) => {
                        failed.push(difference);
                        problems.push(failure);
                    }
                }
            }
            if failed.len() == before {
                let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
                return Err(Failure::new(problems[0].exit(), all.join("\n")));
            }
            now = failed;
        }
        left = later;
    }
    Ok(())
}

async fn make_one(stored: &Stored<'_>, wanted: &State, difference: &Difference) -> Result<bool, Failure> {
    let Difference { kind, name, action, .. } = difference;
    let named = |failure: Failure| placed(wanted, difference, &failure);
    let Some(object) = wanted.object(*kind, name).filter(|_| *action != Action::Delete) else {
        return stored.delete(*kind, name).await.map(|()| true).map_err(named);
    };
    let (is_changed, warnings) = stored.put(*kind, name, object, *action == Action::Create).await.map_err(named)?;
    say_warnings(name, &warnings);
    Ok(is_changed)
}

/// Performs [`make_one`] in memory, for a dry run.
async fn rehearse_one(rehearsal: &mut Rehearsal<'_>, wanted: &State, difference: &Difference) -> Result<bool, Failure> {
    let Difference { kind, name, action, .. } = difference;
    let named = |failure: Failure| placed(wanted, difference, &failure);
    let Some(object) = wanted.object(*kind, name).filter(|_| *action != Action::Delete) else {
        return rehearsal.delete(*kind, name).await.map(|()| true).map_err(named);
    };
    let warnings = rehearsal.put(*kind, name, object, *action == Action::Create).await.map_err(named)?;
    say_warnings(name, &warnings);
    Ok(true)
}

/// Adds the file, the kind and the name of the object to an error.
fn placed(wanted: &State, difference: &Difference, failure: &Failure) -> Failure {
    let Difference { kind, name, action, .. } = difference;
    let problem = failure.to_string();
    let file = wanted.file(*kind, name, &problem).filter(|_| *action != Action::Delete);
    let file = file.map(|file| format!("{}: ", file.display())).unwrap_or_default();
    Failure::new(failure.exit(), format!("{file}{} {name}: {problem}", kind.name()))
}

/// Describes an object that is removed, and the effect of the removal.
fn removal(difference: &Difference) -> String {
    let Difference { kind, name, fields, .. } = difference;
    let is_active = fields.get("active").is_some_and(|active| active["from"] == true);
    let event_type = fields.get("event_type").and_then(|of| of["from"].as_str()).unwrap_or_default();
    let what = match kind {
        Kind::Template if is_active => {
            format!("active for {event_type}: it is deactivated and hidden, its versions stay")
        }
        Kind::Template => "not active: it is hidden, its versions stay".to_owned(),
        Kind::List => "with its members".to_owned(),
        Kind::EventType => "only its declaration".to_owned(),
        Kind::Layout | Kind::Provider | Kind::Content => String::new(),
    };
    format!("{} {name}{}{what}", kind.name(), if what.is_empty() { "" } else { ", " })
}

fn print<T: Borrow<Difference> + Serialize>(format: Format, differences: &[T]) {
    match format {
        Format::Text if differences.is_empty() => say!("no differences"),
        Format::Text => output::print(&output::harmless(&text(differences))),
        _ => output::list(format, differences, &[]),
    }
}

/// Formats the differences as text.
fn text<T: Borrow<Difference>>(differences: &[T]) -> String {
    let mut lines = Vec::new();
    for one in differences.iter().map(Borrow::borrow) {
        let Difference { kind, name, action, fields } = one;
        let action = match action {
            Action::Create => "create",
            Action::Update => "update",
            Action::Delete => {
                lines.push(format!("delete {}", removal(one)));
                continue;
            }
        };
        lines.push(match kind {
            Kind::Content => format!("{action} content settings"),
            _ => format!("{action} {} {name}", kind.name()),
        });
        for (field, values) in fields {
            lines.extend(difference(field, &values["from"], &values["to"]));
        }
    }
    lines.join("\n")
}

/// The lines of a field that differ, without the equal lines at the beginning and at the end.
fn difference(field: &str, from: &Value, to: &Value) -> Vec<String> {
    let written = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    };
    let (from, to) = (written(from), written(to));
    let (from, to): (Vec<&str>, Vec<&str>) = (from.lines().collect(), to.lines().collect());
    let begin = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let rest = from.len().min(to.len()) - begin;
    let end = from.iter().rev().zip(to.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let of = |sign: char, lines: &[&str]| -> Vec<String> {
        lines[begin..lines.len() - end].iter().map(|line| format!("    {sign} {line}")).collect()
    };
    [vec![format!("  {field}")], of('-', &from), of('+', &to)].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_shows_the_lines_that_differ() {
        let shown = difference("text", &json!("a\nb\nc\nd"), &json!("a\nx\nd"));
        assert_eq!(shown, ["  text", "    - b", "    - c", "    + x"]);
        assert_eq!(difference("active", &Value::Null, &json!(true)), ["  active", "    + true"]);
        assert_eq!(difference("text", &json!("a"), &json!("a\na")), ["  text", "    + a"]);
    }
}
