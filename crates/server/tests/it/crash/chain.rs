//! The sweep with two providers: the first one refuses our account, is down, cuts connections, or is paused while
//! deliveries wait for it. The second one works. Both are HTTP services or both are mail servers. However a worker
//! crashes on the way, no delivery may have reached both, and under at_most_once none may have arrived twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use postcommit_engine::crash::POINTS;
use postcommit_testkit::{Child, HttpServer, Reply, SmtpAct, SmtpServer, SmtpTls};

use super::case::Action;
use crate::installation::{GUARD, Guarantee, Hooks, Installation, Kind, wait_until, wait_until_frozen, within};
use crate::records::{ledger, stale_settles};

/// Notifications of one case. Every second one has two recipients and is expanded.
const NOTES: usize = 6;
/// For how many requests a service is down or cuts connections, before it works. Longer than the run that trips its
/// breaker.
const TROUBLED: usize = 7;

/// What the first provider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It refuses our account, until an operator resumes it.
    Unwelcome,
    /// It certainly sends nothing for a while.
    Down,
    /// It takes some messages and closes the connection without an answer.
    Cut,
    /// It is paused, and deliveries wait for it before it gets a next provider.
    Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Http,
    Mail,
}

#[derive(Clone, Copy, Debug)]
pub struct ChainCase {
    pub point: &'static str,
    pub action: Action,
    pub trouble: Trouble,
    pub medium: Medium,
    pub kind: Kind,
    pub guarantee: Guarantee,
}

impl fmt::Display for ChainCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, action, trouble, medium, kind, guarantee } = self;
        write!(f, "chain {point}:1:{} {trouble:?} {medium:?} on {kind:?}, {guarantee:?}", action.name())
    }
}

/// The result of a case.
#[derive(Debug, Default)]
pub struct ChainRan {
    pub fired: bool,
    pub by_second: usize,
    pub violations: Vec<String>,
}

/// All cases of a medium: those of a move where deliveries wait, all others with each trouble.
pub fn full(kind: Kind, medium: Medium) -> Vec<ChainCase> {
    let mut cases = vec![];
    for &point in POINTS.iter().filter(|point| !point.starts_with("enqueue.")) {
        for &trouble in troubles(point) {
            for action in Action::ALL {
                let case = |guarantee| ChainCase { point, action, trouble, medium, kind, guarantee };
                cases.extend(Guarantee::ALL.map(case).into_iter().filter(ChainCase::is_on_path));
            }
        }
    }
    cases
}

/// One case for each point after a send, and for each point of a move, mostly under at_most_once.
pub fn short(kind: Kind, medium: Medium) -> Vec<ChainCase> {
    let of = |point, action, trouble, guarantee| ChainCase { point, action, trouble, medium, kind, guarantee };
    use {Action as A, Guarantee as G, Trouble as T};
    let cases = match medium {
        Medium::Http => vec![
            of("intent.after_commit", A::Kill, T::Unwelcome, G::AtMostOnce),
            of("send.answered", A::Stop, T::Unwelcome, G::AtMostOnce),
            of("send.answered", A::Kill, T::Cut, G::AtMostOnce),
            of("settle.before", A::Kill, T::Down, G::AtMostOnce),
            of("settle.before", A::Stop, T::Down, G::Idempotent),
            of("settle.in_tx", A::Kill, T::Unwelcome, G::AtLeastOnce),
            of("settle.after_commit", A::Error, T::Unwelcome, G::Idempotent),
            of("move.before", A::Stop, T::Waiting, G::AtMostOnce),
            of("move.in_tx", A::Kill, T::Waiting, G::AtMostOnce),
            of("move.after_commit", A::Kill, T::Waiting, G::AtMostOnce),
        ],
        Medium::Mail => vec![
            of("send.answered", A::Kill, T::Cut, G::AtMostOnce),
            of("send.answered", A::Kill, T::Down, G::AtLeastOnce),
            of("settle.before", A::Stop, T::Unwelcome, G::AtMostOnce),
            of("move.after_commit", A::Kill, T::Waiting, G::AtMostOnce),
        ],
    };
    cases.into_iter().filter(ChainCase::is_on_path).collect()
}

fn troubles(point: &str) -> &'static [Trouble] {
    match point.split('.').next() {
        Some("move") => &[Trouble::Waiting],
        Some("claim" | "expand") => &[Trouble::Unwelcome],
        _ => &[Trouble::Unwelcome, Trouble::Down, Trouble::Cut],
    }
}

