//! Checks the PostgreSQL server: whether commits are durable, and whether vacuum can remove deleted rows.

use std::time::Duration;

use postcommit_engine::store::{Durability, HeldSnapshot, Holder, Store};

use super::{Finding, finding};
use crate::output::Failure;

/// A snapshot that is held for longer is reported. A backup may hold a snapshot for longer.
const HELD: Duration = Duration::from_secs(5 * 60);
/// The time after which a held snapshot is a problem. No backup should take longer.
const HELD_TOO_LONG: Duration = Duration::from_secs(24 * 3600);
/// The number of transactions after which a held snapshot is reported, if its age is unknown.
const HELD_TRANSACTIONS: i64 = 100_000;

/// Reports server settings with which a crash can lose data.
pub async fn durability(store: &Store) -> Result<Vec<Finding>, Failure> {
    Ok(store.durability().await?.map(|durability| told(&durability)).unwrap_or_default())
}

/// Reports snapshots that prevent vacuum from removing rows.
pub async fn held_snapshots(store: &Store) -> Result<Vec<Finding>, Failure> {
    Ok(store.held_snapshots(HELD, HELD_TRANSACTIONS).await?.iter().map(held).collect())
}

pub fn told(durability: &Durability) -> Vec<Finding> {
    let mut findings = vec![];
    if !durability.fsync {
        let cost = "fsync is off on the server: if its machine crashes, the whole cluster may be lost, with all \
            notifications and their outcomes";
        findings.push(finding("durability", "warning", format!("{cost}; set fsync = on")));
    }
    if !durability.full_page_writes {
        let cost = "full_page_writes is off on the server: a crash in the middle of a write may destroy a page, with \
            the rows of Postcommit on it";
        findings.push(finding("durability", "warning", format!("{cost}; set full_page_writes = on")));
    }
    for weak in &durability.weak {
        let cost = match weak.value.as_str() {
            "off" => {
                "if the PostgreSQL server crashes, the notifications that an application enqueued by SQL shortly \
                 before may be lost, together with that application's own data"
            }
            _ => {
                "if a standby takes over, the notifications that an application enqueued by SQL shortly before may be \
                 missing there"
            }
        };
        let ours = "Postcommit's own commits always wait for the disk. If this is not intended, RESET \
            synchronous_commit where it is set: by ALTER SYSTEM, ALTER DATABASE or ALTER ROLE";
        findings.push(finding(
            "durability",
            "warning",
            format!("synchronous_commit is {} for {}: {cost}; {ours}", weak.value, named(&weak.place)),
        ));
    }
    if findings.is_empty() {
        findings.push(finding("durability", "ok", "commits wait for the disk"));
    }
    findings
}

/// The place of a setting, in words for a sentence.
fn named(place: &str) -> String {
    match place {
        "server" => "the whole server".into(),
        "every role" => place.into(),
        _ => format!("the {place}"),
    }
}

fn held(snapshot: &HeldSnapshot) -> Finding {
    let result = if snapshot.age.is_some_and(|age| age > HELD_TOO_LONG) { "problem" } else { "warning" };
    let since = match snapshot.age {
        Some(age) => format!("for {}", spelt(age)),
        None => format!("for {} transactions", snapshot.transactions),
    };
    let cost = "vacuum cannot remove rows that were deleted since then, so the queue and its indexes grow until the \
        snapshot ends";
    finding(
        "snapshot",
        result,
        format!("{} has held a snapshot {since}: {cost}; {}", holder(snapshot), remedy(snapshot)),
    )
}

fn holder(snapshot: &HeldSnapshot) -> String {
    let pid = snapshot.pid.map(|pid| format!("pid {pid}"));
    let user = snapshot.user.as_ref().map(|user| format!("user {user}"));
    let with = |facts: Vec<Option<String>>| facts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let application = (!snapshot.name.is_empty()).then(|| format!("application {}", snapshot.name));
    match snapshot.holder {
        Holder::Session => format!("a transaction ({})", with(vec![pid, application, user, snapshot.state.clone()])),
        Holder::Standby => format!("a standby ({})", with(vec![pid, application, user])),
        Holder::Prepared => format!("the prepared transaction {:?} ({})", snapshot.name, with(vec![user])),
        Holder::Slot => {
            format!("the replication slot {:?} ({})", snapshot.name, with(vec![pid, snapshot.state.clone()]))
        }
    }
}

