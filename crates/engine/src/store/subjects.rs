//! Reads what the subjects of a page of deliveries are rendered from: at most four statements for all of them. A subject
//! is not stored, because a version of a template and the facts of a delivery always render to the same text. Each
//! statement begins with the given keys and reads the tables by their primary keys.

use std::collections::{BTreeSet, HashMap};

use postcommit_channel::model::{DeliveryKey, Facts, Maker, StoredNotification};
use postcommit_channel::template::Source;
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::db::columns::{Columns, in_order, list_postgres, list_sqlite, names};
use crate::db::{Db, DbError, Row, Value};
use crate::store::templates::source;
use crate::store::unreadable::legible;
use crate::store::{Store, VersionKey};

/// What the subjects of some deliveries are rendered from. Whatever is unreadable or gone is missing.
#[derive(Default)]
pub struct SubjectData {
    /// The deliveries that a template renders, each with the version of the template.
    pub deliveries: Vec<(DeliveryKey, Facts, VersionKey)>,
    /// The notifications, by their ids.
    pub notifications: HashMap<Uuid, StoredNotification>,
    /// The payloads of the events in each digest, by the id of the digest's notification.
    pub items: HashMap<Uuid, Vec<Box<RawValue>>>,
    /// The versions with their subject and what a subject may use. The other parts are left out.
    pub versions: HashMap<VersionKey, Source>,
}

impl Store {
    /// Reads what the subjects of these deliveries are rendered from. Deliveries without a template are left out.
    pub async fn subject_data(&self, keys: &[DeliveryKey]) -> Result<SubjectData, DbError> {
        let mut data = SubjectData { deliveries: self.templated(keys).await?, ..SubjectData::default() };
        if data.deliveries.is_empty() {
            return Ok(data);
        }
        data.versions = self.subject_sources(data.deliveries.iter().map(|(.., version)| version).collect()).await?;
        let with_subject = |key: &VersionKey| data.versions.get(key).is_some_and(|source| source.subject.is_some());
        data.deliveries.retain(|(.., version)| with_subject(version));
        let notes: BTreeSet<(i32, Uuid)> =
            data.deliveries.iter().map(|(key, ..)| (key.tenant, key.notification)).collect();
        data.notifications = self.notifications_shown(&notes).await?;
        let is_digest = |(key, facts, _): &&(DeliveryKey, Facts, VersionKey)| {
            let note = data.notifications.get(&key.notification);
            note.is_some_and(|note| note.maker(facts) == Maker::Digest)
        };
        let digests = data.deliveries.iter().filter(is_digest);
        let digests: Vec<(i32, Uuid)> = digests.map(|(key, ..)| (key.tenant, key.notification)).collect();
        let items = self.digest_items(&digests).await?.into_iter();
        data.items = items.map(|(id, items)| (id, items.into_iter().map(|item| item.payload).collect())).collect();
        Ok(data)
    }

    /// The deliveries with a template, live and finished, with their facts.
    async fn templated(&self, keys: &[DeliveryKey]) -> Result<Vec<(DeliveryKey, Facts, VersionKey)>, DbError> {
        if keys.is_empty() {
            return Ok(vec![]);
        }
        let given = self.rows_given(1, &[("tenant", "int"), ("id", "uuid"), ("n", "int")]);
        let columns = names::<Facts>("q.");
        let of = |table: &str| {
            let on = "q.tenant = g.tenant AND q.notification_id = g.id AND q.n = g.n AND q.template_version > 0";
            let row = self.dialect().step(table, "q", on);
            format!("SELECT {columns}, q.tenant, q.notification_id, q.n FROM {given}{row}")
        };
        let sql = format!("{} UNION ALL {}", of("delivery_queue"), of("delivery_ledger"));
        let given = keys.iter().map(|key| json!({"tenant": key.tenant, "id": key.notification, "n": key.n}));
        let rows = self.db.query(&sql, vec![Value::from(json!(given.collect::<Vec<_>>()))]).await?;
        let (places, first) = (in_order::<Facts>(), Facts::COLUMNS.len());
        let read = |mut row: Row| {
            let key =
                DeliveryKey { tenant: row.get(first)?, notification: row.get(first + 1)?, n: row.get(first + 2)? };
            let facts = Facts::read(&mut row, &places)?;
            let version = facts.template.clone().zip(facts.template_version);
            Ok(version.map(|(template, version)| (key, facts, (key.tenant, template, version))))
        };
        Ok(legible("deliveries", rows.into_iter().map(read)).into_iter().flatten().collect())
    }

    async fn subject_sources(&self, wanted: BTreeSet<&VersionKey>) -> Result<HashMap<VersionKey, Source>, DbError> {
        let given = self.rows_given(1, &[("tenant", "int"), ("template", "text"), ("version", "int")]);
        let on = "v.tenant = g.tenant AND v.template = g.template AND v.version = g.version";
        let row = self.dialect().step("template_version", "v", on);
        let sql = format!(
            "SELECT v.tenant, v.template, v.version, NULL, NULL, v.subject, NULL, NULL, NULL, NULL, v.parts, v.brand,
               v.missing, v.date_format, v.time_zone
             FROM {given}{row}"
        );
        let wanted = wanted.into_iter();
        let wanted = wanted.map(|(tenant, id, version)| json!({"tenant": tenant, "template": id, "version": version}));
        let rows = self.db.query(&sql, vec![Value::from(json!(wanted.collect::<Vec<_>>()))]).await?;
        let read = |row: &Row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), source(row)?));
        Ok(legible("templates", rows.iter().map(read)).into_iter().collect())
    }

    async fn notifications_shown(
        &self,
        keys: &BTreeSet<(i32, Uuid)>,
    ) -> Result<HashMap<Uuid, StoredNotification>, DbError> {
        let columns = match self.db {
            Db::Postgres(_) => list_postgres::<StoredNotification>(),
            Db::Sqlite(_) => list_sqlite::<StoredNotification>(),
        };
        let given = self.rows_given(1, &[("tenant", "int"), ("id", "uuid")]);
        let note = self.dialect().step("notification", "note", "note.tenant = g.tenant AND note.id = g.id");
        let sql = format!("SELECT {columns} FROM {given}{note} JOIN postcommit.tenant t ON t.id = g.tenant");
        let keys: Vec<_> = keys.iter().map(|(tenant, id)| json!({"tenant": tenant, "id": id})).collect();
        let rows = self.db.query(&sql, vec![Value::from(json!(keys))]).await?;
        let places = in_order::<StoredNotification>();
        let notes = rows.into_iter().map(|mut row| StoredNotification::read(&mut row, &places));
        Ok(legible("notifications", notes).into_iter().map(|note| (note.id, note)).collect())
    }
}
