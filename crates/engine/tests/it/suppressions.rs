//! Suppressions, and how the expansion reads them; on both databases.

use postcommit::Timestamp;
use postcommit_channel::model::Actor;
use postcommit_engine::store::{AuditFilter, SuppressionDraft, SuppressionFilter};

use crate::world::World;

fn draft(channel: &str, address: &str) -> SuppressionDraft {
    SuppressionDraft { channel: channel.into(), address: address.into(), reason: "hard bounce".into(), until: None }
}

fn target(world: &World, channel: &str, address: &str) -> (i32, String, String) {
    (world.tenant, channel.into(), address.into())
}

on_both! {
    async fn a_suppression_is_made_replaced_listed_and_removed(world) {
        let store = world.store.by(Actor::new("cli:ada"));
        let (made, is_new) = store.suppress(world.tenant, &draft("email", "Guest@Example.com")).await.unwrap();
        assert!(is_new && made.active);
        assert_eq!((made.address.as_str(), made.reason.as_str(), made.created_by.as_str(), made.until), ("guest@example.com", "hard bounce", "cli:ada", None));
        let later: Timestamp = "2099-01-01T00:00:00Z".parse().unwrap();
        let (again, is_new) = store.suppress(world.tenant, &SuppressionDraft { reason: "asked us".into(), until: Some(later), ..draft("email", "guest@example.com") }).await.unwrap();
        assert_eq!((is_new, again.reason.as_str(), again.until), (false, "asked us", Some(later)));
        store.suppress(world.tenant, &draft("*", "+919876543210")).await.unwrap();
        store.suppress(world.tenant, &draft("sms", "+14155550100")).await.unwrap();
        let all = SuppressionFilter { tenant: Some(world.tenant), limit: 2, ..SuppressionFilter::default() };
        let first = store.suppression_rows(&all).await.unwrap();
        let after = first.last().map(|row| (row.tenant_id, row.channel.clone(), row.address.clone()));
        let rest = store.suppression_rows(&SuppressionFilter { after, ..all.clone() }).await.unwrap();
        assert_eq!((first.len(), rest.len()), (2, 1));
        let on_sms = store.suppression_rows(&SuppressionFilter { channel: Some("sms".into()), ..all.clone() }).await.unwrap();
        assert_eq!(on_sms.len(), 2, "one of every channel counts on each");
        let of_guest = store.suppression_rows(&SuppressionFilter { address: Some("GUEST@example.com".into()), ..all.clone() }).await.unwrap();
        assert_eq!(of_guest, [again]);
        assert!(store.remove_suppression(world.tenant, "email", "guest@EXAMPLE.com").await.unwrap());
        assert!(!store.remove_suppression(world.tenant, "email", "guest@example.com").await.unwrap());
        let entries = store.audit_rows(&AuditFilter { tenant: Some(world.tenant), actor: Some("cli:ada".into()), limit: 100, ..AuditFilter::default() }).await.unwrap();
        let entries: Vec<String> = entries.into_iter().rev().map(|entry| format!("{} {}", entry.action, entry.subject)).collect();
        assert_eq!(entries, ["suppression.create email g…@example.com", "suppression.create email g…@example.com", "suppression.create * +91…10", "suppression.create sms +14…00", "suppression.delete email g…@example.com"], "the address is masked");
    }

    async fn c7_a_suppressed_address_is_checked_by_its_channel(world) {
        let refused: [(SuppressionDraft, &str); 6] = [
            (draft("email", "guest"), "address: is not a mail address"),
            (draft("whatsapp", "98765"), "address: is not a phone number in E.164"),
            (draft("", "a@example.com"), "channel: has 0 characters; 1 to 63 are allowed, or '*' for all"),
            (draft("pager", ""), "address: has 0 bytes; 1 to 2048 are allowed"),
            (SuppressionDraft { reason: String::new(), ..draft("email", "a@example.com") }, "reason: has 0 characters; 1 to 255 are allowed"),
            (SuppressionDraft { until: Some(Timestamp::from_micros(1)), ..draft("email", "a@example.com") }, "until: is 1970-01-01T00:00:00.000001Z; it must be later than now"),
        ];
        for (draft, problem) in refused {
            let said = world.store.suppress(world.tenant, &draft).await.unwrap_err().to_string();
            assert!(said.starts_with(problem), "{said}");
        }
        world.store.suppress(world.tenant, &draft("pager", "anything goes")).await.unwrap();
    }

    async fn b10_the_expansion_finds_suppressed_addresses_in_one_query(world) {
        let other = world.store.create_tenant("other").await.unwrap();
        world.store.suppress(world.tenant, &draft("email", "guest@example.com")).await.unwrap();
        world.store.suppress(world.tenant, &draft("*", "+919876543210")).await.unwrap();
        world.store.suppress(world.tenant, &draft("sms", "+919876543210")).await.unwrap();
        let later: Timestamp = "2099-01-01T00:00:00Z".parse().unwrap();
        world.store.suppress(world.tenant, &SuppressionDraft { until: Some(later), ..draft("sms", "+14155550100") }).await.unwrap();
        world.execute("UPDATE postcommit.suppression SET until = $1 WHERE address = '+14155550100'", vec![Timestamp::from_micros(1_000_000).into()]).await;
        let suppressed = [target(&world, "email", "guest@example.com"), target(&world, "email", "Guest@EXAMPLE.com"), target(&world, "sms", "+919876543210"), target(&world, "whatsapp", "+919876543210")];
        let free = [target(&world, "slack", "guest@example.com"), target(&world, "sms", "+14155550100"), (other, "email".into(), "guest@example.com".into())];
        let asked: Vec<_> = suppressed.iter().chain(&free).cloned().collect();
        let before = world.store.db().trips().statements;
        let found = world.store.suppressed(&asked).await.unwrap();
        assert_eq!(world.store.db().trips().statements - before, 1);
        assert!(suppressed.iter().all(|target| found.get(target).map(String::as_str) == Some("hard bounce")), "{found:?}");
        assert_eq!(found.len(), suppressed.len(), "{found:?}");
        assert!(world.store.suppressed(&[]).await.unwrap().is_empty());
    }
}
