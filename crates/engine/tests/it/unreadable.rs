//! A row that cannot be read is shown as unreadable and stops no other row. The tests write bytes into every column of
//! every table of a SQLite file, through a separate connection.

use std::path::Path;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Scope, Scopes};
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{
    Act, AuditFilter, DeliveryFilter, Folder, GroupBy, JobDraft, KeyDraft, KeyFilter, KpiGrouping, KpiSettings, Login,
    NotificationFilter, Position, SlotLength, Store, TimeRange,
};
use rusqlite::Connection;
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// Text columns that hold JSON or ids. In any other text column every text is valid.
const HAS_SHAPE: [&str; 12] = [
    "payload",
    "recipients",
    "channels",
    "data",
    "settings",
    "policy",
    "scopes",
    "details",
    "filter",
    "id",
    "notification_id",
    "position",
];

fn file_of(world: &World) -> &Path {
    Path::new(world.url.strip_prefix("sqlite:").unwrap())
}

/// Creates a store with one of everything: sent, parked and waiting deliveries, an inbox; keys, sessions, jobs, counts.
async fn filled() -> World {
    let world = World::sqlite().await;
    world.capture(json!({})).await;
    world
        .provider(postcommit_channel::model::ProviderDraft {
            is_default: false,
            rate_per_s: Some(5.0),
            ..world.draft("other", "webhook", json!({"url": "https://h.example/"}))
        })
        .await;
    // A provider that tells hosts apart, and a held host.
    let draft =
        postcommit_channel::model::ProviderDraft { is_default: false, ..world.draft("hooks", "webhook", json!({})) };
    let hooks = world.provider(draft).await;
    world.store.hold_host(hooks, "slow.example:443", None, Duration::from_secs(3600)).await.unwrap();
    let first = world.enqueue("first", json!({"entity": "booking:1", "title": "one", "recipients": [{"email": "guest@example.com"}, {"user": "alice"}], "source": {"site": "s1"}, "data": {"in_app": {"x": 1}}})).await;
    world.pass().await;
    world
        .store
        .note(
            postcommit_engine::store::AuditEntry::new(world.tenant, "test.note", first.to_string())
                .details(json!({"x": 1})),
        )
        .await
        .unwrap();
    world
        .enqueue(
            "waiting",
            json!({"entity": "booking:2", "due_at": "2099-01-01T00:00:00Z", "expires_at": "2100-01-01T00:00:00Z"}),
        )
        .await;
    world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
    world
        .store
        .create_key(
            world.tenant,
            &KeyDraft { name: "k".into(), scopes: [Scope::Read].into_iter().collect(), expires_at: None },
        )
        .await
        .unwrap();
    let scopes: Scopes = [Scope::Read].into_iter().collect();
    let login = Login { tenant: world.tenant, key_id: None, actor: "cli:me".into(), scopes };
    world.store.create_session(&login, Duration::from_secs(60)).await.unwrap();
    world.store.create_login_link(&login, Duration::from_secs(60)).await.unwrap();
    world
        .store
        .create_job(
            None,
            &JobDraft { act: Act::Retry, filter: DeliveryFilter::default(), unclear: false, pace_per_s: Some(1) },
        )
        .await
        .unwrap();
    world.store.create_tenant("acme").await.unwrap();
    for (columns, values) in [
        ("key_conflict (tenant, notification_id, event_type, noted_at)", "tenant, id, 'x', {now}"),
        ("cancel_request", "tenant, id, 9, {now}"),
        ("stale_settle (tenant, notification_id, n, token, outcome, at)", "tenant, id, 1, 't', 'sent', {now}"),
        (
            "rollup_fresh (tenant, slot, site, channel, state, count)",
            "1, {now} - {now} % 60000000, 's1', 'email', 'sent', 3",
        ),
    ] {
        let sql = format!("INSERT INTO postcommit_{columns} SELECT {values} FROM postcommit_notification LIMIT 1");
        world.execute(&sql, vec![]).await;
    }
    world
}

