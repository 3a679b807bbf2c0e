//! The recipes of an operator: the folder that is read at the start, `postcommit providers check` and
//! `postcommit providers drivers`.

use std::path::{Path, PathBuf};

use postcommit_channel::driver::{self, Field, FieldType, Kind, Recipe};
use serde::Serialize;
use serde_json::json;

use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::RecipesSettings;

/// The largest file of a recipe that is read, in bytes.
const FILE_BYTES: u64 = 1024 * 1024;

/// Adds the recipes of the folder to the drivers.
///
/// # Errors
/// The error of the first file that cannot be used. The recipes of all other files are added.
pub(super) fn load(settings: &RecipesSettings) -> Result<(), Failure> {
    if settings.folder.is_empty() {
        return Ok(());
    }
    let folder = Path::new(&settings.folder);
    let refused = |path: &Path, problem: String| Failure::new(Exit::Usage, format!("{}: {problem}", path.display()));
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries =
        entries.map_err(|e| Failure::new(Exit::Usage, format!("recipes.folder: {}: {e}", folder.display())))?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut first = Ok(());
    for path in files {
        let added = read(&path).and_then(driver::add_recipe).map_err(|problem| refused(&path, problem));
        first = first.and(added);
    }
    first
}

/// Checks files and prints what is wrong with each.
pub(super) fn check(format: Format, files: &[PathBuf]) -> CommandResult {
    let mut exit = Exit::Ok;
    for path in files {
        let name = path.display().to_string();
        let result = read(path).and_then(|recipe| match driver::kind(&recipe.name) {
            Ok(_) => Err(format!("name: another driver is named {:?}; choose another name", recipe.name)),
            Err(_) => Ok(recipe.name),
        });
        match result {
            Ok(recipe) => output::one(format, &json!({"file": name, "recipe": recipe, "valid": true}), |_| {
                format!("{name}: recipe {recipe} is valid")
            }),
            Err(problem) => {
                exit = Exit::Failed;
                output::one(format, &json!({"file": name, "valid": false, "problem": problem}), |_| {
                    format!("{name}: {problem}")
                });
            }
        }
    }
    Ok(exit)
}

fn read(path: &Path) -> Result<Recipe, String> {
    let about = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !about.is_file() || about.len() > FILE_BYTES {
        return Err(format!("is not a regular file of at most {FILE_BYTES} bytes; give the TOML file of a recipe"));
    }
    Recipe::read(&std::fs::read_to_string(path).map_err(|e| e.to_string())?)
}

/// A driver in a list.
#[derive(Serialize)]
struct Row {
    driver: String,
    channel: String,
    guarantee: &'static str,
    service: Option<String>,
}

/// Lists the drivers, or shows one.
pub(super) fn drivers(format: Format, name: Option<&str>) -> CommandResult {
    let find = |name: &str| driver::kind(name).map_err(|problem| Failure::new(Exit::Usage, problem));
    if let Some(name) = name {
        let kind = find(name)?;
        output::one(format, &described(&kind), |_| text(&kind));
        return Ok(Exit::Ok);
    }
    let row = |name: &String| {
        let kind = find(name)?;
        Ok(Row {
            driver: name.clone(),
            channel: kind.channel.clone().into_owned(),
            guarantee: kind.guarantee.name(),
            service: kind.recipe.as_ref().map(|recipe| recipe.title.clone()),
        })
    };
    let rows: Vec<Row> = driver::names().iter().map(row).collect::<Result<_, Failure>>()?;
    output::list(
        format,
        &rows,
        &[
            ("driver", |row: &Row| row.driver.clone()),
            ("channel", |row: &Row| row.channel.clone()),
            ("guarantee", |row: &Row| row.guarantee.to_owned()),
            ("service", |row: &Row| or_dash(&row.service)),
        ],
    );
    Ok(Exit::Ok)
}

/// A driver as JSON, with the settings, secrets and data of its recipe.
fn described(kind: &Kind) -> serde_json::Value {
    let Some(recipe) = &kind.recipe else {
        return json!({"driver": kind.name, "channel": kind.channel, "guarantee": kind.guarantee.name(), "secrets": kind.secrets});
    };
    json!({
        "driver": kind.name, "channel": kind.channel, "guarantee": kind.guarantee.name(), "service": recipe.title, "address": recipe.address,
        "because": recipe.because, "facts": recipe.facts, "rate_per_s": recipe.rate_per_s, "burst": recipe.burst,
        "settings": recipe.settings, "secrets": recipe.secrets, "data": recipe.data,
        "suppresses": recipe.suppressions().collect::<Vec<_>>(),
        "callbacks": kind.callback.as_ref().map(|callback| callback.help()),
    })
}

/// A driver as text.
fn text(kind: &Kind) -> String {
    let mut lines = vec![format!("{}: channel {}, {}", kind.name, kind.channel, kind.guarantee.name())];
    let Some(recipe) = &kind.recipe else {
        lines.push("its settings are described in docs/providers.md".into());
        return lines.join("\n");
    };
    lines[0] = format!(
        "{} ({}): channel {}, {}, because {}",
        kind.name,
        recipe.title,
        kind.channel,
        kind.guarantee.name(),
        recipe.because
    );
    lines.push(format!("  address  {}", recipe.address));
    let groups =
        [("--set", "=…", &recipe.settings), ("--secret", "=@FILE", &recipe.secrets), ("data", "", &recipe.data)];
    for (option, value, fields) in groups {
        lines.extend(fields.iter().map(|(name, field)| format!("  {option} {name}{value}  {}", about(field))));
    }
    let reasons: Vec<&str> = recipe.suppressions().collect();
    lines.extend((!reasons.is_empty()).then(|| format!("  suppresses an address: {}", reasons.join("; "))));
    lines.extend(kind.callback.as_ref().map(|callback| format!("  callbacks  {}", callback.help())));
    if !recipe.facts.is_empty() {
        lines.push(format!("  {}", recipe.facts));
    }
    lines.join("\n")
}

fn about(field: &Field) -> String {
    let mut text = field.help.clone();
    if field.r#type != FieldType::Text {
        text.push_str(&format!(" ({})", field.r#type.name()));
    }
    if !field.choices.is_empty() {
        let choices: Vec<String> = field.choices.iter().map(ToString::to_string).collect();
        text.push_str(&format!(": {}", choices.join(", ")));
    }
    match &field.default {
        Some(default) => text.push_str(&format!(" [default: {default}]")),
        None if !field.is_required() => text.push_str(" [optional]"),
        None => {}
    }
    text
}
