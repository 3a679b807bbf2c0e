//! The statements of throttles and digests, in the form that both databases share.

use crate::store::Store;
use crate::store::queue::expand::take_over;

/// The statements of throttles and digests. The only parameter of each is a JSON array of rows.
pub(in crate::store) struct PacingSql {
    pub(super) leased: String,
    pub(super) begin_periods: String,
    pub(super) periods: String,
    pub(super) note_periods: String,
    pub(super) begin_digests: String,
    pub(super) digests: String,
    pub(super) open_digests: String,
    pub(super) pin: String,
    pub(super) note_digests: String,
    pub(super) add_items: String,
    pub(super) hold_keys: String,
    pub(super) holders: String,
    pub(super) release_keys: String,
    pub(super) make_due: String,
}

type Column = (&'static str, &'static str);

const HASH: Column = ("key_hash", "uuid");
const ID: Column = ("notification_id", "uuid");
const N: Column = ("n", "int");

/// Writes the parts of the statements in which the databases differ.
pub(in crate::store) struct Dialect<'a>(pub(in crate::store) &'a Store);

impl Dialect<'_> {
    fn is_postgres(&self) -> bool {
        self.0.db.kind() == "postgres"
    }

    /// Returns the table `g` of the given rows, with the tenant and these columns.
    pub(in crate::store) fn given(&self, columns: &[Column]) -> String {
        self.0.rows_given(1, &[&[("tenant", "int")], columns].concat())
    }

    /// Returns the clause that locks the rows of a table on PostgreSQL. SQLite has only one writer and needs no lock.
    fn lock(&self, table: &str, how: &str) -> String {
        if self.is_postgres() { format!(" FOR UPDATE OF {table}{how}") } else { String::new() }
    }

    /// Returns the condition that a row of `table` belongs to the tenant of the given row `g`.
    pub(in crate::store) fn tenant(&self, table: &str) -> String {
        match self.is_postgres() {
            // The tenant is compared with an array, so that the planner uses the primary key (tests/it/planner.rs).
            true => format!("{table}.tenant = ANY (ARRAY[g.tenant])"),
            false => format!("{table}.tenant = g.tenant"),
        }
    }

    fn by_hash(&self, table: &str) -> String {
        format!("{} AND {table}.key_hash = g.key_hash", self.tenant(table))
    }

    /// Returns the condition that row `q` of the queue is the own row of the given notification.
    fn own_row(&self) -> String {
        format!("{} AND q.notification_id = g.notification_id AND q.n = 0", self.tenant("q"))
    }

    /// Returns the statement that reads rows by their hashes and locks them, in a fixed order, so that transactions do
    /// not deadlock.
    fn read(&self, table: &str, alias: &str, columns: &str) -> String {
        let (given, by_hash, lock) = (self.given(&[HASH]), self.by_hash(alias), self.lock(alias, ""));
        format!(
            "SELECT {alias}.tenant, {alias}.key_hash, {columns} FROM {given} JOIN postcommit.{table} {alias} ON {by_hash}
             ORDER BY {alias}.tenant, {alias}.key_hash{lock}"
        )
    }

    pub(in crate::store) fn update(&self, table: &str, set: &str, columns: &[Column], place: &str) -> String {
        format!("UPDATE postcommit.{table} SET {set} FROM {} WHERE {place}", self.given(columns))
    }

    pub(in crate::store) fn delete(&self, table: &str, columns: &[Column], place: &str) -> String {
        let given = self.given(columns);
        match self.is_postgres() {
            true => format!("DELETE FROM postcommit.{table} USING {given} WHERE {place}"),
            false => format!("DELETE FROM postcommit.{table} WHERE EXISTS (SELECT 1 FROM {given} WHERE {place})"),
        }
    }
}