/// Reads every list, and the data that a start reads. Returns the errors.
async fn look_at_everything(store: &Store, tenant: i32) -> Vec<String> {
    let mut failed = Vec::new();
    let mut note = |what: &str, looked: Result<(), DbError>| {
        failed.extend(looked.err().map(|problem| format!("{what}: {problem}")));
    };
    let all = NotificationFilter { limit: 50, ..NotificationFilter::default() };
    let deliveries = DeliveryFilter { limit: 50, ..DeliveryFilter::default() };
    let (long, text) = (Duration::from_secs(3600), |text: &str| Some(text.to_owned()));
    let now = store.now().await.unwrap();
    note("check_schema", store.db().check_schema().await);
    note("providers", store.providers().await.map(drop));
    note("providers_of", store.providers_of(tenant).await.map(drop));
    note("tenants", store.tenants().await.map(drop));
    note("tenant_rows", store.tenant_rows(None, 50).await.map(drop));
    note("suspended_tenants", store.suspended_tenants().await.map(drop));
    note("key_rows", store.key_rows(&KeyFilter { tenant: None, before: None, limit: 50 }).await.map(drop));
    note("any_key", store.any_key().await.map(drop));
    note("audit_rows", store.audit_rows(&AuditFilter { limit: 50, ..AuditFilter::default() }).await.map(drop));
    note("notification_rows", store.notification_rows(&all).await.map(drop));
    for filter in [
        NotificationFilter { channel: text("email"), ..all.clone() },
        NotificationFilter { list: text("guests"), ..all.clone() },
        NotificationFilter { site: text("s1"), ..all.clone() },
        NotificationFilter { states: vec!["sent".into()], ..all.clone() },
        NotificationFilter { words: vec!["one".into()], ..all.clone() },
        NotificationFilter { attempts: Some(1), stuck: Some(long), ..all.clone() },
    ] {
        note(&format!("notification_rows {filter:?}"), store.notification_rows(&filter).await.map(drop));
    }
    note("delivery_rows", store.delivery_rows(&deliveries).await.map(drop));
    for filter in [
        DeliveryFilter { entity: text("booking:1"), ..deliveries.clone() },
        DeliveryFilter { site: text("s1"), ..deliveries.clone() },
        DeliveryFilter { states: vec!["sent".into()], channel: text("email"), ..deliveries.clone() },
        DeliveryFilter { provider: text("capture"), attempts: Some(1), ..deliveries.clone() },
    ] {
        note(&format!("delivery_rows {filter:?}"), store.delivery_rows(&filter).await.map(drop));
    }
    note("attempts_since", store.attempts_since(Timestamp::from_micros(0), Uuid::nil(), 50).await.map(drop));
    note(
        "entity_rows",
        store.entity_rows(tenant, "booking:1", Some(Position::behind(Uuid::max())), 50).await.map(drop),
    );
    note("jobs", store.jobs(None, None, 50).await.map(drop));
    note("next_slice_in", store.next_slice_in().await.map(drop));
    for user in ["alice", "bob"] {
        note("inbox", store.inbox(tenant, user, Folder::Current, None, 50).await.map(drop));
        note("inbox_unread", store.inbox_unread(tenant, user).await.map(drop));
        note("inbox_changes", store.inbox_changes(tenant, user, 0).await.map(drop));
    }
    for by in KpiGrouping::ALL {
        note("kpis", store.kpis(None, Some(by), long, long).await.map(drop));
    }
    for by in [GroupBy::State, GroupBy::Channel, GroupBy::Site] {
        let span =
            TimeRange::new(SlotLength::Minute, Timestamp::from_micros(now.as_micros() - 3_600_000_000), now).unwrap();
        note("series", store.series(None, span, by).await.map(drop));
    }
    note("fold", store.fold_rollups_once(&KpiSettings::default()).await.map(drop));
    note("attendance", store.attendance().await.map(drop));
    note("standing", store.standing().await.map(drop));
    note("queue_health", store.queue_health().await.map(drop));
    note("key_conflicts", store.key_conflicts(long).await.map(drop));
    note("purge_sessions", store.purge_sessions_once().await.map(drop));
    note("reroute", store.reroute_strays_once().await.map(drop));
    failed
}

fn columns_of(file: &Connection) -> Vec<(String, String, String)> {
    let sql = "SELECT s.name, c.name, c.type \
        FROM sqlite_schema s, pragma_table_info(s.name) c \
        WHERE s.type = 'table' AND s.name GLOB 'postcommit_*' \
        ORDER BY 1, c.cid";
    let mut statement = file.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Writes the value into one row. Returns false when the schema refuses it.
fn plant(file: &Connection, table: &str, column: &str, value: &str) -> bool {
    file.execute_batch("PRAGMA ignore_check_constraints = ON; DROP TRIGGER IF EXISTS postcommit_audit_is_append_only; DROP TRIGGER IF EXISTS postcommit_tenant_renamed").unwrap();
    // The last row. In the table of tenants that is not the tenant that owns everything.
    let last = if table == "postcommit_tenant" { " WHERE name = 'acme'" } else { "" };
    file.execute(&format!("UPDATE {table} SET {column} = {value}{last}"), []).is_ok_and(|rows| rows > 0)
}

/// The values that are written into a column: bytes, and text where a number, an id or JSON should be.
fn planted_into(column: &str, kind: &str) -> Vec<&'static str> {
    let has_shape = kind != "TEXT" || HAS_SHAPE.contains(&column);
    if has_shape { vec!["x'ff'", "'{nonsense'"] } else { vec!["x'ff'"] }
}

