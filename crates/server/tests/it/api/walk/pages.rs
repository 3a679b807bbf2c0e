//! C15 for the pages: every page of the page table, by permitted and forbidden callers, and across two tenants. A new
//! page is walked without a change here, unless its path or its form needs to be filled.

use postcommit_channel::model::Scope;
use postcommit_server::ui::{Page, pages};
use postcommit_testkit::{HttpClient, HttpResponse};

use super::{Planted, Walk, all_but};
use crate::api::app::items;

impl Walk {
    /// Opens a page about objects of `whose`, or posts its form.
    fn visit(&self, client: &HttpClient, page: &Page, whose: &Planted) -> HttpResponse {
        let path = path_of(page, whose);
        match page.method {
            "GET" => client.get(&path),
            _ => client.send_as("application/x-www-form-urlencoded", "POST", &path, form_of(page, whose).as_bytes()),
        }
    }
}

/// The path of a page with the tenant's objects in it.
fn path_of(page: &Page, whose: &Planted) -> String {
    let part = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some("n") => "0".to_owned(),
        Some("driver") => "capture".to_owned(),
        Some(parameter) => whose.parameter(&format!("/v1{}", page.path), parameter).unwrap_or_else(|| {
            panic!(
                "the walk does not know what {{{parameter}}} of {} is: teach it, or the page is not covered",
                page.path
            )
        }),
        None => part.to_owned(),
    };
    page.path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The form of a page about the tenant's objects, confirmed.
fn form_of(page: &Page, whose: &Planted) -> String {
    let parked = whose.parameter("/v1/deliveries/{id}", "id").unwrap();
    match page.path {
        "/theme" => "theme=dark&back=%2F".to_owned(),
        "/templates" => {
            "id=made-by-the-walk&event_type=made-by-the-walk&channel=sms&text=Hello&once_per=notification".to_owned()
        }
        "/templates/{id}" => {
            "event_type=changed&channel=email&text=Hello&once_per=notification&confirmed=yes".to_owned()
        }
        "/templates/{id}/test" => format!("address=somebody%40example.com&provider={}-provider", whose.name),
        "/templates/{id}/roll-back" => "version=1&confirmed=yes".to_owned(),
        "/users" => "id=made-by-the-walk".to_owned(),
        "/users/{id}/address" => "act=add&kind=email&address=another%40example.com".to_owned(),
        "/users/{id}/preferences" => "channel=sms&allowed=no".to_owned(),
        "/lists" => "name=made-by-the-walk".to_owned(),
        "/lists/{name}/members" => "act=add&kind=user&member=made-by-the-walk".to_owned(),
        "/suppressions" => "channel=email&address=made-by-the-walk%40example.com&reason=the+walk".to_owned(),
        "/suppressions/remove" => {
            format!("channel=email&address={}-suppressed%40example.com&confirmed=yes", whose.name)
        }
        "/keys" | "/keys/sign-in-links" => "name=made-by-the-walk&person=made-by-the-walk&scopes=read".to_owned(),
        "/notifications/views" | "/notifications/views/delete" => "name=x&filter=state%3Dparked".to_owned(),
        "/event-types" => "name=made-by-the-page-walk".to_owned(),
        "/keys/sign-out" => format!("actor=login%3Anobody&of={}&confirmed=yes", whose.name),
        "/providers/new/{driver}" => "name=made-by-the-walk&is_default=false".to_owned(),
        "/providers/{name}/edit" => "revision=1&concurrency=3&breaker_failures=4".to_owned(),
        "/providers/{name}/test" => "address=somebody%40example.com".to_owned(),
        "/providers/{name}/pause" => "reason=the+walk&confirmed=yes".to_owned(),
        "/entities/{entity}/resend" => "channel=email&confirmed=yes".to_owned(),
        _ => format!("id={parked}&confirmed=yes"),
    }
}

