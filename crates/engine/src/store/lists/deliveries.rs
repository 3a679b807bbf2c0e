//! The list of deliveries: the conditions of its filter, and the indexes it reads.

use postcommit::{Timestamp, channel_name};
use postcommit_channel::model::DeliveryState;
use uuid::Uuid;

use crate::store::DeliveryFilter;
use crate::store::lists::keyset::{Dialect, IndexScan, ListQuery, Position, SqlParameters, WindowBounds, first_id};
use crate::store::lists::notifications::{LIVE_STATE, WORDS, to_list};
use crate::store::lists::recipient::RecipientFilter;
use crate::store::queue::row::first_due;

/// If the filter can exclude rows, the first window of a list reads this many index rows per row of the page.
const SPARE: i64 = 4;

pub(in crate::store) struct DeliveryList<'a> {
    filter: &'a DeliveryFilter,
    stuck_since: Option<Timestamp>,
    dialect: Dialect,
    /// Only deliveries that ended before this time.
    pub ended_before: Option<Timestamp>,
}

impl<'a> DeliveryList<'a> {
    pub(in crate::store) fn new(filter: &'a DeliveryFilter, stuck_since: Option<Timestamp>, dialect: Dialect) -> Self {
        Self { filter, stuck_since, dialect, ended_before: None }
    }

    pub(in crate::store) fn start(&self) -> Position {
        let newest = self.filter.until.map_or(Position::START, Position::before);
        let newest = self.filter.notification_id.map_or(newest, |id| newest.further(Position::at(id)));
        self.filter.before.map_or(newest, |before| before.further(newest))
    }

