//! The command `postcommit templates`.

mod shown;

use clap::{Args, Subcommand};
use postcommit_channel::template::Warning;
use postcommit_engine::store::{Store, TemplateFilter, TemplatePosition, Waiting};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use super::value::{self, read_text};
use super::{LimitArgs, acting, known_tenant, said};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;
use crate::templates::preview::Wanted;
use crate::templates::{Change, Templates as Rules};

#[derive(Debug, Subcommand)]
pub enum Templates {
    /// List templates, ordered by id
    List(List),
    /// Show one template with the parts of its current version, or of an earlier version
    Show {
        /// Id of the template
        id: String,
        /// Number of the version [default: the current version]
        #[arg(long, value_name = "NUMBER")]
        version: Option<i32>,
        /// Tenant of the template
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Create a template; a deleted template with this id is restored
    Create(Description),
    /// Change the given options of a template and keep the others; a changed part creates a new version
    Update(Description),
    /// Activate a template
    Activate(IdArgs),
    /// Deactivate a template; deliveries that already use it keep it
    Deactivate(IdArgs),
    /// Delete an inactive template; its versions are kept, and `create` restores it
    Delete {
        #[command(flatten)]
        template: IdArgs,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// List the versions of a template, newest first
    Versions {
        #[command(flatten)]
        template: IdArgs,
        /// Only versions older than this version: the last number of the previous page
        #[arg(long, value_name = "NUMBER")]
        before: Option<i32>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Render a template with sample data or a past notification, without sending; exits 1 if it cannot be rendered
    Preview(PreviewArgs),
}

#[derive(Debug, Args)]
pub struct IdArgs {
    /// Id of the template
    id: String,
    /// Tenant of the template
    #[arg(long, default_value = "default")]
    tenant: String,
}

#[derive(Debug, Args)]
pub struct List {
    /// Tenant of the templates
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Only templates of this event type
    #[arg(long)]
    event_type: Option<String>,
    /// Only templates of this channel
    #[arg(long)]
    channel: Option<String>,
    /// Only templates for this audience
    #[arg(long)]
    audience: Option<String>,
    /// Only templates in this language
    #[arg(long)]
    language: Option<String>,
    /// Only templates with this scope
    #[arg(long, value_name = "TYPE=ID", value_parser = scope)]
    scope: Option<(String, String)>,
    /// Only active templates (true), or only inactive templates (false)
    #[arg(long, value_name = "BOOL")]
    active: Option<bool>,
    /// Only templates that use this layout or partial
    #[arg(long)]
    layout: Option<String>,
    /// Only rows after this id: the last id of the previous page
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    page: LimitArgs,
}

/// The options of `create` and `update`. A part is TEXT, @FILE, or - for stdin.
#[derive(Debug, Args)]
pub struct Description {
    /// Id of the template
    id: String,
    /// Tenant of the template
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Event type for which the template is used
    #[arg(long)]
    event_type: Option<String>,
    /// Channel of the template
    #[arg(long)]
    channel: Option<String>,
    /// Audience of the template, e.g. guest or host; each audience gets its own message [default: anyone]
    #[arg(long)]
    audience: Option<String>,
    /// Language of the template, e.g. pt-BR [default: any]
    #[arg(long)]
    language: Option<String>,
    /// Scope: use the template only for payloads with this field, e.g. listing=10 for listingId = 10; an empty string
    /// removes it
    #[arg(long, value_name = "TYPE=ID", value_parser = scope)]
    scope: Option<(String, String)>,
    /// Whether the template is active [default: true]
    #[arg(long, value_name = "BOOL")]
    active: Option<bool>,
    /// Send the template once per entity and event type (entity), or for each notification (notification) [default:
    /// notification]
    #[arg(long)]
    once_per: Option<String>,
    /// Limit the messages to one recipient, e.g. {"max": 3, "per_s": 3600, "then": "skip"}; "then" is skip or digest
    #[arg(long, value_name = "JSON")]
    throttle: Option<String>,
    /// Collect the events of a recipient and send one message for them, e.g. {"window_s": 900, "key": "listingId"}
    #[arg(long, value_name = "JSON")]
    digest: Option<String>,
    /// Part that renders the address [default: the address of the recipient, or the phone or email of the payload]
    #[arg(long, value_name = "TEXT")]
    to: Option<String>,
    /// Subject or heading; TEXT, @FILE, or - for stdin
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    /// Message as plain text; TEXT, @FILE, or - for stdin [default: derived from the HTML]
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Message as HTML; TEXT, @FILE, or - for stdin
    #[arg(long, value_name = "TEXT")]
    html: Option<String>,
    /// Additional fields for the channel, as JSON, @FILE, or - for stdin; each string in it is rendered as a template
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Layout that surrounds the HTML, e.g. mail
    #[arg(long)]
    layout: Option<String>,
    /// Treatment of placeholders without a value: empty, keep or refuse [default: the value of the content settings]
    #[arg(long)]
    missing: Option<String>,
    /// Format of dates without a format of their own, as a strftime pattern [default: the value of the content
    /// settings]
    #[arg(long, value_name = "FORMAT")]
    date_format: Option<String>,
    /// Time zone in which the template writes times [default: the value of the content settings]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Remove a part: to, subject, text, html, data, layout, throttle or digest; or use the content settings for
    /// missing, date_format or time_zone; repeatable
    #[arg(long, value_name = "PART")]
    without: Vec<String>,
    /// Start from the parts of this version [default: the current version]
    #[arg(long, value_name = "NUMBER")]
    from_version: Option<i32>,
    /// Note about the new version, e.g. the reason for the change
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Change the template only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<i32>,
}

#[derive(Debug, Args)]
pub struct PreviewArgs {
    #[command(flatten)]
    template: IdArgs,
    /// Number of the version [default: the current version]
    #[arg(long, value_name = "NUMBER")]
    version: Option<i32>,
    /// Data of the event as JSON, @FILE, or - for stdin [default: the sample of the event type, or its newest event]
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Id of a past notification, whose data is used
    #[arg(long, value_name = "ID", value_parser = super::id, conflicts_with = "payload")]
    notification: Option<Uuid>,
    /// User that receives the message, as JSON
    #[arg(long, value_name = "JSON")]
    user: Option<String>,
    /// Language of the recipient
    #[arg(long)]
    language: Option<String>,
    /// Time zone of the recipient
    #[arg(long)]
    time_zone: Option<String>,
}

impl Templates {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List(list) => list.run(format, &store).await,
            Self::Show { id, version, tenant } => show(format, &store, tenant, id, *version).await,
            Self::Create(description) => description.create(format, &store).await,
            Self::Update(description) => description.update(format, &store).await,
            Self::Activate(template) => template.set_active(format, &store, true).await,
            Self::Deactivate(template) => template.set_active(format, &store, false).await,
            Self::Delete { template, yes } => {
                let rules = template.rules(&store).await?;
                rules.find(&template.id).await?;
                if !yes {
                    super::confirm(&format!("template {} will be deleted", template.id), "")?;
                }
                rules.delete(&template.id).await?;
                said(format, "template", &template.id, "deleted")
            }
            Self::Versions { template, before, page } => {
                let rules = template.rules(&store).await?;
                rules.find(&template.id).await?;
                let rows = store.template_versions(rules.tenant, &template.id, *before, page.limit).await?;
                output::list(format, &rows, &shown::VERSION_COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Preview(preview) => preview.run(format, settings, &store).await,
        }
    }
}

impl IdArgs {
    async fn rules<'a>(&self, store: &'a Store) -> Result<Rules<'a>, Failure> {
        Ok(Rules { store, tenant: known_tenant(store, &self.tenant).await? })
    }

    async fn set_active(&self, format: Format, store: &Store, active: bool) -> CommandResult {
        let rules = self.rules(store).await?;
        let change = Change { active: Some(active), ..Change::default() };
        let saved = rules.update(&self.id, None, &change).await?;
        let result = match (saved.is_changed, active) {
            (false, _) => "already has these values",
            (true, true) => "activated",
            (true, false) => "deactivated",
        };
        say_waiting(&saved.waiting);
        said(format, "template", &self.id, result)
    }
}

impl List {
    async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let tenant = known_tenant(store, &self.tenant).await?;
        let (scope_type, scope_id) = self.scope.clone().unzip();
        let filter = TemplateFilter {
            tenant: Some(tenant),
            event_type: self.event_type.clone(),
            channel: self.channel.clone(),
            audience: self.audience.clone(),
            language: self.language.clone(),
            scope_type,
            scope_id,
            active: self.active,
            layout: self.layout.clone(),
            words: None,
            after: self.after.clone().map(|id| TemplatePosition(tenant, id)),
            limit: self.page.limit + 1,
        };
        let mut rows = store.template_rows(&filter).await?;
        let fits = usize::try_from(self.page.limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > fits;
        rows.truncate(fits);
        output::list(format, &rows, &shown::COLUMNS);
        if let (Format::Text, true, Some(last)) = (format, has_more, rows.last()) {
            say!("there are more rows: add --after {}", last.draft.id);
        }
        Ok(Exit::Ok)
    }
}

impl Description {
    async fn create(&self, format: Format, store: &Store) -> CommandResult {
        let change = self.change()?;
        for (option, value) in [("--event-type", &self.event_type), ("--channel", &self.channel)] {
            if value.is_none() {
                return Err(Failure::new(Exit::Usage, format!("{option} is missing; a new template needs it")));
            }
        }
        let tenant = store.tenant_or_new(&self.tenant).await?;
        let saved = Rules { store, tenant }.create(&self.id, &change).await?;
        say_warnings(&self.id, &saved.warnings);
        say_waiting(&saved.waiting);
        said(format, "template", &self.id, "created")
    }

