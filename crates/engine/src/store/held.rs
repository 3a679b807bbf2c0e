//! Deliveries that wait because their receiver asked Postcommit to wait. When an operator opens the lane or the host
//! earlier, these deliveries become due as well.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryKey, ErrorClass};

use crate::db::{DbError, Row};
use crate::store::Store;

/// How many rows of a lane are examined at most for each priority, from the end of the hold backwards. Deliveries that
/// were deferred by the hold are due at its end, so deliveries scheduled for earlier times do not crowd them out.
const EXAMINED: i64 = 1000;
/// The largest difference between the due time of a delivery and the end of the hold. Both come from the same answer,
/// but are not computed at the same moment.
const SLACK: Duration = Duration::from_secs(5);

impl Store {
    /// Returns the time until which the host asked Postcommit to wait. Without a host, returns the latest such time of
    /// the lane and its hosts. `None` if there is no such time. The hold of a tripped breaker does not count: it stops
    /// claims, but it postpones no delivery.
    pub(in crate::store) async fn held_until(
        &self,
        lane: i32,
        host: Option<&str>,
    ) -> Result<Option<Timestamp>, DbError> {
        let sql = "SELECT max(held.until)
            FROM (SELECT p.held_until AS until FROM postcommit.provider p WHERE p.id = $1 AND p.hold_reason IS NULL
                AND CAST($2 AS TEXT) IS NULL
              UNION ALL
              SELECT h.held_until FROM postcommit.lane_host h
              WHERE h.lane = $1 AND h.hold_reason IS NULL AND h.host = coalesce(CAST($2 AS TEXT), h.host)) held
            WHERE held.until > {now}";
        let rows = self.db.query(sql, vec![lane.into(), host.into()]).await?;
        rows.first().map_or(Ok(None), |row| row.get(0))
    }

    /// Makes those deliveries of the lane due that wait for a hold that ends at `until` or earlier. With a host, only
    /// deliveries to that host become due. Other deliveries keep their due times.
    pub(in crate::store) async fn bring_held_forward(
        &self,
        lane: i32,
        host: Option<&str>,
        until: Timestamp,
    ) -> Result<(), DbError> {
        let sql = format!(
            "SELECT w.tenant, w.notification_id, w.n, w.target
             FROM (SELECT q.tenant, q.notification_id, q.n, q.target, q.lease_token, q.attempts, q.error_class, q.due_at
               FROM postcommit.delivery_queue q
               WHERE q.lane = $1 AND q.priority = $2 AND q.due_at > {{now}} AND q.due_at <= $3
               ORDER BY q.due_at DESC
               LIMIT {EXAMINED}) w
             WHERE w.lease_token IS NULL AND w.attempts > 0 AND (w.error_class = '{}' OR w.due_at >= $4)",
            ErrorClass::RateLimited.name()
        );
        let (from, last) = (Timestamp::from_micros(until.as_micros() - MICROS), until.plus(SLACK));
        let mut keys = Vec::new();
        for priority in 0..=9_i16 {
            let parameters = vec![lane.into(), priority.into(), last.into(), from.into()];
            let rows = self.db.query(&sql, parameters).await?;
            keys.extend(rows.iter().filter(|row| is_to(row, host)).filter_map(key));
        }
        self.make_due(&keys).await
    }
}

const MICROS: i64 = SLACK.as_micros() as i64;

fn key(row: &Row) -> Option<DeliveryKey> {
    Some(DeliveryKey { tenant: row.get(0).ok()?, notification: row.get(1).ok()?, n: row.get(2).ok()? })
}

fn is_to(row: &Row, host: Option<&str>) -> bool {
    let target = || row.get::<Option<String>>(3).ok().flatten();
    host.is_none_or(|host| target().is_some_and(|target| leads_to(&target, host)))
}

/// Returns whether a URL leads to the host, which is a name and a port in lower case. A URL that this function does not
/// recognise, such as one with a name that is not ASCII, is not brought forward and waits for its due time.
fn leads_to(url: &str, host: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let name = authority.rsplit('@').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    let port = if scheme.eq_ignore_ascii_case("http") { 80 } else { 443 };
    name == host || format!("{name}:{port}") == host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_to_its_own_host_alone() {
        for url in [
            "https://Example.com",
            "https://example.com/hook?a=1",
            "https://u:p@example.com:443/",
            "https://example.com.#x",
        ] {
            assert!(leads_to(url, "example.com:443"), "{url}");
        }
        for url in [
            "http://example.com/",
            "https://example.com.evil.net/",
            "https://example.com:8443/",
            "https://evil.net/example.com",
            "example.com:443",
            "",
        ] {
            assert!(!leads_to(url, "example.com:443"), "{url}");
        }
        assert!(leads_to("http://example.com/", "example.com:80") && leads_to("http://[::1]:81/x", "[::1]:81"));
    }
}
