//! Users: profiles and addresses. Preferences are in `preferences.rs`.

use std::collections::HashSet;

use postcommit::{Recipient, Timestamp, check, limits};
use postcommit_channel::model::{ADDRESS_KINDS, QuietHours, address, comparable};
use postcommit_channel::template::check_time_zone;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::edit::{EditError, Subject, TRIES, field, language, text};
use crate::store::lists::keyset::SqlParameters;
use crate::store::unreadable::{Reader, legible};
use crate::store::{AuditEntry, Store};

/// How many addresses a user may have.
pub const USER_ADDRESSES: usize = 20;
/// The maximum size of a user's `data`, in bytes of JSON text.
pub const USER_DATA_BYTES: usize = 2048;

/// An address of a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserAddress {
    /// The kind: `email`, `phone`, `slack`, `teams`, `webhook`, `push` or `web_push`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(email|phone|slack|teams|webhook|push|web_push)$"))]
    pub kind: String,
    /// The address. A phone number is in E.164 and is sent unchanged.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 2048))]
    pub address: String,
    /// When the application verified that the address is the user's.
    #[serde(default)]
    pub verified_at: Option<Timestamp>,
    /// The reason why the address is not used. `null` if it is used.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub disabled_reason: Option<String>,
}

/// The profile of a user, as the application describes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserDraft {
    /// The display name of the user.
    pub name: Option<String>,
    /// The language, a tag such as `pt-BR`.
    pub language: Option<String>,
    /// The time zone, a name of the IANA database such as `Asia/Kolkata`.
    pub time_zone: Option<String>,
    /// The daily period in which no messages are sent, in the user's time zone.
    pub quiet_hours: Option<QuietHours>,
    /// Fields that templates read as `user.data.name`: an object of at most 2,048 bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: Json,
    /// The addresses. The first one of a kind that is not disabled is used.
    pub addresses: Vec<UserAddress>,
}

impl Default for UserDraft {
    fn default() -> Self {
        Self { name: None, language: None, time_zone: None, quiet_hours: None, data: json!({}), addresses: vec![] }
    }
}

/// The fields to set. Other fields keep their values. `Some(None)` removes a value.
#[derive(Debug, Clone, Default)]
pub struct UserChange {
    pub name: Option<Option<String>>,
    pub language: Option<Option<String>>,
    pub time_zone: Option<Option<String>>,
    pub quiet_hours: Option<Option<QuietHours>>,
    pub data: Option<Json>,
    /// The addresses, which replace all earlier ones.
    pub addresses: Option<Vec<UserAddress>>,
}

impl UserChange {
    /// Returns the user with these changes.
    #[must_use]
    pub fn laid_over(&self, user: UserDraft) -> UserDraft {
        let change = self.clone();
        UserDraft {
            name: change.name.unwrap_or(user.name),
            language: change.language.unwrap_or(user.language),
            time_zone: change.time_zone.unwrap_or(user.time_zone),
            quiet_hours: change.quiet_hours.unwrap_or(user.quiet_hours),
            data: change.data.unwrap_or(user.data),
            addresses: change.addresses.unwrap_or(user.addresses),
        }
    }
}

/// A user of the application.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserRow {
    /// The tenant that owns the user.
    pub tenant: String,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
    /// The application's id of the user.
    pub id: String,
    #[serde(flatten)]
    pub user: UserDraft,
    /// The number of changes so far.
    pub revision: i32,
    /// When the user was created.
    pub created_at: Timestamp,
    /// When the user was last changed.
    pub updated_at: Timestamp,
}

/// Checks the id of a user.
pub fn check_user_id(id: &str) -> Result<(), EditError> {
    field("id", Recipient::user(id).check())
}

