//! Which deliveries a filter means, and along what the list of them is walked.

use postcommit::Timestamp;
use postcommit_channel::model::DeliveryState;
use uuid::Uuid;

use crate::store::DeliveryFilter;
use crate::store::lists::keyset::{Dialect, Parameters, Position, Walk, Way, Window, first_id};
use crate::store::lists::notifications::LIVE_STATE;

/// Rows of the first window, for each row of the page, when not every row matches.
const SPARE: i64 = 4;

pub(in crate::store) struct DeliveryWalk<'a> {
    filter: &'a DeliveryFilter,
    stuck_since: Option<Timestamp>,
    /// Only what ended before this.
    pub ended_before: Option<Timestamp>,
}

impl<'a> DeliveryWalk<'a> {
    pub(in crate::store) fn new(filter: &'a DeliveryFilter, stuck_since: Option<Timestamp>) -> Self {
        Self { filter, stuck_since, ended_before: None }
    }

    pub(in crate::store) fn start(&self) -> Position {
        let newest = self.filter.to.map_or(Position::START, Position::before);
        let newest = self.filter.notification.map_or(newest, |id| newest.further(Position::at(id)));
        self.filter.before.map_or(newest, |before| before.further(newest))
    }

    /// Of these states, those asked for; they are names of ours, so they can be written as they are, and a partial index is recognised.
    fn asked(&self, of: &[DeliveryState]) -> Vec<&'static str> {
        of.iter()
            .map(|state| state.name())
            .filter(|name| self.filter.states.is_empty() || self.filter.states.iter().any(|state| state == name))
            .collect()
    }

    /// States to look for in the queue.
    fn live(&self) -> Vec<&'static str> {
        let only_ended = self.filter.reason.is_some() || self.ended_before.is_some();
        let mut live = if only_ended { vec![] } else { self.asked(&DeliveryState::LIVE) };
        live.retain(|state| self.stuck_since.is_none() || *state != "sending");
        live
    }

    /// And in the ledger.
    fn ended(&self) -> Vec<&'static str> {
        if self.stuck_since.is_some() { vec![] } else { self.asked(&DeliveryState::ENDED) }
    }

    /// What the notification's columns must say; where something is few, it leads.
    fn of_notification(&self, name: &str, parameters: &mut Parameters) -> String {
        let f = self.filter;
        let mut on = String::new();
        for (column, wanted) in [("entity", &f.entity), ("event_type", &f.event_type), ("source ->> 'site'", &f.site)] {
            if let Some(wanted) = wanted {
                on.push_str(&format!(" AND {name}.{column} = {}", parameters.add(wanted.as_str())));
            }
        }
        on
    }

    fn is_led_by_notification(&self) -> bool {
        self.filter.entity.is_some() || self.filter.site.is_some()
    }

    /// What the columns that both tables have must say, of a row `q`.
    fn own(&self, parameters: &mut Parameters) -> String {
        let f = self.filter;
        let mut on = String::new();
        for (column, wanted) in [("channel", &f.channel), ("code", &f.error_code), ("target", &f.target)] {
            if let Some(wanted) = wanted {
                on.push_str(&format!(" AND q.{column} = {}", parameters.add(wanted.as_str())));
            }
        }
        if let Some(provider) = &f.provider {
            let provider = parameters.add(provider.as_str());
            on.push_str(&format!(" AND q.lane = (SELECT p.id FROM postcommit.provider p WHERE p.tenant = t.id AND p.name = {provider})"));
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

    fn of_live(&self, states: &[&str], parameters: &mut Parameters) -> String {
        let mut on = self.own(parameters);
        if states.len() < DeliveryState::LIVE.len() {
            on.push_str(&format!(" AND {LIVE_STATE} IN ({})", quoted(states)));
        }
        if let Some(since) = self.stuck_since {
            on.push_str(&format!(" AND q.due_at < {}", parameters.add(since)));
        }
        on
    }

    fn of_ended(&self, states: &[&str], parameters: &mut Parameters) -> String {
        let mut on = self.own(parameters);
        match states {
            ["parked"] => on.push_str(" AND q.state = 'parked'"),
            _ if states.len() < DeliveryState::ENDED.len() => on.push_str(&format!(" AND q.state IN ({})", quoted(states))),
            _ => {}
        }
        if let Some(reason) = &self.filter.reason {
            on.push_str(&format!(" AND q.reason = {}", parameters.add(reason.as_str())));
        }
        if let Some(bound) = self.ended_before {
            on.push_str(&format!(" AND q.finished_at < {}", parameters.add(bound)));
        }
        on
    }

    /// The steps to the rows of one table.
    fn select(&self, dialect: Dialect, from: &str, window: &Window, table: &str, own: &str, parameters: &mut Parameters) -> String {
        let inside = window.holds("q.notification_id");
        let steps = if self.is_led_by_notification() {
            let lead = format!("note.tenant = t.id AND {}{}", window.holds("note.id"), self.of_notification("note", parameters));
            let row = format!("q.tenant = t.id AND q.notification_id = note.id AND {inside}{own}");
            format!("{}{}", dialect.step("notification", "note", &lead), dialect.step(table, "q", &row))
        } else {
            let row = dialect.step(table, "q", &format!("q.tenant = t.id AND {inside}{own}"));
            let about = self.of_notification("note", parameters);
            let note = format!("note.tenant = t.id AND note.id = q.notification_id AND {}{about}", window.holds("note.id"));
            if about.is_empty() { row } else { format!("{row}{}", dialect.step("notification", "note", &note)) }
        };
        format!("SELECT q.tenant, q.notification_id AS id, q.n, q.lane {from}{steps}")
    }
}

fn quoted(states: &[&str]) -> String {
    states.iter().map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}

impl Walk for DeliveryWalk<'_> {
    fn tenant(&self) -> Option<i32> {
        self.filter.tenant
    }

    fn oldest(&self) -> Uuid {
        let oldest = self.filter.from.map_or(Uuid::nil(), first_id);
        self.filter.notification.map_or(oldest, |id| id.max(oldest))
    }

    fn ways(&self, parameters: &mut Parameters) -> Vec<Way> {
        let (live, ended) = (self.live(), self.ended());
        if live.is_empty() && ended.is_empty() {
            return vec![];
        }
        if self.is_led_by_notification() {
            let (column, wanted) = match (&self.filter.entity, &self.filter.site) {
                (Some(entity), _) => ("entity", entity.as_str()),
                (None, site) => ("source ->> 'site'", site.as_deref().unwrap_or_default()),
            };
            return vec![Way { table: "notification", id: "id", which: format!(" AND k.{column} = {}", parameters.add(wanted)) }];
        }
        let way = |table, which: &str| Way { table, id: "notification_id", which: which.into() };
        let parked = if ended == ["parked"] { " AND k.state = 'parked'" } else { "" };
        let queue = (!live.is_empty()).then(|| way("delivery_queue", ""));
        queue.into_iter().chain((!ended.is_empty()).then(|| way("delivery_ledger", parked))).collect()
    }

    fn matches(&self, dialect: Dialect, from: &str, window: &Window, parameters: &mut Parameters) -> String {
        let (live, ended) = (self.live(), self.ended());
        let mut selects = Vec::new();
        if !live.is_empty() {
            let own = self.of_live(&live, parameters);
            selects.push(self.select(dialect, from, window, "delivery_queue", &own, parameters));
        }
        if !ended.is_empty() {
            let own = self.of_ended(&ended, parameters);
            selects.push(self.select(dialect, from, window, "delivery_ledger", &own, parameters));
        }
        selects.join(" UNION ALL ")
    }

    fn first_window(&self, limit: i64) -> i64 {
        let f = self.filter;
        let narrow = [&f.reason, &f.channel, &f.provider, &f.event_type, &f.error_code, &f.target].iter().any(|wanted| wanted.is_some());
        if narrow || f.attempts.is_some() || f.unclear.is_some() || !f.states.is_empty() {
            limit.saturating_mul(SPARE)
        } else {
            limit.saturating_add(1)
        }
    }
}