/// A service that records what may have arrived.
enum Service {
    Http { server: HttpServer, taken: Arc<Mutex<Vec<Taken>>>, is_healed: Arc<AtomicBool> },
    Mail { server: SmtpServer, is_healed: Arc<AtomicBool> },
}

/// A message that may have arrived, by its key, and whether the service said so.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: String,
    pub is_accepted: bool,
}

impl Service {
    fn start(medium: Medium, trouble: Option<Trouble>) -> Self {
        let is_healed = Arc::<AtomicBool>::default();
        let (healed, count) = (is_healed.clone(), AtomicUsize::new(0));
        // Whether this message meets the trouble.
        let meets = move || {
            let n = count.fetch_add(1, Ordering::SeqCst);
            let is_over = healed.load(Ordering::SeqCst) || (trouble != Some(Trouble::Unwelcome) && n >= TROUBLED);
            trouble.filter(|trouble| *trouble != Trouble::Waiting && !is_over)
        };
        match medium {
            Medium::Http => {
                let taken = Arc::<Mutex<Vec<Taken>>>::default();
                let journal = taken.clone();
                let server = HttpServer::start(move |request| {
                    let (reply, is_accepted) = match meets() {
                        None => (Reply::ok(), Some(true)),
                        Some(Trouble::Cut) => (Reply::Close, Some(false)),
                        Some(Trouble::Down) => (Reply::status(503), None),
                        Some(_) => (Reply::status(401), None),
                    };
                    let id = request.header("webhook-id").unwrap_or_default().to_owned();
                    journal.lock().unwrap().extend(is_accepted.map(|is_accepted| Taken { id, is_accepted }));
                    reply
                });
                Self::Http { server, taken, is_healed }
            }
            Medium::Mail => {
                let server = SmtpServer::start(SmtpTls::None, &[], move |heard| match heard.verb().as_str() {
                    "MAIL" if matches!(trouble, Some(Trouble::Down | Trouble::Unwelcome)) => match meets() {
                        Some(Trouble::Down) => SmtpAct::Say("451 4.3.0 out of order".into()),
                        Some(_) => SmtpAct::Say("530 5.7.0 sign in first".into()),
                        None => SmtpAct::Usual,
                    },
                    "." if trouble == Some(Trouble::Cut) && meets().is_some() => SmtpAct::Close,
                    _ => SmtpAct::Usual,
                });
                Self::Mail { server, is_healed }
            }
        }
    }

    fn heal(&self) {
        let (Self::Http { is_healed, .. } | Self::Mail { is_healed, .. }) = self;
        is_healed.store(true, Ordering::SeqCst);
    }

    /// The options of a provider that sends there.
    fn options(&self) -> Vec<String> {
        let words = match self {
            Self::Http { server, .. } => {
                vec!["--driver".into(), "webhook".into(), "--set".into(), format!("url={}", server.url("/in"))]
            }
            Self::Mail { server, .. } => {
                let settings = [
                    "host=127.0.0.1",
                    "tls=none",
                    "from=desk@hotel.example",
                    &format!("port={}", server.addr().port()),
                ]
                .map(str::to_owned);
                ["--driver".to_owned(), "smtp".to_owned()]
                    .into_iter()
                    .chain(settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]))
                    .collect()
            }
        };
        [words, vec!["--channel".into(), "email".into()]].concat()
    }

    fn taken(&self) -> Vec<Taken> {
        match self {
            Self::Http { taken, .. } => taken.lock().unwrap().clone(),
            Self::Mail { server, .. } => {
                let mut accepted: Vec<Vec<u8>> = server.mails().into_iter().map(|mail| mail.wire).collect();
                let taken = |wire: Vec<u8>| {
                    let found = accepted.iter().position(|mail| *mail == wire).map(|place| accepted.swap_remove(place));
                    Taken { id: message_id(&wire), is_accepted: found.is_some() }
                };
                server.contents().into_iter().map(taken).collect()
            }
        }
    }
}

/// The key of a delivery in the `Message-ID` of a mail.
fn message_id(wire: &[u8]) -> String {
    let text = String::from_utf8_lossy(wire);
    let id = text.lines().find_map(|line| line.strip_prefix("Message-ID: <")).unwrap_or_default();
    id.split('@').next().unwrap_or_default().to_owned()
}

