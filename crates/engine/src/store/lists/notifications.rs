//! Which notifications a filter means, and along what the list of them is walked.

use postcommit::Timestamp;
use uuid::Uuid;

use crate::db::Row;
use crate::store::NotificationFilter;
use crate::store::lists::keyset::{Dialect, Parameters, Position, Walk, Way, Window, first_id};

/// Words that are looked for at most.
const WORDS: usize = 8;
/// Rows of the first window, for each row of the page, when not every row matches.
const SPARE: i64 = 4;

/// What a live row says of itself.
pub(in crate::store) const LIVE_STATE: &str =
    "CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying' ELSE 'pending' END";
const LIVE: [&str; 3] = ["pending", "sending", "retrying"];
/// The least finished of its deliveries speaks for a notification, in this order.
const LEAST_FINISHED: &str = "sending retrying pending parked sent delivered expired cancelled discarded skipped";

pub(in crate::store) struct NotificationWalk<'a> {
    filter: &'a NotificationFilter,
    stuck_since: Option<Timestamp>,
    words: Vec<String>,
    dialect: Dialect,
}

/// SQLite ends a whole statement at JSON that is none: such a row holds nothing.
fn array(column: &str) -> String {
    format!("CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END")
}

impl<'a> NotificationWalk<'a> {
    pub(in crate::store) fn new(filter: &'a NotificationFilter, stuck_since: Option<Timestamp>, dialect: Dialect) -> Self {
        let words = filter.words.iter().take(WORDS).map(|word| word.to_lowercase()).collect();
        Self { filter, stuck_since, words, dialect }
    }

    pub(in crate::store) fn start(&self) -> Position {
        let newest = self.filter.to.map_or(Position::START, Position::before);
        self.filter.before.map_or(newest, |before| before.further(newest))
    }

    /// The smallest thing that holds all that can match, in the order of an index; none is the notifications themselves.
    fn lead(&self, parameters: &mut Parameters) -> Option<Way> {
        let status = self.filter.status.as_deref();
        if let (Some(key), None) = (&self.filter.idempotency_key, self.stuck_since) {
            let key = parameters.add(key.as_str());
            let which = if self.dialect == Dialect::Postgres {
                format!(" AND k.key_hash = postcommit.hash({key})")
            } else {
                format!(" AND k.key = {key}")
            };
            return Some(Way { table: "idempotency", id: "notification_id", which });
        }
        if self.stuck_since.is_some() || status.is_some_and(|status| LIVE.contains(&status)) {
            return Some(Way { table: "delivery_queue", id: "notification_id", which: String::new() });
        }
        if status == Some("parked") {
            return Some(Way { table: "delivery_ledger", id: "notification_id", which: " AND k.state = 'parked'".into() });
        }
        None
    }

