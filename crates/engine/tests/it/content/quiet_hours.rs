//! Quiet hours of users, by event type.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Policy, QuietRule, Schedule};
use postcommit_engine::store::EventTypeDraft;
use serde_json::json;
use uuid::Uuid;

use super::{CONFIRMED, outcome};
use crate::world::World;

/// Quiet hours that begin and end so many minutes after the present moment of the database, whatever it is.
pub(super) async fn quiet_hours(world: &World, from: i32, until: i32) -> serde_json::Value {
    let text = match world.is_postgres() {
        true => "to_char((clock_timestamp() + make_interval(mins => $1::int)) AT TIME ZONE 'UTC', 'HH24:MI')",
        false => "strftime('%H:%M', 'now', $1 || ' minutes')",
    };
    let at = async |minutes: i32| -> String {
        let minutes = if world.is_postgres() { minutes.into() } else { format!("{minutes:+}").into() };
        world.sql(&format!("SELECT {text}"), vec![minutes]).await[0].get(0).unwrap()
    };
    json!({"from": at(from).await, "until": at(until).await})
}

/// Minutes of quiet hours that hold the present moment, and of others.
pub(super) const NOW: (i32, i32) = (-120, 180);
const LATER: (i32, i32) = (240, 420);

pub(super) async fn rule(world: &World, quiet_hours: QuietRule) {
    let draft = EventTypeDraft { quiet_hours, ..EventTypeDraft::default() };
    world.store.create_event_type(world.tenant, CONFIRMED, &draft).await.unwrap();
}

/// A user with a mail address and an inbox, and templates for both.
pub(super) async fn ana(world: &World, (from, until): (i32, i32)) {
    world.capture(json!({})).await;
    world.make_in_app().await;
    world.write_template("mail", "email", json!({"text": "Hello {{ user.name }}{{ user.quiet_hours }}"})).await;
    world.write_template("note", "in_app", json!({"text": "Hello"})).await;
    let hours = quiet_hours(world, from, until).await;
    world.user("ana", &[("email", "ana@example.com")], json!({"name": "Ana", "quiet_hours": hours})).await;
}

async fn due(world: &World, id: Uuid) -> Timestamp {
    let sql = "SELECT due_at FROM postcommit.delivery_queue WHERE notification_id = $1";
    world.sql(sql, vec![id.into()]).await[0].get(0).unwrap()
}

async fn now(world: &World) -> Timestamp {
    let now = if world.is_postgres() { "clock_timestamp()" } else { "{now}" };
    let sql = format!("UPDATE postcommit.list SET updated_at = {now} WHERE name = 'clock'");
    world.list("clock", &[]).await;
    world.execute(&sql, vec![]).await;
    world.sql("SELECT updated_at FROM postcommit.list WHERE name = 'clock'", vec![]).await[0].get(0).unwrap()
}

pub(super) fn to_ana() -> serde_json::Value {
    json!({"recipients": [{"user": "ana"}]})
}

/// Delivers two direct messages to the user. The second one expires in ten minutes. Returns both, and that time.
async fn direct(world: &World) -> (Uuid, Uuid, Timestamp) {
    let mut fields = json!({"title": "Up", "recipients": [{"user": "ana"}], "channels": ["email"]});
    let first = world.enqueue("alert", fields.clone()).await;
    let soon = now(world).await.plus(Duration::from_secs(600));
    fields["expires_at"] = json!(soon);
    let second = world.enqueue("alert", fields).await;
    world.pass().await;
    (first, second, soon)
}

