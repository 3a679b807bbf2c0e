//! Declared event types; on both databases.

use postcommit_channel::model::QuietRule;
use postcommit_engine::store::{EditError, EventTypeChange, EventTypeDraft, EventTypeFilter};
use serde_json::json;

fn draft() -> EventTypeDraft {
    EventTypeDraft {
        description: Some("A guest has booked".into()),
        sample: Some(json!({"guestName": "Ada", "amount": 120.50})),
        placeholders: vec!["guestName".into(), "amount".into()],
        mandatory: false,
        quiet_hours: QuietRule::Skip,
    }
}

on_both! {
    async fn an_event_type_is_declared_changed_deleted_and_declared_again(world) {
        let made = world.store.create_event_type(world.tenant, "booking.confirmed", &draft()).await.unwrap();
        assert_eq!((made.event_type.clone(), made.revision, made.name.as_str()), (draft(), 1, "booking.confirmed"));
        assert!(matches!(world.store.create_event_type(world.tenant, "booking.confirmed", &draft()).await, Err(EditError::Exists { .. })));
        let change = EventTypeChange { mandatory: Some(true), sample: Some(None), ..EventTypeChange::default() };
        let changed = world.store.update_event_type(world.tenant, "booking.confirmed", Some(1), &change).await.unwrap();
        assert_eq!((changed.event_type, changed.revision), (EventTypeDraft { mandatory: true, sample: None, ..draft() }, 2));
        assert!(matches!(world.store.update_event_type(world.tenant, "booking.confirmed", Some(1), &EventTypeChange::default()).await, Err(EditError::Outdated { .. })));
        world.store.delete_event_type(world.tenant, "booking.confirmed").await.unwrap();
        assert_eq!(world.store.event_type(world.tenant, "booking.confirmed").await.unwrap(), None);
        assert!(matches!(world.store.delete_event_type(world.tenant, "booking.confirmed").await, Err(EditError::Unknown { .. })));
        assert!(matches!(world.store.update_event_type(world.tenant, "booking.confirmed", None, &change).await, Err(EditError::Unknown { .. })));
        let again = world.store.create_event_type(world.tenant, "booking.confirmed", &draft()).await.unwrap();
        assert_eq!((again.event_type, again.revision), (draft(), 4), "revisions go on");
    }

    async fn a_declared_event_type_has_no_value_that_doctor_calls_unreadable(world) {
        world.store.create_event_type(world.tenant, "booking.confirmed", &draft()).await.unwrap();
        assert_eq!(world.store.unreadable().await.unwrap(), vec![]);
    }

    async fn every_number_of_a_sample_is_read_back_as_it_was_written(world) {
        let sample = json!({"largest": f64::MAX, "least": f64::MIN, "smallest": f64::MIN_POSITIVE, "pi": std::f64::consts::PI});
        let draft = EventTypeDraft { sample: Some(sample.clone()), ..draft() };
        world.store.create_event_type(world.tenant, "booking.confirmed", &draft).await.unwrap();
        let read = world.store.event_type(world.tenant, "booking.confirmed").await.unwrap().unwrap();
        assert_eq!(read.event_type.sample, Some(sample));
    }

    async fn dispatchers_read_every_change_of_an_event_type(world) {
        let tenant = world.store.of_tenant(world.tenant);
        let mut versions = vec![world.store.providers_version().await.unwrap().0];
        tenant.create_event_type(world.tenant, "a", &draft()).await.unwrap();
        versions.push(world.store.providers_version().await.unwrap().0);
        tenant.update_event_type(world.tenant, "a", None, &EventTypeChange { mandatory: Some(true), ..EventTypeChange::default() }).await.unwrap();
        versions.push(world.store.providers_version().await.unwrap().0);
        tenant.delete_event_type(world.tenant, "a").await.unwrap();
        versions.push(world.store.providers_version().await.unwrap().0);
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
    }

    async fn every_limit_of_an_event_type_is_named(world) {
        let refused = [
            (EventTypeDraft { description: Some("x".repeat(1001)), ..draft() }, "description: has 1001 characters; 1 to 1000 are allowed"),
            (EventTypeDraft { sample: Some(json!([1])), ..draft() }, "sample: must be an object"),
            (EventTypeDraft { sample: Some(json!({"a": "x".repeat(262_144)})), ..draft() }, "sample: has 262153 bytes; at most 262144 are allowed"),
            (EventTypeDraft { placeholders: vec!["a".into(), "a".into()], ..draft() }, "placeholders[1]: \"a\" is given twice; give each name once"),
            (EventTypeDraft { placeholders: vec![String::new()], ..draft() }, "placeholders[0]: has 0 characters; 1 to 255 are allowed"),
            (EventTypeDraft { placeholders: (0..501).map(|n| n.to_string()).collect(), ..draft() }, "placeholders: has 501 entries; at most 500 are allowed"),
        ];
        for (draft, problem) in refused {
            assert_eq!(world.store.create_event_type(world.tenant, "a", &draft).await.unwrap_err().to_string(), problem);
        }
        for name in ["", "..", "a\nb", &"x".repeat(256)] {
            assert!(world.store.create_event_type(world.tenant, name, &draft()).await.unwrap_err().to_string().starts_with("name: "), "{name:?}");
        }
    }

    async fn pages_of_event_types_go_by_tenant_and_name(world) {
        for name in ["b", "a", "c"] {
            world.store.create_event_type(world.tenant, name, &draft()).await.unwrap();
        }
        world.store.delete_event_type(world.tenant, "b").await.unwrap();
        let filter = EventTypeFilter { tenant: Some(world.tenant), after: None, limit: 1 };
        let first = world.store.event_type_rows(&filter).await.unwrap();
        let after = first.last().map(|row| (row.tenant_id, row.name.clone()));
        let rest = world.store.event_type_rows(&EventTypeFilter { after, limit: 9, ..filter }).await.unwrap();
        assert_eq!(first.iter().chain(&rest).map(|row| row.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    }
}
