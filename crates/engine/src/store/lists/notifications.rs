//! The list of notifications: the conditions of its filter, and the indexes it reads.

use postcommit::{Timestamp, channel_name};
use postcommit_channel::model::DeliveryState;
use uuid::Uuid;

use crate::db::Row;
use crate::store::NotificationFilter;
use crate::store::lists::keyset::{Dialect, IndexScan, ListQuery, Position, SqlParameters, WindowBounds, first_id};
use crate::store::lists::recipient::RecipientFilter;
use crate::store::queue::row::first_due;

/// How many words of a search in titles are used. Further words are ignored.
pub(in crate::store) const WORDS: usize = 8;
/// If the filter can exclude rows, the first window of a list reads this many index rows per row of the page.
const SPARE: i64 = 4;

/// The SQL for the state of row `q` of the queue.
pub(in crate::store) const LIVE_STATE: &str = "CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END";

pub(in crate::store) struct NotificationList<'a> {
    filter: &'a NotificationFilter,
    stuck_since: Option<Timestamp>,
    words: Vec<String>,
    dialect: Dialect,
}

/// Reads a JSON column on SQLite. Invalid JSON is read as an empty array, because it would otherwise fail the whole
/// statement.
pub(in crate::store) fn array(column: &str) -> String {
    format!("CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END")
}

