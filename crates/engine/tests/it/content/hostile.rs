//! Templates that try to block the dispatcher, or to read data of others: each is stopped, and no other message waits
//! for it.

use postcommit_engine::db::Value;
use serde_json::json;
use uuid::Uuid;

use super::{booking, outcome};
use crate::world::World;

/// The number of events for each hostile template.
const EACH: usize = 40;
/// The number of events for each ordinary template.
const ORDINARY: usize = 20;

/// Hostile template texts, by event type, and the code with which their deliveries are parked.
fn hostile() -> [(&'static str, String, &'static str); 5] {
    let nested = |inner: &str| format!("{}{inner}{}", "{% for a in nights %}".repeat(4), "{% endfor %}".repeat(4));
    [
        ("hostile.loop", nested("x"), "template_limit"),
        ("hostile.output", nested("{{ note }}"), "template_limit"),
        ("hostile.include", "{% include \"itself\" %}".into(), "template_failed"),
        ("hostile.file", "{% include \"/etc/passwd\" %}".into(), "template_failed"),
        ("hostile.environment", "{{ env(\"HOME\") }}".into(), "template_failed"),
    ]
}

/// Writes the hostile templates directly, because a save would refuse them.
async fn write_hostile(world: &World) {
    for (event_type, text, _) in hostile() {
        world.write_template(event_type, "sms", json!({"event_type": event_type, "text": text})).await;
    }
    world
        .write_template(
            "hostile.address",
            "sms",
            json!({"event_type": "hostile.address", "to": hostile()[0].1, "text": "x"}),
        )
        .await;
    let parts = json!({"itself": "{% include \"itself\" %}{% include \"itself\" %}"}).to_string();
    let sql = "UPDATE postcommit.template_version SET parts = $1 WHERE template = 'hostile.include'";
    world.execute(sql, vec![Value::Json(parts)]).await;
}

/// Enqueues events that name no recipient.
async fn enqueue(world: &World, tenant: &str, event_type: &str, count: usize) -> Vec<Uuid> {
    let mut payload = booking();
    if event_type.starts_with("hostile") {
        payload["nights"] = (0..1000).collect();
        payload["note"] = "x".repeat(10_000).into();
    }
    let mut ids = vec![];
    for i in 0..count {
        let fields = json!({"tenant": tenant, "entity": format!("{i}"), "payload": payload, "recipients": []});
        ids.push(world.enqueue(event_type, fields).await);
    }
    ids
}

on_both! {
    async fn hostile_templates_are_parked_with_a_code_while_all_others_are_sent(world) {
        let mut world = world;
        let ours = world.tenant;
        let ordinary = json!({"event_type": "ordinary", "text": "Welcome, {{guestName}}. {{ env.HOME }}{{ HOME }}"});
        world.capture(json!({})).await;
        world.write_template("ordinary", "sms", ordinary.clone()).await;
        write_hostile(&world).await;
        let other = world.store.create_tenant("other").await.unwrap();
        world.tenant = other;
        world.capture(json!({})).await;
        world.write_template("ordinary", "sms", ordinary).await;
        world.tenant = ours;

        let mut parked = vec![];
        for (event_type, _, code) in hostile() {
            parked.extend(enqueue(&world, "default", event_type, EACH).await.into_iter().map(|id| (id, code)));
        }
        let unaddressed = enqueue(&world, "default", "hostile.address", 3).await;
        let ids = [enqueue(&world, "default", "ordinary", ORDINARY).await, enqueue(&world, "other", "ordinary", ORDINARY).await];
        let sent: Vec<(i32, Uuid)> = [ours, other].into_iter().zip(ids).flat_map(|(tenant, ids)| ids.into_iter().map(move |id| (tenant, id))).collect();

        let running = world.run().await;
        let of_type = "SELECT count(*) FROM postcommit.delivery WHERE state = 'sent'";
        world.until("the ordinary events are sent", async || {
            world.sql(of_type, vec![]).await[0].get::<i64>(0).unwrap() == i64::try_from(sent.len()).unwrap()
        }).await;
        world.until("the hostile ones are parked", async || world.count("delivery_queue").await == 0).await;
        running.finish().await;

        for (tenant, id) in sent {
            world.tenant = tenant;
            assert_eq!(world.outcomes(id).await, [outcome("sms", "sent", "")]);
            let captured = world.captured(id).await;
            assert_eq!(captured.values().next().unwrap()["body"], "Welcome, Asha. ", "nothing of the environment");
        }
        world.tenant = ours;
        for (id, code) in parked {
            // A template that cannot be compiled gives no address either, so its notification is parked.
            let channel = if code == "template_failed" { "" } else { "sms" };
            assert_eq!(world.outcomes(id).await, [outcome(channel, "parked", code)]);
            assert!(world.attempts(id).await.is_empty(), "nothing was attempted");
        }
        for id in unaddressed {
            let row = world.delivery(id).await;
            assert_eq!((row.n, row.state.as_str(), row.error_code.as_deref()), (0, "parked", Some("template_limit")));
            assert!(row.last_error.unwrap().contains("stopped at its limit of 2048 bytes of output"));
        }
    }
}
