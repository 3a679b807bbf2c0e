//! The command `postcommit event-types`.

use clap::{Args, Subcommand};
use postcommit_channel::model::QuietRule;
use postcommit_engine::store::{EventTypeChange, EventTypeDraft, EventTypeFilter, EventTypeRow};

use super::value;
use super::{DeleteArgs, NameArgs, NamePageArgs, acting, known_tenant, said};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum EventTypes {
    /// List declared event types, ordered by name
    List(NamePageArgs),
    /// Show a declared event type
    Show(NameArgs),
    /// Declare an event type: its sample payload, its placeholders, and whether users can opt out of it
    Create(Description),
    /// Change the given options of an event type and keep the others
    Update(Description),
    /// Delete the declaration; notifications of the event type are still accepted
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct Description {
    #[command(flatten)]
    which: NameArgs,
    /// Description of the event type; an empty string removes it
    #[arg(long)]
    description: Option<String>,
    /// A payload as the application sends it, as JSON; @FILE reads a file, - reads stdin
    #[arg(long, value_name = "JSON")]
    sample: Option<String>,
    /// Name that templates may use; repeatable, or several with commas; replaces all names
    #[arg(long = "placeholder", value_name = "NAME", value_delimiter = ',')]
    placeholders: Vec<String>,
    /// Users cannot opt out of this event type
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    mandatory: Option<bool>,
    /// Rule for messages in the quiet hours of a user: delay, skip or ignore [default: delay]
    #[arg(long, value_name = "RULE", value_parser = QuietRule::named)]
    quiet_hours: Option<QuietRule>,
}

impl EventTypes {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List(page) => {
                let (tenant, after) = page.place(&store).await?;
                let rows = store.event_type_rows(&EventTypeFilter { tenant, after, limit: page.size.limit }).await?;
                output::bounded_list(format, &rows, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Show(which) => {
                let tenant = known_tenant(&store, &which.tenant).await?;
                let unknown = || {
                    Failure::new(
                        Exit::NotFound,
                        format!("there is no event type {:?}; `postcommit event-types list` lists them", which.name),
                    )
                };
                let found = store.event_type(tenant, &which.name).await?.ok_or_else(unknown)?;
                output::one(format, &found, text);
                Ok(Exit::Ok)
            }
            Self::Create(given) => {
                let tenant = known_tenant(&store, &given.which.tenant).await?;
                let change = given.change()?;
                let draft = EventTypeDraft {
                    description: change.description.flatten(),
                    sample: change.sample.flatten(),
                    placeholders: change.placeholders.unwrap_or_default(),
                    mandatory: change.mandatory.unwrap_or_default(),
                    quiet_hours: change.quiet_hours.unwrap_or_default(),
                };
                store.create_event_type(tenant, &given.which.name, &draft).await?;
                said(format, "event type", &given.which.name, "declared")
            }
            Self::Update(given) => {
                let tenant = known_tenant(&store, &given.which.tenant).await?;
                store.update_event_type(tenant, &given.which.name, None, &given.change()?).await?;
                said(format, "event type", &given.which.name, "updated")
            }
            Self::Delete(object) => {
                let (tenant, name) = object.agreed(&store, "event type").await?;
                store.delete_event_type(tenant, name).await?;
                said(format, "event type", name, "deleted")
            }
        }
    }
}

impl Description {
    fn change(&self) -> Result<EventTypeChange, Failure> {
        Ok(EventTypeChange {
            description: self.description.clone().map(|text| Some(text).filter(|text| !text.is_empty())),
            sample: self
                .sample
                .as_ref()
                .map(|text| value::json("--sample", r#"{"guestName": "Ada"}"#, text))
                .transpose()?
                .map(Some),
            placeholders: (!self.placeholders.is_empty()).then(|| self.placeholders.clone()),
            mandatory: self.mandatory,
            quiet_hours: self.quiet_hours,
        })
    }
}

fn text(found: &EventTypeRow) -> String {
    let of = &found.event_type;
    let sample = of.sample.as_ref().map(ToString::to_string);
    let fields = [
        ("tenant", found.tenant.clone()),
        ("description", or_dash(&of.description)),
        ("mandatory", if of.mandatory { "yes" } else { "no" }.to_owned()),
        ("quiet hours", of.quiet_hours.name().to_owned()),
        ("placeholders", of.placeholders.join(", ")),
        ("sample", or_dash(&sample)),
        ("revision", format!("{}, of {}", found.revision, output::seconds(found.updated_at))),
    ];
    let lines = fields.map(|(name, value)| format!("  {name:<14}{value}").trim_end().to_owned());
    format!("event type {}\n{}", found.name, lines.join("\n"))
}

const COLUMNS: [output::Column<EventTypeRow>; 5] = [
    ("name", |row| row.name.clone()),
    ("tenant", |row| row.tenant.clone()),
    ("mandatory", |row| if row.event_type.mandatory { "yes" } else { "no" }.to_owned()),
    ("placeholders", |row| row.event_type.placeholders.len().to_string()),
    ("description", |row| or_dash(&row.event_type.description)),
];
