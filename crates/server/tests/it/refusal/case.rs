//! One case: a database that refuses one kind of write, a receiver that answers in one way, and the result.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use postcommit_testkit::refused_write::REFUSED;
use postcommit_testkit::{Child, HttpServer, RefusedWrite, Reply};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};

/// The policy: the number of attempts, and the microseconds between them.
const ATTEMPTS: usize = 3;
const INTERVAL: i64 = 1_000_000;
/// Notifications of one case. The first and the third have two recipients and are expanded, the last is for an inbox.
const NOTES: [usize; 5] = [2, 1, 2, 1, 0];

/// A step of the product that writes.
#[derive(Debug)]
pub struct Step {
    pub name: &'static str,
    refusals: &'static [RefusedWrite],
    /// The log line that shows the refusal.
    sign: &'static str,
    /// The receiver's answer that leads to this step.
    pub meant_for: Answer,
    /// The setting `isolate` of the provider.
    isolate: &'static str,
    /// Whether the provider has a next one.
    failover: bool,
}

const QUEUE: RefusedWrite = RefusedWrite::of("UPDATE", "delivery_queue");
const LEDGER: RefusedWrite = RefusedWrite::of("INSERT", "delivery_ledger");
const RENEW: RefusedWrite = QUEUE.when("NEW.lease_token = OLD.lease_token AND NEW.lease_until <> OLD.lease_until");

const fn step(name: &'static str, refusals: &'static [RefusedWrite], meant_for: Answer) -> Step {
    Step { name, refusals, sign: REFUSED, meant_for, isolate: "host", failover: false }
}

const fn of_lane(step: Step) -> Step {
    Step { isolate: "lane", ..step }
}

/// All steps, in the order of the flow.
pub static STEPS: [Step; 17] = [
    step("claim", &[QUEUE.when("OLD.lease_token IS NULL AND NEW.lease_token IS NOT NULL")], Answer::Taken),
    step(
        "expand",
        &[
            RefusedWrite::of("INSERT", "delivery_queue").when("NEW.n > 0"),
            // On PostgreSQL the row of a notification with one target becomes the target's.
            RefusedWrite::of("UPDATE", "delivery_queue").when("OLD.n = 0 AND NEW.n > 0 AND NEW.seq = 0"),
        ],
        Answer::Taken,
    ),
    step("announce", &[QUEUE.when("OLD.intent IS NULL AND NEW.intent IS NOT NULL")], Answer::Taken),
    step("settle", &[LEDGER], Answer::Taken),
    step("settle again", &[QUEUE.when("OLD.lease_token IS NOT NULL AND NEW.lease_token IS NULL")], Answer::Later),
    step("log", &[RefusedWrite::of("INSERT", "logged_attempt")], Answer::Broken),
    step("count", &[RefusedWrite::of("INSERT", "rollup_fresh")], Answer::Taken),
    Step {
        name: "renew",
        refusals: &[LEDGER, RENEW],
        sign: "could not renew",
        meant_for: Answer::Taken,
        isolate: "host",
        failover: false,
    },
    of_lane(step("hold", &[RefusedWrite::of("UPDATE", "provider").when("NEW.held_until IS NOT NULL")], Answer::Later)),
    of_lane(step("pause", &[RefusedWrite::of("UPDATE", "provider").when("NEW.paused IS NOT NULL")], Answer::Unwelcome)),
    step("hold host", &[RefusedWrite::of("INSERT", "lane_host").when("NEW.held_until IS NOT NULL")], Answer::Later),
    step("pause host", &[RefusedWrite::of("INSERT", "lane_host").when("NEW.paused IS NOT NULL")], Answer::Unwelcome),
    of_lane(step("trip", &[RefusedWrite::of("UPDATE", "provider").when("NEW.trips > OLD.trips")], Answer::Broken)),
    step("trip host", &[RefusedWrite::of("INSERT", "lane_host").when("NEW.trips > 0")], Answer::Cut),
    Step { failover: true, ..of_lane(step("move", &[QUEUE.when("NEW.moves > OLD.moves")], Answer::Unwelcome)) },
    step("provider version", &[RefusedWrite::of("UPDATE", "provider_version")], Answer::Unwelcome),
    step("inbox", &[RefusedWrite::of("INSERT", "inbox_message")], Answer::Taken),
];

/// How the receiver answers until the case is healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200.
    Taken,
    /// 500: it may have arrived.
    Broken,
    /// 429 with a `Retry-After`.
    Later,
    /// 401.
    Unwelcome,
    /// The connection is closed without an answer: it may have arrived.
    Cut,
}

impl Answer {
    pub const ALL: [Self; 5] = [Self::Taken, Self::Broken, Self::Later, Self::Unwelcome, Self::Cut];

    fn reply(self) -> Reply {
        match self {
            Self::Taken => Reply::ok(),
            Self::Broken => Reply::status(500),
            Self::Later => Reply::status(429).with_header("Retry-After", "2"),
            Self::Unwelcome => Reply::status(401),
            Self::Cut => Reply::Close,
        }
    }

