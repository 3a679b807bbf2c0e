//! Lists of users, addresses and other lists. Notifications name such lists as recipients. (The folder `lists/` is
//! about pages of deliveries and notifications.)

use postcommit::{Recipient, Timestamp, check};
use postcommit_channel::model::{ListMember, channels_of_kind};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::edit::{EditError, Subject, TRIES, field, text};
use crate::store::event_types::{DESCRIPTION_CHARS, path_name};
use crate::store::unreadable::{Reader, legible};
use crate::store::{AuditEntry, Store};

/// How many members a list may have. The members of an inner list are counted in the inner list only.
pub const LIST_MEMBERS: usize = 100_000;
/// How many members one change may add and remove in total.
pub const MEMBERS_CHANGED: usize = 1000;

/// A list of recipients.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListRow {
    /// The tenant that owns the list.
    pub tenant: String,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant_id: i32,
    /// The name of the list, as in recipients.
    pub name: String,
    /// The purpose of the list.
    pub description: Option<String>,
    /// The number of changes of the list itself so far. A change of its members is not counted.
    pub revision: i32,
    /// When the list was created.
    pub created_at: Timestamp,
    /// When the list or its members were last changed.
    pub updated_at: Timestamp,
}

/// A member to be added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberDraft {
    /// The kind of the member: `user`, `list`, or the kind of an address: `email`, `phone`, `slack`, `teams`,
    /// `webhook`, `push`, `web_push`.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^(user|list|email|phone|slack|teams|webhook|push|web_push)$", example = "user")
    )]
    pub kind: String,
    /// The user's id, the list's name or the address.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 2048, example = "42"))]
    pub member: String,
    /// The channel of an address, e.g. `whatsapp` for a phone number. `null` means the default channel of its kind.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$"))]
    pub channel: Option<String>,
}

/// A member of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberRow {
    /// The kind of the member: `user`, `list`, or the kind of an address.
    pub kind: String,
    /// The user's id, the list's name or the address.
    pub member: String,
    /// The channel of an address. `null` means the default channel of its kind.
    pub channel: Option<String>,
    /// When the member was added.
    pub added_at: Timestamp,
}

/// The result of a change of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MembersChanged {
    /// The number of added members. Members that were in the list before are not counted.
    pub added: i64,
    /// The number of removed members.
    pub removed: i64,
    /// The number of members that the list has now.
    pub members: i64,
}

impl MemberDraft {
    /// Checks the member by the rules for recipients.
    ///
    /// # Errors
    /// Names the field, the problem and the allowed values.
    pub fn check(&self) -> Result<(), EditError> {
        let recipient = self.recipient()?;
        // The name of a list is part of URL paths, so the rules for user ids apply.
        let recipient = if self.kind == "list" { Recipient::user(self.member.as_str()) } else { recipient };
        field("member", recipient.check())?;
        field("channel", self.channel.as_deref().map_or(Ok(()), |channel| self.check_channel(channel)))
    }

    /// Returns the member as a recipient. An unknown kind is an error.
    fn recipient(&self) -> Result<Recipient, EditError> {
        let member = ListMember { kind: self.kind.clone(), member: self.member.clone(), channel: String::new() };
        member.recipient().map_err(EditError::Refused)
    }

    fn check_channel(&self, channel: &str) -> Result<(), String> {
        check::short_name(channel)?;
        match channels_of_kind(&self.kind) {
            [] => Err(format!("is given for a {}; only an address has a channel; leave the field out", self.kind)),
            known if known.contains(&channel) => Ok(()),
            known => Err(format!("is {channel:?}; allowed for {} are {}", self.kind, known.join(", "))),
        }
    }

    /// Returns the channel as the table stores it. The default channel of a kind is stored as an empty string.
    fn channel(&self) -> &str {
        let default = channels_of_kind(&self.kind).first().copied();
        self.channel.as_deref().filter(|channel| Some(*channel) != default).unwrap_or("")
    }
}

/// The filter for a list of lists, ordered by tenant and name.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// Only lists of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// The tenant's number and the name of the last list on the previous page.
    pub after: Option<(i32, String)>,
    /// The maximum number of lists to return.
    pub limit: i64,
}

/// The position of a member in the order of a list: kind, member, channel.
pub type MemberPlace = (String, String, String);

