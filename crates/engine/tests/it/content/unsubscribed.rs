//! Unsubscribe links in templates.

use postcommit_engine::unsubscribe::{Unsubscribe, Who};
use serde_json::{Value, json};

use super::{CONFIRMED, outcome};
use crate::world::World;

const LINK: &str = "https://notify.example.com/u/";

/// Creates a template for mails with an unsubscribe link.
async fn template(world: &World) {
    let html = "<a href=\"{{ unsubscribe_url }}\">No more mails</a>";
    world.write_template("mail", "email", json!({"subject": "Booked", "html": html, "missing": "refuse"})).await;
}

/// Returns the link of a captured mail, which is in its text and in its header.
fn link(mail: &Value) -> &str {
    let html = mail["html"].as_str().unwrap();
    let url = html.split('"').nth(1).unwrap();
    assert_eq!(mail["headers"]["List-Unsubscribe"], format!("<{url}>"));
    assert_eq!(mail["headers"]["List-Unsubscribe-Post"], "List-Unsubscribe=One-Click");
    url
}

on_both! {
    async fn a_template_shows_a_link_by_which_the_recipient_stops_such_messages(world) {
        let mut world = world;
        world.public_url = "https://notify.example.com".into();
        world.capture(json!({"fail_on": "transient*1=booking.confirmed"})).await;
        world.user("ana", &[("email", "ana@example.com")], json!({})).await;
        template(&world).await;
        let to = json!({"payload": {}, "recipients": [{"user": "ana"}, {"email": "guest@example.com"}]});
        let id = world.book("1", to.clone()).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        let captured = world.captured(id).await;
        let mail = |address: &str| &captured[&("email".to_owned(), address.to_owned())];
        for (address, who, event_type) in [
            ("ana@example.com", Who::User("ana".into()), CONFIRMED),
            ("guest@example.com", Who::Address("guest@example.com".into()), "*"),
        ] {
            let token = link(mail(address)).strip_prefix(LINK).unwrap().to_owned();
            let found = Unsubscribe::verify(&world.store, &token).await.unwrap().unwrap();
            let wanted = Unsubscribe { tenant: world.tenant, who, event_type: event_type.into(), channel: "email".into() };
            assert_eq!((&found, found.token(&world.store).await.unwrap()), (&wanted, token), "the second attempt has the same link as any other");
            found.apply(&world.store).await.unwrap();
        }
        let next = world.book("2", to).await;
        world.pass().await;
        assert_eq!(world.outcomes(next).await, [outcome("email", "skipped", "opted_out"), outcome("email", "skipped", "suppressed")]);
    }

    async fn without_a_public_url_or_for_a_mandatory_type_the_link_is_empty_with_a_warning(world) {
        let mut world = world;
        world.capture(json!({})).await;
        template(&world).await;
        let unset = world.book("1", json!({"payload": {"email": "guest@example.com"}})).await;
        world.pass().await;
        world.public_url = "https://notify.example.com".into();
        world.execute("INSERT INTO postcommit.event_type (tenant, name, mandatory, created_at, updated_at) VALUES ($1, $2, (1 = 1), {now}, {now})", vec![world.tenant.into(), CONFIRMED.into()]).await;
        let mandatory = world.book("2", json!({"payload": {"email": "guest@example.com"}})).await;
        world.pass().await;
        for (id, why) in [(unset, "the setting api.public_url is empty"), (mandatory, "the event type is mandatory")] {
            let captured = world.captured(id).await;
            let mail = captured.values().next().unwrap();
            assert_eq!((&mail["html"], &mail["headers"]), (&json!("<a href=\"\">No more mails</a>"), &Value::Null));
            let warning = world.attempts(id).await.remove(0).detail.unwrap();
            assert!(warning.contains(&format!("unsubscribe_url is empty, because {why}")), "{warning}");
        }
    }
}
