//! The audit log of changes by people and programs. An entry is written in the same transaction as its change.

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryKey;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// An entry to write to the audit log. The store adds the actor, which [`Store::by`] sets.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    whose: Whose,
    action: &'static str,
    subject: Option<String>,
    details: Option<Json>,
    count: Count,
}

/// The number of objects that the change concerned.
#[derive(Debug, Clone, PartialEq)]
enum Count {
    Known(i64),
    /// A query that counts the objects in the transaction of the change, and its parameters.
    Query(String, Vec<Value>),
}

/// The tenant to whose log the entry is written.
#[derive(Debug, Clone, PartialEq)]
enum Whose {
    /// A tenant, by its number.
    Tenant(i32),
    /// A tenant by name. The change itself may create this tenant.
    Named(String),
    /// The tenant that owns this lane.
    Lane(i32),
}

impl AuditEntry {
    /// Creates an entry with an action such as `noun.verb` and its subject.
    pub fn new(tenant: i32, action: &'static str, subject: impl Into<String>) -> Self {
        Self {
            whose: Whose::Tenant(tenant),
            action,
            subject: Some(subject.into()),
            details: None,
            count: Count::Known(1),
        }
    }

    /// Creates an entry about a tenant, given by name.
    pub(in crate::store) fn of_tenant(name: &str, action: &'static str) -> Self {
        Self { whose: Whose::Named(name.to_owned()), subject: None, ..Self::new(0, action, "") }
    }

    /// Creates an entry about a tenant, given by number.
    pub(in crate::store) fn of_owner(tenant: i32, action: &'static str) -> Self {
        Self { subject: None, ..Self::new(tenant, action, "") }
    }

    /// Creates an entry about a provider, given by its lane.
    pub(in crate::store) fn of_lane(lane: i32, action: &'static str) -> Self {
        Self { whose: Whose::Lane(lane), subject: None, ..Self::new(0, action, "") }
    }

    /// Adds details, such as the filter of a bulk change. They must not contain secrets.
    pub fn details(self, details: Json) -> Self {
        Self { details: Some(details), ..self }
    }

    /// Sets how many objects the change concerned. The default is 1.
    pub fn count(self, count: i64) -> Self {
        Self { count: Count::Known(count), ..self }
    }

    /// Counts the objects with a query in the transaction of the change. In the query `$1` is the tenant and `$7` the
    /// subject. The query's own parameters begin at [`COUNT_PARAMETERS_FROM`].
    pub(in crate::store) fn counted(self, question: String, parameters: Vec<Value>) -> Self {
        Self { count: Count::Query(question, parameters), ..self }
    }
}

/// The number of the first parameter that belongs to the query of [`AuditEntry::counted`].
pub(in crate::store) const COUNT_PARAMETERS_FROM: usize = 8;

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRow {
    /// The number of the entry. Newer entries have higher numbers.
    pub id: i64,
    /// The tenant in whose log the entry is.
    pub tenant: String,
    /// When the change was made.
    pub at: Timestamp,
    /// The actor that made the change.
    pub actor: String,
    /// The action, as `noun.verb`, such as `delivery.retry`.
    pub action: String,
    /// The object of the change.
    pub subject: String,
    /// Details, such as the filter of a bulk change.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub details: Option<Json>,
    /// How many objects the change concerned.
    pub count: i64,
    /// The id of the request that made the change.
    pub request_id: Option<String>,
}

/// Entries of the audit log that are many and no acts of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditNoise {
    /// What providers reported after the send.
    Receipts,
    /// Everything that nobody asked for: what providers reported and what followed from it, and what Postcommit did by
    /// itself, such as a breaker that tripped or a lane that was paused.
    System,
}

impl AuditNoise {
    pub const ALL: [Self; 2] = [Self::Receipts, Self::System];