impl UserDraft {
    /// Checks every field.
    ///
    /// # Errors
    /// Names the field, the problem and the allowed values.
    pub fn check(&self) -> Result<(), EditError> {
        text("name", self.name.as_deref(), limits::NAME_CHARS)?;
        language("language", self.language.as_deref())?;
        time_zone("time_zone", self.time_zone.as_deref())?;
        self.quiet_hours.as_ref().map_or(Ok(()), QuietHours::check).map_err(EditError::Refused)?;
        if !self.data.is_object() {
            return Err(EditError::Refused("data: must be an object".into()));
        }
        field("data", check::json(&self.data, USER_DATA_BYTES).map(drop))?;
        if self.addresses.len() > USER_ADDRESSES {
            let count = self.addresses.len();
            return Err(EditError::Refused(format!(
                "addresses: has {count} entries; at most {USER_ADDRESSES} are allowed"
            )));
        }
        let mut seen = HashSet::new();
        for (place, address) in self.addresses.iter().enumerate() {
            address.check(&format!("addresses[{place}]"))?;
            if !seen.insert((&address.kind, &address.address)) {
                return Err(EditError::Refused(format!(
                    "addresses[{place}].address: is given twice; give each address once"
                )));
            }
        }
        Ok(())
    }

    /// Returns the addresses as rows. The position of an address is its place in the list, from 1.
    fn rows(&self) -> Json {
        let row = |(place, of): (usize, &UserAddress)| {
            json!({
                "kind": of.kind, "position": place + 1, "address": of.address,
                "verified_us": of.verified_at.map(Timestamp::as_micros), "disabled_reason": of.disabled_reason,
            })
        };
        self.addresses.iter().enumerate().map(row).collect()
    }

    /// Returns the names of the fields in which the other draft differs.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let all = [
            ("name", self.name != other.name),
            ("language", self.language != other.language),
            ("time_zone", self.time_zone != other.time_zone),
            ("quiet_hours", self.quiet_hours != other.quiet_hours),
            ("data", self.data != other.data),
            ("addresses", self.addresses != other.addresses),
        ];
        all.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

impl UserAddress {
    /// Checks an address by the rules for recipients. `place` is the address's name in errors.
    fn check(&self, place: &str) -> Result<(), EditError> {
        let Some(recipient) = address(&self.kind, &self.address) else {
            let (kind, allowed) = (&self.kind, ADDRESS_KINDS.join(", "));
            return Err(EditError::Refused(format!("{place}.kind: is {kind:?}; allowed are {allowed}")));
        };
        field(&format!("{place}.address"), recipient.check())?;
        text(&format!("{place}.disabled_reason"), self.disabled_reason.as_deref(), 255)
    }
}

/// Checks a time zone by the data with which templates format dates.
fn time_zone(name: &str, zone: Option<&str>) -> Result<(), EditError> {
    let Some(zone) = zone else { return Ok(()) };
    check_time_zone(zone).map_err(|problem| EditError::Refused(format!("{name}: {problem}")))
}

/// How many users a search examines for one page. The next page continues from there.
pub const USERS_EXAMINED: i64 = 10_000;

/// A page of a search for users.
#[derive(Debug, Clone, PartialEq)]
pub struct UsersFound {
    pub rows: Vec<UserRow>,
    /// The tenant's number and the user id after which the next page of the search begins. `None` if the search is
    /// complete.
    pub more: Option<(i32, String)>,
}

/// The filter for a list of users, ordered by tenant and id.
#[derive(Debug, Clone, Default)]
pub struct UserFilter {
    /// Only users of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// The tenant's number and the id of the last user on the previous page.
    pub after: Option<(i32, String)>,
    /// The maximum number of users to return.
    pub limit: i64,
}

const INSERT: &str = "INSERT INTO postcommit.user_profile (tenant, id, name, language, time_zone, data, quiet_hours,
      created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, {now})
    ON CONFLICT (tenant, id) DO NOTHING";
const UPDATE: &str = "UPDATE postcommit.user_profile
    SET name = $3, language = $4, time_zone = $5, data = $6, quiet_hours = $7, revision = revision + 1,
      updated_at = {now}
    WHERE tenant = $1 AND id = $2 AND revision = $8";

impl Store {
    /// Creates a user. Fails if the id is taken.
    pub async fn create_user(&self, tenant: i32, id: &str, user: &UserDraft) -> Result<UserRow, EditError> {
        check_user_id(id)?;
        user.check()?;
        if !self.insert_user(tenant, id, user).await? {
            return Err(Subject("user", id).exists());
        }
        self.known_user(tenant, id).await
    }

