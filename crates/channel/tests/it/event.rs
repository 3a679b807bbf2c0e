//! The event of the tests' messages to people.

use postcommit_channel::driver::RawEvent;
use postcommit_channel::template::Payload;
use uuid::Uuid;

/// A confirmed booking.
pub fn booking(payload: &Payload) -> RawEvent<'_> {
    RawEvent {
        id: Uuid::nil(),
        tenant: "main",
        idempotency_key: "k",
        event_type: "booking.confirmed",
        entity: None,
        topic: None,
        schema_version: None,
        payload,
        data: None,
        correlation_id: None,
        priority: 5,
        created_at: "2026-03-01T09:30:00Z".parse().unwrap(),
        expires_at: "2026-03-31T09:30:00Z".parse().unwrap(),
        source: None,
    }
}
