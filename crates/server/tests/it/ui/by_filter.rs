//! Acts on everything that matches a filter: what is counted, what is asked, and what the job concerns.

use postcommit_testkit::{HttpClient, HttpResponse};
use serde_json::{Value, json};

use super::desk::session;
use crate::api::App;
use crate::api::app::items;
use crate::installation::Kind;

/// A person who posts forms, as a program.
struct Person<'a> {
    app: &'a App,
    client: HttpClient,
    csrf: String,
}

impl<'a> Person<'a> {
    fn of(app: &'a App, scopes: &str) -> Self {
        let (client, csrf) = session(app, "default", scopes);
        Self { app, client, csrf }
    }

    fn post(&self, path: &str, fields: &[(&str, &str)]) -> HttpResponse {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("csrf_token", &self.csrf).extend_pairs(fields);
        self.client.send_as("application/x-www-form-urlencoded", "POST", path, form.finish().as_bytes())
    }

    fn ask(&self, path: &str, filter: &str) -> String {
        self.post(path, &[("all", "yes"), ("filter", filter), ("back", "/notifications?state=parked")])
            .expect(200)
            .text()
    }

    /// Answers a question, with more fields than it has.
    fn answer(&self, path: &str, question: &str, more: &[(&str, &str)]) -> HttpResponse {
        let names = ["all", "filter", "back", "as_of", "shown", "confirmed"];
        let hidden: Vec<(&str, String)> = names.map(|name| (name, hidden(question, name))).to_vec();
        let fields = hidden.iter().map(|(name, value)| (*name, value.as_str())).chain(more.iter().copied());
        self.post(path, &fields.collect::<Vec<_>>())
    }

    fn jobs(&self) -> Vec<Value> {
        items(self.app.ops().get("/v1/jobs"))
    }
}

/// The value of a hidden field.
fn hidden(page: &str, name: &str) -> String {
    let start = format!("type=\"hidden\" name=\"{name}\" value=\"");
    let value = page.split(&start).nth(1).unwrap_or_else(|| panic!("{name} is missing: {page}"));
    value.split('"').next().unwrap().replace("&amp;", "&")
}