    /// Changes the given fields of a user. With a revision, nothing is changed unless the user still has that revision.
    pub async fn update_user(
        &self,
        tenant: i32,
        id: &str,
        revision: Option<i32>,
        change: &UserChange,
    ) -> Result<UserRow, EditError> {
        for _ in 0..TRIES {
            let from = self.known_user(tenant, id).await?;
            Subject("user", id).is_still(revision, from.revision)?;
            let to = change.laid_over(from.user.clone());
            if to == from.user {
                return Ok(from);
            }
            to.check()?;
            if self.replace(tenant, &from, &to).await? {
                return self.known_user(tenant, id).await;
            }
        }
        Err(Subject("user", id).overtaken())
    }

    /// Replaces a user, or creates it if it does not exist. With a revision, the user is replaced only if it has that
    /// revision, and never created. Returns whether the user is new.
    pub async fn put_user(
        &self,
        tenant: i32,
        id: &str,
        revision: Option<i32>,
        user: &UserDraft,
    ) -> Result<(UserRow, bool), EditError> {
        check_user_id(id)?;
        user.check()?;
        for _ in 0..TRIES {
            let is_written = match self.user_row(tenant, id).await? {
                Some(from) => {
                    Subject("user", id).is_still(revision, from.revision)?;
                    if from.user == *user {
                        return Ok((from, false));
                    }
                    self.replace(tenant, &from, user).await?.then_some(false)
                }
                None if revision.is_some() => return Err(Subject("user", id).unknown()),
                None => self.insert_user(tenant, id, user).await?.then_some(true),
            };
            if let Some(is_new) = is_written {
                return Ok((self.known_user(tenant, id).await?, is_new));
            }
        }
        Err(Subject("user", id).overtaken())
    }

    /// Deletes a user with all addresses and preferences, and removes the user from lists.
    pub async fn delete_user(&self, tenant: i32, id: &str) -> Result<(), EditError> {
        check_user_id(id).map_err(|_| Subject("user", id).unknown())?;
        let of_user = || vec![tenant.into(), id.into()];
        let statements = [
            "DELETE FROM postcommit.user_profile WHERE tenant = $1 AND id = $2",
            "DELETE FROM postcommit.user_address WHERE tenant = $1 AND user_id = $2",
            "DELETE FROM postcommit.preference WHERE tenant = $1 AND user_id = $2",
            "DELETE FROM postcommit.list_member WHERE tenant = $1 AND kind = 'user' AND member = $2",
        ];
        let statements = statements.map(|sql| (sql.to_owned(), of_user())).into();
        let is_deleted = self.change_all(statements, 0, AuditEntry::new(tenant, "user.delete", id)).await?;
        if is_deleted { Ok(()) } else { Err(Subject("user", id).unknown()) }
    }

    async fn insert_user(&self, tenant: i32, id: &str, user: &UserDraft) -> Result<bool, DbError> {
        let mut statements = vec![(INSERT.to_owned(), profile(tenant, id, user))];
        statements.extend(self.address_statements(tenant, id, user));
        let details = json!({"addresses": user.addresses.len()});
        self.change_all(statements, 0, AuditEntry::new(tenant, "user.create", id).details(details)).await
    }

    /// Replaces a user if it still has the revision that was read.
    async fn replace(&self, tenant: i32, from: &UserRow, to: &UserDraft) -> Result<bool, DbError> {
        let fields = to.differences(&from.user);
        let mut parameters = profile(tenant, &from.id, to);
        parameters.push(from.revision.into());
        let mut statements = vec![(UPDATE.to_owned(), parameters)];
        if fields.contains(&"addresses") {
            let forget = "DELETE FROM postcommit.user_address WHERE tenant = $1 AND user_id = $2";
            statements.push((forget.to_owned(), vec![tenant.into(), from.id.as_str().into()]));
            statements.extend(self.address_statements(tenant, &from.id, to));
        }
        let entry = AuditEntry::new(tenant, "user.update", from.id.as_str()).details(json!({"fields": fields}));
        self.change_all(statements, 0, entry).await
    }