    /// Returns the states among `of` that the filter selects. The states are written into the statement as literals, so
    /// that the planner recognises a partial index.
    fn wanted_states(&self, of: &[DeliveryState]) -> Vec<&'static str> {
        let is_wanted =
            |name: &&str| self.filter.states.is_empty() || self.filter.states.iter().any(|state| state == name);
        of.iter().map(|state| state.name()).filter(is_wanted).collect()
    }

    /// Returns the states of queued deliveries that the filter selects.
    fn live(&self) -> Vec<&'static str> {
        let only_ended = self.filter.reason.is_some() || self.ended_before.is_some() || self.filter.captured;
        let mut live = if only_ended { vec![] } else { self.wanted_states(&DeliveryState::LIVE) };
        live.retain(|state| self.stuck_since.is_none() || *state != "sending");
        live
    }

    /// Returns the states of ended deliveries that the filter selects.
    fn ended(&self) -> Vec<&'static str> {
        if self.stuck_since.is_some() { vec![] } else { self.wanted_states(&DeliveryState::ENDED) }
    }

    /// Returns the conditions on the columns of the notification, row `note`.
    fn notification_conditions(&self, parameters: &mut SqlParameters) -> String {
        let f = self.filter;
        let mut on = String::new();
        let columns = [
            ("entity", &f.entity),
            ("event_type", &f.event_type),
            ("source ->> 'site'", &f.site),
            ("correlation_id", &f.correlation_id),
        ];
        for (column, wanted) in columns {
            if let Some(wanted) = wanted {
                on.push_str(&format!(" AND note.{column} = {}", parameters.add(wanted.as_str())));
            }
        }
        if let Some(list) = &f.list {
            on.push_str(&to_list(self.dialect, list, parameters));
        }
        // The words are compared in SQL, because jobs count and act on the same rows. SQLite ignores the case of ASCII
        // letters only, so a word also matches exactly as it is written.
        let (strpos, shown) = (self.dialect.strpos(), "coalesce(note.title, note.event_type)");
        for word in f.words.iter().take(WORDS) {
            let (lower, word) = (parameters.add(word.to_lowercase()), parameters.add(word.as_str()));
            on.push_str(&format!(" AND ({strpos}(lower({shown}), {lower}) > 0 OR {strpos}({shown}, {word}) > 0)"));
        }
        on
    }

    fn recipient(&self) -> Option<RecipientFilter<'a>> {
        self.filter.recipient.as_deref().map(RecipientFilter)
    }

    /// Returns the parts in which the ledger is read. Each part has an extra condition and maybe a recipient to check
    /// row by row. With a recipient there are three parts, each with an index: rows of the address, rows of the user,
    /// and rows that ended before the expansion. Otherwise the ledger is read in one part.
    fn ledger_parts(&self, parameters: &mut SqlParameters) -> Vec<(String, Option<RecipientFilter<'a>>)> {
        match self.recipient() {
            Some(recipient) if !self.is_led_by_notification() => vec![
                (recipient.indexed(self.dialect, "q", parameters), None),
                (recipient.of_user(parameters), None),
                (recipient.unexpanded(parameters), Some(recipient)),
            ],
            other => vec![(String::new(), other)],
        }
    }

    fn is_led_by_notification(&self) -> bool {
        self.filter.entity.is_some() || self.filter.site.is_some()
    }

    /// Returns the conditions on columns of row `q` that exist in the queue and in the ledger.
    fn row_conditions(&self, parameters: &mut SqlParameters) -> String {
        let f = self.filter;
        let mut on = String::new();
        let channel = f.channel.as_deref().map(channel_name);
        let columns =
            [("channel", channel), ("code", f.error_code.as_deref()), ("error_class", f.error_class.as_deref())];
        for (column, wanted) in columns {
            if let Some(wanted) = wanted {
                on.push_str(&format!(" AND q.{column} = {}", parameters.add(wanted)));
            }
        }
        if let Some(provider) = &f.provider {
            let provider = parameters.add(provider.as_str());
            on.push_str(&format!(
                " AND q.lane = (SELECT p.id
                 FROM postcommit.provider p
                 WHERE p.tenant = t.id AND p.name = {provider})"
            ));
        }
        if let Some(attempts) = f.attempts {
            on.push_str(&format!(" AND q.attempts >= {}", parameters.add(attempts.min(i64::from(i16::MAX)))));
        }
        match f.unclear {
            Some(true) => on.push_str(" AND q.unclear"),
            Some(false) => on.push_str(" AND NOT q.unclear"),
            None => {}
        }
        on
    }

    fn queue_conditions(&self, states: &[&str], parameters: &mut SqlParameters) -> String {
        let mut on = self.row_conditions(parameters);
        if states.len() < DeliveryState::LIVE.len() {
            on.push_str(&format!(" AND {LIVE_STATE} IN ({})", quoted(states)));
        }
        if let Some(since) = self.stuck_since {
            on.push_str(&format!(" AND {} < {}", first_due("q"), parameters.add(since)));
        }
        on
    }

    fn ledger_conditions(&self, states: &[&str], parameters: &mut SqlParameters) -> String {
        let mut on = self.row_conditions(parameters);
        match states {
            ["parked"] => on.push_str(" AND q.state = 'parked'"),
            _ if states.len() < DeliveryState::ENDED.len() => {
                on.push_str(&format!(" AND q.state IN ({})", quoted(states)));
            }
            _ => {}
        }
        if let Some(reason) = &self.filter.reason {
            on.push_str(&format!(" AND q.reason = {}", parameters.add(reason.as_str())));
        }
        if self.filter.captured {
            on.push_str(" AND q.captured");
        }
        if let Some(bound) = self.ended_before {
            on.push_str(&format!(" AND q.finished_at < {}", parameters.add(bound)));
        }
        on
    }

    /// Returns the statement for the matching rows of one table. If the filter has an entity or a site, the statement
    /// begins with the notification. With `of_row` it returns only deliveries to that recipient.
    fn select(
        &self,
        from: &str,
        window: &WindowBounds,
        table: &str,
        conditions: &str,
        of_row: Option<RecipientFilter<'_>>,
        parameters: &mut SqlParameters,
    ) -> String {
        let dialect = self.dialect;
        let tail = of_row.map(|of| format!(" WHERE {}", of.of_row(dialect, parameters))).unwrap_or_default();
        let inside = window.holds("q.notification_id");
        let steps = if self.is_led_by_notification() {
            let lead = format!(
                "note.tenant = t.id AND {}{}",
                window.holds("note.id"),
                self.notification_conditions(parameters)
            );
            let row = format!("q.tenant = t.id AND q.notification_id = note.id AND {inside}{conditions}");
            format!("{}{}", dialect.step("notification", "note", &lead), dialect.step(table, "q", &row))
        } else {
            let row = dialect.step(table, "q", &format!("q.tenant = t.id AND {inside}{conditions}"));
            let about = self.notification_conditions(parameters);
            let note =
                format!("note.tenant = t.id AND note.id = q.notification_id AND {}{about}", window.holds("note.id"));
            if about.is_empty() && of_row.is_none() {
                row
            } else {
                format!("{row}{}", dialect.step("notification", "note", &note))
            }
        };
        format!("SELECT q.tenant, q.notification_id AS id, q.n, q.lane {from}{steps}{tail}")
    }
}

