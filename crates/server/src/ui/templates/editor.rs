//! One template: its form, its preview, and how it is saved.

use std::fmt::Write;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use minijinja::{Value, context};
use postcommit_channel::model::{CHANNELS, Provider, Scope};
use postcommit_engine::store::{NotificationFilter, Store, TemplateRow, Waiting};
use uuid::Uuid;

use super::super::acts::{Done, Fields, Posted, see};
use super::super::assets::EDITOR;
use super::super::confirm::Question;
use super::super::frame::Visitor;
use super::super::notification::MAIL_POLICY;
use super::super::notification::payload::indented;
use super::super::query::Query;
use super::super::typed::Typed;
use super::super::words::{grouped, shown};
use super::draft::{self, FIELDS};
use super::look::blocks;
use super::path;
use crate::app::{App, AppState};
use crate::html;
use crate::problem::{Answer, Problem, ProblemKind};
use crate::read::typed_object;
use crate::templates::preview::{Preview, Wanted};
use crate::templates::{Change, Templates};

/// The form of a template, with what is needed to draw its page.
pub struct Editor<'a> {
    pub app: &'a App,
    pub visitor: &'a Visitor,
    pub store: Store,
    /// The stored template. `None` for a new one.
    pub row: Option<TemplateRow>,
    pub typed: Typed,
}

/// The page of a template.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, query: Query) -> Answer {
    let mut editor = Editor::of(&app, &visitor, &id).await?;
    let source = match query.get("notification_id") {
        Some(id) => {
            editor.typed.set("notification_id", id);
            "notification"
        }
        None => "any",
    };
    editor.load(source).await;
    editor.draw(None).await
}

/// The form of a new template.
pub async fn new(app: &App, visitor: &Visitor) -> Answer {
    visitor.caller.may(Scope::Edit)?;
    let store = visitor.caller.store_of_one(app);
    Editor { app, visitor, store, row: None, typed: draft::empty() }.draw(None).await
}

/// Previews or creates a template.
pub async fn create(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let (store, typed) = (visitor.caller.store_of_one(&app), Typed::of(&fields, &FIELDS));
    let mut editor = Editor { app: &app, visitor: &visitor, store, row: None, typed };
    if let Some(act) = fields.get("act").filter(|act| *act != "save") {
        editor.load(act).await;
        return editor.draw(None).await;
    }
    let id = editor.typed.get("id").to_owned();
    match editor.save_new(&id).await {
        Ok(()) => Ok(see(Done::one("template-created").at(&visitor.link(&path(&id))))),
        Err(problem) => editor.refused(problem).await,
    }
}

/// Previews or saves a template.
pub async fn save(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let mut editor = Editor::of(&app, &visitor, &id).await?;
    editor.typed = Typed::of(&fields, &FIELDS);
    if let Some(act) = fields.get("act").filter(|act| *act != "save") {
        editor.load(act).await;
        return editor.draw(None).await;
    }
    match editor.save_known(&id, fields.is_yes("confirmed")).await {
        Ok(Saved::Done(done)) => Ok(see(Done::one(done).at(&visitor.link(&path(&id))))),
        Ok(Saved::Asks(waiting)) => editor.ask(&id, &waiting).await,
        Err(problem) => editor.refused(problem).await,
    }
}

enum Saved {
    Done(&'static str),
    /// Notifications are waiting that would use the change, so a person must confirm it.
    Asks(Waiting),
}

impl<'a> Editor<'a> {
    pub async fn of(app: &'a App, visitor: &'a Visitor, id: &str) -> Result<Self, Problem> {
        let store = visitor.caller.store_of_one(app);
        let templates = Templates { store: &store, tenant: visitor.caller.tenant() };
        let row = templates.find(id).await?;
        let source = templates.source(id, row.version).await?;
        let mut typed = draft::filled(&row, &source);
        typed.locked = !visitor.may(Scope::Edit);
        Ok(Self { app, visitor, store, row: Some(row), typed })
    }

    fn templates(&self) -> Templates<'_> {
        Templates { store: &self.store, tenant: self.visitor.caller.tenant() }
    }

    /// The id under which the draft is compiled. A new template may have none yet.
    fn id(&self) -> &str {
        let typed = self.typed.get("id");
        self.row.as_ref().map_or(if typed.is_empty() { "new" } else { typed }, |row| row.draft.id.as_str())
    }

    /// Returns the change that the form describes. For people who may not edit, it is empty: they preview the stored
    /// template.
    pub fn change(&self) -> Result<Change, Problem> {
        if self.visitor.may(Scope::Edit) { draft::change(&self.typed) } else { Ok(Change::default()) }
    }

    async fn save_new(&self, id: &str) -> Result<(), Problem> {
        self.visitor.has_chosen(self.app).await?;
        self.templates().create(id, &self.change()?).await?;
        Ok(())
    }