    fn address_statements(&self, tenant: i32, id: &str, user: &UserDraft) -> Option<Statement> {
        let columns = [
            ("kind", "text"),
            ("position", "int"),
            ("address", "text"),
            ("verified_us", "bigint"),
            ("disabled_reason", "text"),
        ];
        let (given, verified_at) = (self.rows_given(3, &columns), self.time_given("g.verified_us"));
        let sql = format!(
            "INSERT INTO postcommit.user_address (tenant, user_id, kind, position, address, verified_at,
               disabled_reason)
             SELECT $1, $2, g.kind, g.position, g.address, {verified_at}, g.disabled_reason FROM {given}"
        );
        (!user.addresses.is_empty()).then(|| (sql, vec![tenant.into(), id.into(), user.rows().into()]))
    }

    /// Reads a user that must exist.
    async fn known_user(&self, tenant: i32, id: &str) -> Result<UserRow, EditError> {
        self.user_row(tenant, id).await?.ok_or_else(|| Subject("user", id).unknown())
    }

    pub async fn user_row(&self, tenant: i32, id: &str) -> Result<Option<UserRow>, DbError> {
        // PostgreSQL refuses NUL in a parameter, and no user has such an id.
        if id.contains('\0') {
            return Ok(None);
        }
        let sql = format!("{} WHERE u.tenant = $1 AND u.id = $2", self.select_users());
        self.db.query(&sql, vec![tenant.into(), id.into()]).await?.first().map(listed).transpose()
    }

    /// Reads one page of users, ordered by tenant and id.
    pub async fn user_rows(&self, filter: &UserFilter) -> Result<Vec<UserRow>, DbError> {
        let mut sql = format!("{} WHERE 1 = 1", self.select_users());
        let mut parameters: Vec<Value> = vec![filter.limit.into()];
        if let Some(tenant) = filter.tenant {
            parameters.push(tenant.into());
            sql.push_str(&format!(" AND u.tenant = ${}", parameters.len()));
        }
        if let Some((tenant, id)) = &filter.after {
            parameters.extend([Value::from(*tenant), id.as_str().into()]);
            sql.push_str(&format!(" AND (u.tenant, u.id) > (${}, ${})", parameters.len() - 1, parameters.len()));
        }
        sql.push_str(" ORDER BY u.tenant, u.id LIMIT $1");
        Ok(legible("users", self.db.query(&sql, parameters).await?.iter().map(listed)))
    }

    /// Searches users whose id or name contains the text, or who have an address that equals the text. Case makes no
    /// difference in ASCII letters. The filter's limit is the size of the page, and at most [`USERS_EXAMINED`] users
    /// are examined for a page.
    pub async fn search_users(&self, filter: &UserFilter, text: &str) -> Result<UsersFound, DbError> {
        let (mut examined, mut parameters) = (String::new(), SqlParameters::default());
        if let Some(tenant) = filter.tenant {
            examined.push_str(&format!(" AND tenant = {}", parameters.add(tenant)));
        }
        if let Some((tenant, id)) = &filter.after {
            let (tenant, id) = (parameters.add(*tenant), parameters.add(id.as_str()));
            examined.push_str(&format!(" AND (tenant, id) > ({tenant}, {id})"));
        }
        let examined =
            format!("SELECT tenant, id FROM postcommit.user_profile WHERE 1 = 1{examined} ORDER BY tenant, id");
        let of_last = parameters.0.clone();
        // The database writes both sides in lower case, because its `lower` may change only A to Z.
        let (words, to) = (format!("lower({})", parameters.add(text)), parameters.add(comparable(text).as_ref()));
        let most = parameters.add(filter.limit + 1);
        let found = match self.db.kind() {
            "postgres" => "strpos",
            _ => "instr",
        };
        // Addresses are stored as they were given, so they are also compared in lower case, for mail addresses.
        let sql = format!(
            "{} WHERE (u.tenant, u.id) IN (SELECT x.tenant, x.id FROM ({examined} LIMIT {USERS_EXAMINED}) x)
               AND ({found}(lower(u.id), {words}) > 0 OR {found}(lower(coalesce(u.name, '')), {words}) > 0
                 OR EXISTS (SELECT 1
                   FROM postcommit.user_address a
                   WHERE a.tenant = u.tenant AND a.user_id = u.id AND (a.address = {to} OR lower(a.address) = {words})))
             ORDER BY u.tenant, u.id LIMIT {most}",
            self.select_users()
        );
        let mut rows = legible("users", self.db.query_once(&sql, parameters.0).await?.iter().map(listed));
        let page = usize::try_from(filter.limit).unwrap_or(usize::MAX);
        if rows.len() > page {
            rows.truncate(page);
            let more = rows.last().map(|row| (row.tenant_id, row.id.clone()));
            return Ok(UsersFound { rows, more });
        }
        let sql = format!("{examined} LIMIT 2 OFFSET {}", USERS_EXAMINED - 1);
        let last = self.db.query_once(&sql, of_last).await?;
        let more = last.first().filter(|_| last.len() > 1).map(|row| Ok::<_, DbError>((row.get(0)?, row.get(1)?)));
        Ok(UsersFound { rows, more: more.transpose()? })
    }

    fn select_users(&self) -> String {
        // Each database has its own functions that combine a user's addresses into one JSON text.
        let addresses = match self.db.kind() {
            "postgres" => {
                "SELECT jsonb_agg(jsonb_build_array(a.position, a.kind, a.address,
                   (extract(epoch FROM a.verified_at) * 1000000)::bigint, a.disabled_reason) ORDER BY a.position)"
            }
            _ => {
                "SELECT json_group_array(json_array(a.position, a.kind, a.address, a.verified_at, a.disabled_reason)
                   ORDER BY a.position)"
            }
        };
        format!(
            "SELECT u.tenant, t.name, u.id, u.name, u.language, u.time_zone, u.data, u.revision, u.created_at,
               u.updated_at,
               ({addresses} FROM postcommit.user_address a WHERE a.tenant = u.tenant AND a.user_id = u.id),
               u.quiet_hours
             FROM postcommit.user_profile u
             JOIN postcommit.tenant t ON t.id = u.tenant"
        )
    }
}

