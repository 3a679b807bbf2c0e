//! What apalis is, and what it does and does not do, next to Postcommit.

use serde_json::{Value, json};

pub fn info() -> Value {
    json!({
        "name": "apalis-postgres",
        "version": version("apalis-postgres"),
        "settings": format!(
            "apalis {}; {} workers in a process (latency: 1); batch_size 2000 (latency: 10), acknowledged in one statement; \
             lock_tasks off; pubsub (LISTEN/NOTIFY); enqueued by queries::push_tasks",
            version("apalis"),
            crate::drain::WORKERS,
        ),
        "does_not": [
            "an audit row for every attempt: it keeps a count and the last result",
            "a content check of the idempotency key: a repeat fails, whatever it contains",
            "fencing by lease: a late result is only refused when a worker of another name holds the job",
            "a fixed ledger: a finished job stays in the queue's table, as a row that may be changed",
            "recipients, channels, templates, providers"
        ],
        "does": [
            "runs any Rust function, with tower middleware",
            "workflows: steps and graphs of dependent tasks (apalis-workflow)",
            "cron (apalis-cron)",
            "a dashboard (apalis-board)",
            "other stores: Redis, MySQL, NATS, RabbitMQ"
        ],
    })
}

/// From the lock file, which is what was built.
fn version(package: &str) -> &'static str {
    let entry = format!("name = \"{package}\"\nversion = \"");
    let rest = include_str!("../Cargo.lock").split(&entry).nth(1).unwrap_or("unknown\"");
    rest.split('"').next().unwrap_or_default()
}
