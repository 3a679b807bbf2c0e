//! The rules of the recipes: each decides at least one example, every code in a list of codes too. And what a provider of
//! a recipe refuses before it sends anything.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use postcommit_channel::driver::{CallbackAnswer, Driver, FailOn, Kind, Parts, Recipe};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{ErrorClass, Outcome};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_testkit::http::Reply;
use serde_json::{Value, json};

use super::{Answer, Example, Given, example, kinds, outcome, provider, reply, scripted, send, word};
use crate::callbacks::Provider;

/// A recipe that comes with the program, as it is written.
fn written(name: &str) -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("recipes/{name}.toml"));
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

fn kind_of(recipe: &toml::Table) -> Kind {
    Recipe::read(&toml::to_string(recipe).unwrap()).unwrap_or_else(|problem| panic!("{problem}")).into_kind()
}

/// The rules of a recipe on its answers, or on its callbacks.
fn rules(recipe: &mut toml::Table, of_callbacks: bool) -> &mut [toml::Value] {
    let rules = match of_callbacks {
        true => recipe.get_mut("callback").and_then(|callback| callback.get_mut("rule")),
        false => recipe.get_mut("error"),
    };
    rules.and_then(toml::Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// The mark of a rule: an effect and a class that no other rule of the recipe has, and no status by itself.
fn mark(i: usize, of_callbacks: bool) -> (&'static str, &'static str) {
    let effects = if of_callbacks { ["failed", "bounced"] } else { ["rejected", "config"] };
    let is_default = |effect: &str, class: ErrorClass| match class {
        ErrorClass::AuthFailed | ErrorClass::Account | ErrorClass::Forbidden | ErrorClass::Config => effect == "config",
        ErrorClass::InvalidAddress | ErrorClass::InvalidContent | ErrorClass::Unknown => effect == "rejected",
        _ => false,
    };
    let all = effects.into_iter().flat_map(|effect| ErrorClass::ALL.map(|class| (effect, class)));
    let mut marks = all.filter(|(effect, class)| !is_default(effect, *class));
    marks.nth(i).map(|(effect, class)| (effect, class.name())).expect("a recipe has more rules than there are marks")
}

/// The recipe, in which every rule has its mark.
fn marked(name: &str, of_callbacks: bool) -> toml::Table {
    let mut recipe = written(name);
    for (i, rule) in rules(&mut recipe, of_callbacks).iter_mut().enumerate() {
        let ((effect, class), rule) = (mark(i, of_callbacks), rule.as_table_mut().unwrap());
        rule.insert(if of_callbacks { "means" } else { "outcome" }.into(), effect.into());
        rule.insert("class".into(), class.into());
        // A rule of a recipe without URLs as addresses may suppress only with the outcome `rejected`.
        rule.remove("suppress");
    }
    recipe
}

/// What a recipe makes of each answer of the example that `of` selects: the outcome and its class.
async fn answered(
    recipe: &toml::Table,
    of: impl FnOnce(&Example) -> Vec<usize>,
) -> Vec<(&'static str, Option<&'static str>)> {
    let (kind, (server, next)) = (kind_of(recipe), scripted());
    let example = example(&kind.name, &server.url(""));
    let (driver, mut read) = (provider(&kind, &example, kind.guarantee), vec![]);
    for i in of(&example) {
        *next.lock().unwrap() = reply(&example.answer[i]);
        let report = send(&*driver, &kind.channel, &example.case[0].message, Duration::from_secs(10)).await;
        read.push((outcome(&report), report.class().map(ErrorClass::name)));
    }
    read
}

fn all(example: &Example) -> Vec<usize> {
    (0..example.answer.len()).collect()
}

/// What a recipe makes of each callback of its example that contains a text: what happened, and the class.
fn called_back(recipe: &toml::Table, text: &str) -> Vec<Vec<(&'static str, Option<&'static str>)>> {
    let kind = kind_of(recipe);
    let example = example(&kind.name, "https://service.example");
    let provider = Provider::of(kind.into(), &example);
    let read = |given| match provider.read(given) {
        Ok(CallbackAnswer::Receipts(read)) => {
            read.iter().map(|one| (one.happened.name(), one.class.map(ErrorClass::name))).collect()
        }
        _ => vec![],
    };
    example.callback.iter().filter(|given| format!("{given:?}").contains(text)).map(read).collect()
}

/// The items of the lists of codes in an expression, and the expression without each.
fn without_each(expression: &str) -> Vec<(String, String)> {
    let (mut all, mut from) = (vec![], 0);
    while let Some(at) = expression[from..].find(" in [") {
        let begin = from + at + " in [".len();
        let end = begin + expression[begin..].find(']').unwrap();
        let items: Vec<&str> = expression[begin..end].split(',').map(str::trim).collect();
        for (i, item) in items.iter().enumerate() {
            let others: Vec<&str> = items.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, item)| *item).collect();
            let without = format!("{}{}{}", &expression[..begin], others.join(", "), &expression[end..]);
            all.push((item.trim_matches(['\'', '"']).to_owned(), without));
        }
        from = end;
    }
    all
}