const SELECT: &str = "SELECT l.tenant, t.name, l.name, l.description, l.revision, l.created_at, l.updated_at
    FROM postcommit.list l
    JOIN postcommit.tenant t ON t.id = l.tenant
    WHERE 1 = 1";

impl Store {
    /// Creates a list without members.
    pub async fn create_list(&self, tenant: i32, name: &str, description: Option<&str>) -> Result<ListRow, EditError> {
        check_list(name, description)?;
        let sql = "INSERT INTO postcommit.list (tenant, name, description, created_at, updated_at)
            VALUES ($1, $2, $3, {now}, {now})
            ON CONFLICT (tenant, name) DO NOTHING";
        let parameters = vec![tenant.into(), name.into(), description.into()];
        if !self.change(sql, parameters, AuditEntry::new(tenant, "list.create", name)).await? {
            return Err(Subject("list", name).exists());
        }
        self.known_list(tenant, name).await
    }

    /// Changes the description if one is given. `Some(None)` removes it. With a revision, nothing is changed unless the
    /// list still has that revision.
    pub async fn update_list(
        &self,
        tenant: i32,
        name: &str,
        revision: Option<i32>,
        description: Option<Option<&str>>,
    ) -> Result<ListRow, EditError> {
        text("description", description.flatten(), DESCRIPTION_CHARS)?;
        for _ in 0..TRIES {
            let from = self.known_list(tenant, name).await?;
            Subject("list", name).is_still(revision, from.revision)?;
            let Some(to) = description.filter(|to| *to != from.description.as_deref()) else { return Ok(from) };
            let sql = "UPDATE postcommit.list SET description = $3, revision = revision + 1, updated_at = {now}
                WHERE tenant = $1 AND name = $2 AND revision = $4";
            let parameters = vec![tenant.into(), name.into(), to.into(), from.revision.into()];
            let entry = AuditEntry::new(tenant, "list.update", name).details(json!({"fields": ["description"]}));
            if self.change(sql, parameters, entry).await? {
                return self.known_list(tenant, name).await;
            }
        }
        Err(Subject("list", name).overtaken())
    }

    /// Deletes a list and its members. A list that is a member of another list is not deleted.
    pub async fn delete_list(&self, tenant: i32, name: &str) -> Result<(), EditError> {
        path_name(name).map_err(|_| Subject("list", name).unknown())?;
        let key = || vec![tenant.into(), name.into()];
        let delete = "DELETE FROM postcommit.list
            WHERE tenant = $1 AND name = $2 AND NOT EXISTS (
              SELECT 1 FROM postcommit.list_member WHERE tenant = $1 AND kind = 'list' AND member = $2)";
        let empty = "DELETE FROM postcommit.list_member WHERE tenant = $1 AND list = $2";
        let mut statements = self.one_by_one(tenant);
        let deciding = statements.len();
        statements.extend([(delete.to_owned(), key()), (empty.to_owned(), key())]);
        if self.change_all(statements, deciding, AuditEntry::new(tenant, "list.delete", name)).await? {
            return Ok(());
        }
        self.known_list(tenant, name).await?;
        let sql = "SELECT min(list) FROM postcommit.list_member WHERE tenant = $1 AND kind = 'list' AND member = $2";
        let rows = self.db.query(sql, key()).await?;
        let outer: Option<String> = rows.first().map_or(Ok(None), |row| row.get(0))?;
        let outer = outer.unwrap_or_default();
        Err(EditError::Conflict(format!("list {name:?} is a member of list {outer:?}; remove it from that list first")))
    }

    /// Adds and removes members in one transaction. It is not an error to add a member twice or to remove a member that
    /// is not in the list. The limits are checked before anything is removed.
    pub async fn change_members(
        &self,
        tenant: i32,
        name: &str,
        add: &[MemberDraft],
        remove: &[MemberDraft],
    ) -> Result<MembersChanged, EditError> {
        path_name(name).map_err(|_| Subject("list", name).unknown())?;
        check_members(add, remove)?;
        if add.is_empty() && remove.is_empty() {
            self.known_list(tenant, name).await?;
            return Ok(MembersChanged { added: 0, removed: 0, members: self.member_count(tenant, name).await? });
        }
        let entry = AuditEntry::new(tenant, "list.members", name)
            .details(json!({"added": add.len(), "removed": remove.len()}))
            .count(i64::try_from(add.len() + remove.len()).unwrap_or(i64::MAX));
        let mut statements = self.one_by_one(tenant);
        let deciding = statements.len();
        statements.extend([
            self.deciding(tenant, name, add),
            self.removing(tenant, name, remove),
            self.adding(tenant, name, add),
            self.audit(entry),
        ]);
        let touched = self.db.execute_while(statements, deciding).await?;
        let count = |place: usize| touched.get(place).map_or(0, |rows| i64::try_from(*rows).unwrap_or(i64::MAX));
        if count(deciding) == 0 {
            return Err(self.why_members_are_refused(tenant, name, add).await?);
        }
        let members = self.member_count(tenant, name).await?;
        Ok(MembersChanged { added: count(deciding + 2), removed: count(deciding + 1), members })
    }