on_both! {
    fn c15_every_page_needs_a_sign_in(kind) {
        let walk = Walk::begin(kind, &[]);
        assert!(pages().len() > 4);
        for page in pages() {
            let answer = walk.visit(&walk.stranger(None), &page, &walk.a);
            assert_eq!((answer.status, answer.header("location")), (303, Some("/login")), "{}", page.path);
            let answer = walk.visit(&walk.stranger(None).with("Cookie", "__Host-postcommit=nonsense"), &page, &walk.a);
            assert_eq!(answer.header("location"), Some("/login"), "{}", page.path);
            let answer = walk.visit(&walk.stranger(Some("nonsense")), &page, &walk.a);
            assert_eq!(answer.status, 401, "{}", page.path);
        }
    }

    fn c15_every_page_requires_the_scope_it_names(kind) {
        let walk = Walk::begin(kind, &[]);
        let deliveries = || items(walk.a.admin.get("/v1/deliveries"));
        let before = deliveries();
        for page in pages() {
            let Some(scope) = page.scope else { continue };
            let client = walk.app.client(&walk.a.name, &all_but(scope));
            let answer = walk.visit(&client, &page, &walk.a);
            assert_eq!(answer.status, 403, "{}: {}", page.path, answer.text());
            let said = answer.text();
            assert!(said.contains("You may not do this") && said.contains(scope.name()), "{}: {said}", page.path);
            let asked = path_of(&page, &walk.a);
            let told = walk.a.canaries.iter().find(|canary| said.contains(*canary) && !asked.contains(*canary));
            assert_eq!(told, None, "{} tells it: {said}", page.path);
        }
        assert_eq!(deliveries(), before);
    }

    fn c15_a_page_shows_and_changes_nothing_of_another_tenant(kind) {
        let walk = Walk::begin(kind, &[]);
        let before = walk.a.seen_by_owner();
        for page in pages() {
            let answer = walk.visit(&walk.b.admin, &page, &walk.a);
            let (said, asked) = (answer.text(), path_of(&page, &walk.a) + &form_of(&page, &walk.a));
            let told = walk.a.canaries.iter().find(|canary| said.contains(*canary) && !asked.contains(*canary));
            assert_eq!(told, None, "{} tells it: {said}", page.path);
            // A new provider is of the visitor's own tenant.
            let is_about_one = (page.path.contains('{') || page.path == "/deliveries/mark-delivered") && page.path != "/providers/new/{driver}";
            assert_eq!(answer.status == 404, is_about_one, "{} answers {}: {said}", page.path, answer.status);
            // Nobody but operations chooses a tenant.
            if page.scope.is_some() {
                let path = format!("{}?tenant={}", path_of(&page, &walk.b), walk.a.name);
                let answer = if page.method == "GET" { walk.b.admin.get(&path) } else { walk.b.admin.send("POST", &path, None) };
                assert_eq!(answer.status, 403, "{}: {}", page.path, answer.text());
            }
        }
        assert_eq!(walk.a.seen_by_owner(), before, "something of the other's was changed");
    }

    fn c15_a_permitted_person_gets_every_page(kind) {
        let walk = Walk::begin(kind, &[]);
        for page in pages() {
            let scope = page.scope.unwrap_or(Scope::Read);
            let answer = walk.visit(&walk.app.client(&walk.a.name, &[scope.name()]), &page, &walk.a);
            // The planted notification is not expanded yet and has no mail; nothing was sent that could be sent again.
            let served = match (page.method, page.path) {
                ("GET", "/notifications/{id}/{n}/mail" | "/templates/{id}/mail") => 404..=404,
                // The result of a test is shown beside the draft.
                ("POST", "/templates/{id}/test") => 200..=200,
                ("GET", _) | (_, "/providers/{name}/test" | "/providers/{name}/callback") => 200..=200,
                // What is made is shown in the answer, this once.
                (_, "/keys" | "/keys/sign-in-links") => 200..=200,
                (_, "/notifications/{id}/resend" | "/notifications/{id}/{n}/suppress" | "/deliveries/mark-delivered") => 409..=409,
                _ => 303..=303,
            };
            assert!(served.contains(&answer.status), "{} answers {}: {}", page.path, answer.status, answer.text());
        }
    }
}