fn quoted(states: &[&str]) -> String {
    states.iter().map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}

impl ListQuery for DeliveryList<'_> {
    fn tenant(&self) -> Option<i32> {
        self.filter.tenant
    }

    fn oldest(&self) -> Uuid {
        let oldest = self.filter.from.map_or(Uuid::nil(), first_id);
        self.filter.notification_id.map_or(oldest, |id| id.max(oldest))
    }

    fn scans(&self, parameters: &mut SqlParameters) -> Vec<IndexScan> {
        let (live, ended) = (self.live(), self.ended());
        if live.is_empty() && ended.is_empty() {
            return vec![];
        }
        if self.is_led_by_notification() {
            let (column, wanted) = match (&self.filter.entity, &self.filter.site) {
                (Some(entity), _) => ("entity", entity.as_str()),
                (None, site) => ("source ->> 'site'", site.as_deref().unwrap_or_default()),
            };
            return vec![IndexScan {
                table: "notification",
                id: "id",
                which: format!(" AND k.{column} = {}", parameters.add(wanted)),
            }];
        }
        if let Some(recipient) = self.recipient() {
            let mut scans =
                if ended.is_empty() { vec![] } else { recipient.ledger_scans(self.dialect, parameters).into() };
            if !live.is_empty() {
                scans.push(IndexScan { table: "delivery_queue", id: "notification_id", which: String::new() });
            }
            return scans;
        }
        let scan = |table, which: &str| IndexScan { table, id: "notification_id", which: which.into() };
        let parked = if ended == ["parked"] { " AND k.state = 'parked'" } else { "" };
        let queue = (!live.is_empty()).then(|| scan("delivery_queue", ""));
        queue.into_iter().chain((!ended.is_empty()).then(|| scan("delivery_ledger", parked))).collect()
    }

    fn matches(&self, _: Dialect, from: &str, window: &WindowBounds, parameters: &mut SqlParameters) -> String {
        let (live, ended) = (self.live(), self.ended());
        let mut selects = Vec::new();
        if !live.is_empty() {
            let conditions = self.queue_conditions(&live, parameters);
            let of_row = self.recipient();
            selects.push(self.select(from, window, "delivery_queue", &conditions, of_row, parameters));
        }
        if !ended.is_empty() {
            for (which, of_row) in self.ledger_parts(parameters) {
                let conditions = format!("{}{which}", self.ledger_conditions(&ended, parameters));
                selects.push(self.select(from, window, "delivery_ledger", &conditions, of_row, parameters));
            }
        }
        selects.join(" UNION ALL ")
    }

    fn first_window(&self, limit: i64) -> i64 {
        let f = self.filter;
        let narrow =
            [&f.reason, &f.channel, &f.provider, &f.event_type, &f.error_code, &f.error_class, &f.recipient, &f.list]
                .iter()
                .any(|wanted| wanted.is_some());
        let narrow = narrow || f.captured || f.correlation_id.is_some();
        if narrow || f.attempts.is_some() || f.unclear.is_some() || !f.states.is_empty() || !f.words.is_empty() {
            limit.saturating_mul(SPARE)
        } else {
            limit.saturating_add(1)
        }
    }
}