    /// Returns the statement that records the time of the change. It changes no row if the change is not allowed: the
    /// list or an added list does not exist, an added list contains this list, or there would be too many members.
    fn deciding(&self, tenant: i32, name: &str, add: &[MemberDraft]) -> Statement {
        let lists = self.rows_given(3, &[("kind", "text"), ("member", "text"), ("channel", "text")]);
        let sql = format!(
            "UPDATE postcommit.list SET updated_at = {{now}}
             WHERE tenant = $1 AND name = $2
               AND NOT EXISTS (SELECT 1 FROM {lists} WHERE g.kind = 'list' AND NOT EXISTS (
                 SELECT 1 FROM postcommit.list other WHERE other.tenant = $1 AND other.name = g.member))
               AND NOT EXISTS ({CYCLE})
               AND (SELECT count(*) FROM postcommit.list_member m WHERE m.tenant = $1 AND m.list = $2)
                 + (SELECT count(*) FROM (SELECT DISTINCT g.kind, g.member, g.channel FROM {lists}) AS g
                   WHERE NOT EXISTS (SELECT 1
                     FROM postcommit.list_member m
                     WHERE m.tenant = $1 AND m.list = $2 AND m.kind = g.kind AND m.member = g.member
                       AND m.channel = g.channel)) <= $4",
            CYCLE = cycle(&lists)
        );
        let most = i64::try_from(LIST_MEMBERS).unwrap_or(i64::MAX);
        (sql, vec![tenant.into(), name.into(), rows(add), most.into()])
    }

    fn adding(&self, tenant: i32, name: &str, add: &[MemberDraft]) -> Statement {
        let given = self.rows_given(3, &[("kind", "text"), ("member", "text"), ("channel", "text")]);
        let sql = format!(
            "INSERT INTO postcommit.list_member (tenant, list, kind, member, channel, added_at)
             SELECT $1, $2, g.kind, g.member, g.channel, {{now}} FROM {given} WHERE 1 = 1
             ON CONFLICT (tenant, list, kind, member, channel) DO NOTHING"
        );
        (sql, vec![tenant.into(), name.into(), rows(add)])
    }

    fn removing(&self, tenant: i32, name: &str, remove: &[MemberDraft]) -> Statement {
        let given = self.rows_given(3, &[("kind", "text"), ("member", "text"), ("channel", "text")]);
        let sql = format!(
            "DELETE FROM postcommit.list_member
             WHERE tenant = $1 AND list = $2
               AND (kind, member, channel) IN (SELECT g.kind, g.member, g.channel FROM {given})"
        );
        (sql, vec![tenant.into(), name.into(), rows(remove)])
    }

    /// Returns the statement that makes concurrent changes of a tenant's lists run one after another, so that two
    /// changes together cannot create a cycle. SQLite has only one writer and needs no such statement.
    fn one_by_one(&self, tenant: i32) -> Vec<Statement> {
        match self.db.kind() {
            "postgres" => {
                let sql = "SELECT pg_advisory_xact_lock(hashtext('postcommit.list'), $1)";
                vec![(sql.to_owned(), vec![tenant.into()])]
            }
            _ => vec![],
        }
    }

    /// Finds the reason why members were not added.
    async fn why_members_are_refused(
        &self,
        tenant: i32,
        name: &str,
        add: &[MemberDraft],
    ) -> Result<EditError, EditError> {
        self.known_list(tenant, name).await?;
        for (place, draft) in add.iter().enumerate().filter(|(_, draft)| draft.kind == "list") {
            let inner = draft.member.as_str();
            if self.member_list_row(tenant, inner).await?.is_none() {
                return Ok(unknown_inner_list(place, inner));
            }
            let lists = self.rows_given(3, &[("kind", "text"), ("member", "text")]);
            let parameters = vec![tenant.into(), name.into(), rows(std::slice::from_ref(draft))];
            if !self.db.query(&cycle(&lists), parameters).await?.is_empty() {
                return Ok(cyclic_list(place, inner, name));
            }
        }
        Ok(too_many_members(self.member_count(tenant, name).await?))
    }

