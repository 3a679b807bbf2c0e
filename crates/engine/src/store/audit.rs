//! The audit log: who changed what. An entry is written in the transaction of the change it reports, or not at all.

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryKey;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// What somebody does. Who it is, the store knows: [`Store::by`].
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    whose: Whose,
    action: &'static str,
    subject: Option<String>,
    details: Option<Json>,
    count: Count,
}

/// How many it concerned.
#[derive(Debug, Clone, PartialEq)]
enum Count {
    Known(i64),
    /// As the database finds in the transaction of the change.
    Asked(String, Vec<Value>),
}

/// In whose log it is entered.
#[derive(Debug, Clone, PartialEq)]
enum Whose {
    /// This tenant's.
    Tenant(i32),
    /// The one's of that name, who may be made by the very change.
    Named(String),
    /// Of the tenant whose lane it is.
    Lane(i32),
}

impl AuditEntry {
    /// An entry: `noun.verb`, and on what.
    pub fn new(tenant: i32, action: &'static str, subject: impl Into<String>) -> Self {
        Self { whose: Whose::Tenant(tenant), action, subject: Some(subject.into()), details: None, count: Count::Known(1) }
    }

    /// About a tenant, known by its name.
    pub(in crate::store) fn of_tenant(name: &str, action: &'static str) -> Self {
        Self { whose: Whose::Named(name.to_owned()), subject: None, ..Self::new(0, action, "") }
    }

    /// About a tenant, known by its number.
    pub(in crate::store) fn of_owner(tenant: i32, action: &'static str) -> Self {
        Self { subject: None, ..Self::new(tenant, action, "") }
    }

    /// About a provider, known by its lane.
    pub(in crate::store) fn of_lane(lane: i32, action: &'static str) -> Self {
        Self { whose: Whose::Lane(lane), subject: None, ..Self::new(0, action, "") }
    }

    /// With more about it, such as the filter of a change of many. Nothing secret.
    #[must_use]
    pub fn details(self, details: Json) -> Self {
        Self { details: Some(details), ..self }
    }

    /// How many it concerned; 1 if not told.
    #[must_use]
    pub fn count(self, count: i64) -> Self {
        Self { count: Count::Known(count), ..self }
    }

    /// As many as this question finds. In it the tenant is $1, the subject $7, and its own parameters begin at [`ASKED_FROM`].
    pub(in crate::store) fn counted(self, question: String, parameters: Vec<Value>) -> Self {
        Self { count: Count::Asked(question, parameters), ..self }
    }
}

/// Where the parameters of [`AuditEntry::counted`] begin.
pub(in crate::store) const ASKED_FROM: usize = 8;

/// One entry, as people see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRow {
    /// Grows with every entry.
    pub id: i64,
    /// In whose log it stands.
    pub tenant: String,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// Did what: `noun.verb`.
    pub action: String,
    /// On what.
    pub subject: String,
    /// More about it, such as the filter.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub details: Option<Json>,
    /// How many it concerned.
    pub count: i64,
    /// By which request.
    pub request_id: Option<String>,
}

/// Which entries to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only this tenant's; none is everybody's.
    pub tenant: Option<i32>,
    /// Only by this actor.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only on this.
    pub subject: Option<String>,
    /// Only at this time or later.
    pub from: Option<Timestamp>,
    /// Only before this time.
    pub to: Option<Timestamp>,
    /// Only with a smaller id: the page after the one that ended there.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: i64,
}

const SELECT: &str = "SELECT a.id, t.name, a.at, a.actor, a.action, a.subject, a.details, a.count, a.request_id
    FROM postcommit.audit a JOIN postcommit.tenant t ON t.id = a.tenant";

