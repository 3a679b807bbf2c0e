//! Recipes whose address is the URL to call: the answer of one receiver concerns no other one. And recipes that suppress
//! a dead address.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit_channel::driver::{self, Kind, Recipe};
use postcommit_testkit::http::Reply;
use serde_json::json;

use super::{Example, example, outcome, provider, scripted, send, small, word};

#[tokio::test]
async fn an_address_that_is_meant_as_a_url_never_goes_to_another_receiver() {
    let (server, next) = scripted();
    *next.lock().unwrap() = Reply::ok().with_body("ok");
    let kind = small("").unwrap();
    let example = Example {
        settings: toml::Table::from_iter([("base_url".to_owned(), server.url("/own").into())]),
        secrets: BTreeMap::new(),
        case: vec![],
        answer: vec![],
        callback: vec![],
    };
    let driver = provider(&kind, &example, kind.guarantee);
    let upper = server.url("/hers").replace("http:", "HTTP:");
    for (to, path) in [("desk", Some("/own")), (upper.as_str(), Some("/hers")), ("ftp://x/", None), ("http:", None)] {
        let before = server.requests().len();
        let report = send(&*driver, "small", &word(to), Duration::from_secs(10)).await;
        let seen = server.requests().get(before).map(|request| request.path.clone());
        assert_eq!(seen.as_deref(), path, "{to}: {report:?}");
    }
    // An answer that was cut off is no success.
    *next.lock().unwrap() = Reply::ok().with_header("content-length", "900").with_body("ok");
    let report = send(&*driver, "small", &word("desk"), Duration::from_secs(2)).await;
    assert_eq!(outcome(&report), "unclear", "{report:?}");
}

#[tokio::test]
async fn a_dead_webhook_suppresses_only_the_url_of_a_recipient() {
    let (server, next) = scripted();
    let kind = driver::kind("slack").unwrap();
    let mut example = example("slack", &server.url(""));
    example.secrets.insert("url".into(), server.url("/own"));
    let driver = provider(&kind, &example, kind.guarantee);
    *next.lock().unwrap() = Reply::status(404).with_body("no_service");
    for (to, wanted, suppress) in
        [(server.url("/hers"), "rejected", Some("the webhook was revoked")), ("desk".into(), "config", None)]
    {
        let report = send(&*driver, "slack", &word(&to), Duration::from_secs(10)).await;
        assert_eq!((outcome(&report), report.suppress.as_deref()), (wanted, suppress), "{to}: {report:?}");
    }
}

#[test]
fn a_suppression_needs_an_answer_about_the_recipient() {
    let rule = |outcome: &str, reason: &str| {
        let class = "class = 'invalid_address'";
        small(&format!(
            "[[error]]\nwhen = 'status == 404'\noutcome = '{outcome}'\n{class}\nsuppress = {}\n",
            json!(reason)
        ))
        .map(drop)
    };
    assert_eq!((rule("rejected", "opted out"), rule("config", &"x".repeat(255))), (Ok(()), Ok(())));
    for (outcome, reason, wanted) in [
        ("deferred", "opted out", "line 14: error[0].suppress: needs outcome = \"rejected\""),
        ("unclear", "opted out", "line 14: error[0].suppress: needs outcome = \"rejected\""),
        ("rejected", " ", "line 14: error[0].suppress: has 1 characters; 1 to 255 in one line are allowed"),
        ("rejected", &"x".repeat(256), "line 14: error[0].suppress: has 256 characters"),
        ("rejected", "a\nb", "line 14: error[0].suppress: has 3 characters"),
    ] {
        let problem = rule(outcome, reason).unwrap_err();
        assert!(problem.starts_with(wanted), "{problem}");
    }
    let twilio = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/twilio.toml")).unwrap();
    let more = "\n[[error]]\nwhen = 'true'\noutcome = 'config'\nclass = 'config'\nsuppress = 'x'\n";
    let problem = Recipe::read(&twilio.replacen("\n[callback]", &format!("{more}[callback]"), 1)).unwrap_err();
    assert!(problem.contains("in a recipe whose URL is the address"), "{problem}");
}