on_both! {
    async fn a_message_in_quiet_hours_is_sent_when_they_end_and_an_inbox_has_it_immediately(world) {
        ana(&world, NOW).await;
        let id = world.book("1", to_ana()).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("email", "pending", ""), outcome("in_app", "delivered", "")]);
        let wait = due(&world, id).await.since(now(&world).await);
        assert!(wait > Duration::from_secs(2 * 3600) && wait <= Duration::from_secs(3 * 3600 + 60), "{wait:?}");
        // A delivery that is claimed in quiet hours, as after a change of its time by hand, is put off again and not
        // counted.
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await[0], outcome("email", "pending", ""));
        assert_eq!(world.attempts(id).await.iter().filter(|attempt| attempt.provider.as_deref() != Some("in_app")).count(), 0);
        // After the quiet hours the delivery is sent, and the template cannot read them.
        world.execute("UPDATE postcommit.delivery_queue SET context = $1, due_at = {now}", vec![r#"{"name":"Ana"}"#.into()]).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await[0], outcome("email", "sent", ""));
    }

    async fn outside_of_quiet_hours_a_message_is_sent_and_a_template_sees_nothing_of_them(world) {
        ana(&world, LATER).await;
        let id = world.book("1", to_ana()).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await[0], outcome("email", "sent", ""));
        let sent = world.captured(id).await;
        assert_eq!(sent[&("email".to_owned(), "ana@example.com".to_owned())]["body"], "Hello Ana");
    }

    async fn an_event_type_skips_in_quiet_hours_or_ignores_them(world) {
        ana(&world, NOW).await;
        rule(&world, QuietRule::Skip).await;
        let skipped = world.book("1", to_ana()).await;
        world.pass().await;
        assert_eq!(world.outcomes(skipped).await, [outcome("email", "skipped", "quiet_hours"), outcome("in_app", "delivered", "")]);
        let change = postcommit_engine::store::EventTypeChange { quiet_hours: Some(QuietRule::Ignore), ..Default::default() };
        world.store.update_event_type(world.tenant, CONFIRMED, None, &change).await.unwrap();
        let ignored = world.book("2", to_ana()).await;
        world.pass().await;
        assert_eq!(world.outcomes(ignored).await[0], outcome("email", "sent", ""));
    }

    async fn a_retry_is_moved_out_of_quiet_hours(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": format!("transient={CONFIRMED}")}));
        draft.policy = Policy::from(Schedule::Fixed { interval_s: 1200.0 });
        world.provider(draft).await;
        world.write_template("mail", "email", json!({"text": "Hello"})).await;
        // The quiet hours begin in ten minutes: the first attempt comes before them, and the retry after twenty minutes
        // would fall into them.
        let hours = quiet_hours(&world, 10, 180).await;
        world.user("ana", &[("email", "ana@example.com")], json!({"quiet_hours": hours})).await;
        let id = world.book("1", to_ana()).await;
        world.pass().await;
        assert_eq!(world.attempts(id).await.len(), 1);
        let end = due(&world, id).await;
        assert!(end.since(now(&world).await) > Duration::from_secs(2 * 3600));
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.waits_for), ("retrying", Some(format!("the end of its user's quiet hours, {end}"))));
    }

    async fn a_delivery_that_waits_for_the_end_of_quiet_hours_says_so_in_utc_and_as_the_user_reads_it(world) {
        let lane = world.capture(json!({})).await;
        // The clock in Kolkata is 330 minutes ahead of UTC.
        let hours = quiet_hours(&world, NOW.0 + 330, NOW.1 + 330).await;
        world.user("ana", &[("email", "ana@example.com")], json!({"quiet_hours": hours, "time_zone": "Asia/Kolkata"})).await;
        let (waits, ends, _) = direct(&world).await;
        let (end, until) = (due(&world, waits).await, hours["until"].as_str().unwrap());
        let said = world.delivery(waits).await.waits_for.unwrap();
        assert!(said.starts_with(&format!("the end of its user's quiet hours, {end} (2")) && said.ends_with(&format!(" {until} in Asia/Kolkata)")), "{said}");
        let expires = world.delivery(ends).await;
        let before = format!("; the delivery expires before that, at {}", expires.next_attempt_at.unwrap());
        assert_eq!(expires.waits_for, Some(format!("{said}{before}")));
        // A stronger reason is told first.
        world.store.pause_lane(lane, None, "by hand").await.unwrap();
        assert_eq!(world.delivery(waits).await.waits_for.as_deref(), Some("its provider, which is paused: by hand"));
    }

    async fn a_direct_message_to_a_user_waits_as_well_and_one_that_expires_before_ends_then(world) {
        world.capture(json!({})).await;
        let hours = quiet_hours(&world, NOW.0, NOW.1).await;
        world.user("ana", &[("email", "ana@example.com")], json!({"quiet_hours": hours})).await;
        let (waits, ends, soon) = direct(&world).await;
        assert_eq!(world.outcomes(waits).await, [outcome("email", "pending", "")]);
        assert_eq!(due(&world, ends).await, soon, "it need not wait for longer than it may live");
    }
}