    async fn known_list(&self, tenant: i32, name: &str) -> Result<ListRow, EditError> {
        self.member_list_row(tenant, name).await?.ok_or_else(|| Subject("list", name).unknown())
    }

    /// Reads one list, without its members.
    pub async fn member_list_row(&self, tenant: i32, name: &str) -> Result<Option<ListRow>, DbError> {
        if name.contains('\0') {
            return Ok(None);
        }
        let sql = format!("{SELECT} AND l.tenant = $1 AND l.name = $2");
        self.db.query(&sql, vec![tenant.into(), name.into()]).await?.first().map(listed).transpose()
    }

    /// Reads one page of lists, ordered by tenant and name.
    pub async fn member_list_rows(&self, filter: &ListFilter) -> Result<Vec<ListRow>, DbError> {
        let mut sql = SELECT.to_owned();
        let mut parameters: Vec<Value> = vec![filter.limit.into()];
        if let Some(tenant) = filter.tenant {
            parameters.push(tenant.into());
            sql.push_str(&format!(" AND l.tenant = ${}", parameters.len()));
        }
        if let Some((tenant, name)) = &filter.after {
            parameters.extend([Value::from(*tenant), name.as_str().into()]);
            sql.push_str(&format!(" AND (l.tenant, l.name) > (${}, ${})", parameters.len() - 1, parameters.len()));
        }
        sql.push_str(" ORDER BY l.tenant, l.name LIMIT $1");
        Ok(legible("lists", self.db.query(&sql, parameters).await?.iter().map(listed)))
    }

    /// Reads one page of a list's direct members, ordered by kind, member and channel.
    pub async fn member_rows(
        &self,
        tenant: i32,
        name: &str,
        after: Option<&MemberPlace>,
        limit: i64,
    ) -> Result<Vec<MemberRow>, DbError> {
        let mut parameters: Vec<Value> = vec![tenant.into(), name.into(), limit.into()];
        let mut sql = "SELECT kind, member, channel, added_at
            FROM postcommit.list_member
            WHERE tenant = $1 AND list = $2"
            .to_owned();
        if let Some((kind, member, channel)) = after {
            parameters.extend([kind, member, channel].map(|text| Value::from(text.as_str())));
            sql.push_str(" AND (kind, member, channel) > ($4, $5, $6)");
        }
        sql.push_str(" ORDER BY kind, member, channel LIMIT $3");
        Ok(legible("members", self.db.query(&sql, parameters).await?.iter().map(member)))
    }

    /// Returns the names of the lists that have the user as a direct member.
    pub async fn lists_of_user(&self, tenant: i32, user: &str, limit: i64) -> Result<Vec<String>, DbError> {
        if user.contains('\0') {
            return Ok(vec![]);
        }
        let sql = "SELECT DISTINCT list FROM postcommit.list_member
            WHERE tenant = $1 AND kind = 'user' AND member = $2
            ORDER BY list LIMIT $3";
        let rows = self.db.query(sql, vec![tenant.into(), user.into(), limit.into()]).await?;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Counts the direct members of each of these lists. Counting stops at `most`.
    pub async fn list_sizes(&self, lists: &[ListRow], most: i64) -> Result<Vec<i64>, DbError> {
        let given = match self.db.kind() {
            "postgres" => "jsonb_to_recordset($1::jsonb) AS g (place int, tenant int, name text)",
            _ => {
                "(SELECT value ->> 'place' AS place, value ->> 'tenant' AS tenant, value ->> 'name' AS name
                   FROM json_each($1)) AS g"
            }
        };
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT 1
                 FROM postcommit.list_member m
                 WHERE m.tenant = g.tenant AND m.list = g.name
                 LIMIT $2) counted)
             FROM {given}
             ORDER BY g.place"
        );
        let row =
            |(place, list): (usize, &ListRow)| json!({"place": place, "tenant": list.tenant_id, "name": list.name});
        let given: Json = lists.iter().enumerate().map(row).collect();
        let rows = self.db.query(&sql, vec![given.into(), most.into()]).await?;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Counts the direct members of a list.
    pub async fn member_count(&self, tenant: i32, name: &str) -> Result<i64, DbError> {
        let sql = "SELECT count(*) FROM postcommit.list_member WHERE tenant = $1 AND list = $2";
        self.db.query(sql, vec![tenant.into(), name.into()]).await?.first().map_or(Ok(0), |row| row.get(0))
    }
}

