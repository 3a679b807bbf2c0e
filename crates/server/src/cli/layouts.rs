//! The command `postcommit layouts`.

use clap::Subcommand;
use postcommit_engine::store::{LayoutRow, TemplatePosition};
use serde_json::json;

use super::templates::say_waiting;
use super::value::read_text;
use super::{LimitArgs, NameArgs, acting, known_tenant, said};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;
use crate::templates::Templates;
use crate::templates::layouts::Effect;

#[derive(Debug, Subcommand)]
pub enum Layouts {
    /// List layouts and partials, ordered by name; the built-in layout mail is listed only if it was replaced
    List {
        /// Tenant of the layouts
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Only rows after this name: the last name of the previous page
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Show one layout or partial
    Show(NameArgs),
    /// Create a layout or a partial
    Create {
        #[command(flatten)]
        layout: NameArgs,
        /// Kind: layout (surrounds the HTML of templates) or partial (templates and layouts include it)
        #[arg(long, default_value = "layout")]
        kind: String,
        /// Source of the layout or partial; TEXT, @FILE, or - for stdin
        #[arg(long, value_name = "TEXT")]
        source: String,
        /// List the templates that would get a new version, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Change a layout or a partial; each template that uses it gets a new version
    Update {
        #[command(flatten)]
        layout: NameArgs,
        /// Source of the layout or partial; TEXT, @FILE, or - for stdin
        #[arg(long, value_name = "TEXT")]
        source: String,
        /// Change the layout only if it still has this revision
        #[arg(long, value_name = "NUMBER")]
        revision: Option<i32>,
        /// List the templates that would get a new version, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete a layout that neither a template nor another layout uses
    Delete {
        #[command(flatten)]
        layout: NameArgs,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

impl Layouts {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List { tenant, after, page } => {
                let tenant = known_tenant(&store, tenant).await?;
                let after = after.clone().map(|name| TemplatePosition(tenant, name));
                output::list(format, &store.layout_rows(Some(tenant), after.as_ref(), page.limit).await?, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Show(NameArgs { name, tenant }) => {
                let tenant = known_tenant(&store, tenant).await?;
                let layout = Templates { store: &store, tenant }.find_layout(name).await?;
                output::one(format, &layout, |layout| layout.source.clone());
                Ok(Exit::Ok)
            }
            Self::Create { layout: NameArgs { name, tenant }, kind, source, dry_run } => {
                let tenant = store.tenant_or_new(tenant).await?;
                let rules = Templates { store: &store, tenant };
                let effect = rules.create_layout(name, kind, &text(source)?, *dry_run).await?;
                say_effect(format, ("layout", name), "created", *dry_run, &effect)
            }
            Self::Update { layout: NameArgs { name, tenant }, source, revision, dry_run } => {
                let rules = Templates { store: &store, tenant: known_tenant(&store, tenant).await? };
                let effect = rules.update_layout(name, *revision, Some(&text(source)?), *dry_run).await?;
                say_effect(format, ("layout", name), "updated", *dry_run, &effect)
            }
            Self::Delete { layout: NameArgs { name, tenant }, yes } => {
                let rules = Templates { store: &store, tenant: known_tenant(&store, tenant).await? };
                rules.find_layout(name).await?;
                if !yes {
                    super::confirm(&format!("layout {name} will be deleted"), "")?;
                }
                rules.delete_layout(name).await?;
                said(format, "layout", name, "deleted")
            }
        }
    }
}

fn text(given: &str) -> Result<String, Failure> {
    read_text(given).map_err(|problem| Failure::new(Exit::Usage, format!("--source: {problem}")))
}

/// Prints the result of a change or of a dry run, and the templates that get a new version.
pub fn say_effect(
    format: Format,
    (noun, name): (&str, &str),
    done: &str,
    dry_run: bool,
    effect: &Effect,
) -> CommandResult {
    let result = match (effect.is_changed, dry_run) {
        (false, _) => "already has these values".to_owned(),
        (true, true) => format!("would be {done}"),
        (true, false) => done.to_owned(),
    };
    if format == Format::Text && !effect.templates.is_empty() {
        let would = if dry_run { "would get" } else { "got" };
        say!("templates that {would} a new version: {}", effect.templates.join(", "));
    }
    say_waiting(&effect.waiting);
    let value = json!({noun: name, "result": result, "templates": effect.templates, "waiting": effect.waiting});
    output::one(format, &value, |_| format!("{noun} {name} {result}"));
    Ok(Exit::Ok)
}

const COLUMNS: [output::Column<LayoutRow>; 5] = [
    ("name", |row| row.name.clone()),
    ("kind", |row| row.kind.clone()),
    ("bytes", |row| row.source.len().to_string()),
    ("revision", |row| row.revision.to_string()),
    ("updated", |row| output::seconds(row.updated_at)),
];
