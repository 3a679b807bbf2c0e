//! B5: every recipe with callbacks verifies and reads those that its file in `tests/recipes` describes. Their signatures
//! were made by another program, with the secrets of the file.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use postcommit::Timestamp;
use postcommit_channel::driver::{self, CallbackAnswer, CallbackParts, CallbackRefusal, CallbackRequest, Kind, Trust};
use postcommit_channel::model::{DeliveryId, Reported};
use postcommit_channel::secret::{Secret, Secrets};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::recipes::{Example, example, kinds, small};

/// The time at which the signatures of the files were made.
const NOW: &str = "2026-03-01T09:30:00Z";

/// A callback in the file of a recipe.
#[derive(Debug, Deserialize, Clone, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallbackExample {
    pub(crate) name: String,
    #[serde(default)]
    get: bool,
    #[serde(default)]
    query: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    challenge: Option<String>,
    #[serde(default)]
    receipt: Vec<BTreeMap<String, String>>,
    /// The callback is repeated with each of these in place of `{code}`, and without a signature.
    #[serde(default)]
    codes: Vec<String>,
    #[serde(skip)]
    is_unsigned: bool,
}

impl CallbackExample {
    pub(crate) fn each(self) -> Vec<Self> {
        let filled = |text: &BTreeMap<String, String>, code: &str| {
            text.iter().map(|(name, text)| (name.clone(), text.replace("{code}", code))).collect()
        };
        let with = |code: &String| Self {
            name: format!("{}: {code}", self.name),
            query: self.query.replace("{code}", code),
            body: self.body.replace("{code}", code),
            receipt: self.receipt.iter().map(|receipt| filled(receipt, code)).collect(),
            codes: vec![],
            is_unsigned: true,
            ..self.clone()
        };
        if self.codes.is_empty() { vec![self] } else { self.codes.iter().map(with).collect() }
    }
}

