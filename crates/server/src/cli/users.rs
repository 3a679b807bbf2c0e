//! The command `postcommit users`.

use clap::{Args, Subcommand, ValueEnum};
use postcommit_channel::model::QuietHours;
use postcommit_engine::store::{
    PreferenceDraft, PreferenceRow, Store, UserAddress, UserChange, UserDraft, UserFilter, UserRow, masked,
};
use serde_json::{Value, json};

use super::enqueue::kind_and_value;
use super::transfer::{self, ExportArgs, ImportArgs};
use super::value;
use super::{DeleteArgs, NameArgs, NamePageArgs, acting, known_tenant, said};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum Users {
    /// List users, ordered by id
    List(NamePageArgs),
    /// Show a user and its preferences
    Show(NameArgs),
    /// Create a user
    Create(Description),
    /// Change the given options of a user and keep the others
    Update(Description),
    /// Delete a user with its addresses, preferences and list memberships
    Delete(DeleteArgs),
    /// Set or remove a preference: whether messages of an event type are sent on a channel
    Prefer(Prefer),
    /// Import users from a CSV or JSONL file; exits 7 if lines were refused
    Import(ImportArgs),
    /// Export all users of a tenant to stdout
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub struct Description {
    #[command(flatten)]
    which: NameArgs,
    /// Display name; an empty string removes it
    #[arg(long = "display-name", value_name = "NAME")]
    display_name: Option<String>,
    /// Language tag, e.g. pt-BR; an empty string removes it
    #[arg(long)]
    language: Option<String>,
    /// Time zone, e.g. Asia/Kolkata; an empty string removes it
    #[arg(long)]
    time_zone: Option<String>,
    /// Quiet hours in the user's time zone, e.g. 22:00-07:00; an empty string removes them
    #[arg(long, value_name = "FROM-UNTIL")]
    quiet_hours: Option<String>,
    /// Fields that templates read as user.data, as JSON; @FILE reads a file, - reads stdin
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Address: email:a@b.c, phone:+49…, slack:https://…, teams:https://…, webhook:https://…, push:TOKEN or
    /// web_push:SUBSCRIPTION; repeatable; replaces all addresses. The first address of a kind is used
    #[arg(long = "address", value_name = "KIND:ADDRESS")]
    addresses: Vec<String>,
    /// Remove all addresses
    #[arg(long, conflicts_with = "addresses")]
    no_addresses: bool,
}

/// The value of a preference.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Choice {
    /// Send the messages
    Allow,
    /// Do not send the messages
    Refuse,
    /// Remove the preference, so that a less specific preference decides
    Unset,
}

#[derive(Debug, Args)]
pub struct Prefer {
    #[command(flatten)]
    which: NameArgs,
    /// Value of the preference
    #[arg(value_enum)]
    choice: Choice,
    /// Event type of the preference [default: every event type]
    #[arg(long, default_value = "*", hide_default_value = true)]
    event_type: String,
    /// Channel of the preference [default: every channel]
    #[arg(long, default_value = "*", hide_default_value = true)]
    channel: String,
}

impl Users {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List(page) => list(format, &store, page).await,
            Self::Show(which) => show(format, &store, which).await,
            Self::Create(user) => user.create(format, &store).await,
            Self::Update(user) => user.update(format, &store).await,
            Self::Delete(object) => {
                let (tenant, name) = object.agreed(&store, "user").await?;
                store.delete_user(tenant, name).await?;
                said(format, "user", name, "deleted")
            }
            Self::Prefer(preference) => preference.run(format, &store).await,
            Self::Import(ImportArgs { source, tenant }) => {
                transfer::users::import(format, &store, tenant, source).await
            }
            Self::Export(ExportArgs { target, tenant }) => transfer::users::export(&store, tenant, target).await,
        }
    }
}

async fn list(format: Format, store: &Store, page: &NamePageArgs) -> CommandResult {
    let (tenant, after) = page.place(store).await?;
    let users = store.user_rows(&UserFilter { tenant, after, limit: page.size.limit }).await?;
    output::bounded_list(format, &users, &COLUMNS);
    Ok(Exit::Ok)
}

async fn show(format: Format, store: &Store, which: &NameArgs) -> CommandResult {
    let tenant = known_tenant(store, &which.tenant).await?;
    let (user, preferences) =
        (store.user_row(tenant, &which.name).await?, store.preferences(tenant, &which.name).await?);
    // A user without a profile may have preferences.
    if user.is_none() && preferences.is_empty() {
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no user {:?}; `postcommit users list` lists them", which.name),
        ));
    }
    let mut shown = user.as_ref().map_or_else(|| json!({"id": which.name}), |user| json!(user));
    shown["preferences"] = json!(preferences);
    output::one(format, &shown, |_| text(&which.name, user.as_ref(), &preferences));
    Ok(Exit::Ok)
}