    async fn save_known(&self, id: &str, confirmed: bool) -> Result<Saved, Problem> {
        let (change, templates) = (self.change()?, self.templates());
        let revision = self.typed.get("revision").parse().ok();
        let common = templates.common().await?;
        let (to, source, _) = templates.rehearse(&common, id, &change, false).await?;
        let from = templates.find(id).await?;
        let before = from.version;
        if !confirmed && (to != from.draft || source != templates.source(id, before).await?) {
            let waiting = templates.waiting(&to).await?;
            if waiting.count > 0 || !waiting.is_exact {
                return Ok(Saved::Asks(waiting));
            }
        }
        let saved = templates.update(id, revision, &change).await?;
        let is_new_version = templates.find(id).await?.version != before;
        Ok(Saved::Done(match (saved.is_changed, is_new_version) {
            (false, _) => "template-same",
            (true, true) => "template-saved",
            (true, false) => "template-settings",
        }))
    }

    async fn ask(&self, id: &str, waiting: &Waiting) -> Answer {
        let mut fields = self.typed.repeated();
        fields.push(("act".into(), "save".into()));
        let question = Question {
            title: "Save this template?".into(),
            says: waiting_in_words(waiting),
            button: "Save the template".into(),
            action: path(id),
            fields,
            back: self.visitor.link(&path(id)),
            ..Question::default()
        };
        question.ask(self.app, self.visitor).await
    }

    pub async fn refused(&mut self, problem: Problem) -> Answer {
        self.typed.refused(problem)?;
        self.draw(None).await
    }

    /// Fills in the data of the preview. `source` is `notification`, `newest` (the newest event), `sample`, or `any`
    /// (the sample, or else the newest event). With any other value, the typed data stays.
    async fn load(&mut self, source: &str) {
        let loaded = match source {
            "any" => self.sample(false).await,
            "sample" => self.sample(true).await,
            "newest" => self.newest().await,
            "notification" => self.notification().await,
            _ => return,
        };
        match loaded {
            Ok((payload, id)) => {
                self.typed.set("payload", &payload);
                self.typed.set("loaded", &id);
            }
            Err(problem) => self.typed.refuse(&problem),
        }
    }

    fn event_type(&self) -> String {
        let stored = self.row.as_ref().map(|row| row.draft.event_type.clone());
        self.typed.some("event_type").or(stored).unwrap_or_default()
    }

    async fn sample(&self, only: bool) -> Result<(String, String), Problem> {
        let event = self.templates().event(&self.event_type(), &Wanted::default()).await?;
        match event.from {
            "sample" => Ok((indented(event.payload.get()), String::new())),
            _ if only => {
                Err(Problem::invalid("payload", "the event type declares no sample; use an event or type JSON"))
            }
            "none" => Ok(("{}".into(), String::new())),
            _ => self.newest().await,
        }
    }

    async fn newest(&self) -> Result<(String, String), Problem> {
        let (tenant, event_type) = (Some(self.visitor.caller.tenant()), Some(self.event_type()));
        let filter = NotificationFilter { tenant, event_type, limit: 1, ..NotificationFilter::default() };
        let newest = self.store.notification_rows(&filter).await?.rows.pop();
        let none = || Problem::invalid("payload", "there is no event of this type yet; use the sample or type JSON");
        self.payload_of(newest.ok_or_else(none)?.id).await
    }

    async fn notification(&self) -> Result<(String, String), Problem> {
        let id: Result<Uuid, _> = self.typed.get("notification_id").trim().parse();
        let wrong = || Problem::invalid("notification_id", "is not the id of a notification of this tenant");
        self.payload_of(id.map_err(|_| wrong())?).await.map_err(|problem| match problem.kind() {
            ProblemKind::NotFound => wrong(),
            _ => problem,
        })
    }

    async fn payload_of(&self, id: Uuid) -> Result<(String, String), Problem> {
        let wanted = Wanted { notification: Some(id), ..Wanted::default() };
        let event = self.templates().event("", &wanted).await?;
        Ok((indented(event.payload.get()), id.to_string()))
    }

    /// Renders what was typed, with the data that was typed or loaded.
    pub async fn preview(&self) -> Result<Preview, Problem> {
        let mut wanted = Wanted { public_url: self.app.tools.public_url.clone(), ..Wanted::default() };
        wanted.notification = match self.typed.get("loaded").parse().ok() {
            // The preview uses the loaded notification as long as its payload is not edited.
            Some(id) if self.payload_of(id).await.is_ok_and(|(known, _)| known == self.typed.get("payload")) => {
                Some(id)
            }
            _ => None,
        };
        if let Some(text) = self.typed.some("payload").filter(|_| wanted.notification.is_none()) {
            wanted.payload = Some(serde_json::Value::Object(typed_object("payload", &text)?));
        }
        Ok(self.templates().preview_change(self.id(), &self.change()?, self.row.is_none(), wanted).await?)
    }

