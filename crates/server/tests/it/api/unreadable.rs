//! Unreadable rows in every table of one file: the server starts, `doctor` names them, every list answers, and another
//! notification is delivered.

use serde_json::json;

use super::app::{App, address, items};
use crate::installation::{Kind, wait_until};
use postcommit_testkit::{Child, HttpServer, Reply};

/// Damages all rows of one tenant, but not those of `default`.
const BROKEN: [&str; 9] = [
    "UPDATE postcommit_tenant SET name = x'6e6f727468', created_at = x'ff' WHERE name = 'north'",
    "UPDATE postcommit_notification SET title = x'ff', payload = x'ff', recipients = '{nonsense', channels = x'ff', created_at = x'ff' \
        WHERE tenant = 2",
    "UPDATE postcommit_delivery_queue SET target = x'ff', attempts = 'many', channel = x'ff' WHERE tenant = 2",
    "UPDATE postcommit_delivery_ledger SET target = x'ff', attempts = x'ff', detail = x'ff', state = 'nowhere', \
        outcome = x'ff', latency_ms = x'ff', attempted_at = x'ff' \
        WHERE tenant = 2",
    "UPDATE postcommit_logged_attempt SET outcome = x'ff', latency_ms = x'ff', at = x'ff' WHERE tenant = 2",
    "UPDATE postcommit_provider SET policy = '{', settings = x'ff', timeout_ms = x'ff', channel = x'ff', guarantee = 'perhaps' \
        WHERE tenant = 2",
    "UPDATE postcommit_api_key SET scopes = x'ff', name = x'ff', created_at = x'ff' WHERE tenant = 2",
    "UPDATE postcommit_audit SET actor = x'ff', at = x'ff', details = '{', count = x'ff' WHERE tenant = 2",
    "UPDATE postcommit_rollup_fresh SET site = x'ff', channel = x'ff', count = x'ff' WHERE tenant = 2",
];

/// Creates the rows of the tenant that is damaged afterwards.
fn fill(app: &App) {
    app.create_tenant("north");
    app.create_capture("north", "capture", "refused");
    let north = app.client("north", &["enqueue", "operate"]);
    for event_type in ["fine", "refused"] {
        app.enqueue(
            &north,
            &json!({"event_type": event_type, "recipients": [{"email": "guest@example.com"}], "title": "x"}),
        );
    }
    app.pass();
    app.enqueue(&north, &json!({"event_type": "later", "recipients": [{"email": "guest@example.com"}], "due_at": "2099-01-01T00:00:00Z", "expires_at": "2100-01-01T00:00:00Z"}));
}

#[test]
fn a_file_with_unreadable_rows_is_served_and_other_tenants_are_delivered() {
    let mut app = App::at_rest(Kind::Sqlite);
    fill(&app);
    app.server.kill9();
    let file = rusqlite::Connection::open(app.installation.sqlite_path().unwrap()).unwrap();
    file.execute_batch(
        "PRAGMA ignore_check_constraints = ON; DROP TRIGGER postcommit_audit_is_append_only; DROP TRIGGER postcommit_tenant_renamed",
    )
    .unwrap();
    for sql in BROKEN {
        assert!(file.execute(sql, []).unwrap() > 0, "{sql}");
    }
    drop(file);
    app.serve_as("all");
    for path in [
        "notifications",
        "notifications?state=sent",
        "notifications?channel=email",
        "notifications?list=guests",
        "deliveries",
        "deliveries?state=parked",
        "deliveries?state=pending",
        "providers",
        "tenants",
        "keys",
        "audit",
        "jobs",
        "kpis?by=site",
        "kpis?by=event_type",
        "kpis?by=provider",
        "kpis/series?by=channel",
        "entities/booking:1/deliveries",
    ] {
        let _ = app.ops().get(&format!("/v1/{path}")).expect(200);
    }
    let names: Vec<_> = items(app.ops().get("/v1/tenants")).iter().map(|tenant| tenant["name"].clone()).collect();
    assert_eq!(names, ["unreadable: x'6e6f727468'", "default"]);
    for command in [
        vec!["notifications", "list"],
        vec!["deliveries", "list"],
        vec!["providers", "list"],
        vec!["tenants", "list"],
        vec!["keys", "list"],
        vec!["audit"],
        vec!["jobs", "list"],
        vec!["kpis"],
    ] {
        app.installation.run(&command);
    }
    let doctor = String::from_utf8(app.installation.command(&["doctor"]).output().unwrap().stdout).unwrap();
    for place in [
        "postcommit_tenant.name",
        "postcommit_notification.title",
        "postcommit_delivery_ledger.attempts",
        "postcommit_provider.policy",
        "postcommit_api_key.scopes",
        "postcommit_audit.at",
    ] {
        assert!(doctor.contains(place), "{place}: {doctor}");
    }
    let hooks = HttpServer::start(|_| Reply::ok());
    let id = app.enqueue(&app.ops(), &json!({"event_type": "well", "recipients": [{"webhook": hooks.url("/hook")}]}));
    wait_until("it to be sent", || app.status(&id)["state"] == "sent");
    let worker = Child::spawn(app.installation.command(&["serve", "--role", "worker"]));
    address(&worker);
    worker.kill9();
}