/// The conditions of a recipe's rules.
fn conditions(recipe: &toml::Table, of_callbacks: bool) -> Vec<String> {
    let mut recipe = recipe.clone();
    let rules = rules(&mut recipe, of_callbacks);
    rules.iter().map(|rule| rule["when"].as_str().unwrap().to_owned()).collect()
}

/// The recipe with another condition for one of its rules.
fn changed(recipe: &toml::Table, of_callbacks: bool, i: usize, when: String) -> toml::Table {
    let mut changed = recipe.clone();
    rules(&mut changed, of_callbacks)[i].as_table_mut().unwrap().insert("when".into(), when.into());
    changed
}

#[tokio::test]
async fn c8_every_rule_of_a_recipe_and_every_code_in_it_decides_an_example() {
    let mut idle = BTreeSet::new();
    for kind in kinds() {
        let (name, recipe) = (&kind.name, marked(&kind.name, false));
        let (whole, examples) = (answered(&recipe, all).await, example(name, "https://service.example"));
        for (i, when) in conditions(&recipe, false).iter().enumerate() {
            let (effect, class) = mark(i, false);
            if !whole.contains(&(effect, Some(class))) {
                idle.insert(format!("{name}: error[{i}]"));
            }
            for (code, without) in without_each(when) {
                let says = |answer: &Answer| format!("{answer:?}").contains(&code);
                let named: Vec<usize> = all(&examples).into_iter().filter(|i| says(&examples.answer[*i])).collect();
                let before: Vec<_> = named.iter().map(|i| whole[*i]).collect();
                if answered(&changed(&recipe, false, i, without), |_| named).await == before {
                    idle.insert(format!("{name}: error[{i}]: {code}"));
                }
            }
        }
    }
    assert!(idle.is_empty(), "these decide no example: {idle:#?}");
}

#[test]
fn b5_every_rule_on_callbacks_and_every_code_in_it_decides_an_example() {
    let mut idle = BTreeSet::new();
    for kind in kinds().into_iter().filter(|kind| kind.callback.is_some()) {
        let (name, recipe) = (&kind.name, marked(&kind.name, true));
        let whole = called_back(&recipe, "");
        for (i, when) in conditions(&recipe, true).iter().enumerate() {
            let (effect, class) = mark(i, true);
            if !whole.iter().flatten().any(|read| *read == (effect, Some(class))) {
                idle.insert(format!("{name}: callback.rule[{i}]"));
            }
            for (code, without) in without_each(when) {
                let changed = changed(&recipe, true, i, without);
                if called_back(&changed, &code) == called_back(&recipe, &code) {
                    idle.insert(format!("{name}: callback.rule[{i}]: {code}"));
                }
            }
        }
    }
    assert!(idle.is_empty(), "these decide no example: {idle:#?}");
}

#[test]
fn d6_every_recipe_has_an_answer_to_too_many_messages() {
    for kind in kinds() {
        let example = example(&kind.name, "https://service.example");
        let is_limited = |answer: &Answer| answer.class.as_deref() == Some("rate_limited");
        // Pushover has a quota for a month and nothing else.
        assert!(example.answer.iter().any(is_limited) || kind.name == "pushover", "{}", kind.name);
    }
}

/// A message whose text has this many characters.
fn long(given: &Given, chars: usize, link: bool) -> Given {
    let action_url = link.then(|| "https://hotel.example/b/1".to_owned());
    Given { subject: None, text: Some("x".repeat(chars)), action_url, data: None, ..given.clone() }
}

#[tokio::test]
async fn c6_the_limit_of_a_text_counts_the_link_that_is_sent_with_it() {
    for (name, chars) in [
        ("twilio", 1600),
        ("interakt", 4096),
        ("whatsapp_cloud", 4096),
        ("sns", 1600),
        ("telegram", 4096),
        ("mattermost", 16_383),
    ] {
        let (server, _) = scripted();
        let (kind, example) = (postcommit_channel::driver::kind(name).unwrap(), example(name, &server.url("")));
        let driver = provider(&kind, &example, kind.guarantee);
        for (chars, link, sent) in
            [(chars, false, true), (chars - 1, true, false), (chars + 1, false, false), (9, true, true)]
        {
            let before = server.requests().len();
            let given = long(&example.case[0].message, chars, link);
            let report = send(&*driver, &kind.channel, &given, Duration::from_secs(10)).await;
            let name = format!("{name}: {chars} characters, link: {link}: {report:?}");
            assert_eq!(server.requests().len() - before, usize::from(sent), "{name}");
            let refused = report.outcome.code() == Some("too_long") && outcome(&report) == "rejected";
            assert_ne!(refused, sent, "{name}");
        }
    }
}