impl Store {
    /// The statement that enters it under this store's actor, for the transaction of the change.
    pub(in crate::store) fn audit(&self, entry: AuditEntry) -> Statement {
        // The log's owner, and what the entry is about if it does not say so itself.
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
            // $5 keeps its place.
            Count::Asked(question, parameters) => (Value::Null, format!("coalesce($5, ({question}))"), parameters),
        };
        let sql = format!(
            "INSERT INTO postcommit.audit (tenant, at, actor, action, details, count, request_id, subject)
             VALUES ({whose}, {{now}}, $2, $3, $4, {counted}, $6, {subject})"
        );
        let actor = &self.actor;
        let mut parameters =
            vec![of, actor.name.as_str().into(), entry.action.into(), entry.details.into(), known, actor.request_id.as_deref().into()];
        parameters.extend(entry.subject.map(Value::from));
        parameters.extend(asked);
        (sql, parameters)
    }

    /// Enters what was done in other transactions, such as a change of many in steps.
    pub async fn note(&self, entry: AuditEntry) -> Result<(), DbError> {
        self.db.execute(vec![self.audit(entry)]).await.map(drop)
    }

    /// One change and its entry, which is written if the change touched anything. True when it did.
    pub(in crate::store) async fn change(&self, sql: &str, parameters: Vec<Value>, entry: AuditEntry) -> Result<bool, DbError> {
        self.change_all(vec![(sql.to_owned(), parameters)], 0, entry).await
    }

    /// The same for several statements, one of which decides: [`crate::db::Db::execute_if`].
    pub(in crate::store) async fn change_all(
        &self,
        mut statements: Vec<Statement>,
        deciding: usize,
        entry: AuditEntry,
    ) -> Result<bool, DbError> {
        statements.push(self.audit(entry));
        self.db.execute_if(statements, deciding).await
    }

    /// The same for many deliveries: an entry for each, so that each can tell its story.
    pub(in crate::store) fn audit_each(&self, action: &'static str, keys: &[DeliveryKey]) -> Statement {
        let rows: Vec<Json> = keys.iter().map(|key| json!({"tenant": key.tenant, "id": key.id().to_string()})).collect();
        let given = match self.db.kind() {
            "postgres" => "SELECT g.tenant, {now}, $2, $3, g.id, 1, $4 FROM jsonb_to_recordset($1) AS g (tenant int, id text)",
            _ => "SELECT value ->> 'tenant', {now}, $2, $3, value ->> 'id', 1, $4 FROM json_each($1)",
        };
        let sql = format!("INSERT INTO postcommit.audit (tenant, at, actor, action, subject, count, request_id) {given}");
        let actor = &self.actor;
        (sql, vec![Json::from(rows).into(), actor.name.as_str().into(), action.into(), actor.request_id.as_deref().into()])
    }

    /// What was done to a notification and its deliveries, in order.
    pub(in crate::store) async fn audit_of(&self, tenant: i32, subjects: Vec<String>) -> Result<Vec<AuditRow>, DbError> {
        let among = match self.db.kind() {
            "postgres" => "a.subject = ANY ($2)",
            _ => "a.subject IN (SELECT value FROM json_each($2))",
        };
        let sql = format!("{SELECT} WHERE a.tenant = $1 AND {among} ORDER BY a.id LIMIT 1000");
        Ok(legible("audit", self.db.query(&sql, vec![tenant.into(), Value::Texts(subjects)]).await?.iter().map(listed)))
    }

    /// A page of the audit log, newest first.
    pub async fn audit_rows(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, DbError> {
        let mut sql = format!("{SELECT} WHERE a.id < $1");
        let mut parameters: Vec<Value> = vec![filter.before.unwrap_or(i64::MAX).into()];
        let wanted: [(&str, Value); 6] = [
            ("a.tenant =", filter.tenant.into()),
            ("a.actor =", filter.actor.as_deref().into()),
            ("a.action =", filter.action.as_deref().into()),
            ("a.subject =", filter.subject.as_deref().into()),
            ("a.at >=", filter.from.into()),
            ("a.at <", filter.to.into()),
        ];
        for (condition, value) in wanted.into_iter().filter(|(_, value)| *value != Value::Null) {
            parameters.push(value);
            sql.push_str(&format!(" AND {condition} ${}", parameters.len()));
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
