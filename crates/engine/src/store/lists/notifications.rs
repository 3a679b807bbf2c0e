//! The list of notifications: which rows match a filter, and which index it reads.

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryState;
use uuid::Uuid;

use crate::db::Row;
use crate::store::NotificationFilter;
use crate::store::lists::keyset::{Dialect, IndexScan, ListQuery, Position, SqlParameters, WindowBounds, first_id};

/// The most words of a search.
const WORDS: usize = 8;
/// Rows of the first window per row of the page, if not every row matches.
const SPARE: i64 = 4;

/// The state of a row `q` of the queue.
pub(in crate::store) const LIVE_STATE: &str = "CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END";

pub(in crate::store) struct NotificationList<'a> {
    filter: &'a NotificationFilter,
    stuck_since: Option<Timestamp>,
    words: Vec<String>,
    dialect: Dialect,
}

/// Reads a JSON column on SQLite, where invalid JSON would fail the whole statement. It counts as an empty array.
fn array(column: &str) -> String {
    format!("CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END")
}

impl<'a> NotificationList<'a> {
    pub(in crate::store) fn new(
        filter: &'a NotificationFilter,
        stuck_since: Option<Timestamp>,
        dialect: Dialect,
    ) -> Self {
        let words = filter.words.iter().take(WORDS).map(|word| word.to_lowercase()).collect();
        Self { filter, stuck_since, words, dialect }
    }

    pub(in crate::store) fn start(&self) -> Position {
        let newest = self.filter.to.map_or(Position::START, Position::before);
        self.filter.before.map_or(newest, |before| before.further(newest))
    }

    /// The smallest index that covers all matches. `None` is the table of notifications itself.
    fn leading_scan(&self, parameters: &mut SqlParameters) -> Option<IndexScan> {
        let status = self.filter.status.as_deref();
        if let (Some(key), None) = (&self.filter.idempotency_key, self.stuck_since) {
            let key = parameters.add(key.as_str());
            let which = if self.dialect == Dialect::Postgres {
                format!(" AND k.key_hash = postcommit.hash({key})")
            } else {
                format!(" AND k.key = {key}")
            };
            return Some(IndexScan { table: "idempotency", id: "notification_id", which });
        }
        if self.stuck_since.is_some()
            || status.is_some_and(|status| DeliveryState::LIVE.iter().any(|live| live.name() == status))
        {
            return Some(IndexScan { table: "delivery_queue", id: "notification_id", which: String::new() });
        }
        if status == Some("parked") {
            return Some(IndexScan {
                table: "delivery_ledger",
                id: "notification_id",
                which: " AND k.state = 'parked'".into(),
            });
        }
        None
    }

    /// The conditions on the columns of the notification.
    fn own_conditions(&self, parameters: &mut SqlParameters) -> String {
        let mut on = String::new();
        let f = self.filter;
        for (column, wanted) in [
            ("entity", &f.entity),
            ("event_type", &f.event_type),
            ("source ->> 'site'", &f.site),
            ("idempotency_key", &f.idempotency_key),
        ] {
            if let Some(wanted) = wanted {
                on.push_str(&format!(" AND note.{column} = {}", parameters.add(wanted.as_str())));
            }
        }
        if let Some(priority) = f.priority {
            on.push_str(&format!(" AND note.priority = {}", parameters.add(priority)));
        }
        if let Some(list) = &f.list {
            let list = parameters.add(list.as_str());
            on.push_str(&match self.dialect {
                Dialect::Postgres => {
                    format!(" AND note.recipients @> jsonb_build_array(jsonb_build_object('list', {list}::text))")
                }
                Dialect::Sqlite => format!(
                    " AND (SELECT count(*)
                     FROM json_each({}) r
                     WHERE r.type = 'object' AND r.value ->> 'list' = {list}) > 0",
                    array("note.recipients")
                ),
            });
        }
        if !self.words.is_empty() {
            on.push_str(" AND note.title IS NOT NULL");
        }
        on
    }

    /// The conditions on the deliveries of the notification. Each compares a scalar subquery and none is an EXISTS,
    /// which the planner could turn into a join with the whole history.
    fn delivery_conditions(&self, parameters: &mut SqlParameters) -> String {
        let of_note = format!(
            "(SELECT {LIVE_STATE} AS state, q.attempts, q.channel
             FROM postcommit.delivery_queue q
             WHERE q.tenant = note.tenant AND q.notification_id = note.id
             UNION ALL SELECT l.state, l.attempts, l.channel
             FROM postcommit.delivery_ledger l
             WHERE l.tenant = note.tenant AND l.notification_id = note.id) x"
        );
        let mut on = String::new();
        if let Some(status) = &self.filter.status {
            let (strpos, states, status) = (
                self.dialect.strpos(),
                DeliveryState::LEAST_FINISHED_FIRST.map(DeliveryState::name).join(" "),
                parameters.add(status.as_str()),
            );
            on.push_str(&format!(
                " AND coalesce((SELECT x.state FROM {of_note} ORDER BY {strpos}('{states}', x.state) LIMIT 1),
                 'skipped') = {status}"
            ));
        }
        if let Some(attempts) = self.filter.attempts {
            on.push_str(&format!(
                " AND coalesce((SELECT sum(x.attempts) FROM {of_note}), 0) >= {}",
                parameters.add(attempts)
            ));
        }
        if let Some(channel) = &self.filter.channel {
            let channel = parameters.add(channel.as_str());
            let asked_for = match self.dialect {
                Dialect::Postgres => format!("{channel} = ANY (note.channels)"),
                Dialect::Sqlite => format!(
                    "(SELECT count(*) FROM json_each({}) c WHERE c.value = {channel}) > 0",
                    array("note.channels")
                ),
            };
            on.push_str(&format!(
                " AND ({asked_for} OR (SELECT count(*) FROM {of_note} WHERE x.channel = {channel}) > 0)"
            ));
        }
        on
    }

    /// Whether every row of the index matches.
    fn matches_all(&self) -> bool {
        let f = self.filter;
        self.words.is_empty()
            && [&f.status, &f.event_type, &f.list, &f.channel].iter().all(|wanted| wanted.is_none())
            && f.attempts.is_none()
            && f.priority.is_none()
            && f.stuck.is_none()
            && (f.entity.is_none() || f.site.is_none())
    }
}