impl ChainCase {
    /// Sends are announced under at_most_once only, and on PostgreSQL a single statement has no inside.
    fn is_on_path(&self) -> bool {
        let announced = self.guarantee == Guarantee::AtMostOnce || !self.point.starts_with("intent.");
        announced && (self.kind == Kind::Sqlite || !self.point.ends_with(".in_tx"))
    }

    pub fn run(&self) -> ChainRan {
        let installation = Installation::new(self.kind, Hooks::of(self.guarantee)).in_batches_of(3);
        let first = Service::start(self.medium, Some(self.trouble));
        let second = Service::start(self.medium, None);
        self.create(&installation, "second", &second, &["--is-default", "false"]);
        let next = if self.trouble == Trouble::Waiting { &[][..] } else { &["--failover", "second"] };
        self.create(&installation, "first", &first, &[&["--is-default", "true"], next].concat());
        let ids: Vec<String> = (1..=NOTES).map(|i| enqueue(&installation, i)).collect();
        if self.trouble == Trouble::Waiting {
            installation.run(&["providers", "pause", "first"]);
            installation.run(&["dispatch", "--once"]);
            installation.run(&["providers", "update", "first", "--failover", "second"]);
        }
        let doomed = installation.doomed(&["serve"], &format!("{}:1:{}", self.point, self.action.name()));
        let mut ran = ChainRan { fired: self.fires(&doomed, &installation), ..ChainRan::default() };
        if ran.fired {
            self.take_over(&doomed, &installation, &first, &mut ran);
        } else {
            ran.violations.push("it never crashed".into());
        }
        ran.by_second = second.taken().len();
        let wanted =
            ids.iter().zip(1..).flat_map(|(id, i)| (1..=targets(i)).map(move |n| format!("{id}_{n}"))).collect();
        // A refused account parks what was announced to it.
        let (of, parks) = ((&installation, self.guarantee), self.trouble == Trouble::Unwelcome);
        ran.violations.extend(violations(of, &wanted, (&first.taken(), &second.taken()), parks));
        ran
    }

    fn create(&self, installation: &Installation, name: &str, service: &Service, more: &[&str]) {
        let options = service.options();
        let words: Vec<&str> = options.iter().map(String::as_str).collect();
        let policy = r#"{"name":"fixed","interval_s":0.2,"max_attempts":100}"#;
        let limits = ["--guarantee", self.guarantee.name(), "--timeout-ms", "1000", "--policy", policy];
        let breaker = ["--breaker-cool-down-s", "1"];
        installation.run(&[&["providers", "create", name], &words[..], &limits, &breaker, more].concat());
    }

    /// Waits until the crash has happened, or everything has ended without it.
    fn fires(&self, doomed: &Child, installation: &Installation) -> bool {
        let has_fired = || doomed.output().iter().any(|line| line.starts_with("crash point"));
        wait_until("the crash, or the end of the work", || has_fired() || installation.is_quiet());
        if !has_fired() {
            doomed.term();
            doomed.wait_for_line_or_exit("crash point");
        }
        has_fired()
    }

    /// Another worker finishes the work. An operator mends the first provider and resumes it.
    fn take_over(&self, doomed: &Child, installation: &Installation, first: &Service, ran: &mut ChainRan) {
        let mut is_held = false;
        match self.action {
            Action::Kill => drop(doomed.wait()),
            Action::Stop => {
                wait_until_frozen(doomed);
                is_held = installation.file_is_held();
                if is_held {
                    wait_until("the leases to run out", || installation.leases_are_over());
                    doomed.cont();
                }
            }
            Action::Error => {}
        }
        let _healthy = installation.serve();
        finish(installation, first, self.guarantee);
        if self.action == Action::Stop {
            let before = ledger(installation);
            if !is_held {
                doomed.cont();
            }
            doomed.term();
            doomed.wait();
            let after = ledger(installation);
            if before != after {
                ran.violations.push(format!("N8 the thawed worker changed the ledger: {before:?} became {after:?}"));
            }
            let had_result = ["send.answered", "settle.before"].contains(&self.point);
            if had_result && !is_held && stale_settles(installation) == 0 {
                ran.violations.push(format!("N8 no late result; it said {:#?}", doomed.output()));
            }
        }
    }
}

