//! Types of values that SQLite's views check, as PostgreSQL does by itself; and names that no URL can contain.

use postcommit_engine::db::Value;
use postcommit_engine::store::TenantError;
use serde_json::json;

use crate::world::World;

/// Enqueues with one field bound to `value`, without the SDK's checks.
async fn enqueue(world: &World, field: &str, value: Value) -> Result<u64, String> {
    let mut fields: Vec<(&str, Value)> = vec![("event_type", "e".into()), ("idempotency_key", "k".into())];
    fields.retain(|(name, _)| *name != field);
    fields.push((field, value));
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let places: Vec<String> = (1..=fields.len()).map(|place| format!("${place}")).collect();
    let sql = format!("INSERT INTO postcommit.enqueue ({}) VALUES ({})", names.join(", "), places.join(", "));
    world
        .store
        .db()
        .execute_one(&sql, fields.into_iter().map(|(_, value)| value).collect())
        .await
        .map_err(|problem| problem.to_string())
}

#[tokio::test]
async fn bytes_are_refused_in_every_column_by_the_field_and_what_is_allowed() {
    let world = World::sqlite().await;
    let columns = world.sql("SELECT name FROM pragma_table_info('postcommit_enqueue')", vec![]).await;
    let columns: Vec<String> = columns.iter().map(|row| row.get(0).unwrap()).collect();
    assert!(columns.iter().any(|column| column == "strict"), "{columns:?}");
    for field in &columns {
        let said = enqueue(&world, field, Value::Bytes(b"acme".to_vec())).await.unwrap_err();
        assert!(
            said.starts_with(&format!("postcommit: {field} is bytes; ")) && said.contains("allowed"),
            "{field}: {said}"
        );
    }
    assert_eq!(
        world.count("notification").await + world.count("idempotency").await + world.count("delivery_queue").await,
        0
    );
    assert_eq!(world.count("tenant").await, 1, "no tenant of that name was made on the way");
}

#[tokio::test]
async fn bytes_are_refused_where_the_caller_would_ignore_what_is_refused() {
    let world = World::sqlite().await;
    for way in ["OR IGNORE", "OR REPLACE", "OR FAIL", "OR ROLLBACK"] {
        let sql = format!(
            "INSERT {way} INTO postcommit_enqueue (event_type, idempotency_key, tenant) \
            VALUES ('e', 'k', x'61')"
        );
        assert!(world.store.db().execute_one(&sql, vec![]).await.is_err(), "{way}");
    }
    assert_eq!((world.count("notification").await, world.count("tenant").await), (0, 1));
}

#[tokio::test]
async fn whole_numbers_are_accepted_as_their_digits() {
    let world = World::sqlite().await;
    for (field, value) in [
        ("entity", Value::Int(42)),
        ("title", Value::Int(7)),
        ("schema_version", Value::Int(3)),
        ("priority", Value::Int(9)),
    ] {
        enqueue(&world, field, value).await.unwrap();
        world.execute("DELETE FROM postcommit.idempotency", vec![]).await;
    }
    for (field, value, problem) in [
        ("entity", Value::Real(42.0), "entity is a floating-point number"),
        ("idempotency_key", Value::Real(1.5), "idempotency_key is a floating-point number"),
        ("schema_version", "seven".into(), "schema_version is no whole number"),
        ("schema_version", Value::Real(7.5), "schema_version is no whole number"),
    ] {
        let said = enqueue(&world, field, value).await.unwrap_err();
        assert!(said.contains(problem), "{field}: {said}");
    }
}

#[tokio::test]
async fn text_after_a_nul_is_checked() {
    let world = World::sqlite().await;
    for (field, value) in [
        ("tenant", "acme\0<script>"),
        ("action_url", "https://h.example/\0 javascript:"),
        ("title", "a\0b"),
        ("entity", "a\0b"),
    ] {
        assert!(enqueue(&world, field, value.into()).await.unwrap_err().contains(field), "{field}");
    }
    assert_eq!(world.count("tenant").await, 1);
}

#[tokio::test]
async fn a_cancel_that_names_bytes_is_refused() {
    let world = World::sqlite().await;
    for field in ["tenant", "entity", "event_type"] {
        let sql = format!("INSERT INTO postcommit_cancel ({field}) VALUES (x'61')");
        let said = world.store.db().execute_one(&sql, vec![]).await.unwrap_err().to_string();
        assert_eq!(said, format!("postcommit: {field} is bytes; text is allowed"));
    }
}

on_both! {
    async fn tenants_that_no_url_can_hold_are_refused(world) {
        for name in [".", ".."] {
            let sql = match world.is_postgres() {
                true => format!("SELECT postcommit.enqueue('e', '{{}}', 'k', tenant => '{name}')"),
                false => format!("INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, tenant) \
                    VALUES ('e', '{{}}', 'k', '{name}')"),
            };
            let said = world.store.db().execute_one(&sql, vec![]).await.unwrap_err().to_string();
            assert!(said.contains("tenant_other_than_dot_and_dot_dot"), "{said}");
            assert!(matches!(world.store.create_tenant(name).await, Err(TenantError::Refused(_))));
            assert!(world.store.tenant_or_new(name).await.unwrap_err().to_string().contains("tenant_other_than_dot_and_dot_dot"));
            let said = serde_json::from_value::<postcommit::Notification>(json!({"event_type": "e", "tenant": name})).unwrap_err().to_string();
            assert!(said.contains("tenant: is"), "{said}");
            assert!(postcommit_channel::model::ProviderDraft { name: name.into(), ..world.draft("x", "capture", json!({})) }.check().is_err());
        }
        for name in ["...", ".a", "a..b"] {
            world.store.create_tenant(name).await.unwrap();
        }
    }

    async fn a_batch_accepts_a_number_as_its_digits_like_a_single_enqueue(world) {
        if world.is_postgres() {
            world.execute("SELECT postcommit.enqueue_many('[{\"event_type\": \"e\", \"idempotency_key\": \"k\", \"title\": 5, \"entity\": 42}]')", vec![]).await;
        } else {
            world.execute("INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, title, entity) \
                VALUES ('e', '{}', 'k', 5, 42)", vec![]).await;
        }
        let row = &world.sql("SELECT title, entity FROM postcommit.notification", vec![]).await[0];
        assert_eq!((row.get::<String>(0).unwrap(), row.get::<String>(1).unwrap()), ("5".into(), "42".into()));
    }
}