    /// Whether the answer says that the message was not accepted.
    fn is_refusal(self) -> bool {
        matches!(self, Self::Later | Self::Unwelcome)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub step: &'static Step,
    pub answer: Answer,
    /// How many refusals to wait for.
    pub times: usize,
    pub kind: Kind,
    pub guarantee: Guarantee,
}

/// The result of a case.
#[derive(Debug, Default)]
pub struct Ran {
    pub fired: bool,
    pub requests: usize,
    pub violations: Vec<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, answer, times, kind, guarantee } = self;
        write!(f, "refused {}:{times}:{answer:?} on {kind:?}, {guarantee:?}", step.name)
    }
}

/// The webhook id of each request and its answer, in order.
type Journal = Arc<Mutex<Vec<(String, Answer)>>>;

impl Case {
    pub fn run(&self) -> Ran {
        let installation = Installation::new(self.kind, Hooks::of(self.guarantee)).in_batches_of(3);
        let policy = format!(r#"{{"name":"fixed","interval_s":{},"max_attempts":{ATTEMPTS}}}"#, INTERVAL / 1_000_000);
        let isolate = format!("isolate={}", self.step.isolate);
        // Two failures in a row trip the breaker where its write is refused. Elsewhere its holds would only take time.
        let failures = if self.step.name.starts_with("trip") { "2" } else { "0" };
        let breaker = ["--breaker-failures", failures, "--breaker-cool-down-s", "1"];
        let update = ["providers", "update", "hooks", "--policy", &policy, "--set", &isolate];
        installation.run(&[&update[..], &breaker].concat());
        if self.step.failover {
            let next =
                ["providers", "create", "next", "--driver", "webhook", "--is-default", "false", "--policy", &policy];
            let same = ["--set", &isolate, "--guarantee", self.guarantee.name()];
            installation.run(&[&next[..], &same, &breaker].concat());
            installation.run(&["providers", "update", "hooks", "--failover", "next"]);
        }
        let (journal, healed) = (Journal::default(), Arc::<AtomicBool>::default());
        let receiver = self.receiver(journal.clone(), healed.clone());
        enqueue(&installation, &receiver);
        self.refuse(&installation);
        // With several refusals a second server could take over.
        let servers: Vec<Child> = (0..self.times.min(2)).map(|_| installation.serve()).collect();
        let fired = self.wait(&installation, &servers);
        self.heal(&installation);
        healed.store(true, Ordering::SeqCst);
        finish(&installation);
        drop(servers);
        let journal = journal.lock().unwrap();
        Ran { fired, requests: journal.len(), violations: self.violations(&installation, &journal) }
    }

    fn receiver(&self, journal: Journal, healed: Arc<AtomicBool>) -> HttpServer {
        let meanwhile = self.answer;
        HttpServer::start(move |request| {
            let answer = if healed.load(Ordering::SeqCst) { Answer::Taken } else { meanwhile };
            let id = request.header("webhook-id").unwrap_or_default().to_owned();
            journal.lock().unwrap().push((id, answer));
            answer.reply()
        })
    }

    fn refuse(&self, installation: &Installation) {
        for sql in self.step.refusals.iter().flat_map(|refusal| refusal.begin(self.kind == Kind::Postgres)) {
            installation.rows(&sql);
        }
    }

    fn heal(&self, installation: &Installation) {
        for refusal in self.step.refusals {
            installation.rows(&refusal.end(self.kind == Kind::Postgres));
        }
    }

    /// Waits until the write was refused often enough, or everything has ended, or nothing more may be sent.
    fn wait(&self, installation: &Installation, servers: &[Child]) -> bool {
        let met = || servers.iter().flat_map(Child::output).filter(|line| line.contains(self.step.sign)).count();
        // With a next provider the work goes on while the first one is paused, apart from what was announced to it.
        let goes_on = self.step.failover && self.guarantee != Guarantee::AtMostOnce;
        let paused = || installation.count("SELECT count(*) FROM postcommit.provider WHERE paused IS NOT NULL");
        let has_stopped = || if goes_on { paused() == 2 } else { is_paused(installation) };
        wait_until("the refusals, or the end of the work", || {
            met() >= self.times || installation.is_quiet() || has_stopped()
        });
        met() > 0
    }

    fn violations(&self, installation: &Installation, journal: &[(String, Answer)]) -> Vec<String> {
        let mut violations = outcomes(installation);
        let tries = tries(installation, self.kind);
        let mut by_id: BTreeMap<&str, Vec<Answer>> = BTreeMap::new();
        journal.iter().for_each(|(id, answer)| by_id.entry(id).or_default().push(*answer));
        for (id, answers) in by_id {
            let Some(tries) = tries.get(id) else {
                violations.push(format!("{id}: {answers:?}, and no attempt is on record"));
                continue;
            };
            violations.extend(
                self.judged(&answers, tries)
                    .map(|what| format!("{id}: {what}; answers {answers:?}, attempts {tries:?}")),
            );
        }
        violations.extend(
            tries.iter().filter_map(|(id, tries)| sooner(tries).map(|what| format!("{id}: {what}: {tries:?}"))),
        );
        violations
    }

    fn judged(&self, answers: &[Answer], tries: &[Try]) -> Option<&'static str> {
        let earlier = &answers[..answers.len() - 1];
        let is_lost = tries.iter().any(|one| one.code == "lease_expired");
        match self.guarantee {
            _ if answers.len() > ATTEMPTS => Some("more requests than the policy allows"),
            _ if answers.len() > tries.len() => Some("more requests than attempts on record"),
            Guarantee::AtMostOnce if !earlier.iter().all(|answer| answer.is_refusal()) => {
                Some("repeated, and it may have arrived before")
            }
            _ if earlier.contains(&Answer::Taken) && !is_lost => {
                Some("repeated after it was taken, and no lease was lost")
            }
            _ => None,
        }
    }
}