/// A copy of the file with an unreadable value. `None` where the schema refuses the value.
fn planted(filled: &World, folder: &Path, table: &str, column: &str, value: &str) -> Option<String> {
    let path = folder.join(format!("{}.db", Uuid::new_v4()));
    Connection::open(file_of(filled)).unwrap().execute("VACUUM INTO ?1", [path.to_str().unwrap()]).unwrap();
    let file = Connection::open(&path).unwrap();
    file.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    plant(&file, table, column, value).then(|| format!("sqlite:{}", path.display()))
}

/// Delivers in another tenant, whose provider is intact. Returns an error text.
async fn deliver_another(filled: &World, store: &Store) -> Option<String> {
    let tenant = store.create_tenant("well").await.unwrap();
    assert!(store.create_provider(tenant, &filled.draft("capture", "capture", json!({}))).await.unwrap());
    let note = json!({"event_type": "well", "tenant": "well", "recipients": [{"email": "guest@example.com"}]});
    let id = store.enqueue(&serde_json::from_value(note).unwrap()).await.unwrap();
    let mut dispatcher = match Dispatcher::new(filled.tools(store.clone())).await {
        Ok(dispatcher) => dispatcher,
        Err(problem) => return Some(format!("dispatcher: {problem}")),
    };
    if let Err(problem) = dispatcher.pass(None).await {
        return Some(format!("pass: {problem}"));
    }
    let rows =
        store.delivery_rows(&DeliveryFilter::of_notification(id)).await.map(|page| page.rows).unwrap_or_default();
    (!rows.iter().any(|row| row.state == "sent")).then(|| format!("another tenant's delivery was not sent: {rows:?}"))
}

/// Tests every column of the tables that `wanted` selects.
async fn plant_everywhere(wanted: fn(&str) -> bool) {
    let (filled, folder) = (filled().await, tempfile::tempdir().unwrap());
    let (mut failed, mut cases) = (Vec::new(), 0);
    let columns = columns_of(&Connection::open(file_of(&filled)).unwrap());
    for (table, column, kind) in columns.iter().filter(|(table, ..)| wanted(table)) {
        // The mark of the functions' version: `migrate`, which runs at every start, writes it again.
        if (table.as_str(), column.as_str()) == ("postcommit_migration", "name") {
            continue;
        }
        for value in planted_into(column, kind) {
            let Some(url) = planted(&filled, folder.path(), table, column, value) else { continue };
            cases += 1;
            let (store, place) = (Store::open(&url).await.unwrap(), format!("{table}.{column} = {value}"));
            let told = store.unreadable().await.unwrap();
            if value == "x'ff'"
                && kind != "BLOB"
                && !told.iter().any(|found| found.table == *table && found.column == *column)
            {
                failed.push(format!("{place}: doctor would not tell"));
            }
            failed.extend(
                look_at_everything(&store, filled.tenant)
                    .await
                    .into_iter()
                    .map(|problem| format!("{place}: {problem}")),
            );
            failed.extend(deliver_another(&filled, &store).await.map(|problem| format!("{place}: {problem}")));
        }
    }
    assert!(cases > 50, "{cases}");
    assert!(failed.is_empty(), "{} of {cases}:\n{}", failed.len(), failed.join("\n"));
}