    /// Draws the page. `tested` is the result of a test send.
    pub async fn draw(&mut self, tested: Option<Value>) -> Answer {
        let preview = match &self.row {
            // The form of a new template is still empty.
            None if self.typed.get("event_type").is_empty() => None,
            _ => Some(self.preview().await),
        };
        if let Some(Err(problem)) = &preview
            && problem.status().is_server_error()
        {
            return Err(problem.clone().into());
        }
        let tenant = self.visitor.caller.tenant();
        let layouts = self.store.layouts_of(tenant).await?;
        let (id, is_active) = (self.id().to_owned(), self.row.as_ref().is_some_and(|row| row.draft.active));
        let content = context! {
            id => id.as_str(),
            is_active,
            is_new => self.row.is_none(),
            must_choose => self.row.is_none() && self.visitor.must_choose(self.app).await?,
            action => if self.row.is_some() { path(&id) } else { "/templates".to_owned() },
            current => self.row.as_ref().map(|row| row.version),
            form => self.typed.shown(),
            preview => preview.map(|preview| self.region(preview)),
            layouts => shown(draft::layouts(&layouts)),
            treatments => shown(draft::treatments()),
            channels => CHANNELS.to_vec(),
            providers => self.testable(tenant).await?,
            tested,
            editor => EDITOR.path(),
        };
        let title = if self.row.is_some() { id.as_str() } else { "New template" };
        self.visitor.page_as(self.app, self.typed.status(), "template.html", title, content).await
    }

    /// Returns the values for the part of the page that shows the preview.
    fn region(&self, preview: Result<Preview, Problem>) -> Value {
        let preview = match preview {
            Ok(preview) => preview,
            Err(problem) => {
                let field = problem.field().map(|field| format!("{field}: ")).unwrap_or_default();
                return context! { problem => format!("{field}{problem}") };
            }
        };
        let of = (self.visitor.caller.tenant(), self.visitor.caller.actor(), self.id());
        let frame = preview.html.as_deref().map(|html| format!("{:016x}", self.app.previews.keep(of, html)));
        let warnings: Vec<String> = preview
            .warnings
            .iter()
            .map(|one| {
                let mut said = one.part.clone();
                if let (Some(line), Some(column)) = (one.line, one.column) {
                    let _ = write!(said, ", line {line}, column {column}");
                }
                format!("{said}: {}", one.message)
            })
            .collect();
        context! {
            frame,
            warnings,
            from => match preview.data_from {
                "given" => "the data below",
                "notification" => "a past event",
                "sample" => "the sample of the event type",
                "newest event" => "the newest event",
                _ => "no data",
            },
            failure => preview.failure.as_ref().map(|failure| failure.detail.clone()),
            blocks => shown(blocks(preview.data.as_ref())),
            data => preview.data.as_ref().and_then(|data| serde_json::to_string_pretty(data).ok()),
            shown => shown(&preview),
        }
    }

    /// The providers through which a test can be sent, the default one first.
    async fn testable(&self, tenant: i32) -> Result<Vec<String>, Problem> {
        if self.row.is_none() || !self.visitor.may(Scope::Operate) {
            return Ok(vec![]);
        }
        let channel = self.typed.get("channel");
        let serves = |provider: &&Provider| [channel, "*"].contains(&provider.channel.as_str());
        let mut known = self.store.providers_of(tenant).await?;
        known.sort_by_key(|provider| !provider.is_default);
        Ok(known.iter().filter(serves).map(|provider| provider.name.clone()).collect())
    }
}

/// Says how many waiting notifications will use a change.
pub fn waiting_in_words(waiting: &Waiting) -> String {
    let least = if waiting.is_exact { "" } else { "At least " };
    match waiting.count {
        0 if waiting.is_exact => "No notification of its event type waits.".into(),
        1 => format!("{least}1 notification of its event type waits and will use the change."),
        count => format!("{least}{} notifications of its event type wait and will use the change.", grouped(count)),
    }
}

/// The HTML of a previewed mail, for the sandboxed frame of the page.
pub async fn mail(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>, query: Query) -> Answer {
    let hash = query.get("of").and_then(|hash| u64::from_str_radix(hash, 16).ok());
    let of = (visitor.caller.tenant(), visitor.caller.actor(), id.as_str());
    let found = hash.and_then(|hash| app.previews.find(of, hash));
    let mut response = match found {
        Some(html) => html::answer(StatusCode::OK, html),
        None => {
            html::answer(StatusCode::NOT_FOUND, "<p>This preview is gone. Press Preview to make it again.</p>".into())
        }
    };
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, MAIL_POLICY);
    Ok(response.into_response())
}
