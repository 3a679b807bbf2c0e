//! Import and export of users.

use std::collections::BTreeMap;

use postcommit_channel::model::{ADDRESS_KINDS, QuietHours};
use postcommit_engine::store::{
    EditError, PreferenceDraft, Store, UserAddress, UserChange, UserDraft, UserFilter, UserRow, check_user_id,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Outcome, PAGE, Source, Target};
use crate::cli::known_tenant;
use crate::output::{self, CommandResult, Exit, Format};
use crate::read::given;
use crate::table_file::{FileFormat, csv_line};

/// The columns of users in a CSV file. A column of addresses may contain several addresses, separated by spaces.
const USER_COLUMNS: [&str; 13] = [
    "id",
    "name",
    "language",
    "time_zone",
    "email",
    "phone",
    "slack",
    "teams",
    "webhook",
    "push",
    "web_push",
    "data",
    "quiet_hours",
];

/// A user in a file. If a field is missing in the file, the user keeps its value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserLine {
    id: String,
    #[serde(default, deserialize_with = "given")]
    name: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    language: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    time_zone: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    data: Option<Option<Value>>,
    #[serde(default, deserialize_with = "given")]
    quiet_hours: Option<Option<Value>>,
    addresses: Option<Vec<UserAddress>>,
    preferences: Option<Vec<PreferenceDraft>>,
    #[serde(default, deserialize_with = "given")]
    email: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    phone: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    slack: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    teams: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    webhook: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    push: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    web_push: Option<Option<String>>,
}

impl UserLine {
    fn change(&self, known: Option<&UserRow>) -> Result<UserChange, EditError> {
        let data =
            match &self.data {
                // In a CSV file, `data` is a string with the JSON object.
                Some(Some(Value::String(text))) => Some(serde_json::from_str(text).map_err(|problem| {
                    EditError::Refused(format!("data: is not JSON: {problem}; write a JSON object"))
                })?),
                Some(given) => Some(given.clone().unwrap_or_else(|| json!({}))),
                None => None,
            };
        Ok(UserChange {
            name: self.name.clone(),
            language: self.language.clone(),
            time_zone: self.time_zone.clone(),
            quiet_hours: self.quiet_hours.clone().map(quiet_hours).transpose()?,
            data,
            addresses: self.addresses.clone().or_else(|| self.addresses_by_kind(known)),
        })
    }

    /// The new addresses of a user. Kinds without a column in the file are kept. An address that stays keeps its other
    /// fields.
    fn addresses_by_kind(&self, known: Option<&UserRow>) -> Option<Vec<UserAddress>> {
        let columns = [&self.email, &self.phone, &self.slack, &self.teams, &self.webhook, &self.push, &self.web_push];
        let given: BTreeMap<&str, &Option<String>> =
            ADDRESS_KINDS.into_iter().zip(columns).filter_map(|(kind, cell)| Some((kind, cell.as_ref()?))).collect();
        if given.is_empty() {
            return None;
        }
        let known: &[UserAddress] = known.map_or(&[], |user| &user.user.addresses);
        let mut all: Vec<UserAddress> =
            known.iter().filter(|one| !given.contains_key(one.kind.as_str())).cloned().collect();
        for (kind, cell) in given {
            for to in cell.as_deref().unwrap_or("").split_whitespace() {
                let same = known.iter().find(|one| one.kind == kind && one.address == to).cloned();
                let (kind, address) = (kind.to_owned(), to.to_owned());
                all.push(same.unwrap_or(UserAddress { kind, address, verified_at: None, disabled_reason: None }));
            }
        }
        // Addresses are compared by kind, because their order matters only among addresses of one kind.
        let by_kind = |addresses: &[UserAddress]| {
            let mut sorted = addresses.to_vec();
            sorted.sort_by(|a, b| a.kind.cmp(&b.kind));
            sorted
        };
        Some(if by_kind(&all) == by_kind(known) { known.to_vec() } else { all })
    }

    async fn write(self, store: &Store, tenant: i32, dry_run: bool) -> Result<Outcome, EditError> {
        let known = store.user_row(tenant, &self.id).await?;
        let change = self.change(known.as_ref())?;
        let from = known.as_ref().map_or_else(UserDraft::default, |known| known.user.clone());
        let to = change.laid_over(from.clone());
        check_user_id(&self.id)?;
        to.check()?;
        let is_changed = to != from;
        if dry_run {
            return Ok(match known {
                None => Outcome::Created,
                Some(_) if is_changed => Outcome::Changed,
                Some(_) => Outcome::Unchanged,
            });
        }
        match &known {
            None => drop(store.create_user(tenant, &self.id, &to).await?),
            Some(_) if is_changed => drop(store.update_user(tenant, &self.id, None, &change).await?),
            Some(_) => {}
        }
        let is_set = self.prefer(store, tenant).await?;
        Ok(match known {
            None => Outcome::Created,
            Some(_) if is_changed || is_set => Outcome::Changed,
            Some(_) => Outcome::Unchanged,
        })
    }

