//! Content and recipients, from enqueue to the captured message, on both databases.

mod addressed;
mod channels;
mod digests;
mod held;
mod hostile;
mod own_keys;
mod pacing;
mod parts;
mod quiet_hours;
mod resent;
mod retried;
mod send_keys;
mod templated;
mod unsubscribed;

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit_engine::db::Value;
use postcommit_engine::store::Want;
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// The event type in the acceptance tests of section C.
pub const CONFIRMED: &str = "booking.confirmed";

/// The payload in the acceptance tests of section C.
pub fn booking() -> serde_json::Value {
    json!({"bookingId": 12345, "guestId": 678, "listingId": 10, "bookingStatus": "Confirmed",
        "guestPhone": "+919876543210", "guestEmail": "guest@example.com", "guestName": "Asha", "listingName": "Sea View",
        "checkinDate": "2026-03-15", "checkoutDate": "2026-03-17", "occurredAtUtc": "2026-03-01T10:00:00Z"})
}

impl World {
    /// Saves a new version of a template. `more` has its parts, and the columns that differ from the defaults.
    pub async fn write_template(&self, id: &str, channel: &str, more: serde_json::Value) {
        let text = |name: &str| more.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let or = |name: &str, otherwise: &str| Value::from(text(name).unwrap_or_else(|| otherwise.into()));
        let known = self
            .sql(
                "SELECT version FROM postcommit.template WHERE tenant = $1 AND id = $2",
                vec![self.tenant.into(), id.into()],
            )
            .await;
        let version = known.first().map_or(1, |row| row.get::<i32>(0).unwrap() + 1);
        let sql = "INSERT INTO postcommit.template_version (tenant, template, version, recipient, subject, text, html,
              missing, data, date_format, time_zone, created_at, created_by)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '%d-%b-%Y', 'UTC', {now}, 'test')";
        let parts = ["to", "subject", "text", "html"].map(|part| Value::from(text(part)));
        let mut parameters = vec![self.tenant.into(), id.into(), version.into()];
        parameters.extend(parts);
        parameters.push(or("missing", "empty"));
        let data = more.get("data").filter(|data| !data.is_null());
        parameters.push(data.map_or(Value::Null, |data| Value::Json(data.to_string())));
        self.execute(sql, parameters).await;
        let sql = "INSERT INTO postcommit.template (tenant, id, channel, version, event_type, audience, language,
              scope_type, scope_id, once_per, throttle, digest, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, {now}, {now})
            ON CONFLICT (tenant, id) DO UPDATE SET version = excluded.version, updated_at = {now}";
        let rule = |name: &str| more.get(name).map_or(Value::Null, |rule| Value::Json(rule.to_string()));
        let parameters = vec![
            self.tenant.into(),
            id.into(),
            channel.into(),
            version.into(),
            or("event_type", CONFIRMED),
            or("audience", ""),
            or("language", ""),
            or("scope_type", ""),
            or("scope_id", ""),
            or("once_per", "notification"),
            rule("throttle"),
            rule("digest"),
        ];
        self.execute(sql, parameters).await;
    }

    /// Creates the templates of the acceptance tests of section C: one for each of three channels.
    pub async fn booking_templates(&self, once_per: &str) {
        let text = "{{guestName}}, your stay at {{listingName}} from {{checkinDate}} is {{bookingStatus}}.";
        for channel in ["whatsapp", "sms"] {
            self.write_template(&format!("{channel}-confirmed"), channel, json!({"text": text, "once_per": once_per}))
                .await;
        }
        let mail =
            json!({"subject": "Booking {{bookingId}}", "html": "<p>Welcome, {{guestName}}</p>", "once_per": once_per});
        self.write_template("mail-confirmed", "email", mail).await;
    }

    /// Enqueues the event of section C for an entity, with additional fields. It names no recipient.
    pub async fn book(&self, entity: &str, more: serde_json::Value) -> Uuid {
        let mut fields = json!({"entity": entity, "payload": booking(), "recipients": []});
        for (name, value) in more.as_object().cloned().unwrap_or_default() {
            fields[name] = value;
        }
        self.enqueue(CONFIRMED, fields).await
    }

    /// Claims everything that is not expanded yet, like a worker that is lost immediately after its claim.
    pub async fn claim_and_lose(&self) {
        let want = Want { lane: -self.tenant, quota: 10 };
        let claim = self.store.claim(&[want], Duration::from_secs(60), None).await.unwrap();
        assert!(!claim.deliveries.is_empty());
        self.expire_leases().await;
    }

    /// Creates a user with addresses. `more` has columns of the profile.
    pub async fn user(&self, id: &str, addresses: &[(&str, &str)], more: serde_json::Value) {
        let text = |name: &str| more.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let data = Value::Json(more.get("data").unwrap_or(&json!({})).to_string());
        let sql = "INSERT INTO postcommit.user_profile (tenant, id, name, language, data, time_zone, quiet_hours,
              created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, {now})";
        let quiet = more.get("quiet_hours").map(|hours| Value::Json(hours.to_string())).unwrap_or(Value::Null);
        let texts = ["name", "language"].map(|name| Value::from(text(name)));
        let mut parameters = vec![self.tenant.into(), id.into()];
        parameters.extend(texts);
        parameters.extend([data, text("time_zone").into(), quiet]);
        self.execute(sql, parameters).await;
        for (position, (kind, address)) in (1_i32..).zip(addresses) {
            let sql = "INSERT INTO postcommit.user_address (tenant, user_id, kind, position, address)
                VALUES ($1, $2, $3, $4, $5)";
            let address = vec![self.tenant.into(), id.into(), (*kind).into(), position.into(), (*address).into()];
            self.execute(sql, address).await;
        }
    }

    pub async fn prefer(&self, user: &str, event_type: &str, channel: &str, allowed: bool) {
        let sql =
            "INSERT INTO postcommit.preference (tenant, user_id, event_type, channel, allowed, updated_at, updated_by)
            VALUES ($1, $2, $3, $4, $5, {now}, 'test')";
        let parameters = vec![self.tenant.into(), user.into(), event_type.into(), channel.into(), allowed.into()];
        self.execute(sql, parameters).await;
    }

    pub async fn suppress(&self, channel: &str, address: &str) {
        let sql = "INSERT INTO postcommit.suppression (tenant, channel, address, reason, created_at, created_by)
            VALUES ($1, $2, $3, 'complained', {now}, 'test')";
        self.execute(sql, vec![self.tenant.into(), channel.into(), address.into()]).await;
    }

    /// Creates a list, if it does not exist, and adds members: kind, member and channel.
    pub async fn list(&self, name: &str, members: &[(&str, &str, &str)]) {
        let sql = "INSERT INTO postcommit.list (tenant, name, created_at, updated_at) VALUES ($1, $2, {now}, {now})
            ON CONFLICT DO NOTHING";
        self.execute(sql, vec![self.tenant.into(), name.into()]).await;
        for (kind, member, channel) in members {
            let sql = "INSERT INTO postcommit.list_member (tenant, list, kind, member, channel, added_at)
                VALUES ($1, $2, $3, $4, $5, {now})";
            let parameters = vec![self.tenant.into(), name.into(), (*kind).into(), (*member).into(), (*channel).into()];
            self.execute(sql, parameters).await;
        }
    }

    /// Returns the captured messages of a notification, by channel and address.
    pub async fn captured(&self, id: Uuid) -> BTreeMap<(String, String), serde_json::Value> {
        let sent = self.attempts(id).await.into_iter().filter_map(|attempt| attempt.excerpt);
        let read = sent.map(|excerpt| serde_json::from_str::<serde_json::Value>(&excerpt).unwrap());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        read.map(|sent| ((text(&sent["channel"]), text(&sent["to"])), sent)).collect()
    }

    /// Returns the channel, state and code of each delivery of a notification, in order.
    pub async fn outcomes(&self, id: Uuid) -> Vec<(String, String, String)> {
        let shown = |row: postcommit_engine::store::DeliveryRow| {
            (row.channel.unwrap_or_default(), row.state, row.error_code.unwrap_or_default())
        };
        self.deliveries(id).await.into_iter().map(shown).collect()
    }
}

/// Builds one expected outcome.
pub fn outcome(channel: &str, state: &str, code: &str) -> (String, String, String) {
    (channel.into(), state.into(), code.into())
}