impl ListQuery for NotificationList<'_> {
    fn tenant(&self) -> Option<i32> {
        self.filter.tenant
    }

    fn oldest(&self) -> Uuid {
        self.filter.from.map_or(Uuid::nil(), first_id)
    }

    fn scans(&self, parameters: &mut SqlParameters) -> Vec<IndexScan> {
        let all = || IndexScan { table: "notification", id: "id", which: String::new() };
        let scan = self.leading_scan(parameters).unwrap_or_else(|| match (&self.filter.entity, &self.filter.site) {
            (Some(entity), _) => {
                IndexScan { which: format!(" AND k.entity = {}", parameters.add(entity.as_str())), ..all() }
            }
            (None, Some(site)) => {
                IndexScan { which: format!(" AND k.source ->> 'site' = {}", parameters.add(site.as_str())), ..all() }
            }
            (None, None) => all(),
        });
        vec![scan]
    }

    fn matches(&self, dialect: Dialect, from: &str, window: &WindowBounds, parameters: &mut SqlParameters) -> String {
        let title = if self.words.is_empty() { "" } else { ", note.title" };
        let inside = window.holds("note.id");
        let steps = match self.leading_scan(parameters) {
            Some(IndexScan { table, id, which }) => {
                // The size of the window does not take this into account: no index covers it.
                let stuck = self.stuck_since.filter(|_| table == "delivery_queue").map(|since| parameters.add(since));
                let stuck =
                    stuck.map(|since| format!(" AND k.lease_token IS NULL AND k.due_at < {since}")).unwrap_or_default();
                let lead = dialect.step(
                    table,
                    "k",
                    &format!("k.tenant = t.id AND {}{which}{stuck}", window.holds(&format!("k.{id}"))),
                );
                let note =
                    format!("note.tenant = t.id AND note.id = k.{id} AND {inside}{}", self.own_conditions(parameters));
                format!("{lead}{}", dialect.step("notification", "note", &note))
            }
            None => dialect.step(
                "notification",
                "note",
                &format!("note.tenant = t.id AND {inside}{}", self.own_conditions(parameters)),
            ),
        };
        // DISTINCT, because a notification is in the queue once per target.
        let delivery_conditions = self.delivery_conditions(parameters);
        format!("SELECT DISTINCT note.tenant, note.id, 0 AS n{title} {from}{steps} WHERE 1 = 1{delivery_conditions}")
    }

    fn filters_rows(&self) -> bool {
        !self.words.is_empty()
    }

    fn keep(&self, row: &Row) -> bool {
        let title =
            if self.words.is_empty() { String::new() } else { row.get::<String>(3).unwrap_or_default().to_lowercase() };
        self.words.iter().all(|word| title.contains(word.as_str()))
    }

    fn first_window(&self, limit: i64) -> i64 {
        if self.matches_all() { limit.saturating_add(1) } else { limit.saturating_mul(SPARE) }
    }
}
