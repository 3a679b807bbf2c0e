//! B7, B9: parked deliveries and what operators do about them; and passes on request.

use postcommit_testkit::{HttpClient, HttpServer, Reply};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::app::{App, items, refused, text};
use crate::installation::wait_until;

/// A receiver that rejects everything until it is told to accept.
struct SwitchableReceiver {
    server: HttpServer,
    is_kind: Arc<AtomicBool>,
}

impl SwitchableReceiver {
    fn start() -> Self {
        let is_kind = Arc::new(AtomicBool::new(false));
        let mood = is_kind.clone();
        Self {
            server: HttpServer::start(move |_| Reply::status(if mood.load(Ordering::SeqCst) { 200 } else { 422 })),
            is_kind,
        }
    }

    fn accept_from_now_on(&self) {
        self.is_kind.store(true, Ordering::SeqCst);
    }
}

/// Parks `count` deliveries. Returns their ids, oldest first.
fn park(app: &App, client: &HttpClient, receiver: &SwitchableReceiver, event: &str, count: usize) -> Vec<String> {
    let one = json!({"event_type": event, "recipients": [{"webhook": receiver.server.url("/")}]});
    let batch = client.post("/v1/notifications/batch", &json!({"notifications": vec![one; count]})).expect(200).json();
    assert_eq!(batch["accepted"], count);
    app.pass();
    let listed = items(client.get(&format!("/v1/deliveries?event_type={event}&limit=200")));
    listed.iter().rev().map(|delivery| text(delivery, "id")).collect()
}

fn states(app: &App, deliveries: &[String]) -> Vec<String> {
    deliveries
        .iter()
        .map(|id| text(&app.ops().get(&format!("/v1/deliveries/{id}")).expect(200).json(), "state"))
        .collect()
}