impl Store {
    pub(in crate::store) fn pacing_sql(&self) -> PacingSql {
        let own = Dialect(self);
        let (own_row, until) = (own.own_row(), self.time_given("g.until_us"));
        let queue = "postcommit.delivery_queue q";
        let pinned = [
            ID,
            ("channel", "text"),
            ("template", "text"),
            ("version", "int"),
            ("language", "text"),
            ("send_key", "text"),
        ];
        PacingSql {
            leased: format!(
                "SELECT q.tenant, q.notification_id, q.n, {{now}} FROM {} JOIN {queue}
                   ON {} AND q.notification_id = g.notification_id AND q.n = g.n
                 WHERE q.lease_token = g.token{}",
                own.given(&[ID, N, ("token", "uuid")]),
                own.tenant("q"),
                own.lock("q", "")
            ),
            begin_periods: format!(
                "INSERT INTO postcommit.throttle (tenant, key_hash, until, sent)
                 SELECT g.tenant, g.key_hash, {}, 0 FROM {} WHERE 1 = 1 ORDER BY g.tenant, g.key_hash
                 ON CONFLICT DO NOTHING",
                // The year 1970: the new period is already over, so the first message begins another one.
                self.time_given("0"),
                own.given(&[HASH])
            ),
            periods: own.read("throttle", "t", "t.until, t.sent"),
            note_periods: own.update(
                "throttle AS t",
                &format!("until = {until}, sent = g.sent"),
                &[HASH, ("until_us", "bigint"), ("sent", "int")],
                &own.by_hash("t"),
            ),
            begin_digests: format!(
                "INSERT INTO postcommit.digest (tenant, key_hash, notification_id, items, bytes)
                 SELECT g.tenant, g.key_hash, g.notification_id, 0, 0 FROM {} WHERE 1 = 1
                 ORDER BY g.tenant, g.key_hash ON CONFLICT DO NOTHING",
                own.given(&[HASH, ID])
            ),
            digests: own.read("digest", "d", "d.notification_id, d.items, d.bytes"),
            open_digests: format!(
                "SELECT q.tenant, q.notification_id FROM {} JOIN {queue} ON {own_row}{}",
                own.given(&[ID]),
                own.lock("q", " SKIP LOCKED")
            ),
            pin: own.update("delivery_queue AS q", PIN, &pinned, &own_row),
            note_digests: own.update(
                "digest AS d",
                "notification_id = g.notification_id, items = g.items, bytes = g.bytes",
                &[HASH, ID, ("items", "int"), ("bytes", "bigint")],
                &own.by_hash("d"),
            ),
            add_items: format!(
                "INSERT INTO postcommit.digest_item (tenant, digest_id, notification_id, n)
                 SELECT g.tenant, g.digest_id, g.notification_id, g.n FROM {}",
                own.given(&[("digest_id", "uuid"), ID, N])
            ),
            hold_keys: format!(
                "INSERT INTO postcommit.send_key AS k (tenant, key_hash, notification_id, n, created_at)
                 SELECT g.tenant, g.key_hash, g.notification_id, g.n, {{now}} FROM {} WHERE 1 = 1
                 ORDER BY g.tenant, g.key_hash, g.notification_id, g.n
                 {}",
                own.given(&[HASH, ID, N]),
                take_over(own.is_postgres())
            ),
            holders: format!(
                "SELECT g.tenant, g.notification_id, g.n, k.notification_id, k.n
                 FROM {} JOIN postcommit.send_key k ON {}",
                own.given(&[HASH, ID, N]),
                own.by_hash("k")
            ),
            release_keys: own.delete("send_key AS k", &[HASH], &own.by_hash("k")),
            make_due: own.update(
                "delivery_queue AS q",
                "due_at = {now}, first_due_at = {now}",
                &[ID],
                &format!("{own_row} AND q.lease_token IS NULL"),
            ),
        }
    }
}

/// Marks a digest's own row as a digest, and stores the template that renders it. `acts/resend.rs` marks the own row of
/// a resend in the same way.
const PIN: &str = "channel = g.channel, template = g.template, template_version = g.version, language = g.language,
    send_key = g.send_key";