/// A recipe with another URL in its request.
fn with_url(url: &str) -> Kind {
    let text = "name = 'small'\ntitle = 'Small'\nchannel = 'small'\naddress = 'a word'\nguarantee = 'at_least_once'\n\
        because = 'it has no keys'\nsettings.base_url = { type = 'url', help = 'its address', required = false }\n\
        success.when = 'status == 200'\n";
    Recipe::read(&format!("{text}[request]\nurl = \"{url}\"\n")).unwrap().into_kind()
}

#[test]
fn recipes_tell_hosts_apart_where_the_address_decides_which_server_is_called() {
    let example = Example {
        settings: toml::Table::from_iter([("base_url".to_owned(), "https://own.example/x".into())]),
        secrets: BTreeMap::new(),
        case: vec![],
        answer: vec![],
        callback: vec![],
    };
    let hosts = |url: &str, targets: [&str; 3]| {
        let kind = with_url(url);
        let driver = provider(&kind, &example, kind.guarantee);
        driver.isolates_hosts().then(|| targets.map(|target| driver.host_of(target)))
    };
    let (url, bad) = ("https://Hooks.example/a", "https://");
    let one = Some("hooks.example:443".to_owned());
    let with = |host: &str| Some(host.to_owned());
    assert_eq!(hosts("{{ to }}", [url, "desk", bad]), Some([one.clone(), None, None]));
    let own = "{{ to if to | is_url else settings.base_url }}";
    assert_eq!(hosts(own, [url, "desk", bad]), Some([one.clone(), None, None]), "the own URL concerns the lane");
    let below = "{{ to }}/v1/{{ data.room }}";
    assert_eq!(hosts(below, [url, "desk", bad]), Some([one, None, None]));
    let sub = "https://{{ to }}.chat.example:8443/hook";
    let [a, b] = [with("a.chat.example:8443"), with("b.chat.example:8443")];
    assert_eq!(hosts(sub, ["a", "b", "a b"]), Some([a, b, None]));
    for lane in ["{{ settings.base_url }}/{{ to }}", "https://service.example/{{ to }}", "{{ data.url or to }}"] {
        assert_eq!(hosts(lane, ["a", "b", "c"]), None, "{lane}");
    }
    for name in ["slack", "teams", "discord", "google_chat", "mattermost"] {
        let kind = driver::kind(name).unwrap();
        let driver = provider(&kind, &super::example(name, "https://own.example"), kind.guarantee);
        assert!(driver.isolates_hosts(), "{name}");
        assert_eq!(driver.host_of("https://hooks.example/T/B/x").as_deref(), Some("hooks.example:443"), "{name}");
    }
    for name in ["twilio", "matrix", "ntfy", "telegram"] {
        let kind = driver::kind(name).unwrap();
        let driver = provider(&kind, &super::example(name, "https://own.example"), kind.guarantee);
        assert!(!driver.isolates_hosts(), "{name}");
    }
}

#[tokio::test]
async fn a_url_of_a_recipient_fails_for_itself_and_its_server_for_the_host() {
    let (server, next) = scripted();
    let kind = driver::kind("mattermost").unwrap();
    let driver = provider(&kind, &example("mattermost", &server.url("")), kind.guarantee);
    for (reply, of_one) in [
        (Reply::status(429).with_header("retry-after", "60"), true),
        (Reply::status(404), true),
        (Reply::status(401), true),
        (Reply::status(500), false),
        (Reply::status(503), false),
        (Reply::Close, false),
    ] {
        *next.lock().unwrap() = reply.clone();
        let report = send(&*driver, "mattermost", &word(&server.url("/hooks/x")), Duration::from_secs(10)).await;
        assert_eq!(report.only_delivery, of_one, "{reply:?}: {report:?}");
        assert_ne!(outcome(&report), "config", "{reply:?}");
    }
}