fn has(page: &str, words: &[&str]) {
    for words in words {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// Parked deliveries: `unclear` that may have arrived, and `clear` that have not.
fn park(app: &App, unclear: usize, clear: usize) {
    let note = |event_type: &str| json!({"event_type": event_type, "title": event_type, "recipients": [{"email": "ada@example.com"}], "channels": ["email"]});
    let notes: Vec<Value> = (0..unclear).map(|_| note("unsure")).chain((0..clear).map(|_| note("refused"))).collect();
    let _ = app.ops().post("/v1/notifications/batch", &json!({"notifications": notes})).expect(200);
    app.pass();
}

fn app_with_parked(unclear: usize, clear: usize) -> App {
    let app = App::at_rest(Kind::Sqlite);
    let settings = json!({"fail_on": "unclear=unsure,permanent=refused"});
    let draft = json!({"name": "catcher", "driver": "capture", "channel": "*", "guarantee": "at_most_once", "settings": settings});
    let _ = app.ops().post("/v1/providers?tenant=default", &draft).expect(201);
    park(&app, unclear, clear);
    app
}

#[test]
fn c14_what_may_have_arrived_is_only_retried_by_filter_with_the_box() {
    let app = app_with_parked(5, 2);
    let person = Person::of(&app, "operate");
    let retry = "/deliveries/retry";
    // The filter selects what may have arrived: the question counts them, and needs the box.
    let question = person.ask(retry, "state=parked&unclear=true");
    has(&question, &["Retry 5 deliveries?", "although it may have arrived", "name=\"unclear\" value=\"yes\" required"]);
    let again = person.answer(retry, &question, &[("pace", "1")]).expect(422).text();
    has(&again, &["Tick the box to retry them.", "Retry 5 deliveries?", "<option value=\"1\" selected>"]);
    assert_eq!(person.jobs(), Vec::<Value>::new());
    let _ = person.answer(retry, &again, &[("unclear", "yes")]).expect(303);
    assert_eq!((&person.jobs()[0]["total"], &person.jobs()[0]["filter"]["unclear"]), (&json!(5), &json!(true)));
    // The filter selects all: without the box, what may have arrived is left out.
    let question = person.ask(retry, "state=parked");
    has(&question, &["Retry 2 deliveries?", "Also retry 5 deliveries that may have arrived", "value=\"yes\"><label"]);
    let _ = person.answer(retry, &question, &[]).expect(303);
    assert_eq!((&person.jobs()[0]["total"], &person.jobs()[0]["left_out"]), (&json!(2), &json!(5)));
    let _ = person.answer(retry, &question, &[("unclear", "yes")]).expect(303);
    // Two answers to one question are of the same time, so their jobs have no order.
    assert!(person.jobs().iter().any(|job| job["total"] == 7 && job["left_out"] == 0));
    // A discard sends nothing, so it asks nothing of this kind.
    let question = person.ask("/deliveries/discard", "state=parked&unclear=true");
    assert!(question.contains("Discard 5 deliveries?") && !question.contains("type=\"checkbox\""), "{question}");
}

#[test]
fn b12_a_job_concerns_what_the_question_counted() {
    let app = app_with_parked(0, 3);
    let person = Person::of(&app, "operate");
    let retry = "/deliveries/retry";
    let question = person.ask(retry, "state=parked&since=1h");
    has(&question, &["Retry 3 deliveries?", " UTC; what is parked later is not included."]);
    park(&app, 0, 2);
    let _ = person.answer(retry, &question, &[]).expect(303);
    assert_eq!(person.jobs()[0]["total"], 3, "what was parked meanwhile is not concerned");
    // An answer without a count, or with an old one, is asked again.
    for as_of in ["", "soon", "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        let fields =
            [("all", "yes"), ("filter", "state=parked"), ("confirmed", "yes"), ("as_of", as_of), ("shown", "3")];
        has(&person.post(retry, &fields).expect(422).text(), &["They were counted again.", "Retry 5 deliveries?"]);
    }
    let fields = [("all", "yes"), ("filter", "state=parked"), ("confirmed", "yes"), ("shown", "1")];
    let now = hidden(&person.ask(retry, "state=parked"), "as_of");
    let more = person.post(retry, &[&fields[..], &[("as_of", now.as_str())]].concat()).expect(422).text();
    has(&more, &["More deliveries match than were shown."]);
    assert_eq!(person.jobs().len(), 1);
}

#[test]
fn an_act_on_all_tenants_says_so_and_needs_the_number() {
    let app = app_with_parked(0, 3);
    let (ops, retry) = (Person::of(&app, "ops"), "/deliveries/retry");
    assert!(!ops.ask(retry, "state=parked").contains("all tenants"), "there is one tenant");
    app.create_tenant("north");
    let question = ops.ask(retry, "state=parked");
    has(&question, &["the deliveries of all tenants", "Type 3 to confirm"]);
    let refused = ops.answer(retry, &question, &[("typed", "4")]).expect(422).text();
    has(&refused, &["The number is not the one above."]);
    assert_eq!(ops.jobs(), Vec::<Value>::new());
    let _ = ops.answer(retry, &refused, &[("typed", "3")]).expect(303);
    assert_eq!(ops.jobs()[0]["tenant"], Value::Null);
    let chosen = ops.ask("/deliveries/retry?tenant=default", "state=parked");
    assert!(!chosen.contains("all tenants") && !chosen.contains("Type 3"), "{chosen}");
    let one = Person::of(&app, "operate").ask(retry, "state=parked");
    assert!(!one.contains("tenants"), "a person of one tenant does not learn of others: {one}");
}

#[test]
fn a_question_leads_back_and_its_frame_leads_to_pages() {
    let app = app_with_parked(0, 1);
    let ops = Person::of(&app, "ops");
    let question = ops.ask("/deliveries/retry", "state=parked");
    // The forms for the tenant and the theme lead to the list, and not to the path of the act.
    has(&question, &["<form method=\"get\" action=\"/notifications\" class=\"tenant\">"]);
    assert_eq!(hidden(&question, "back"), "/notifications?state=parked");
    assert!(!question.contains("value=\"/deliveries/retry\""), "{question}");
    let refused = ops.post("/deliveries/retry", &[("csrf", "x")]).expect(422).text();
    has(&refused, &["<p>Id: 0 deliveries are ticked", "action=\"/\" class=\"tenant\""]);
    has(&ops.client.get("/deliveries/retry").expect(405).text(), &["<a href=\"/\">Open the overview</a>"]);
    has(&ops.client.get("/notifications?until=soon").expect(422).text(), &["<p>Until: is ", "write a time in UTC"]);
}

#[test]
fn a_form_that_is_too_large_or_not_utf8_is_refused_by_a_page() {
    let app = app_with_parked(0, 1);
    let ops = Person::of(&app, "ops");
    let large = ops.post("/deliveries/retry", &[("filter", &"x".repeat(2_097_152))]).expect(413).text();
    has(&large, &["<!doctype html>", "the form has more than 2,097,152 bytes"]);
    let body = format!("csrf_token={}&filter=caf%E9", ops.csrf);
    let form = "application/x-www-form-urlencoded";
    let broken = ops.client.send_as(form, "POST", "/deliveries/retry", body.as_bytes()).expect(422).text();
    has(&broken, &["<!doctype html>", "Filter: is not UTF-8"]);
    assert_eq!(ops.jobs(), Vec::<Value>::new());
}