    /// Replaces the preferences if the line has different preferences. Returns whether they changed.
    async fn prefer(&self, store: &Store, tenant: i32) -> Result<bool, EditError> {
        let Some(wanted) = &self.preferences else { return Ok(false) };
        let known = store.preferences(tenant, &self.id).await?;
        let is_known = |one: &PreferenceDraft| {
            known.iter().any(|row| {
                (&row.event_type, &row.channel, Some(row.allowed)) == (&one.event_type, &one.channel, one.allowed)
            })
        };
        if wanted.len() == known.len() && wanted.iter().all(is_known) {
            return Ok(false);
        }
        store.replace_preferences(tenant, &self.id, wanted).await?;
        Ok(true)
    }
}

/// Reads quiet hours: an object, or in a CSV file a string such as `22:00-07:00`.
fn quiet_hours(given: Option<Value>) -> Result<Option<QuietHours>, EditError> {
    let hours = match given {
        None => return Ok(None),
        Some(Value::String(text)) => QuietHours::read(&text),
        Some(object) => serde_json::from_value(object).map_err(|problem| format!("quiet_hours: {problem}")),
    };
    hours.map(Some).map_err(EditError::Refused)
}

/// Imports users. A user that does not exist is created. An existing user gets the fields of the file.
pub async fn import(format: Format, store: &Store, tenant: &str, source: &Source) -> CommandResult {
    let tenant = known_tenant(store, tenant).await?;
    let write = |line: UserLine| {
        let store = store.clone();
        async move { line.write(&store, tenant, source.dry_run).await }
    };
    source.import(format, &USER_COLUMNS, |line: &UserLine| line.id.clone(), write).await
}

/// Exports all users of a tenant. JSONL contains all fields. CSV leaves out preferences and the state of addresses.
pub async fn export(store: &Store, tenant: &str, target: &Target) -> CommandResult {
    let tenant = known_tenant(store, tenant).await?;
    if target.format == FileFormat::Csv {
        output::print(&csv_line(USER_COLUMNS));
    }
    let mut filter = UserFilter { tenant: Some(tenant), after: None, limit: PAGE };
    loop {
        let users = store.user_rows(&filter).await?;
        let keys: Vec<(i32, String)> = users.iter().map(|user| (tenant, user.id.clone())).collect();
        let known =
            if target.format == FileFormat::Jsonl { store.users_by_id(&keys).await? } else { Default::default() };
        for (user, key) in users.iter().zip(&keys) {
            let preferences = known.get(key).map(|known| known.preferences.as_slice()).unwrap_or_default();
            let preferences: Vec<Value> = preferences
                .iter()
                .map(|one| json!({"event_type": one.event_type, "channel": one.channel, "allowed": one.allowed}))
                .collect();
            output::print(&user_line(target.format, user, preferences));
        }
        filter.after = keys.into_iter().next_back();
        if i64::try_from(users.len()).unwrap_or(0) < PAGE {
            return Ok(Exit::Ok);
        }
    }
}

fn user_line(format: FileFormat, row: &UserRow, preferences: Vec<Value>) -> String {
    let user = &row.user;
    if format == FileFormat::Jsonl {
        let line = json!({
            "id": row.id, "name": user.name, "language": user.language, "time_zone": user.time_zone, "data": user.data,
            "quiet_hours": user.quiet_hours,
            "addresses": user.addresses, "preferences": preferences,
        });
        return output::escaped(line.to_string());
    }
    let of_kind = |kind: &&str| {
        let all = user.addresses.iter().filter(|one| one.kind == *kind).map(|one| one.address.as_str());
        all.collect::<Vec<_>>().join(" ")
    };
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let data = if user.data == json!({}) { String::new() } else { user.data.to_string() };
    let mut cells = vec![row.id.clone(), optional(&user.name), optional(&user.language), optional(&user.time_zone)];
    cells.extend(ADDRESS_KINDS.iter().map(of_kind));
    cells.push(data);
    cells.push(user.quiet_hours.as_ref().map(QuietHours::written).unwrap_or_default());
    csv_line(cells.iter().map(String::as_str))
}