    /// The name in the URL of a list.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Receipts => "receipts",
            Self::System => "system",
        }
    }

    /// The condition for the entries that are left.
    fn left(self) -> &'static str {
        match self {
            Self::Receipts => "a.action <> 'delivery.receipt'",
            Self::System => "a.actor <> 'system' AND substr(a.actor, 1, 9) <> 'provider:'",
        }
    }
}

/// The actions of breakers, on a provider's lane or on one of its receivers.
pub(in crate::store) const TRIP: &str = "provider.trip";
pub(in crate::store) const RECOVER: &str = "provider.recover";

/// The filter for a list of audit entries. The newest come first.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only entries of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// Only entries by this actor.
    pub actor: Option<String>,
    /// Only entries with this action.
    pub action: Option<String>,
    /// Only changes of this object.
    pub subject: Option<String>,
    /// Entries that are left out.
    pub without: Option<AuditNoise>,
    /// Only entries about breakers that tripped or recovered.
    pub only_breakers: bool,
    /// Only entries from this time on.
    pub from: Option<Timestamp>,
    /// Only entries before this time.
    pub until: Option<Timestamp>,
    /// Only entries with a smaller id. For the next page, give the last id of the previous page.
    pub before: Option<i64>,
    /// The maximum number of rows to return.
    pub limit: i64,
}

const SELECT: &str = "SELECT a.id, t.name, a.at, a.actor, a.action, a.subject, a.details, a.count, a.request_id
    FROM postcommit.audit a JOIN postcommit.tenant t ON t.id = a.tenant";

impl Store {
    /// Returns the statement that writes an audit entry. Run the statement in the transaction of the change.
    pub(in crate::store) fn audit(&self, entry: AuditEntry) -> Statement {
        // The SQL for the entry's tenant, the SQL for its default subject, and the parameter `$1` of both.
        let (whose, about, of) = match entry.whose {
            Whose::Tenant(tenant) => ("$1", "(SELECT name FROM postcommit.tenant WHERE id = $1)", Value::from(tenant)),
            Whose::Named(name) => ("(SELECT id FROM postcommit.tenant WHERE name = $1)", "$1", name.into()),
            Whose::Lane(lane) => (
                "(SELECT tenant FROM postcommit.provider WHERE id = $1)",
                "(SELECT name FROM postcommit.provider WHERE id = $1)",
                lane.into(),
            ),
        };
        let subject = if entry.subject.is_some() { "$7" } else { about };
        let (known, counted, asked) = match entry.count {
            Count::Known(count) => (count.into(), "$5".to_owned(), vec![]),
            // `$5` stays in the statement, so that the other parameters keep their numbers.
            Count::Query(question, parameters) => (Value::Null, format!("coalesce($5, ({question}))"), parameters),
        };
        let sql = format!(
            "INSERT INTO postcommit.audit (tenant, at, actor, action, details, count, request_id, subject)
             VALUES ({whose}, {{now}}, $2, $3, $4, {counted}, $6, {subject})"
        );
        let actor = &self.actor;
        let mut parameters = vec![
            of,
            actor.name.as_str().into(),
            entry.action.into(),
            entry.details.into(),
            known,
            actor.request_id.as_deref().into(),
        ];
        parameters.extend(entry.subject.map(Value::from));
        parameters.extend(asked);
        (sql, parameters)
    }

    /// Writes an audit entry about a change that was made in other transactions, such as a bulk change in slices.
    pub async fn note(&self, entry: AuditEntry) -> Result<(), DbError> {
        self.db.execute(vec![self.audit(entry)]).await.map(drop)
    }

    /// Runs one change, and writes its audit entry if a row was changed. Returns whether a row was changed.
    pub(in crate::store) async fn change(
        &self,
        sql: &str,
        parameters: Vec<Value>,
        entry: AuditEntry,
    ) -> Result<bool, DbError> {
        self.change_all(vec![(sql.to_owned(), parameters)], 0, entry).await
    }