    async fn update(&self, format: Format, store: &Store) -> CommandResult {
        let rules = Rules { store, tenant: known_tenant(store, &self.tenant).await? };
        let saved = rules.update(&self.id, self.revision, &self.change()?).await?;
        say_warnings(&self.id, &saved.warnings);
        if saved.is_changed {
            say_waiting(&saved.waiting);
        }
        said(format, "template", &self.id, if saved.is_changed { "updated" } else { "already has these values" })
    }

    /// Converts the options to a change.
    fn change(&self) -> Result<Change, Failure> {
        let without = |part: &str| self.without.iter().any(|name| name == part);
        let known = [
            "to",
            "subject",
            "text",
            "html",
            "data",
            "layout",
            "throttle",
            "digest",
            "missing",
            "date_format",
            "time_zone",
        ];
        if let Some(unknown) = self.without.iter().find(|name| !known.contains(&name.as_str())) {
            let problem = format!("--without {unknown}: is not known; allowed are {}", known.join(", "));
            return Err(Failure::new(Exit::Usage, problem));
        }
        let part = |name: &str, given: &Option<String>| -> Result<Option<Option<String>>, Failure> {
            let wrong = |problem| Failure::new(Exit::Usage, format!("--{}: {problem}", name.replace('_', "-")));
            match given {
                Some(text) => Ok(Some(Some(read_text(text).map_err(wrong)?))),
                None => Ok(without(name).then_some(None)),
            }
        };
        let data = match &self.data {
            Some(text) => Some(Some(value::json::<Value>("--data", r#"{"templateName": "{{ guestName }}"}"#, text)?)),
            None => without("data").then_some(None),
        };
        let (scope_type, scope_id) = self.scope.clone().unzip();
        Ok(Change {
            event_type: self.event_type.clone(),
            channel: self.channel.clone(),
            audience: self.audience.clone(),
            language: self.language.clone(),
            scope_type,
            scope_id,
            active: self.active,
            once_per: self.once_per.clone(),
            throttle: rule("throttle", r#"{"max": 3, "per_s": 3600, "then": "skip"}"#, &self.throttle, &self.without)?,
            digest: rule("digest", r#"{"window_s": 900}"#, &self.digest, &self.without)?,
            from_version: self.from_version,
            to: part("to", &self.to)?,
            subject: part("subject", &self.subject)?,
            text: part("text", &self.text)?,
            html: part("html", &self.html)?,
            data,
            layout: part("layout", &self.layout)?,
            missing: part("missing", &self.missing)?,
            date_format: part("date_format", &self.date_format)?,
            time_zone: part("time_zone", &self.time_zone)?,
            note: self.note.clone(),
        })
    }
}

/// Reads a throttle or a digest. `Some(None)` removes it.
fn rule<T: DeserializeOwned>(
    name: &str,
    example: &str,
    given: &Option<String>,
    without: &[String],
) -> Result<Option<Option<T>>, Failure> {
    match given {
        Some(text) => Ok(Some(Some(value::json(&format!("--{name}"), example, text)?))),
        None => Ok(without.iter().any(|removed| removed == name).then_some(None)),
    }
}

impl PreviewArgs {
    async fn run(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let object = |name: &str, example: &str, given: &Option<String>| -> Result<Option<Value>, Failure> {
            let value: Option<Value> = given.as_ref().map(|text| value::json(name, example, text)).transpose()?;
            match value {
                Some(value) if !value.is_object() => {
                    Err(Failure::new(Exit::Usage, format!("{name}: must be a JSON object such as '{example}'")))
                }
                value => Ok(value),
            }
        };
        let wanted = Wanted {
            version: self.version,
            payload: object("--payload", r#"{"guestName": "Ada"}"#, &self.payload)?,
            notification: self.notification,
            user: object("--user", r#"{"name": "Ada"}"#, &self.user)?,
            language: self.language.clone(),
            time_zone: self.time_zone.clone(),
            public_url: settings.api.public_url.clone(),
        };
        let preview = self.template.rules(store).await?.preview(&self.template.id, wanted).await?;
        output::one(format, &preview, shown::preview);
        if format == Format::Text {
            say_warnings(&self.template.id, &preview.warnings);
            say!("data: {}", preview.data_from);
        }
        match preview.failure {
            Some(failure) => Err(Failure::new(Exit::Failed, format!("{}: {}", failure.code, failure.detail))),
            None => Ok(Exit::Ok),
        }
    }
}

/// Parses a scope: `TYPE=ID`, or an empty string for no scope.
fn scope(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, id)) => Ok((kind.to_owned(), id.to_owned())),
        None if text.is_empty() => Ok((String::new(), String::new())),
        None => Err("has no '='; write TYPE=ID, e.g. listing=10".into()),
    }
}

async fn show(format: Format, store: &Store, tenant: &str, id: &str, version: Option<i32>) -> CommandResult {
    let rules = Rules { store, tenant: known_tenant(store, tenant).await? };
    let template = rules.find(id).await?;
    let source = rules.source(id, version.unwrap_or(template.version)).await?;
    let mut value = json!(template);
    value["shown_version"] = version.unwrap_or(template.version).into();
    value["parts"] = json!(source);
    output::one(format, &value, |_| shown::text(&template, &source));
    Ok(Exit::Ok)
}

/// Prints warnings about a template, with their places.
pub fn say_warnings(id: &str, warnings: &[Warning]) {
    for Warning { part, line, column, message, .. } in warnings {
        match (line, column) {
            (Some(line), Some(column)) => say!("warning: {id}: {part}, line {line}, column {column}: {message}"),
            _ => say!("warning: {id}: {part}: {message}"),
        }
    }
}

/// Prints the number of waiting notifications that will use the changed template.
pub fn say_waiting(waiting: &Waiting) {
    let least = if waiting.is_exact { "" } else { "at least " };
    if waiting.count > 0 || !waiting.is_exact {
        say!("waiting notifications that will use the template: {least}{}", waiting.count);
    }
}