fn is_of_deliveries(table: &str) -> bool {
    ["notification", "delivery", "attempt", "idempotency", "cancel", "stale", "key_conflict"]
        .iter()
        .any(|part| table.contains(part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_any_column_of_notifications_and_deliveries_stop_nothing_else() {
    plant_everywhere(is_of_deliveries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_any_column_of_any_other_table_stop_nothing_else() {
    plant_everywhere(|table| !is_of_deliveries(table)).await;
}

/// The text is one that an operator may write by hand to make a delivery due now.
#[tokio::test(flavor = "multi_thread")]
async fn a_due_time_that_is_not_a_number_stops_nothing_else() {
    for (column, value) in [
        ("due_at", "datetime('now')"),
        ("due_at", "1.5"),
        ("due_at", "x'00'"),
        ("priority", "'zz'"),
        ("priority", "1.5"),
        ("priority", "99999999999"),
        ("lane", "1.5"),
    ] {
        let world = World::sqlite().await;
        world.capture(json!({})).await;
        world.enqueue("bad", json!({})).await;
        let file = Connection::open(file_of(&world)).unwrap();
        assert_eq!(
            file.execute(&format!("UPDATE postcommit_delivery_queue SET {column} = {value}"), []).unwrap(),
            1,
            "{column}"
        );
        let good = world.enqueue("good", json!({})).await;
        let running = world.run().await;
        world.until("the other is sent", async || world.delivery(good).await.state == "sent").await;
        drop(running);
    }
}

#[tokio::test]
async fn an_unreadable_row_is_shown_as_unreadable() {
    let world = filled().await;
    let file = Connection::open(file_of(&world)).unwrap();
    assert!(plant(&file, "postcommit_tenant", "name", "x'61ff'"));
    assert!(plant(&file, "postcommit_provider", "timeout_ms", "x'ff'"));
    assert!(plant(&file, "postcommit_delivery_ledger", "attempts", "x'ff'"));
    assert!(plant(&file, "postcommit_notification", "title", "x'ff'"));
    assert!(plant(&file, "postcommit_job", "filter", "'[7]'"));
    let names: Vec<String> =
        world.store.tenant_rows(None, 50).await.unwrap().into_iter().map(|tenant| tenant.name).collect();
    assert_eq!(names, ["unreadable: x'61ff'", "default"]);
    for provider in world.store.providers().await.unwrap() {
        assert!(
            provider.is_paused() && provider.paused.unwrap().contains("timeout_ms"),
            "its lane is closed, with the reason"
        );
    }
    let filter = DeliveryFilter {
        states: vec!["sent".into(), "delivered".into(), "skipped".into(), "parked".into()],
        limit: 9,
        ..DeliveryFilter::default()
    };
    let rows = world.store.delivery_rows(&filter).await.unwrap().rows;
    assert!(
        !rows.is_empty() && rows.iter().all(|row| row.last_error.as_deref().unwrap().contains("column attempts")),
        "{rows:?}"
    );
    let rows = world
        .store
        .notification_rows(&NotificationFilter { limit: 9, ..NotificationFilter::default() })
        .await
        .unwrap()
        .rows;
    assert!(rows.iter().all(|row| row.title.as_deref() == Some("unreadable: x'ff'")), "{rows:?}");
    let jobs = world.store.jobs(None, None, 9).await.unwrap();
    assert!(jobs[0].last_error.as_deref().unwrap().contains("filter"), "{jobs:?}");
    let told: Vec<String> = world
        .store
        .unreadable()
        .await
        .unwrap()
        .into_iter()
        .map(|found| format!("{}.{}", found.table, found.column))
        .collect();
    for place in [
        "postcommit_tenant.name",
        "postcommit_provider.timeout_ms",
        "postcommit_delivery_ledger.attempts",
        "postcommit_notification.title",
    ] {
        assert!(told.contains(&place.to_owned()), "{told:?}");
    }
}

#[tokio::test]
async fn a_notification_whose_text_is_bytes_is_parked_and_not_sent() {
    let world = World::sqlite().await;
    world.capture(json!({})).await;
    let (broken, well) =
        (world.enqueue("broken", json!({"title": "x"})).await, world.enqueue("well", json!({"title": "y"})).await);
    let file = Connection::open(file_of(&world)).unwrap();
    file.execute("UPDATE postcommit_notification SET title = x'ff' WHERE event_type = 'broken'", []).unwrap();
    world.pass().await;
    assert_eq!(world.delivery(well).await.state, "sent");
    let row = world.delivery(broken).await;
    assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("parked", Some("notification_unreadable")));
    file.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
    file.execute("UPDATE postcommit_notification SET payload = x'ff', due_at = x'ff', created_at = x'ff'", []).unwrap();
    let story = world.store.notification_details(None, broken).await.unwrap().unwrap();
    assert_eq!(story.notification.title.as_deref(), Some("unreadable: x'ff'"));
    assert_eq!(world.store.status(None, broken).await.unwrap().unwrap().state, "parked");
    assert!(world.store.cancel_notification(None, broken).await.unwrap().is_some());
}

on_both! {
    async fn a_job_whose_filter_cannot_be_read_fails_and_the_next_one_runs(world) {
        let job = async |pace| world.store.create_job(None, &JobDraft { act: Act::Retry, filter: DeliveryFilter::default(), unclear: false, pace_per_s: Some(pace) }).await.unwrap().id;
        let (broken, well) = (job(1).await, job(2).await);
        world.execute("UPDATE postcommit.job SET filter = '[7]' WHERE pace_per_s = 1", vec![]).await;
        assert!(world.store.run_job_slice().await.is_err() | world.store.run_job_slice().await.is_err());
        let state = async |id| world.store.job(None, id).await.unwrap().unwrap().state;
        assert_eq!((state(broken).await, state(well).await), ("failed".into(), "done".into()));
    }

    async fn a_provider_with_an_invalid_policy_closes_only_its_own_lane(world) {
        world.capture(json!({})).await;
        world.provider(postcommit_channel::model::ProviderDraft { is_default: false, ..world.draft("broken", "capture", json!({})) }).await;
        world.execute("UPDATE postcommit.provider SET policy = '[1]', settings = '7' WHERE name = 'broken'", vec![]).await;
        let id = world.enqueue("well", json!({})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent");
        let broken = world.store.provider(world.tenant, "broken").await.unwrap().unwrap();
        assert!(!broken.is_readable && broken.is_paused());
    }
}
