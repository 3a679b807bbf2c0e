//! Preferences of users: the event types that each user wants on each channel. A user needs no profile to have
//! preferences.

use std::collections::HashSet;

use postcommit::{Timestamp, check, limits};
use postcommit_channel::model::ANY;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row};
use crate::store::edit::{EditError, field};
use crate::store::unreadable::legible;
use crate::store::users::check_user_id;
use crate::store::{AuditEntry, Store};

/// How many preferences a user may have.
pub const PREFERENCES: usize = 500;
/// How many changed preferences an audit entry lists. Of a larger change only the number is entered.
const AUDITED: usize = 20;

/// A preference to be set or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreferenceDraft {
    /// The event type. `*` means every event type.
    #[serde(default = "any")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255, default = "*"))]
    pub event_type: String,
    /// The channel. `*` means every channel.
    #[serde(default = "any")]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 63, pattern = r"^(\*|[A-Za-z0-9_.-]+)$", default = "*")
    )]
    pub channel: String,
    /// Whether messages of this event type are sent on this channel. `null` removes the preference.
    pub allowed: Option<bool>,
}

fn any() -> String {
    ANY.to_owned()
}

/// A preference of a user.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreferenceRow {
    /// The event type. `*` means every event type.
    pub event_type: String,
    /// The channel. `*` means every channel.
    pub channel: String,
    /// Whether messages of this event type are sent on this channel.
    pub allowed: bool,
    /// When the preference was set.
    pub updated_at: Timestamp,
    /// The actor that set the preference.
    pub updated_by: String,
}

/// Checks the channel of a preference or a suppression.
pub(in crate::store) fn channel_or_any(channel: &str) -> Result<(), String> {
    if channel == ANY {
        Ok(())
    } else {
        check::short_name(channel).map_err(|problem| format!("{problem}, or '*' for all"))
    }
}

impl PreferenceDraft {
    /// Checks the event type and the channel. `place` is the prefix of the field names in errors.
    ///
    /// # Errors
    /// Names the field, the problem and the allowed values.
    pub fn check(&self, place: &str) -> Result<(), EditError> {
        field(&format!("{place}event_type"), check::chars(&self.event_type, 1, limits::NAME_CHARS))?;
        field(&format!("{place}channel"), channel_or_any(&self.channel))
    }
}

fn check(preferences: &[PreferenceDraft]) -> Result<(), EditError> {
    if preferences.len() > PREFERENCES {
        let count = preferences.len();
        return Err(EditError::Refused(format!("preferences: has {count} entries; at most {PREFERENCES} are allowed")));
    }
    let mut seen = HashSet::new();
    for (place, one) in preferences.iter().enumerate() {
        one.check(&format!("preferences[{place}]."))?;
        if !seen.insert((&one.event_type, &one.channel)) {
            return Err(EditError::Refused(format!(
                "preferences[{place}].event_type: is given twice with the same channel; give each pair of both once"
            )));
        }
    }
    Ok(())
}

impl Store {
    /// Reads the preferences of a user, ordered by event type and channel.
    pub async fn preferences(&self, tenant: i32, user: &str) -> Result<Vec<PreferenceRow>, DbError> {
        if user.contains('\0') {
            return Ok(vec![]);
        }
        let sql = "SELECT event_type, channel, allowed, updated_at, updated_by
            FROM postcommit.preference
            WHERE tenant = $1 AND user_id = $2
            ORDER BY event_type, channel";
        let rows = self.db.query(sql, vec![tenant.into(), user.into()]).await?;
        Ok(legible("preferences", rows.iter().map(listed)))
    }

    /// Sets or removes the given preferences of a user. Other preferences are kept.
    pub async fn set_preferences(
        &self,
        tenant: i32,
        user: &str,
        preferences: &[PreferenceDraft],
    ) -> Result<(), EditError> {
        self.write_preferences(tenant, user, preferences, false).await
    }

