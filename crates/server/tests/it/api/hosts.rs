//! Held and paused hosts of a lane: shown everywhere, and opened one by one. On both databases.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, refused, text};
use crate::installation::wait_until;

/// A receiver that answers by path: `/held` asks to wait for a day, `/paused` refuses our credentials.
fn receiver() -> HttpServer {
    HttpServer::start(|request| match request.path.as_str() {
        "/held" => Reply::status(429).with_header("Retry-After", "86400"),
        "/paused" => Reply::status(401),
        _ => Reply::ok(),
    })
}

/// The findings of doctor, which exits with 1 when there is a problem.
fn doctor(app: &App) -> Value {
    let output = app.installation.command(&["doctor", "-o", "json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn finding<'a>(findings: &'a Value, check: &str, about: &str) -> &'a Value {
    let found =
        findings.as_array().unwrap().iter().find(|one| one["check"] == check && text(one, "detail").contains(about));
    found.unwrap_or_else(|| panic!("no {check} about {about}: {findings}"))
}

on_both! {
    fn hosts_that_wait_are_seen_everywhere_and_opened_one_by_one(kind) {
        let app = App::start(kind);
        let client = app.client("default", &["enqueue", "operate"]);
        let server = receiver();
        let (held, paused) = (server.addr().to_string(), server.one_more().to_string());
        let send = |host: &str, path: &str| {
            let note = json!({"event_type": "a", "recipients": [{"webhook": format!("http://{host}/{path}")}]});
            text(&client.post("/v1/notifications", &note).expect(202).json(), "id")
        };
        let asked_to_wait = send(&held, "held");
        send(&paused, "paused");
        let provider = || client.get("/v1/providers/hooks").expect(200).json();
        wait_until("both hosts are shut", || provider()["hosts"].as_array().unwrap().len() == 2);
        let hosts = provider()["hosts"].clone();
        assert_eq!((&hosts[0]["host"], &hosts[1]["host"]), (&json!(paused), &json!(held)), "who waits for a person comes first");
        assert!(text(&hosts[0], "paused").starts_with("http_401") && hosts[0]["held_until"].is_null() && hosts[1]["held_until"].is_string());
        assert_eq!(provider()["held_until"], Value::Null);
        let later = [send(&held, "fine"), send(&paused, "fine")];
        let waits = |id: &str, code: &str| client.get(&format!("/v1/notifications/{id}")).expect(200).json()["deliveries"][0]["error_code"] == code;
        wait_until("those behind them wait", || waits(&later[0], "host_held") && waits(&later[1], "host_paused"));

        assert_eq!(client.get("/v1/kpis").expect(200).json()["shut"], json!({"lanes_paused": 0, "lanes_held": 0, "hosts_paused": 1, "hosts_held": 1, "lanes_unopened": 0, "lanes_tripped": 0, "hosts_tripped": 0}));
        let metrics = app.nobody().get("/metrics").expect(200).text();
        for line in ["postcommit_lanes_held 0", "postcommit_hosts_held 1", "postcommit_hosts_paused 1"] {
            assert!(metrics.lines().any(|told| told == line), "{line} is missing: {metrics}");
        }
        let listed = app.installation.run(&["providers", "list"]);
        assert!(listed.contains("1 paused, 1 held"), "{listed}");
        let shown = app.installation.run(&["providers", "show", "hooks"]);
        assert!(shown.contains(&format!("{paused}  paused: http_401")) && shown.contains(&format!("{held}  held until 20")), "{shown}");
        assert!(app.installation.run(&["kpis"]).contains("hosts paused: 1, hosts held: 1"));
        let doctor = doctor(&app);
        assert_eq!(finding(&doctor, "host", &paused)["result"], "problem");
        assert_eq!(finding(&doctor, "host", &held)["result"], "warning");
        assert!(text(finding(&doctor, "host", &held), "detail").contains(&format!("providers resume hooks --host {held}")));

        // A resume would send it now, and the host would ask to wait again.
        let _ = client.send("POST", &format!("/v1/notifications/{asked_to_wait}/cancel"), None).expect(200);
        // First one of them, then all.
        let resume = |body: Value| client.post("/v1/providers/hooks/resume", &body);
        assert_eq!(resume(json!({"host": paused})).expect(200).json()["hosts"].as_array().unwrap().len(), 1);
        wait_until("what waited for it is sent", || server.requests().iter().any(|request| request.path == "/fine"));
        assert_eq!(client.send("POST", "/v1/providers/hooks/resume", None).expect(200).json()["hosts"], json!([]));
        wait_until("and the other", || server.requests().iter().filter(|request| request.path == "/fine").count() == 2);
        refused(resume(json!({"host": "a b"})), 422, Some("host"));
        refused(resume(json!({"hots": "a"})), 422, Some("hots"));

        let pause = client.post("/v1/providers/hooks/pause", &json!({"reason": "by hand", "host": "Receiver.example"})).expect(200).json();
        assert_eq!((&pause["hosts"][0]["host"], &pause["hosts"][0]["paused"], &pause["paused"]), (&json!("receiver.example:443"), &json!("by hand"), &Value::Null));
        assert_eq!(app.installation.run(&["providers", "resume", "hooks", "--host", "receiver.example"]), "provider hooks resumed for host receiver.example:443\n");
        let once_more = app.installation.command(&["providers", "resume", "hooks", "--host", "receiver.example"]).output().unwrap();
        assert_eq!(once_more.status.code(), Some(3));
        let said = String::from_utf8(once_more.stderr).unwrap();
        assert!(said.contains("provider hooks neither pauses nor holds host receiver.example:443; every host is open"), "{said}");
        assert_eq!(app.installation.run(&["providers", "pause", "hooks", "--host", "receiver.example:8443"]), "provider hooks paused for host receiver.example:8443\n");
        assert_eq!(provider()["hosts"][0]["host"], "receiver.example:8443");
    }

    fn a_lane_that_is_held_is_seen_by_doctor_too(kind) {
        let app = App::start(kind);
        let client = app.client("default", &["enqueue", "operate", "edit"]);
        let server = receiver();
        let _ = client.send("PATCH", "/v1/providers/hooks", Some(br#"{"settings": {"isolate": "lane"}}"#)).expect(200);
        let note = json!({"event_type": "a", "recipients": [{"webhook": server.url("/held")}]});
        let _ = client.post("/v1/notifications", &note).expect(202);
        let provider = || client.get("/v1/providers/hooks").expect(200).json();
        wait_until("the lane is held", || provider()["held_until"].is_string());
        let doctor = doctor(&app);
        assert_eq!(finding(&doctor, "lane", "hooks: held until")["result"], "warning");
        assert_eq!(client.get("/v1/kpis").expect(200).json()["shut"]["lanes_held"], 1);
        assert_eq!(client.send("POST", "/v1/providers/hooks/resume", None).expect(200).json()["held_until"], Value::Null);
    }
}
