//! Vectors that the clients in all languages share: `clients/keys.json`, `clients/webhooks.json` and
//! `clients/notifications.json` are read by the tests of each.

use std::time::{Duration, UNIX_EPOCH};

use postcommit::{Notification, key, webhook};
use serde_json::{Value, json};

fn read(file: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/");
    serde_json::from_str(&std::fs::read_to_string(format!("{folder}{file}")).unwrap()).unwrap()
}

/// The entry with the key that this crate makes.
fn with_key(entry: &Value) -> Value {
    let text = |name: &str| entry[name].as_str().unwrap_or_else(|| panic!("{name} in {entry}"));
    let mut made = entry.clone();
    if let Some(parts) = entry["parts"].as_array() {
        made["key"] = json!(of_mixed(text("kind"), parts));
    } else {
        let payload: Value = serde_json::from_str(text("payload")).unwrap();
        made["canonical"] = json!(key::canonical(&payload));
        made["key"] = json!(key::from_content(text("rule"), text("provider"), &payload, text("run")));
    }
    made
}

/// Integers are given as integers. Rust wants one type in a slice, so each part is added to the key so far.
fn of_mixed(kind: &str, parts: &[Value]) -> String {
    let one = |part: &Value| match (part.as_i64(), part.as_str()) {
        (Some(number), _) => key::of("", (number,)),
        (None, text) => key::of("", (text.unwrap(),)),
    };
    parts.iter().map(one).fold(key::of(kind, &[""; 0]), |key, part| key + &part)
}

#[test]
fn d3_this_crate_makes_the_keys_of_the_shared_vectors() {
    let vectors = read("keys.json");
    for kind in ["of", "from_content"] {
        let entries = vectors[kind].as_array().unwrap();
        assert!(entries.len() > 5, "{kind}");
        for entry in entries {
            let made = with_key(entry);
            assert_eq!(&made, entry);
        }
    }
}

#[test]
fn this_crate_verifies_the_webhooks_of_the_shared_vectors() {
    let vectors = read("webhooks.json");
    let cases = vectors["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let text = |name: &str| case[name].as_str().unwrap_or_else(|| panic!("{name} in {case}"));
        let now = UNIX_EPOCH + Duration::from_secs(case["now"].as_u64().unwrap());
        let header = |name| case["headers"][name].as_str();
        let verified = webhook::verify(text("secret"), header, text("body").as_bytes(), now);
        match (&verified, case["refused"].as_str()) {
            (Ok(id), None) => assert_eq!(Some(*id), header("webhook-id"), "{case}"),
            (Err(refusal), Some(expected)) => {
                assert!(refusal.to_string().starts_with(expected), "{refusal}: {case}");
                // A secret that cannot be one is the receiver's own mistake.
                assert_eq!(refusal.status(), if expected.starts_with("secret") { 500 } else { 400 }, "{case}");
            }
            _ => panic!("{verified:?}: {case}"),
        }
    }
}

/// A value of `notifications.json`, in which long ones are abbreviated.
fn meant(value: &Value) -> Value {
    let pair = |name: &str| Some((value.get(name)?.get(0)?, usize::try_from(value[name][1].as_u64()?).ok()?));
    match value {
        Value::Array(items) => items.iter().map(meant).collect(),
        Value::Object(members) => match (pair("repeat"), pair("times"), value["nested"].as_u64()) {
            (Some((text, n)), ..) => json!(text.as_str().unwrap().repeat(n)),
            (_, Some((one, n)), _) => json!(vec![one; n]),
            (.., Some(levels)) => (1..levels).fold(json!([]), |inner, _| json!([inner])),
            _ => members.iter().map(|(name, member)| (name.clone(), meant(member))).collect(),
        },
        _ => value.clone(),
    }
}

#[test]
fn this_crate_judges_the_notifications_of_the_shared_vectors() {
    let vectors = read("notifications.json");
    let known = |case: &&Value| case["rust"] != json!(false);
    let cases: Vec<_> = vectors["cases"].as_array().unwrap().iter().filter(known).collect();
    assert!(cases.len() > 50);
    for case in cases {
        // Absent and null mean the same to the server, which leaves null out.
        let mut note = meant(&case["note"]);
        note.as_object_mut().unwrap().retain(|_, member| !member.is_null());
        match (serde_json::from_value::<Notification>(note), case["says"].as_str()) {
            (Ok(_), None) => {}
            (Err(refusal), Some(says)) => assert!(refusal.to_string().contains(says), "{refusal}: {case}"),
            (judged, _) => panic!("{judged:?}: {case}"),
        }
    }
}