fn headers(given: &BTreeMap<String, String>) -> HeaderMap {
    let pair = |(name, value): (&String, &String)| {
        (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
    };
    given.iter().map(pair).collect()
}

/// A provider of the example.
pub(crate) struct Provider {
    pub(crate) kind: std::sync::Arc<Kind>,
    settings: Value,
    secrets: Secrets,
}

impl Provider {
    pub(crate) fn of(kind: std::sync::Arc<Kind>, example: &Example) -> Self {
        let secrets = example.secrets.iter().map(|(name, text)| (name.clone(), Secret::new(text))).collect();
        Self { kind, settings: serde_json::to_value(&example.settings).unwrap(), secrets }
    }

    fn read_at(&self, now: Timestamp, given: &CallbackExample) -> Result<CallbackAnswer, CallbackRefusal> {
        let headers = headers(&given.headers);
        let request = CallbackRequest {
            is_get: given.get,
            url: "https://elsewhere.example/v1/callbacks/token",
            query: &given.query,
            headers: &headers,
            body: given.body.as_bytes(),
            now,
        };
        let parts = CallbackParts { settings: &self.settings, secrets: &self.secrets };
        self.kind.callback.as_ref().unwrap().read(request, parts)
    }

    pub(crate) fn read(&self, given: &CallbackExample) -> Result<CallbackAnswer, CallbackRefusal> {
        let now = NOW.parse().unwrap();
        if given.is_unsigned {
            let kind = std::sync::Arc::clone(&self.kind);
            return Self { kind, settings: json!({}), secrets: Secrets::new() }.read_at(now, given);
        }
        self.read_at(now, given)
    }

    fn trust(&self) -> Trust {
        let parts = CallbackParts { settings: &self.settings, secrets: &self.secrets };
        self.kind.callback.as_ref().unwrap().trust(parts)
    }
}

fn providers() -> Vec<(Provider, Example)> {
    let with = |kind: std::sync::Arc<Kind>| {
        let example = example(&kind.name, "https://service.example");
        (Provider::of(kind, &example), example)
    };
    kinds().into_iter().filter(|kind| kind.callback.is_some()).map(with).collect()
}

fn compare(name: &str, wanted: &BTreeMap<String, String>, got: &Reported) {
    let text = |field: &str| wanted.get(field).map(String::as_str);
    assert_eq!(Some(got.happened.name()), text("happened"), "{name}: {got:?}");
    assert_eq!(got.delivery, text("key").and_then(DeliveryId::of_provider_key), "{name}: {got:?}");
    assert_eq!(got.provider_ref.as_deref(), text("ref"), "{name}: {got:?}");
    assert_eq!(got.code.as_deref(), text("code"), "{name}: {got:?}");
    assert_eq!(got.class.map(|class| class.name()), text("class"), "{name}: {got:?}");
    assert_eq!(got.detail.as_deref(), text("text"), "{name}: {got:?}");
    match text("id") {
        Some(id) => assert_eq!(got.event_id, id, "{name}"),
        None => assert!(got.event_id.starts_with("sha256:"), "{name}: {got:?}"),
    }
    if let Some(time) = text("time") {
        // Some services give fractions of a second.
        let apart = got.at.unwrap().as_micros() - time.parse::<Timestamp>().unwrap().as_micros();
        assert!((0..1_000_000).contains(&apart), "{name}: {got:?}");
    }
}

#[test]
fn b5_every_recipe_reads_the_callbacks_that_the_facts_describe() {
    for (provider, example) in providers() {
        assert!(example.callback.len() > 1, "{}: too few examples", provider.kind.name);
        for given in &example.callback {
            let name = format!("{}: {}", provider.kind.name, given.name);
            match (provider.read(given), &given.challenge) {
                (Ok(CallbackAnswer::Challenge(got)), Some(wanted)) => assert_eq!(got, *wanted, "{name}"),
                (Ok(CallbackAnswer::Receipts(got)), None) => {
                    assert_eq!(got.len(), given.receipt.len(), "{name}: {got:?}");
                    given.receipt.iter().zip(&got).for_each(|(wanted, got)| compare(&name, wanted, got));
                    assert_eq!(provider.read(given), Ok(CallbackAnswer::Receipts(got)), "{name}: read again");
                }
                (other, _) => panic!("{name}: {other:?}"),
            }
        }
    }
}

/// Whether each callback of a provider is refused as not its own.
fn is_forged(answer: &Result<CallbackAnswer, CallbackRefusal>) -> bool {
    matches!(answer, Err(CallbackRefusal::Unverified(_)))
}

#[test]
fn b5_a_forged_callback_is_refused() {
    for (mut provider, example) in providers() {
        let name = provider.kind.name.clone();
        if provider.trust() == Trust::TokenAlone {
            continue;
        }
        assert_eq!(provider.trust(), Trust::Verified, "{name}");
        let mut posted = example.callback.into_iter().filter(|given| !given.get);
        let mut given = posted.next().unwrap();
        let (own, genuine) = (given.headers.clone(), given.body.clone());
        // Without the proof, with a wrong one, and with that of another callback.
        given.headers = BTreeMap::new();
        let in_body = provider.read(&given).is_ok();
        assert!(is_forged(&provider.read(&given)) || in_body, "{name}: no proof");
        for value in ["", "sha256=", "sha256=zz", "v1,AAAA", "AAAA", "Basic AAAA", "é"] {
            given.headers = own.keys().map(|header| (header.clone(), value.to_owned())).collect();
            given.headers.remove("content-type");
            assert!(is_forged(&provider.read(&given)) || in_body, "{name}: {value:?}");
        }
        given.headers = own;
        // Another body under the same signature. Basic authentication does not sign it, and Mailgun does neither.
        given.body = posted.next().unwrap().body;
        let signs_body = !["postmark", "mailgun"].contains(&&*name);
        assert_eq!(is_forged(&provider.read(&given)), signs_body, "{name}: another body");
        given.body = genuine;
        assert!(provider.read(&given).is_ok(), "{name}");
        for secret in provider.secrets.values_mut() {
            *secret = Secret::new(format!("whsec_{}", "A".repeat(32)));
        }
        for key in ["webhook_key", "webhook_keys"] {
            if let Some(setting) = provider.settings.get_mut(key) {
                *setting =
                    if setting.is_string() { json!("AAAA") } else { json!({"keys": [{"n": "AQAB", "e": "AQAB"}, 5]}) };
            }
        }
        assert!(is_forged(&provider.read(&given)), "{name}: another secret");
        // Without the secret the token in the URL is the proof, and the operator is told.
        provider.secrets.clear();
        provider.settings = json!({});
        let is_trusted = provider.trust() == Trust::TokenUntilSet && provider.read(&given).is_ok();
        assert!(is_trusted, "{name}: without a secret");
    }
}

#[test]
fn b5_a_stale_signature_is_refused() {
    let mut stale = 0;
    for (provider, example) in providers() {
        let given = example.callback.iter().find(|given| !given.get).unwrap();
        let is_dated = ["resend", "sendgrid", "mailgun"].contains(&&*provider.kind.name);
        let now: Timestamp = NOW.parse().unwrap();
        let day = std::time::Duration::from_secs(2 * 86_400);
        let (late, early) = (now.plus(day), Timestamp::from_micros(now.as_micros() - 172_800_000_000));
        for other in [late, early] {
            assert_eq!(is_forged(&provider.read_at(other, given)), is_dated, "{} at {other}", provider.kind.name);
        }
        stale += usize::from(is_dated);
    }
    assert_eq!(stale, 3);
}

#[test]
fn nothing_panics_on_a_callback_that_makes_no_sense() {
    let deep = "[".repeat(100_000);
    let bodies = [
        "",
        "x",
        "null",
        "[]",
        "{}",
        "[1, 2]",
        "5",
        "\"\0\"",
        "[null]",
        "{\"entry\": 5}",
        "%ff=%00&=",
        "{\"entry\": [{\"changes\": 1}]}",
        &deep,
    ];
    for (mut provider, _) in providers() {
        (provider.secrets, provider.settings) = (Secrets::new(), json!({}));
        for body in bodies {
            for get in [false, true] {
                let given = CallbackExample {
                    get,
                    query: "hub.challenge=%3Cscript%3E&status=delivered&key=%00".into(),
                    body: body.into(),
                    ..CallbackExample::default()
                };
                match provider.read(&given) {
                    Ok(CallbackAnswer::Receipts(read)) => {
                        let is_kept = |text: &Option<String>| !text.as_deref().unwrap_or_default().contains('\0');
                        let whole =
                            |one: &Reported| is_kept(&one.provider_ref) && is_kept(&one.code) && is_kept(&one.detail);
                        assert!(read.iter().all(whole), "{read:?}");
                    }
                    Ok(CallbackAnswer::Challenge(text)) => panic!("{text:?} must not be repeated"),
                    Err(_) => {}
                }
            }
        }
    }
}

/// A callback of MSG91 with as many reports as a body of 256 KB has room for would keep a thread busy for minutes.
#[test]
fn a_callback_with_too_many_events_is_refused_before_any_is_read() {
    let kind = driver::kind("msg91").unwrap();
    let provider = Provider { kind, settings: json!({}), secrets: Secrets::new() };
    let read = |events: usize| {
        let report = vec![json!(1); events];
        let given = CallbackExample {
            body: json!([{"requestId": "r".repeat(100_000), "report": report}]).to_string(),
            ..CallbackExample::default()
        };
        provider.read(&given)
    };
    let refused = CallbackRefusal::Malformed("the body has 1001 events; at most 1000 are allowed".into());
    assert_eq!(read(1001), Err(refused));
    assert!(matches!(read(131_000), Err(CallbackRefusal::Malformed(_))));
    assert_eq!(read(1000), Ok(CallbackAnswer::Receipts(vec![])));
}

/// A recipe whose section on callbacks is not right is refused with its line.
#[test]
fn a_section_that_cannot_work_is_refused_with_its_line() {
    let rule = "[[callback.rule]]\nwhen = \"event.a == 'b'\"\nmeans = 'delivered'\n";
    let whole = format!("[callback]\nhelp = 'here'\nkey = 'event.key'\n{rule}");
    assert!(small(&whole).is_ok_and(|kind| kind.callback.is_some()));
    for (text, wanted) in [
        (whole.replace("event.key", "evnt.key"), "line 12: callback.key: \"evnt\" does not exist here"),
        (whole.replace("key = 'event.key'\n", ""), "line 10: callback.key: is missing"),
        (whole.replace("'here'", "''"), "line 11: callback.help: is empty"),
        (whole.replace("'delivered'", "'arrived'"), "line 15: callback.rule[0].means: unknown variant `arrived`"),
        (whole.replace("event.a ==", "event.a ="), "line 14: callback.rule[0].when: "),
        (whole.replace(rule, ""), "line 10: callback.rule: is missing"),
        (
            format!("{whole}[callback.verify]\nkind = 'magic'\n"),
            "line 17: callback.verify.kind: unknown variant `magic`",
        ),
        (
            format!("{whole}[callback.verify]\nkind = 'bearer'\nsecret = 'secret.nobody'\n"),
            "line 18: callback.verify.secret: secret.nobody is not declared",
        ),
        (
            format!("{whole}[callback.verify]\nkind = 'hmac'\nsecret = \"'x'\"\nheaders = ['a b']\n"),
            "line 19: callback.verify.headers: \"a b\" is not the name of a header",
        ),
        (
            format!(
                "{whole}[callback.verify]\nkind = 'hmac'\nsecret = \"'x'\"\nheaders = ['a']\nsigned = ['header:b']\n"
            ),
            "line 20: callback.verify.signed: has no \"body\"",
        ),
        (
            format!("{whole}[callback.handshake]\ntoken = \"'x'\"\ngiven = 'event.x'\nchallenge = 'query.y'\n"),
            "line 18: callback.handshake.given: \"event\" does not exist here",
        ),
    ] {
        let problem = small(&text).err().unwrap_or_default();
        assert!(problem.starts_with(wanted), "{wanted}\n{problem}");
    }
}

/// The schemes that no recipe of the program uses, but that a recipe of an operator may.
#[test]
fn b5_an_operators_recipe_verifies_by_a_header_a_bearer_token_or_an_hmac_with_a_time() {
    let verify = |section: &str| {
        let text = format!(
            "secrets.token = {{ help = 'the token' }}\n[callback]\nhelp = 'here'\nkey = 'event.key'\n[callback.verify]\n{section}\n\
             [[callback.rule]]\nwhen = 'true'\nmeans = 'delivered'\n"
        );
        let kind = small(&text).unwrap_or_else(|problem| panic!("{problem}")).into();
        let secrets = Secrets::from([("token".to_owned(), Secret::new("hush"))]);
        Provider { kind, settings: json!({}), secrets }
    };
    let given = |headers: &[(&str, &str)]| CallbackExample {
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        body: "{}".into(),
        ..CallbackExample::default()
    };
    let by_header = verify("kind = 'header'\nheader = 'X-Token'\nsecret = 'secret.token'");
    assert!(by_header.read(&given(&[("x-token", "hush")])).is_ok());
    assert!(is_forged(&by_header.read(&given(&[("x-token", "hus")]))));
    let by_bearer = verify("kind = 'bearer'\nsecret = 'secret.token'");
    assert!(by_bearer.read(&given(&[("authorization", "Bearer hush")])).is_ok());
    assert!(is_forged(&by_bearer.read(&given(&[("authorization", "Basic hush")]))));
    // printf 'v0:1772357400:{}' | openssl dgst -sha1 -hmac hush
    let by_time = verify(
        "kind = 'hmac'\nsecret = 'secret.token'\nheaders = ['X-Sig']\nalgorithm = 'sha1'\nprefix = 'v0='\n\
         signed = ['v0:', 'header:X-Time', ':', 'body']\ntimestamp = 'X-Time'\nwindow_s = 60",
    );
    let signed = given(&[("x-time", "1772357400"), ("x-sig", "v0=b5c23e14edb79ef2796f4883e62f63006341181a")]);
    assert_eq!(by_time.read(&signed).map(drop), Ok(()));
    let late = "2026-03-01T09:31:01Z".parse().unwrap();
    assert!(is_forged(&by_time.read_at(late, &signed)));
    assert!(driver::kind("webhook").unwrap().callback.is_none());
}