impl MemberRow {
    /// Returns the position after which the next page begins.
    #[must_use]
    pub fn place(&self) -> MemberPlace {
        (self.kind.clone(), self.member.clone(), self.channel.clone().unwrap_or_default())
    }
}

/// Returns a query that has a row if one of the given lists is list `$2` or contains it.
fn cycle(lists: &str) -> String {
    format!(
        "WITH RECURSIVE inside (list) AS (
           SELECT g.member FROM {lists} WHERE g.kind = 'list'
           UNION
           SELECT m.member
           FROM inside
           JOIN postcommit.list_member m ON m.tenant = $1 AND m.list = inside.list AND m.kind = 'list')
         SELECT 1 FROM inside WHERE inside.list = $2"
    )
}

/// Checks the name and the description of a new list.
///
/// # Errors
/// Names the field, the problem and what is allowed.
pub fn check_list(name: &str, description: Option<&str>) -> Result<(), EditError> {
    path_name(name)?;
    text("description", description, DESCRIPTION_CHARS)
}

/// Returns the error for the member `add[place]`: a list that does not exist.
#[must_use]
pub fn unknown_inner_list(place: usize, inner: &str) -> EditError {
    EditError::Refused(format!("add[{place}].member: there is no list {inner:?}; create it first"))
}

/// Returns the error for the member `add[place]`: the list `name` itself, or a list that contains it.
#[must_use]
pub fn cyclic_list(place: usize, inner: &str, name: &str) -> EditError {
    let problem = format!("list {inner:?} is {name:?} or contains it; a list cannot contain itself");
    EditError::Refused(format!("add[{place}].member: {problem}"))
}

/// Returns the error for a list with `members` members that would get more than [`LIST_MEMBERS`].
#[must_use]
pub fn too_many_members(members: i64) -> EditError {
    EditError::Refused(format!(
        "add: the list has {members} members already; at most {LIST_MEMBERS} are allowed; use several lists, and a list \
         of them"
    ))
}

/// Checks members to be added and removed in one change.
///
/// # Errors
/// Names the member by its place, the field, the problem and what is allowed.
pub fn check_members(add: &[MemberDraft], remove: &[MemberDraft]) -> Result<(), EditError> {
    let count = add.len() + remove.len();
    if count > MEMBERS_CHANGED {
        return Err(EditError::Refused(format!(
            "add: has {count} members together with remove; at most {MEMBERS_CHANGED} are allowed, so use several requests"
        )));
    }
    for (place, draft) in add.iter().enumerate() {
        draft.check().map_err(|problem| EditError::Refused(format!("add[{place}].{problem}")))?;
    }
    for (place, draft) in remove.iter().enumerate() {
        draft.recipient().map_err(|problem| EditError::Refused(format!("remove[{place}].{problem}")))?;
        field(&format!("remove[{place}].member"), Recipient::list(draft.member.as_str()).check())?;
        if let Some(channel) = &draft.channel {
            field(&format!("remove[{place}].channel"), check::short_name(channel))?;
        }
    }
    Ok(())
}

fn rows(members: &[MemberDraft]) -> Value {
    let row = |of: &MemberDraft| json!({"kind": of.kind, "member": of.member, "channel": of.channel()});
    members.iter().map(row).collect::<Json>().into()
}

fn listed(row: &Row) -> Result<ListRow, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let mut listed = ListRow {
        tenant_id: row.get(0)?,
        tenant: row.get(1)?,
        name: row.get(2)?,
        description: row.get(3)?,
        revision: read.or(4, "revision", 0),
        created_at: read.or(5, "created_at", never),
        updated_at: read.or(6, "updated_at", never),
    };
    listed.description = read.problem().or(listed.description);
    Ok(listed)
}

fn member(row: &Row) -> Result<MemberRow, DbError> {
    let channel: String = row.get(2)?;
    Ok(MemberRow {
        kind: row.get(0)?,
        member: row.get(1)?,
        channel: (!channel.is_empty()).then_some(channel),
        added_at: row.get(3)?,
    })
}