    /// Runs several statements and writes an audit entry. If the statement at index `deciding` changes no row, the rest
    /// is skipped, as in [`crate::db::Db::execute_if`].
    pub(in crate::store) async fn change_all(
        &self,
        mut statements: Vec<Statement>,
        deciding: usize,
        entry: AuditEntry,
    ) -> Result<bool, DbError> {
        statements.push(self.audit(entry));
        self.db.execute_if(statements, deciding).await
    }

    /// Returns the statement that writes one audit entry for each of many deliveries, so that the history of each
    /// delivery is complete.
    pub(in crate::store) fn audit_each(&self, action: &'static str, keys: &[DeliveryKey]) -> Statement {
        let rows: Vec<Json> =
            keys.iter().map(|key| json!({"tenant": key.tenant, "id": key.id().to_string()})).collect();
        let given = match self.db.kind() {
            "postgres" => {
                "SELECT g.tenant, {now}, $2, $3, g.id, 1, $4
                 FROM jsonb_to_recordset($1) AS g (tenant int, id text)"
            }
            _ => "SELECT value ->> 'tenant', {now}, $2, $3, value ->> 'id', 1, $4 FROM json_each($1)",
        };
        let sql =
            format!("INSERT INTO postcommit.audit (tenant, at, actor, action, subject, count, request_id) {given}");
        let actor = &self.actor;
        (
            sql,
            vec![
                Json::from(rows).into(),
                actor.name.as_str().into(),
                action.into(),
                actor.request_id.as_deref().into(),
            ],
        )
    }

    /// Reads the entries about a notification and its deliveries, oldest first.
    pub(in crate::store) async fn audit_of(
        &self,
        tenant: i32,
        subjects: Vec<String>,
    ) -> Result<Vec<AuditRow>, DbError> {
        let among = match self.db.kind() {
            "postgres" => "a.subject = ANY ($2)",
            _ => "a.subject IN (SELECT value FROM json_each($2))",
        };
        let sql = format!("{SELECT} WHERE a.tenant = $1 AND {among} ORDER BY a.id LIMIT 1000");
        Ok(legible("audit", self.db.query(&sql, vec![tenant.into(), Value::Texts(subjects)]).await?.iter().map(listed)))
    }

    /// Reads one page of the audit log, newest first.
    pub async fn audit_rows(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, DbError> {
        let mut sql = format!("{SELECT} WHERE a.id < $1");
        let mut parameters: Vec<Value> = vec![filter.before.unwrap_or(i64::MAX).into()];
        let wanted: [(&str, Value); 6] = [
            ("a.tenant =", filter.tenant.into()),
            ("a.actor =", filter.actor.as_deref().into()),
            ("a.action =", filter.action.as_deref().into()),
            ("a.subject =", filter.subject.as_deref().into()),
            ("a.at >=", filter.from.into()),
            ("a.at <", filter.until.into()),
        ];
        for (condition, value) in wanted.into_iter().filter(|(_, value)| *value != Value::Null) {
            parameters.push(value);
            sql.push_str(&format!(" AND {condition} ${}", parameters.len()));
        }
        if let Some(without) = filter.without {
            sql.push_str(&format!(" AND {}", without.left()));
        }
        if filter.only_breakers {
            sql.push_str(&format!(" AND a.action IN ('{TRIP}', '{RECOVER}')"));
        }
        parameters.push(filter.limit.into());
        sql.push_str(&format!(" ORDER BY a.id DESC LIMIT ${}", parameters.len()));
        Ok(legible("audit", self.db.query(&sql, parameters).await?.iter().map(listed)))
    }
}

fn listed(row: &Row) -> Result<AuditRow, DbError> {
    let mut read = Reader::of(row);
    let mut listed = AuditRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        at: read.or(2, "at", Timestamp::from_micros(0)),
        actor: row.get(3)?,
        action: row.get(4)?,
        subject: row.get(5)?,
        details: row.get(6)?,
        count: read.or(7, "count", 0),
        request_id: row.get(8)?,
    };
    listed.details = read.problem().map(|problem| json!({"unreadable": problem})).or(listed.details);
    Ok(listed)
}