/// One recorded attempt.
#[derive(Debug)]
struct Try {
    /// The time in microseconds.
    at: i64,
    code: String,
}

/// The attempts of each webhook id, in order.
fn tries(installation: &Installation, kind: Kind) -> BTreeMap<String, Vec<Try>> {
    let at = if kind == Kind::Postgres { "(extract(epoch FROM at) * 1000000)::bigint" } else { "at" };
    let rows = installation.rows(&format!(
        "SELECT notification_id, n, {at}, code \
            FROM postcommit.attempt \
            ORDER BY notification_id, n, seq"
    ));
    let mut tries: BTreeMap<String, Vec<Try>> = BTreeMap::new();
    for row in rows {
        let one = Try { at: row[2].parse().unwrap(), code: row[3].clone() };
        tries.entry(format!("{}_{}", row[0], row[1])).or_default().push(one);
    }
    tries
}

/// Whether an attempt followed another before the policy's wait was over. The first lost lease is repeated immediately,
/// and a delivery that got a 401 while its lane was being paused continues when the lane opens.
fn sooner(tries: &[Try]) -> Option<&'static str> {
    let mut losses = 0;
    for pair in tries.windows(2) {
        losses += usize::from(pair[0].code == "lease_expired");
        let is_free = pair[0].code == "http_401" || (pair[0].code == "lease_expired" && losses == 1);
        if !is_free && pair[1].at - pair[0].at < INTERVAL {
            return Some("sooner than the policy allows");
        }
    }
    None
}

fn enqueue(installation: &Installation, receiver: &HttpServer) {
    for (i, targets) in NOTES.into_iter().enumerate() {
        let to: Vec<String> =
            (1..=targets).map(|n| format!(r#"{{"webhook": "{}"}}"#, receiver.url(&format!("/{n}")))).collect();
        let to = if targets == 0 { r#"{"user": "ada"}"#.to_owned() } else { to.join(", ") };
        let sql = match installation.sqlite_path() {
            None => format!("SELECT postcommit.enqueue('case.made', '{{}}', 'k{i}', recipients => '[{to}]')"),
            Some(_) => format!(
                "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients) \
                    VALUES ('case.made', '{{}}', 'k{i}', '[{to}]')"
            ),
        };
        installation.rows(&sql);
    }
}

fn is_paused(installation: &Installation) -> bool {
    let paused = |table: &str| {
        installation.count(&format!("SELECT count(*) FROM postcommit.{table} WHERE paused IS NOT NULL")) > 0
    };
    paused("provider") || paused("lane_host")
}

/// Everything is healed, and paused lanes are resumed, until nothing is left to do.
fn finish(installation: &Installation) {
    wait_until("everything to end", || {
        if is_paused(installation) {
            for row in installation.rows("SELECT name FROM postcommit.provider WHERE driver = 'webhook'") {
                installation.run(&["providers", "resume", &row[0]]);
            }
        }
        installation.is_quiet()
    });
}

/// Each recipient has exactly one outcome.
fn outcomes(installation: &Installation) -> Vec<String> {
    let expected: usize = NOTES.into_iter().map(|targets| targets.max(1)).sum();
    let ended = installation.rows(
        "SELECT l.state, l.reason \
        FROM postcommit.delivery_ledger l \
        JOIN postcommit.notification o ON o.id = l.notification_id \
        WHERE l.n > 0",
    );
    let in_inbox = installation.count("SELECT count(*) FROM postcommit.inbox_message");
    let told = installation.count("SELECT count(*) FROM postcommit.notification");
    if (ended.len(), in_inbox, told) == (expected, 1, NOTES.len()) {
        return vec![];
    }
    vec![format!(
        "{expected} outcomes and one message of {} notifications are expected; {told}, {in_inbox} and {ended:?} are there",
        NOTES.len()
    )]
}