    /// What a notification's own columns must say.
    fn own(&self, parameters: &mut Parameters) -> String {
        let mut on = String::new();
        let f = self.filter;
        for (column, wanted) in
            [("entity", &f.entity), ("event_type", &f.event_type), ("source ->> 'site'", &f.site), ("idempotency_key", &f.idempotency_key)]
        {
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
                Dialect::Postgres => format!(" AND note.recipients @> jsonb_build_array(jsonb_build_object('list', {list}::text))"),
                Dialect::Sqlite => format!(
                    " AND (SELECT count(*) FROM json_each({}) r WHERE r.type = 'object' AND r.value ->> 'list' = {list}) > 0",
                    array("note.recipients")
                ),
            });
        }
        if !self.words.is_empty() {
            on.push_str(" AND note.title IS NOT NULL");
        }
        on
    }

    /// What its deliveries must say. Each is a number or a text that is asked for, never EXISTS: that the planner may answer from all there is.
    fn of_deliveries(&self, parameters: &mut Parameters) -> String {
        let of_note = format!(
            "(SELECT {LIVE_STATE} AS state, q.attempts, q.channel FROM postcommit.delivery_queue q WHERE q.tenant = note.tenant AND q.notification_id = note.id
              UNION ALL SELECT l.state, l.attempts, l.channel FROM postcommit.delivery_ledger l WHERE l.tenant = note.tenant AND l.notification_id = note.id) x"
        );
        let mut on = String::new();
        if let Some(status) = &self.filter.status {
            let (place_of, status) = (self.dialect.place_of(), parameters.add(status.as_str()));
            on.push_str(&format!(" AND coalesce((SELECT x.state FROM {of_note} ORDER BY {place_of}('{LEAST_FINISHED}', x.state) LIMIT 1), 'skipped') = {status}"));
        }
        if let Some(attempts) = self.filter.attempts {
            on.push_str(&format!(" AND coalesce((SELECT sum(x.attempts) FROM {of_note}), 0) >= {}", parameters.add(attempts)));
        }
        if let Some(channel) = &self.filter.channel {
            let channel = parameters.add(channel.as_str());
            let asked_for = match self.dialect {
                Dialect::Postgres => format!("{channel} = ANY (note.channels)"),
                Dialect::Sqlite => format!("(SELECT count(*) FROM json_each({}) c WHERE c.value = {channel}) > 0", array("note.channels")),
            };
            on.push_str(&format!(" AND ({asked_for} OR (SELECT count(*) FROM {of_note} WHERE x.channel = {channel}) > 0)"));
        }
        on
    }

    /// Whether every row of the way matches.
    fn takes_all(&self) -> bool {
        let f = self.filter;
        self.words.is_empty()
            && [&f.status, &f.event_type, &f.list, &f.channel].iter().all(|wanted| wanted.is_none())
            && f.attempts.is_none()
            && f.priority.is_none()
            && f.stuck.is_none()
            && (f.entity.is_none() || f.site.is_none())
    }
}

impl Walk for NotificationWalk<'_> {
    fn tenant(&self) -> Option<i32> {
        self.filter.tenant
    }

    fn oldest(&self) -> Uuid {
        self.filter.from.map_or(Uuid::nil(), first_id)
    }

    fn ways(&self, parameters: &mut Parameters) -> Vec<Way> {
        let own = || Way { table: "notification", id: "id", which: String::new() };
        let way = self.lead(parameters).unwrap_or_else(|| match (&self.filter.entity, &self.filter.site) {
            (Some(entity), _) => Way { which: format!(" AND k.entity = {}", parameters.add(entity.as_str())), ..own() },
            (None, Some(site)) => Way { which: format!(" AND k.source ->> 'site' = {}", parameters.add(site.as_str())), ..own() },
            (None, None) => own(),
        });
        vec![way]
    }

    fn matches(&self, dialect: Dialect, from: &str, window: &Window, parameters: &mut Parameters) -> String {
        let title = if self.words.is_empty() { "" } else { ", note.title" };
        let inside = window.holds("note.id");
        let steps = match self.lead(parameters) {
            Some(Way { table, id, which }) => {
                // Not counted by the window: no index tells it.
                let stuck = self.stuck_since.filter(|_| table == "delivery_queue").map(|since| parameters.add(since));
                let stuck = stuck.map(|since| format!(" AND k.lease_token IS NULL AND k.due_at < {since}")).unwrap_or_default();
                let lead = dialect.step(table, "k", &format!("k.tenant = t.id AND {}{which}{stuck}", window.holds(&format!("k.{id}"))));
                let note = format!("note.tenant = t.id AND note.id = k.{id} AND {inside}{}", self.own(parameters));
                format!("{lead}{}", dialect.step("notification", "note", &note))
            }
            None => dialect.step("notification", "note", &format!("note.tenant = t.id AND {inside}{}", self.own(parameters))),
        };
        // A notification is as often in the queue as it has targets.
        let of_deliveries = self.of_deliveries(parameters);
        format!("SELECT DISTINCT note.tenant, note.id, 0 AS n{title} {from}{steps} WHERE 1 = 1{of_deliveries}")
    }

    fn sifts(&self) -> bool {
        !self.words.is_empty()
    }

    fn keep(&self, row: &Row) -> bool {
        let title = if self.words.is_empty() { String::new() } else { row.get::<String>(3).unwrap_or_default().to_lowercase() };
        self.words.iter().all(|word| title.contains(word.as_str()))
    }

    fn first_window(&self, limit: i64) -> i64 {
        if self.takes_all() { limit.saturating_add(1) } else { limit.saturating_mul(SPARE) }
    }
}