/// Returns the condition that the row `note` of a notification names the list as a recipient.
pub(in crate::store) fn to_list(dialect: Dialect, list: &str, parameters: &mut SqlParameters) -> String {
    let list = parameters.add(list);
    match dialect {
        Dialect::Postgres => {
            format!(" AND note.recipients @> jsonb_build_array(jsonb_build_object('list', {list}::text))")
        }
        Dialect::Sqlite => format!(
            " AND (SELECT count(*)
             FROM json_each({}) r
             WHERE r.type = 'object' AND r.value ->> 'list' = {list}) > 0",
            array("note.recipients")
        ),
    }
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
        let newest = self.filter.until.map_or(Position::START, Position::before);
        self.filter.before.map_or(newest, |before| before.further(newest))
    }

    /// Returns scans of tables or indexes that are smaller than the notification table and still cover all matches.
    /// Empty means that the notification table itself is read.
    fn leading_scans(&self, parameters: &mut SqlParameters) -> Vec<IndexScan> {
        let wanted = &self.filter.states;
        let is_live = |state: &String| DeliveryState::LIVE.iter().any(|live| live.name() == state);
        if let (Some(key), None) = (&self.filter.idempotency_key, self.stuck_since) {
            let key = parameters.add(key.as_str());
            let which = if self.dialect == Dialect::Postgres {
                format!(" AND k.key_hash = postcommit.hash({key})")
            } else {
                format!(" AND k.key = {key}")
            };
            return vec![IndexScan { table: "idempotency", id: "notification_id", which }];
        }
        if let (Some(recipient), None) = (&self.filter.recipient, self.stuck_since) {
            return RecipientFilter(recipient).scans(self.dialect, parameters);
        }
        if self.stuck_since.is_some() || (!wanted.is_empty() && wanted.iter().all(is_live)) {
            return vec![IndexScan { table: "delivery_queue", id: "notification_id", which: String::new() }];
        }
        if wanted == &["parked"] {
            return vec![IndexScan {
                table: "delivery_ledger",
                id: "notification_id",
                which: " AND k.state = 'parked'".into(),
            }];
        }
        vec![]
    }

    /// Returns the conditions on the notification's own columns.
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
            on.push_str(&to_list(self.dialect, list, parameters));
        }
        if !self.words.is_empty() {
            on.push_str(" AND note.title IS NOT NULL");
        }
        on
    }

    /// Returns the conditions on the notification's deliveries. Each compares a scalar subquery. EXISTS is avoided,
    /// because the planner could turn it into a join with the whole history.
    fn delivery_conditions(&self, parameters: &mut SqlParameters) -> String {
        let of_note = format!(
            "(SELECT {LIVE_STATE} AS state, q.attempts, q.channel, q.target, q.user_id
             FROM postcommit.delivery_queue q
             WHERE q.tenant = note.tenant AND q.notification_id = note.id
             UNION ALL SELECT l.state, l.attempts, l.channel, l.target, l.user_id
             FROM postcommit.delivery_ledger l
             WHERE l.tenant = note.tenant AND l.notification_id = note.id) x"
        );
        let mut on = String::new();
        if !self.filter.states.is_empty() {
            let (strpos, states) =
                (self.dialect.strpos(), DeliveryState::LEAST_FINISHED_FIRST.map(DeliveryState::name).join(" "));
            let wanted: Vec<String> = self.filter.states.iter().map(|state| parameters.add(state.as_str())).collect();
            on.push_str(&format!(
                " AND coalesce((SELECT x.state FROM {of_note} ORDER BY {strpos}('{states}', x.state) LIMIT 1),
                 'skipped') IN ({})",
                wanted.join(", ")
            ));
        }
        on.push_str(&self.recipient_condition(&of_note, parameters));
        if let Some(attempts) = self.filter.attempts {
            on.push_str(&format!(
                " AND coalesce((SELECT sum(x.attempts) FROM {of_note}), 0) >= {}",
                parameters.add(attempts)
            ));
        }
        if let Some(channel) = &self.filter.channel {
            let channel = parameters.add(channel_name(channel));
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

    /// Returns the condition that the notification names the recipient, or that one of its deliveries goes to the
    /// recipient.
    fn recipient_condition(&self, of_note: &str, parameters: &mut SqlParameters) -> String {
        let Some(recipient) = &self.filter.recipient else { return String::new() };
        let (named, wanted) =
            (RecipientFilter(recipient).of_note(self.dialect, parameters), parameters.add(recipient.as_str()));
        let of_delivery = format!("x.target = {wanted} OR x.user_id = {wanted}");
        format!(" AND ({named} OR (SELECT count(*) FROM {of_note} WHERE {of_delivery}) > 0)")
    }

    /// Returns whether every row of the scanned index matches the filter.
    fn matches_all(&self) -> bool {
        let f = self.filter;
        self.words.is_empty()
            && f.states.is_empty()
            && [&f.event_type, &f.list, &f.channel, &f.recipient].iter().all(|wanted| wanted.is_none())
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
        let leading = self.leading_scans(parameters);
        if !leading.is_empty() {
            return leading;
        }
        vec![match (&self.filter.entity, &self.filter.site) {
            (Some(entity), _) => {
                IndexScan { which: format!(" AND k.entity = {}", parameters.add(entity.as_str())), ..all() }
            }
            (None, Some(site)) => {
                IndexScan { which: format!(" AND k.source ->> 'site' = {}", parameters.add(site.as_str())), ..all() }
            }
            (None, None) => all(),
        }]
    }

    fn matches(&self, dialect: Dialect, from: &str, window: &WindowBounds, parameters: &mut SqlParameters) -> String {
        let mut leading: Vec<_> = self.leading_scans(parameters).into_iter().map(Some).collect();
        if leading.is_empty() {
            leading.push(None);
        }
        let select = |scan| self.select(dialect, from, window, scan, parameters);
        // UNION and DISTINCT remove duplicates, because the queue and the ledger can have several rows for a
        // notification.
        leading.into_iter().map(select).collect::<Vec<_>>().join(" UNION ")
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

impl NotificationList<'_> {
    /// Returns the statement for the matching notifications. With `scan` the statement begins with the rows of that
    /// index.
    fn select(
        &self,
        dialect: Dialect,
        from: &str,
        window: &WindowBounds,
        scan: Option<IndexScan>,
        parameters: &mut SqlParameters,
    ) -> String {
        let title = if self.words.is_empty() { "" } else { ", note.title" };
        let inside = window.holds("note.id");
        let steps = match scan {
            Some(IndexScan { table, id, which }) => {
                // The size of the window is computed without the condition for stuck deliveries, because no index
                // covers it.
                let stuck = self.stuck_since.filter(|_| table == "delivery_queue").map(|since| parameters.add(since));
                let stuck = stuck
                    .map(|since| format!(" AND k.lease_token IS NULL AND {} < {since}", first_due("k")))
                    .unwrap_or_default();
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
        let delivery_conditions = self.delivery_conditions(parameters);
        format!("SELECT DISTINCT note.tenant, note.id, 0 AS n{title} {from}{steps} WHERE 1 = 1{delivery_conditions}")
    }
}