#[tokio::test]
async fn c6_what_a_service_does_not_take_is_not_sent() {
    for (name, chars) in [
        ("discord", 4097),
        ("ntfy", 4097),
        ("opsgenie", 15_001),
        ("pushover", 1025),
        // The whole request is too large.
        ("teams", 28_672),
        ("google_chat", 32_000),
        ("pagerduty", 524_288),
    ] {
        let (server, _) = scripted();
        let (kind, example) = (postcommit_channel::driver::kind(name).unwrap(), example(name, &server.url("")));
        let driver = provider(&kind, &example, kind.guarantee);
        let given = long(&example.case[0].message, chars, false);
        let report = send(&*driver, &kind.channel, &given, Duration::from_secs(10)).await;
        let got = (outcome(&report), report.outcome.code(), report.class(), server.requests().len());
        assert_eq!(got, ("rejected", Some("too_long"), Some(ErrorClass::InvalidContent), 0), "{name}");
    }
}

/// A provider of a shipped recipe whose requests may go to public addresses alone.
fn guarded(name: &str, settings: &Value, secrets: &[(&str, &str)]) -> Result<Box<dyn Driver>, String> {
    let kind = postcommit_channel::driver::kind(name).unwrap();
    let egress = Egress::new(&EgressSettings::default()).unwrap();
    let secrets: Secrets = secrets.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect();
    let guarantee = kind.guarantee;
    let parts = Parts { settings, secrets: &secrets, guarantee, egress: &egress, capture_fail_on: &FailOn::default() };
    kind.build(&parts)
}

#[tokio::test]
async fn f1_no_recipe_reaches_the_metadata_service() {
    const METADATA: &str = "http://169.254.169.254/latest/meta-data";
    let gotify = guarded("gotify", &json!({"base_url": METADATA}), &[("token", "A0123456789")]);
    let fcm_account = json!({"client_email": "a@b.example", "private_key": super::RSA_KEY, "project_id": "p"});
    let fcm = guarded("fcm", &json!({"token_url": METADATA}), &[("service_account", &fcm_account.to_string())]);
    let slack = guarded("slack", &json!({}), &[("url", METADATA)]);
    for (name, built) in [("gotify", gotify), ("fcm", fcm), ("slack", slack)] {
        let problem = built.err().unwrap_or_else(|| panic!("{name} was built"));
        assert!(problem.contains("169.254.169.254") || problem.contains("not allowed"), "{name}: {problem}");
    }
    // The address of a message is checked when it is sent.
    let slack = guarded("slack", &json!({}), &[]).unwrap();
    let report = send(&*slack, "slack", &word(METADATA), Duration::from_secs(5)).await;
    let got = (outcome(&report), report.outcome.code(), report.class());
    assert_eq!(got, ("rejected", Some("blocked_address"), Some(ErrorClass::InvalidAddress)), "{report:?}");
}

#[tokio::test]
async fn a_url_that_the_provider_makes_impossible_pauses_it_and_parks_nobody() {
    let telegram = guarded("telegram", &json!({}), &[("token", "a token without a colon")]).unwrap();
    let report = send(&*telegram, "telegram", &word("4711"), Duration::from_secs(5)).await;
    assert_eq!((outcome(&report), report.class()), ("config", Some(ErrorClass::Config)), "{report:?}");
    // An address that cannot be a part of the URL is the message's own.
    let settings = json!({"base_url": "https://matrix.example"});
    let matrix = guarded("matrix", &settings, &[("token", "syt_0123456789")]).unwrap();
    let report = send(&*matrix, "matrix", &word(".."), Duration::from_secs(5)).await;
    assert_eq!(report.outcome, Outcome::refused("bad_address"));
    assert_eq!(report.class(), Some(ErrorClass::InvalidAddress));
}

#[tokio::test]
async fn twilio_reports_to_a_url_that_has_a_query_already() {
    let (server, next) = scripted();
    *next.lock().unwrap() = Reply::json(201, json!({"sid": "SM1"}));
    let (kind, mut example) = (postcommit_channel::driver::kind("twilio").unwrap(), example("twilio", &server.url("")));
    example.settings.insert("status_callback".into(), "https://hotel.example/twilio?site=1".into());
    let driver = provider(&kind, &example, kind.guarantee);
    send(&*driver, "sms", &word("+919876543210"), Duration::from_secs(10)).await;
    let requests = server.requests();
    let body = requests[0].text();
    assert!(body.contains("StatusCallback=https%3A%2F%2Fhotel.example%2Ftwilio%3Fsite%3D1%26key%3D0198"), "{body}");
}