fn profile(tenant: i32, id: &str, user: &UserDraft) -> Vec<Value> {
    vec![
        tenant.into(),
        id.into(),
        user.name.as_deref().into(),
        user.language.as_deref().into(),
        user.time_zone.as_deref().into(),
        user.data.clone().into(),
        user.quiet_hours.as_ref().map(|hours| json!(hours)).into(),
    ]
}

fn listed(row: &Row) -> Result<UserRow, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let addresses: Option<String> = row.get(10)?;
    let user = UserDraft {
        name: row.get(3)?,
        language: row.get(4)?,
        time_zone: row.get(5)?,
        quiet_hours: quiet_hours(row, 11)?,
        data: row.get(6)?,
        addresses: addresses.map_or(Ok(vec![]), |json| addresses_in(&json))?,
    };
    let mut listed = UserRow {
        tenant_id: row.get(0)?,
        tenant: row.get(1)?,
        id: row.get(2)?,
        user,
        revision: read.or(7, "revision", 0),
        created_at: read.or(8, "created_at", never),
        updated_at: read.or(9, "updated_at", never),
    };
    listed.user.name = read.problem().or(listed.user.name);
    Ok(listed)
}

/// Reads the quiet hours in a column. Unreadable hours are ignored, so that the user stays usable.
pub(in crate::store) fn quiet_hours(row: &Row, place: usize) -> Result<Option<QuietHours>, DbError> {
    let stored: Option<Json> = row.get(place)?;
    Ok(stored.and_then(|json| serde_json::from_value(json).ok()))
}

fn addresses_in(json: &str) -> Result<Vec<UserAddress>, DbError> {
    type Listed = (i32, String, String, Option<i64>, Option<String>);
    let listed: Vec<Listed> =
        serde_json::from_str(json).map_err(|problem| DbError::Unreadable(format!("a user's addresses: {problem}")))?;
    let address = |(_, kind, address, verified, disabled_reason): Listed| UserAddress {
        kind,
        address,
        verified_at: verified.map(Timestamp::from_micros),
        disabled_reason,
    };
    Ok(listed.into_iter().map(address).collect())
}