on_both! {
    fn b7_parked_deliveries_are_listed_shown_retried_and_discarded(kind) {
        let app = App::at_rest(kind);
        let (client, receiver) = (app.client("default", &["enqueue", "operate"]), SwitchableReceiver::start());
        let all = park(&app, &client, &receiver, "refused", 6);
        let listed = items(client.get("/v1/deliveries?state=parked"));
        assert_eq!(listed.len(), 6);
        assert!(listed.iter().all(|row| row["reason"] == "rejected" && row["error_code"] == "http_422" && row["last_error"].is_string()), "{listed:?}");
        assert_eq!(items(client.get("/v1/deliveries?state=parked&reason=exhausted")).len(), 0);
        assert_eq!(items(client.get("/v1/deliveries?state=parked&error_code=http_422&event_type=refused")).len(), 6);
        let one = client.get(&format!("/v1/deliveries/{}", all[0])).expect(200).json();
        assert_eq!((one["attempt_log"].as_array().unwrap().len(), &one["attempt_log"][0]["outcome"]), (1, &json!("rejected")));
        receiver.accept_from_now_on();
        let act = |id: &str, act: &str| client.post(&format!("/v1/deliveries/{id}/{act}"), &json!({}));
        assert_eq!(act(&all[0], "retry").expect(200).json()["state"], "pending");
        assert_eq!(act(&all[1], "discard").expect(200).json()["state"], "discarded");
        assert_eq!(refused(act(&all[1], "retry"), 409, None)["type"], "urn:postcommit:problem:state-conflict");
        let stranger = "00000000-0000-7000-8000-000000000000.0";
        let many = client.post("/v1/deliveries/retry", &json!({"ids": [all[2], all[1], stranger, "nonsense", all[3]]})).expect(200).json();
        let results: Vec<String> = many["results"].as_array().unwrap().iter().map(|result| text(result, "result")).collect();
        assert_eq!((&many["done"], results), (&json!(2), ["done", "refused", "not_found", "not_found", "done"].map(str::to_owned).to_vec()));
        assert_eq!(many["results"][1]["state"], "discarded");
        assert_eq!(client.post("/v1/deliveries/discard", &json!({"ids": [all[4]]})).expect(200).json()["done"], 1);
        assert_eq!(app.pass()["sent"], 3);
        assert_eq!(states(&app, &all), ["sent", "discarded", "sent", "sent", "discarded", "parked"]);
        for (body, field) in [(json!({}), "ids"), (json!({"ids": []}), "ids"), (json!({"ids": vec!["x"; 1001]}), "ids"), (json!({"filter": {}, "pace_per_s": 0}), "pace_per_s"),
            (json!({"filter": {"state": "sent"}}), "filter.state"), (json!({"filter": {"stuck": true}}), "filter.stuck")] {
            refused(client.post("/v1/deliveries/retry", &body), 422, Some(field));
        }
    }

    fn a_retry_by_the_state_retrying_brings_deliveries_forward(kind) {
        let app = App::at_rest(kind);
        let settings = json!({"fail_on": "transient=again"});
        let draft = json!({"name": "flaky", "driver": "capture", "channel": "*", "settings": settings});
        let _ = app.ops().post("/v1/providers", &draft).expect(201);
        let client = app.client("default", &["enqueue", "operate"]);
        let to = json!([{"provider": "flaky", "address": "a@example.com"}]);
        let id = app.enqueue(&client, &json!({"event_type": "again", "recipients": to}));
        app.pass();
        app.pass();
        let attempts = || app.story(&id)["deliveries"][0]["attempts"].clone();
        assert_eq!(attempts(), 1, "it waits");
        let retry = |more: Value| {
            let mut body = json!({"filter": {"state": "retrying"}});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            client.post("/v1/deliveries/retry", &body)
        };
        let counted = retry(json!({"dry_run": true})).expect(200).json();
        assert_eq!((&counted["kind"], &counted["total"], &counted["left_out"]), (&json!("retry"), &json!(1), &json!(0)));
        let job = retry(json!({"pace_per_s": 50})).expect(202).json();
        assert_eq!((&job["kind"], &job["filter"], &job["total"]), (&json!("retry"), &json!({"state": ["retrying"]}), &json!(1)));
        // The pass runs the job first.
        app.pass();
        assert_eq!((client.get(&format!("/v1/jobs/{}", text(&job, "id"))).expect(200).json()["done"].clone(), attempts()), (json!(1), json!(2)));
        refused(client.post("/v1/deliveries/discard", &json!({"filter": {"state": "retrying"}})), 422, Some("filter.state"));
        refused(client.post("/v1/deliveries/retry", &json!({"filter": {"state": "retrying,parked"}})), 422, Some("filter.state"));
    }

    fn b7_an_action_by_filter_is_a_job_that_reports_its_progress(kind) {
        let mut app = App::at_rest(kind);
        let (client, receiver) = (app.client("default", &["enqueue", "operate"]), SwitchableReceiver::start());
        let (these, others) = (park(&app, &client, &receiver, "these", 40), park(&app, &client, &receiver, "others", 2));
        receiver.accept_from_now_on();
        let job = client.post("/v1/deliveries/retry", &json!({"filter": {"event_type": "these", "state": "parked", "unclear": false, "attempts": 1}})).expect(202).json();
        assert_eq!((&job["tenant"], &job["filter"]), (&json!("default"), &json!({"event_type": "these", "unclear": false, "attempts": 1})));
        assert_eq!(items(client.get("/v1/deliveries?unclear=false")).len(), 42);
        assert_eq!(items(client.get("/v1/deliveries?unclear=true")).len(), 0);
        assert_eq!((&job["total"], &job["done"], &job["state"], &job["is_exact"]), (&json!(40), &json!(0), &json!("queued"), &json!(true)), "{job}");
        let stopped = client.post("/v1/deliveries/discard", &json!({"filter": {"event_type": "others"}, "pace_per_s": 1})).expect(202).json();
        assert_eq!(stopped["pace_per_s"], 1, "named as it was asked for: {stopped}");
        let cancel = format!("/v1/jobs/{}/cancel", text(&stopped, "id"));
        assert_eq!(client.post(&cancel, &json!({})).expect(200).json()["state"], "cancelled");
        assert_eq!(refused(client.post(&cancel, &json!({})), 409, None)["type"], "urn:postcommit:problem:state-conflict");
        let listed: Vec<Value> = items(client.get("/v1/jobs")).iter().map(|job| job["state"].clone()).collect();
        assert_eq!(listed, ["cancelled", "queued"]);
        // A worker runs the job.
        app.serve_as("all");
        let client = client_again(&app);
        let now = || client.get(&format!("/v1/jobs/{}", text(&job, "id"))).expect(200).json();
        wait_until("the job to be done", || now()["state"] == "done");
        assert_eq!((&now()["done"], &now()["skipped"]), (&json!(40), &json!(0)), "{}", now());
        wait_until("what was retried to be sent", || states(&app, &these).iter().all(|state| state == "sent"));
        assert_eq!(states(&app, &others), ["parked", "parked"], "the cancelled job did nothing");
    }

    fn b7_an_action_on_everything_parked_must_say_so_and_can_be_counted_first(kind) {
        let app = App::at_rest(kind);
        let (client, receiver) = (app.client("default", &["enqueue", "operate"]), SwitchableReceiver::start());
        let all = park(&app, &client, &receiver, "refused", 3);
        for act in ["retry", "discard"] {
            let path = format!("/v1/deliveries/{act}");
            for filter in [json!({}), json!({"stuck": false}), json!({"channel": null})] {
                let problem = refused(client.post(&path, &json!({"filter": filter})), 422, Some("filter"));
                assert!(text(&problem, "detail").contains(r#"{"state": "parked"}"#), "{problem}");
            }
            for (filter, total) in [(json!({"state": "parked"}), 3), (json!({"event_type": "refused"}), 3), (json!({"event_type": "other"}), 0)] {
                let counted = client.post(&path, &json!({"filter": filter, "dry_run": true})).expect(200).json();
                assert_eq!(counted, json!({"kind": act, "total": total, "left_out": 0, "is_exact": true}));
            }
            refused(client.post(&path, &json!({"filter": {}, "dry_run": true})), 422, Some("filter"));
            refused(client.post(&path, &json!({"ids": [all[0]], "dry_run": true})), 422, Some("dry_run"));
        }
        assert_eq!(items(client.get("/v1/jobs")).len(), 0, "counting asks for nothing");
        app.pass();
        assert_eq!(states(&app, &all), ["parked", "parked", "parked"]);
    }

    fn c14_what_may_have_arrived_is_retried_with_consent_alone(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "operate"]);
        let provider = json!({"name": "sms", "driver": "capture", "channel": "sms", "guarantee": "at_most_once", "settings": {"fail_on": "unclear=u,permanent=p"}});
        let _ = app.ops().post("/v1/providers", &provider).expect(201);
        let to = |event: &str| json!({"event_type": event, "recipients": [{"phone": "+14155550100"}], "channels": ["sms"]});
        let ids: Vec<String> = ["u", "u", "p"].map(|event| format!("{}.1", app.enqueue(&client, &to(event)))).to_vec();
        app.pass();
        let retry = |body: Value| client.post(&format!("/v1/deliveries/{}/retry", ids[0]), &body);
        let problem = refused(retry(json!({})), 409, Some("unclear"));
        assert!(text(&problem, "detail").contains("it may have arrived") && problem["type"] == "urn:postcommit:problem:state-conflict", "{problem}");
        let _ = refused(retry(json!({"unclear": false})), 409, Some("unclear"));
        let _ = refused(retry(json!({"uncler": true})), 422, Some("uncler"));
        let many = client.post("/v1/deliveries/retry", &json!({"ids": [ids[1], ids[2]]})).expect(200).json();
        assert_eq!(many["results"], json!([{"id": ids[1], "result": "unclear", "state": "parked"}, {"id": ids[2], "result": "done", "state": "pending"}]));
        app.pass();
        let by_filter = |more: Value| {
            let mut body = json!({"filter": {"channel": "sms"}});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            client.post("/v1/deliveries/retry", &body)
        };
        let counted = by_filter(json!({"dry_run": true})).expect(200).json();
        assert_eq!(counted, json!({"kind": "retry", "total": 1, "left_out": 2, "is_exact": true}));
        let all = by_filter(json!({"dry_run": true, "unclear": true})).expect(200).json();
        assert_eq!((&all["total"], &all["left_out"]), (&json!(3), &json!(0)));
        let alone = by_filter(json!({"dry_run": true, "filter": {"channel": "sms", "unclear": true}})).expect(200).json();
        assert_eq!((&alone["total"], &alone["left_out"]), (&json!(2), &json!(0)), "a filter that selects them is consent");
        let job = by_filter(json!({})).expect(202).json();
        assert_eq!((&job["total"], &job["left_out"], &job["filter"]), (&json!(1), &json!(2), &json!({"channel": "sms", "unclear": false})));
        app.pass();
        assert_eq!(client.get(&format!("/v1/jobs/{}", text(&job, "id"))).expect(200).json()["left_out"], 2);
        assert_eq!(retry(json!({"unclear": true})).expect(200).json()["state"], "pending");
        assert_eq!(client.post("/v1/deliveries/retry", &json!({"ids": [ids[1]], "unclear": true})).expect(200).json()["done"], 1);
        assert_eq!(states(&app, &ids)[..2], ["pending", "pending"]);
    }

    fn b9_one_call_does_one_bounded_pass(kind) {
        let app = App::at_rest(kind);
        let receiver = HttpServer::start(|request| Reply::status(if request.path == "/no" { 410 } else { 200 }));
        let client = app.client("default", &["enqueue", "read"]);
        let to = |path: &str| json!({"event_type": "a", "recipients": [{"webhook": receiver.url(path)}]});
        let (one, no) = (app.enqueue(&client, &to("/yes")), app.enqueue(&client, &to("/no")));
        let late = app.enqueue(&client, &json!({"event_type": "a", "recipients": [{"webhook": receiver.url("/late")}], "due_at": "2099-01-01T00:00:00Z"}));
        assert_eq!((app.status(&one)["state"].as_str(), receiver.requests().len()), (Some("pending"), 0), "nothing is sent before it is asked for");
        refused(client.post("/v1/dispatch", &json!({})), 403, None);
        assert_eq!(app.pass(), json!({"sent": 1, "again": 0, "parked": 1, "dropped": 0, "more": false}));
        let state = |id: &str| text(&app.status(id), "state");
        assert_eq!([state(&one), state(&no), state(&late)], ["sent", "parked", "pending"]);
        assert_eq!(app.pass()["sent"], 0, "a pass repeats nothing");
        assert_eq!(receiver.requests().len(), 2);
        for seconds in ["0", "301", "x"] {
            refused(app.ops().post(&format!("/v1/dispatch?seconds={seconds}"), &json!({})), 422, Some("seconds"));
        }
    }

    fn b9_a_pass_also_runs_jobs(kind) {
        let app = App::at_rest(kind);
        let (client, receiver) = (app.client("default", &["enqueue", "operate"]), SwitchableReceiver::start());
        let parked = park(&app, &client, &receiver, "refused", 3);
        receiver.accept_from_now_on();
        let job = client.post("/v1/deliveries/retry", &json!({"filter": {"state": "parked"}})).expect(202).json();
        app.pass();
        assert_eq!(client.get(&format!("/v1/jobs/{}", text(&job, "id"))).expect(200).json()["state"], "done");
        assert_eq!(states(&app, &parked), ["sent", "sent", "sent"], "where cron is the only worker, its passes do what operators ask for");
    }
}

/// A client of the restarted server.
fn client_again(app: &App) -> HttpClient {
    app.client("default", &["operate"])
}