    /// Replaces all preferences of a user.
    pub async fn replace_preferences(
        &self,
        tenant: i32,
        user: &str,
        preferences: &[PreferenceDraft],
    ) -> Result<(), EditError> {
        self.write_preferences(tenant, user, preferences, true).await
    }

    async fn write_preferences(
        &self,
        tenant: i32,
        user: &str,
        given: &[PreferenceDraft],
        replaces: bool,
    ) -> Result<(), EditError> {
        check_user_id(user)?;
        check(given)?;
        if given.is_empty() && !replaces {
            return Ok(());
        }
        let removed: Json = given.iter().filter(|one| one.allowed.is_none()).map(|one| json!(one)).collect();
        let set: Json = given.iter().filter(|one| one.allowed.is_some()).map(|one| json!(one)).collect();
        let table = self.rows_given(3, &[("event_type", "text"), ("channel", "text"), ("allowed", "boolean")]);
        let forget = if replaces {
            // Preferences that do not change are not deleted, so that they keep their time and author.
            format!(
                "DELETE FROM postcommit.preference
                 WHERE tenant = $1 AND user_id = $2
                   AND (event_type, channel, allowed) NOT IN (SELECT g.event_type, g.channel, g.allowed FROM {table})"
            )
        } else {
            format!(
                "DELETE FROM postcommit.preference
                 WHERE tenant = $1 AND user_id = $2
                   AND (event_type, channel) IN (SELECT g.event_type, g.channel FROM {table})"
            )
        };
        let kept = if replaces { set.clone() } else { removed };
        let write = format!(
            "INSERT INTO postcommit.preference AS known (tenant, user_id, event_type, channel, allowed, updated_at, updated_by)
             SELECT $1, $2, g.event_type, g.channel, g.allowed, {{now}}, $4 FROM {table} WHERE 1 = 1
             ON CONFLICT (tenant, user_id, event_type, channel) DO UPDATE
             SET allowed = excluded.allowed, updated_at = excluded.updated_at, updated_by = excluded.updated_by
             WHERE known.allowed <> excluded.allowed"
        );
        let key = || vec![tenant.into(), user.into()];
        let (mut of_forget, mut of_write) = (key(), key());
        of_forget.push(kept.into());
        of_write.extend([set.into(), self.actor.name.as_str().into()]);
        let count = i64::try_from(given.len()).unwrap_or(i64::MAX);
        let details = json!({"preferences": if given.len() <= AUDITED { json!(given) } else { json!(count) }, "replaced": replaces});
        let entry = AuditEntry::new(tenant, "user.preferences", user).details(details).count(count);
        self.keep_to_limit(tenant, user, given, replaces).await?;
        let statements = vec![(forget, of_forget), (write, of_write), self.audit(entry)];
        self.db.execute(statements).await?;
        Ok(())
    }

    /// Refuses a change after which the user would have more than [`PREFERENCES`] preferences.
    async fn keep_to_limit(
        &self,
        tenant: i32,
        user: &str,
        given: &[PreferenceDraft],
        replaces: bool,
    ) -> Result<(), EditError> {
        if replaces {
            return Ok(());
        }
        let known = self.preferences(tenant, user).await?;
        let known: HashSet<(&str, &str)> =
            known.iter().map(|one| (one.event_type.as_str(), one.channel.as_str())).collect();
        let is_new = |one: &&PreferenceDraft| {
            one.allowed.is_some() && !known.contains(&(one.event_type.as_str(), one.channel.as_str()))
        };
        let count = known.len() + given.iter().filter(is_new).count();
        if count <= PREFERENCES {
            return Ok(());
        }
        Err(EditError::Refused(format!(
            "preferences: the user would have {count}; at most {PREFERENCES} are allowed; remove some that are not needed"
        )))
    }
}

fn listed(row: &Row) -> Result<PreferenceRow, DbError> {
    Ok(PreferenceRow {
        event_type: row.get(0)?,
        channel: row.get(1)?,
        allowed: row.get(2)?,
        updated_at: row.get(3)?,
        updated_by: row.get(4)?,
    })
}
