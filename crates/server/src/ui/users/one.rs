//! The page of one user: profile, addresses, preferences and lists.

use axum::extract::{Path, State};
use minijinja::context;
use postcommit_channel::model::{ADDRESS_KINDS, CHANNELS, QuietHours};
use postcommit_engine::store::{Store, UserDraft, UserRow};
use serde_json::{Map, Value};

use super::super::frame::Visitor;
use super::super::typed::Typed;
use super::super::words::shown;
use super::path;
use crate::app::{App, AppState};
use crate::problem::{Answer, Problem};
use crate::read::typed_object;

/// The number of lists that the page names.
const LISTS: i64 = 100;

/// The fields of the profile's form. `email` and `phone` are only in the form of a new user.
pub const FIELDS: [&str; 10] = [
    "id",
    "name",
    "language",
    "time_zone",
    "quiet_hours_from",
    "quiet_hours_until",
    "data",
    "email",
    "phone",
    "revision",
];

/// A user, and the forms of the page.
pub struct One<'a> {
    pub app: &'a App,
    pub visitor: &'a Visitor,
    pub store: Store,
    pub row: UserRow,
    pub profile: Typed,
    pub address: Typed,
    pub preference: Typed,
}

/// The page of a user.
pub async fn page(State(app): State<AppState>, visitor: Visitor, Path(id): Path<String>) -> Answer {
    One::of(&app, &visitor, &id).await?.draw().await
}

impl<'a> One<'a> {
    pub async fn of(app: &'a App, visitor: &'a Visitor, id: &str) -> Result<Self, Problem> {
        let store = visitor.caller.store_of_one(app);
        let row = store.user_row(visitor.caller.tenant(), id).await?.ok_or_else(|| Problem::not_found("user"))?;
        let profile = filled(&row, !visitor.may(postcommit_channel::model::Scope::Edit));
        let (address, preference) = (Typed::default(), Typed::default());
        Ok(Self { app, visitor, store, row, profile, address, preference })
    }

    pub async fn draw(&self) -> Answer {
        let (tenant, id) = (self.visitor.caller.tenant(), self.row.id.as_str());
        let content = context! {
            id,
            at => path(id),
            user => shown(&self.row),
            form => self.profile.shown(),
            address => self.address.shown(),
            preference => self.preference.shown(),
            kinds => ADDRESS_KINDS.to_vec(),
            channels => CHANNELS.to_vec(),
            preferences => shown(self.store.preferences(tenant, id).await?),
            lists => self.store.lists_of_user(tenant, id, LISTS).await?,
        };
        let forms = [&self.profile, &self.address, &self.preference];
        let status = forms.map(Typed::status).into_iter().max().unwrap_or_default();
        self.visitor.page_as(self.app, status, "user.html", self.row.user.name.as_deref().unwrap_or(id), content).await
    }
}

fn filled(row: &UserRow, locked: bool) -> Typed {
    let (user, quiet) = (&row.user, row.user.quiet_hours.as_ref());
    let data = Some(&user.data).filter(|data| data.as_object().is_some_and(|fields| !fields.is_empty()));
    let data = data.and_then(|data| serde_json::to_string_pretty(data).ok());
    let mut typed = Typed::locked(locked);
    for (name, value) in [
        ("name", user.name.as_deref()),
        ("language", user.language.as_deref()),
        ("time_zone", user.time_zone.as_deref()),
        ("quiet_hours_from", quiet.map(|hours| hours.from.as_str())),
        ("quiet_hours_until", quiet.map(|hours| hours.until.as_str())),
        ("data", data.as_deref()),
        ("revision", Some(row.revision.to_string().as_str())),
    ] {
        typed.set(name, value.unwrap_or_default());
    }
    typed
}

/// The profile that the form describes, without addresses.
pub fn draft(typed: &Typed) -> Result<UserDraft, Problem> {
    let data = typed.some("data").map(|data| typed_object("data", &data)).transpose()?;
    let quiet_hours = match (typed.some("quiet_hours_from"), typed.some("quiet_hours_until")) {
        (None, None) => None,
        (from, until) => Some(QuietHours { from: from.unwrap_or_default(), until: until.unwrap_or_default() }),
    };
    Ok(UserDraft {
        name: typed.some("name"),
        language: typed.some("language"),
        time_zone: typed.some("time_zone"),
        quiet_hours,
        data: Value::Object(data.unwrap_or_else(Map::new)),
        addresses: vec![],
    })
}
