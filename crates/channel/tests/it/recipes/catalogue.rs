//! `docs/catalogue.md` is what the recipes say.

use std::path::Path;

use postcommit_channel::driver::{self, Kind};
use postcommit_channel::model::Guarantee;

use super::kinds;

/// The catalogue of the documentation, from the recipes.
fn catalogue() -> String {
    let mut page = String::from(
        "# Services that Postcommit can send through\n\n\
         Each is a [recipe](recipes.md); `postcommit providers drivers NAME` shows the same. The drivers `capture`, `in_app`, `mqtt`, `nats`, `rabbitmq`, `redis_streams`, `smtp`, `web_push` and `webhook` are described in [providers.md](providers.md). \
         Apple's own push service (APNs) is not among them, because it needs HTTP/2; `fcm` reaches iPhones, too. \
         Nothing here was tried against a live account; the last line of each says how sure its facts are. They were gathered in 2026. \
         This page is written by a test (`UPDATE_GOLDEN=1`).\n\n\
         | driver | service | channel | after an unclear attempt | receipts |\n|---|---|---|---|---|\n",
    );
    let kinds = kinds();
    for kind in &kinds {
        let recipe = kind.recipe.as_ref().unwrap();
        let anchor = format!("[`{0}`](#{0})", kind.name);
        let (title, channel, unclear) = (&recipe.title, &kind.channel, meaning(kind.guarantee));
        let receipts = if kind.callback.is_some() { "yes" } else { "" };
        page += &format!("| {anchor} | {title} | `{channel}` | {unclear} | {receipts} |\n");
    }
    for kind in &kinds {
        let recipe = kind.recipe.as_ref().unwrap();
        page += &format!("\n## {}\n\n{}, channel `{}`. ", kind.name, recipe.title, kind.channel);
        page += &format!("Guarantee `{}`, because {}.", kind.guarantee.name(), recipe.because);
        if let Some(rate) = recipe.rate_per_s {
            page += &format!(" A new provider sends at most {rate} a second.");
        }
        if let Some(interval) = recipe.recipient_interval {
            page += &format!(" One recipient gets a message every {} s at most.", interval.as_secs_f64());
        }
        if kind.guarantee == Guarantee::Idempotent {
            page += &format!(" Keys are remembered for {} s.", kind.key_window.default_s);
        }
        page += &format!(" Attempts: {}.", policy(kind));
        page += &format!("\n\n| what | is | |\n|---|---|---|\n| address | {} | |\n", recipe.address);
        let groups = [("setting", &recipe.settings), ("secret", &recipe.secrets), ("data", &recipe.data)];
        for (group, fields) in groups {
            for (name, field) in fields {
                let default = match &field.default {
                    Some(default) => format!("default `{default}`"),
                    None if field.is_required() => "required".into(),
                    None => String::new(),
                };
                page += &format!("| {group} `{name}` | {} ({}) | {default} |\n", field.help, field.r#type.name());
            }
        }
        if !recipe.limits().is_empty() {
            page += &format!("\nLimits: {}.\n", recipe.limits().join("; "));
        }
        let reasons: Vec<&str> = recipe.suppressions().collect();
        if !reasons.is_empty() {
            let link = "[suppresses](providers.md#dead-addresses)";
            page += &format!("\nAn answer {link} the address: {}.\n", reasons.join("; "));
        }
        if let Some(callback) = &kind.callback {
            page += &format!("\nCallbacks: {} ([receipts](providers.md#receipts)).\n", callback.help());
        }
        page += &format!("\nFacts: {}.\n", recipe.facts);
    }
    page += &compiled();
    page
}

/// The retry policy of a driver's providers, as it is written.
fn policy(kind: &Kind) -> String {
    let policy = serde_json::to_value(&kind.policy).unwrap();
    format!("`{}`, at most {}", policy["name"].as_str().unwrap(), policy["max_attempts"])
}

/// The drivers that are compiled in, in a table.
fn compiled() -> String {
    let mut page = String::from(
        "\n## Compiled drivers\n\n\
         They need more than one request: [providers.md](providers.md) describes each, and why it has its guarantee.\n\n\
         | driver | channel | after an unclear attempt | keys | attempts |\n|---|---|---|---|---|\n",
    );
    let kinds = driver::names().into_iter().map(|name| driver::kind(&name).unwrap());
    for kind in kinds.filter(|kind| kind.recipe.is_none()) {
        let keys = match kind.guarantee {
            Guarantee::Idempotent => format!("remembered for {} s", kind.key_window.default_s),
            _ => String::new(),
        };
        let (name, channel, unclear) = (&kind.name, &kind.channel, meaning(kind.guarantee));
        page += &format!("| `{name}` | `{channel}` | {unclear} | {keys} | {} |\n", policy(&kind));
    }
    page
}

fn meaning(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::Idempotent => "repeated under the same key",
        Guarantee::AtLeastOnce => "repeated",
        Guarantee::AtMostOnce => "left to a person",
    }
}

#[test]
fn the_catalogue_is_what_the_recipes_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/catalogue.md");
    let page = catalogue();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/catalogue.md is not what the recipes say; UPDATE_GOLDEN=1 writes it anew"
    );
}
