//! Key vectors that the clients in all languages share: `clients/keys.json` is read by the tests of each.

use postcommit::key;
use serde_json::{Value, json};

/// The entry with the key that this crate makes.
fn with_key(entry: &Value) -> Value {
    let text = |name: &str| entry[name].as_str().unwrap_or_else(|| panic!("{name} in {entry}"));
    let mut made = entry.clone();
    if let Some(parts) = entry["parts"].as_array() {
        let parts: Vec<&str> = parts.iter().map(|part| part.as_str().unwrap()).collect();
        made["key"] = json!(key::of(text("kind"), &parts));
    } else {
        let payload: Value = serde_json::from_str(text("payload")).unwrap();
        made["canonical"] = json!(key::canonical(&payload));
        made["key"] = json!(key::from_content(text("rule"), text("provider"), &payload, text("run")));
    }
    made
}

#[test]
fn d3_this_crate_makes_the_keys_of_the_shared_vectors() {
    let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/keys.json")).unwrap();
    let vectors: Value = serde_json::from_str(&file).unwrap();
    for kind in ["of", "from_content"] {
        let entries = vectors[kind].as_array().unwrap();
        assert!(entries.len() > 5, "{kind}");
        for entry in entries {
            let made = with_key(entry);
            assert_eq!(&made, entry);
        }
    }
}