fn remedy(snapshot: &HeldSnapshot) -> String {
    let name = snapshot.name.replace('\'', "''");
    match (snapshot.holder, snapshot.pid) {
        (Holder::Session, Some(pid)) if snapshot.age.is_none() => {
            format!("GRANT pg_read_all_stats to this login to see its age; SELECT pg_terminate_backend({pid}) ends it")
        }
        (Holder::Session, Some(pid)) => {
            format!("end the transaction in its application, or SELECT pg_terminate_backend({pid})")
        }
        (Holder::Session | Holder::Standby, _) => {
            "end the long query on the standby, or set hot_standby_feedback = off there".into()
        }
        (Holder::Prepared, _) => format!("COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'"),
        (Holder::Slot, _) => {
            format!("let its consumer catch up, or SELECT pg_drop_replication_slot('{name}') if it is no longer used")
        }
    }
}

fn spelt(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    match minutes {
        0..120 => format!("{minutes} minutes"),
        120..2880 => format!("{} hours", minutes / 60),
        _ => format!("{} days", minutes / 1440),
    }
}

#[cfg(test)]
mod tests {
    use postcommit_engine::store::WeakCommit;

    use super::*;

    fn session() -> HeldSnapshot {
        HeldSnapshot {
            holder: Holder::Session,
            pid: Some(4711),
            name: "psql".into(),
            user: Some("app".into()),
            state: Some("idle in transaction".into()),
            age: Some(Duration::from_secs(3 * 3600)),
            transactions: 12,
        }
    }

    #[test]
    fn who_holds_a_snapshot_is_named_with_the_way_to_end_it() {
        let found = held(&session());
        assert_eq!(found.result, "warning");
        assert!(
            found
                .detail
                .starts_with("a transaction (pid 4711, application psql, user app, idle in transaction) has held a snapshot for 3 hours: ")
        );
        assert!(found.detail.ends_with("SELECT pg_terminate_backend(4711)"), "{}", found.detail);
        assert_eq!(held(&HeldSnapshot { age: Some(HELD_TOO_LONG * 2), ..session() }).result, "problem");
    }

    #[test]
    fn what_a_login_may_not_see_is_left_out() {
        let found = held(&HeldSnapshot { age: None, state: None, transactions: 200_000, ..session() });
        assert!(found.detail.starts_with(
            "a transaction (pid 4711, application psql, user app) has held a snapshot for 200000 transactions: "
        ));
        assert!(found.detail.contains("pg_read_all_stats") && found.result == "warning", "{}", found.detail);
    }

    #[test]
    fn prepared_transactions_and_slots_are_told_by_name() {
        let prepared =
            HeldSnapshot { holder: Holder::Prepared, pid: None, name: "it's".into(), state: None, ..session() };
        assert!(held(&prepared).detail.starts_with("the prepared transaction \"it's\" (user app) has held"));
        assert!(held(&prepared).detail.ends_with("COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'"));
        let slot = HeldSnapshot {
            holder: Holder::Slot,
            pid: None,
            name: "cdc".into(),
            user: None,
            state: Some("not in use".into()),
            age: None,
            transactions: 5,
        };
        assert!(
            held(&slot)
                .detail
                .starts_with("the replication slot \"cdc\" (not in use) has held a snapshot for 5 transactions")
        );
    }

    #[test]
    fn a_commit_that_does_not_wait_is_told_with_what_it_means() {
        let weak = |value: &str| WeakCommit { place: "database app".into(), value: value.into() };
        let durable = Durability { fsync: true, full_page_writes: true, weak: vec![] };
        assert_eq!(told(&durable)[0].result, "ok");
        let found = told(&Durability { weak: vec![weak("off"), weak("local")], ..durable });
        assert!(found.iter().all(|one| one.result == "warning"));
        assert!(
            found[0]
                .detail
                .starts_with("synchronous_commit is off for the database app: if the PostgreSQL server crashes"),
            "{}",
            found[0].detail
        );
        assert!(found[1].detail.contains("if a standby takes over"), "{}", found[1].detail);
        let found = told(&Durability { fsync: false, full_page_writes: false, weak: vec![] });
        assert_eq!(found.iter().map(|one| one.result).collect::<Vec<_>>(), ["warning"; 2]);
    }
}