/// A user with its addresses and preferences, as text.
fn text(id: &str, user: Option<&UserRow>, preferences: &[PreferenceRow]) -> String {
    let mut lines = vec![format!("user {id}")];
    if let Some(UserRow { user, revision, updated_at, tenant, .. }) = user {
        let fields = [
            ("tenant", tenant.clone()),
            ("name", or_dash(&user.name)),
            ("language", or_dash(&user.language)),
            ("time zone", or_dash(&user.time_zone)),
            ("quiet", or_dash(&user.quiet_hours.as_ref().map(QuietHours::written))),
            ("data", output::pairs(&user.data)),
            ("revision", format!("{revision}, of {}", output::seconds(*updated_at))),
        ];
        lines.extend(fields.map(|(name, value)| format!("  {name:<11}{value}").trim_end().to_owned()));
        lines.extend(user.addresses.iter().map(|address| {
            let disabled = address.disabled_reason.as_ref().map(|why| format!("  not used: {why}"));
            format!("  {:<11}{}{}", address.kind, address.address, disabled.unwrap_or_default())
        }));
    }
    lines.extend(preferences.iter().map(|one| {
        let verb = if one.allowed { "allows" } else { "refuses" };
        format!("  {verb:<11}{} on {}, by {}", one.event_type, one.channel, one.updated_by)
    }));
    lines.join("\n")
}

impl Description {
    async fn create(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = known_tenant(store, &self.which.tenant).await?;
        let change = self.change()?;
        let user = UserDraft {
            name: change.name.flatten(),
            language: change.language.flatten(),
            time_zone: change.time_zone.flatten(),
            quiet_hours: change.quiet_hours.flatten(),
            data: change.data.unwrap_or_else(|| json!({})),
            addresses: change.addresses.unwrap_or_default(),
        };
        store.create_user(tenant, &self.which.name, &user).await?;
        said(format, "user", &self.which.name, "created")
    }

    async fn update(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = known_tenant(store, &self.which.tenant).await?;
        store.update_user(tenant, &self.which.name, None, &self.change()?).await?;
        said(format, "user", &self.which.name, "updated")
    }

    fn change(&self) -> Result<UserChange, Failure> {
        let optional = |given: &Option<String>| given.clone().map(|text| Some(text).filter(|text| !text.is_empty()));
        let addresses: Vec<UserAddress> = self.addresses.iter().map(|text| address(text)).collect::<Result<_, _>>()?;
        Ok(UserChange {
            name: optional(&self.display_name),
            language: optional(&self.language),
            time_zone: optional(&self.time_zone),
            quiet_hours: self.quiet_hours.as_deref().map(quiet_hours).transpose()?,
            data: self.data.as_ref().map(|text| value::json::<Value>("--data", r#"{"room": 7}"#, text)).transpose()?,
            addresses: (self.no_addresses || !addresses.is_empty()).then_some(addresses),
        })
    }
}

/// Parses quiet hours. `None` for an empty string.
fn quiet_hours(text: &str) -> Result<Option<QuietHours>, Failure> {
    let hours = Some(text).filter(|text| !text.is_empty()).map(QuietHours::read).transpose();
    hours.map_err(|problem| Failure::new(Exit::Usage, format!("--quiet-hours: {problem}")))
}

fn address(text: &str) -> Result<UserAddress, Failure> {
    let usage = |problem: String| Failure::new(Exit::Usage, format!("--address {text}: {problem}"));
    let recipient = kind_and_value(text).map_err(usage)?;
    let (kind, address) = (recipient.kind().to_owned(), recipient.value().to_owned());
    Ok(UserAddress { kind, address, verified_at: None, disabled_reason: None })
}

impl Prefer {
    async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = known_tenant(store, &self.which.tenant).await?;
        let allowed = match self.choice {
            Choice::Allow => Some(true),
            Choice::Refuse => Some(false),
            Choice::Unset => None,
        };
        let (event_type, channel) = (self.event_type.clone(), self.channel.clone());
        let preference = PreferenceDraft { event_type, channel, allowed };
        store.set_preferences(tenant, &self.which.name, &[preference]).await?;
        let verb = match self.choice {
            Choice::Allow => "allows",
            Choice::Refuse => "refuses",
            Choice::Unset => "has no preference for",
        };
        said(format, "user", &self.which.name, &format!("{verb} {} on {}", self.event_type, self.channel))
    }
}

const COLUMNS: [output::Column<UserRow>; 6] = [
    ("id", |user| user.id.clone()),
    ("tenant", |user| user.tenant.clone()),
    ("name", |user| or_dash(&user.user.name)),
    ("language", |user| or_dash(&user.user.language)),
    ("time zone", |user| or_dash(&user.user.time_zone)),
    ("addresses", |user| {
        let shown = user.user.addresses.iter().map(|of| format!("{}:{}", of.kind, masked(&of.address)));
        shown.collect::<Vec<_>>().join(" ")
    }),
];