/// What two services must agree on with the database: no delivery may have reached both, under at_most_once none twice,
/// and each of the `wanted` has one outcome, which is what happened. `parks_config`: a refused account may park.
pub fn violations(
    (installation, guarantee): (&Installation, Guarantee),
    wanted: &BTreeSet<String>,
    (first, second): (&[Taken], &[Taken]),
    parks_config: bool,
) -> Vec<String> {
    let mut violations = vec![];
    let mut note = |what: &str, found: Vec<String>| {
        if !found.is_empty() {
            violations.push(format!("{what}: {}: {:?}", found.len(), &found[..found.len().min(5)]));
        }
    };
    let of = |taken: &[Taken]| taken.iter().map(|one| one.id.clone()).collect::<BTreeSet<_>>();
    note("may have been sent through two providers", of(first).intersection(&of(second)).cloned().collect());
    if guarantee == Guarantee::AtMostOnce {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        first.iter().chain(second).for_each(|one| *counts.entry(&one.id).or_default() += 1);
        let twice = counts.iter().filter(|(_, count)| **count > 1).map(|(id, _)| (*id).to_owned()).collect();
        note("at_most_once, and it may have arrived twice", twice);
        let by_two = installation.rows(
            "SELECT notification_id, n FROM postcommit.attempt
             GROUP BY notification_id, n HAVING count(DISTINCT provider) > 1",
        );
        note("at_most_once, and attempted by two providers", by_two.iter().map(|row| row.join("_")).collect());
    }
    let ended = installation.rows("SELECT notification_id, n, state, reason, unclear FROM postcommit.delivery_ledger");
    let found: Vec<String> = ended.iter().map(|row| format!("{}_{}", row[0], row[1])).collect();
    if found.len() != wanted.len() || found.iter().cloned().collect::<BTreeSet<_>>() != *wanted {
        note("not one outcome for each recipient", found);
    }
    let accepted: BTreeSet<String> =
        first.iter().chain(second).filter(|one| one.is_accepted).map(|one| one.id.clone()).collect();
    let is_honest = |row: &Vec<String>| match (row[2].as_str(), row[3].as_str()) {
        ("sent", _) => accepted.contains(&format!("{}_{}", row[0], row[1])),
        // What was announced, or may have been sent by a lost worker, stays with the provider that refuses us.
        ("parked", "config") => {
            parks_config && (guarantee == Guarantee::AtMostOnce || ["t", "1"].contains(&row[4].as_str()))
        }
        ("parked", "outcome_unknown") => guarantee == Guarantee::AtMostOnce,
        _ => false,
    };
    let odd = ended.iter().filter(|row| !is_honest(row)).map(|row| row.join(" ")).collect();
    note("the outcome is not what happened", odd);
    violations
}

/// Until nothing is left, the first provider is mended and resumed whenever it is paused.
fn finish(installation: &Installation, first: &Service, guarantee: Guarantee) {
    let is_paused = || installation.count("SELECT count(*) FROM postcommit.provider WHERE paused IS NOT NULL") > 0;
    let is_over = within(GUARD, || {
        // What waits for a paused provider and may not move needs the operator.
        if is_paused() && is_stuck(installation, guarantee) {
            first.heal();
            // A worker that was stopped in a transaction keeps its locks until PostgreSQL ends that.
            drop(installation.command(&["providers", "resume", "first"]).output().unwrap());
        }
        installation.is_quiet()
    });
    assert!(is_over, "left in the queue: {:#?}", installation.rows("SELECT * FROM postcommit.delivery_queue LIMIT 5"));
}

/// Whether only deliveries are left that no worker can move: they may have arrived, or were attempted.
fn is_stuck(installation: &Installation, guarantee: Guarantee) -> bool {
    let left = installation.rows("SELECT lease_token, unclear, first_try_at, lane FROM postcommit.delivery_queue");
    let is_free = |row: &Vec<String>| {
        let was_tried = guarantee == Guarantee::AtMostOnce && !row[2].is_empty();
        row[3].starts_with('-') || (row[0].is_empty() && ["f", "0"].contains(&row[1].as_str()) && !was_tried)
    };
    !left.is_empty() && !left.iter().any(is_free) && installation.leases_are_over()
}

fn enqueue(installation: &Installation, i: usize) -> String {
    let key = format!("k{i}");
    let to: Vec<String> = (1..=targets(i)).map(|n| format!("email:g{n}@guest.example")).collect();
    let mut words = vec!["enqueue", "case.made", "--idempotency-key", &key, "--title", "Hello", "--body", "World"];
    words.extend(to.iter().flat_map(|to| ["--to", to]));
    installation.run(&words).trim().to_owned()
}

/// How many recipients the i-th notification has.
fn targets(i: usize) -> usize {
    1 + (i + 1) % 2
}
