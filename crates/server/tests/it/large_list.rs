//! A large list, and a server that is killed repeatedly while it expands it. Every member gets one delivery, and no
//! message is sent twice; a notification of a higher priority does not wait for the list.
//!
//! The provider's guarantee is `at_most_once`, the only one under which a lost server's messages are never sent again.
//! What was in flight when a server was killed is parked instead.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Value;

use crate::installation::{GUARD, Guarantee, Hooks, Installation, Kind, full_form, wait_until, within};

/// Members that are users; the others are addresses.
const USERS: usize = 100;
/// The address of the notification that overtakes the list.
const URGENT: &str = "duty@example.com";

#[test]
fn killed_list_on_postgresql_is_sent_to_each_member_once_and_overtaken() {
    killed_list(Kind::Postgres);
}

#[test]
fn killed_list_on_sqlite_is_sent_to_each_member_once_and_overtaken() {
    killed_list(Kind::Sqlite);
}

fn killed_list(kind: Kind) {
    let (members, kills) = if full_form() { (100_000, 10) } else { (8_000, 5) };
    let list = List::create(kind, members);
    list.enqueue("newsletter", "list:crowd", "5");
    for kill in 0..kills {
        let server = list.installation.serve();
        list.wait_for_progress(members * (2 * kill + 1) / (2 * kills));
        if kill == kills / 2 {
            list.overtake();
        }
        server.kill9();
    }
    let _healthy = list.installation.serve();
    list.wait_until_quiet();
    let (sent, parked) = list.check();
    println!("{kind:?}: {members} members, {kills} kills: {sent} sent, {parked} parked");
}

/// How far the list is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Members whose deliveries are written.
    expanded: usize,
    /// Deliveries that have an outcome.
    finished: usize,
}

/// An installation with a list and a provider that keeps a journal.
struct List {
    installation: Installation,
    members: usize,
}

impl List {
    fn create(kind: Kind, members: usize) -> Self {
        let installation = Installation::new(kind, Hooks::of(Guarantee::AtMostOnce));
        let journal = format!("journal={}", installation.path("journal").display());
        let create = ["providers", "create", "mail", "--driver", "capture", "--channel", "email", "--set", &journal];
        let limits = ["--guarantee", "at_most_once", "--timeout-ms", "1000", "--concurrency", "32"];
        installation.run(&[&create[..], &limits[..]].concat());
        let (mut users, mut crowd) = ("id,email\n".to_owned(), "kind,member\n".to_owned());
        for i in 0..members {
            if i < USERS {
                writeln!(users, "user{i},{}", address(i)).unwrap();
                writeln!(crowd, "user,user{i}").unwrap();
            } else {
                writeln!(crowd, "email,{}", address(i)).unwrap();
            }
        }
        std::fs::write(installation.path("users.csv"), users).unwrap();
        std::fs::write(installation.path("crowd.csv"), crowd).unwrap();
        installation.run(&["users", "import", "users.csv"]);
        installation.run(&["lists", "create", "crowd"]);
        installation.run(&["lists", "import", "crowd", "crowd.csv"]);
        Self { installation, members }
    }

    fn enqueue(&self, event_type: &str, to: &str, priority: &str) {
        let content = ["--title", "News", "--channel", "email"];
        self.installation.run(&[&["enqueue", event_type, "--to", to, "--priority", priority], &content[..]].concat());
    }

    fn progress(&self) -> Progress {
        let deliveries = |table: &str, what: &str| {
            let of = "notification_id = (SELECT id FROM postcommit.notification WHERE event_type = 'newsletter')";
            self.installation.count(&format!("SELECT coalesce({what}, 0) FROM postcommit.{table} WHERE {of} AND n > 0"))
        };
        // The numbers of deliveries have no gaps, and finding the highest is cheap.
        let expanded = deliveries("delivery_queue", "max(n)").max(deliveries("delivery_ledger", "max(n)"));
        Progress { expanded, finished: deliveries("delivery_ledger", "count(*)") }
    }

    /// Waits until so many members are expanded, and in any case until the server has done something.
    fn wait_for_progress(&self, wanted: usize) {
        let before = self.progress();
        wait_until("progress of the list", || {
            let now = self.progress();
            let is_expanded = now.expanded == self.members;
            (now.expanded >= wanted && now.expanded > before.expanded)
                || (is_expanded && now.finished > before.finished)
        });
    }

    /// Waits until nothing is left to do, as long as deliveries finish. How fast they do depends on the disk.
    fn wait_until_quiet(&self) {
        while !self.installation.is_quiet() {
            let before = self.progress().finished;
            let moves = || self.installation.is_quiet() || self.progress().finished > before;
            assert!(within(GUARD, moves), "nothing finished for {GUARD:?}: {:?}", self.progress());
        }
    }

    /// Enqueues a notification of the highest priority, which is sent while the server works on the list.
    fn overtake(&self) {
        self.enqueue("alarm", &format!("email:{URGENT}"), "9");
        let sent = format!("SELECT count(*) FROM postcommit.delivery_ledger WHERE target = '{URGENT}'");
        wait_until("the urgent notification", || self.installation.count(&sent) == 1);
    }

    /// Compares the ledger with the journal. Returns how many deliveries were sent and parked.
    fn check(&self) -> (usize, usize) {
        let journal = std::fs::read_to_string(self.installation.path("journal")).unwrap();
        let sends: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let text = |send: &Value, field: &str| send[field].as_str().unwrap().to_owned();
        let addresses: Vec<String> = sends.iter().map(|send| text(send, "to")).collect();
        let journal: HashSet<&String> = addresses.iter().collect();
        assert_eq!(journal.len(), addresses.len(), "no address is sent to twice");
        let keys: HashSet<String> = sends.iter().map(|send| text(send, "key")).collect();
        assert_eq!(keys.len(), addresses.len(), "no delivery is sent twice");

        let rows = self.installation.rows("SELECT target, state, reason FROM postcommit.delivery_ledger");
        let ledger: HashMap<&str, (&str, &str)> =
            rows.iter().map(|row| (row[0].as_str(), (row[1].as_str(), row[2].as_str()))).collect();
        assert_eq!((rows.len(), ledger.len()), (self.members + 1, self.members + 1), "one delivery for each address");
        assert!((0..self.members).all(|i| ledger.contains_key(address(i).as_str())), "each member has a delivery");
        let sent = ledger.iter().filter(|(_, (state, _))| *state == "sent");
        let missing: Vec<_> = sent.clone().filter(|(to, _)| !journal.contains(&(**to).to_owned())).collect();
        assert!(missing.is_empty(), "sent by the ledger, not by the journal: {missing:?}");
        let sent = sent.count();
        let parked = ledger.values().filter(|outcome| **outcome == ("parked", "outcome_unknown")).count();
        assert_eq!(sent + parked, ledger.len(), "the others were in flight when a server was killed");

        let urgent = addresses.iter().position(|to| to == URGENT).expect("the urgent notification is sent");
        let after = &addresses[urgent + 1..];
        println!("{} messages of the list are sent after the urgent notification", after.len());
        assert!(!after.is_empty(), "the urgent notification does not wait for the list");
        (sent, parked)
    }
}

fn address(i: usize) -> String {
    format!("member{i}@example.com")
}
