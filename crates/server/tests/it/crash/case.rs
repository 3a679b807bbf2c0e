//! One case of the sweep: from an empty database to the comparison of the three records.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use postcommit_testkit::{Child, Receiver};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until, wait_until_frozen, within};
use crate::records::{Answer, Records, Told, addresses, ledger, stale_settles};

/// Notifications of one case, in batches of three, so that every crash point is passed several times. Every second one
/// has two recipients and is expanded. The others are sent from their own row, unless the send must be announced.
const NOTES: usize = 8;
const BATCH: u32 = 3;
const TARGETS: usize = NOTES + NOTES / 2;
/// Rows that a panic left leased are taken over within a lease or two. A surviving process that holds them longer never
/// releases them.
const HEALS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Like SIGKILL.
    Kill,
    /// Frozen until all leases have run out, then continued.
    Stop,
    /// A panic, as a bug would cause it.
    Error,
}

impl Action {
    pub const ALL: [Self; 3] = [Self::Kill, Self::Stop, Self::Error];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub point: &'static str,
    pub action: Action,
    pub nth: usize,
    pub kind: Kind,
    pub guarantee: Guarantee,
}

/// The result of a case.
#[derive(Debug, Default)]
pub struct Ran {
    pub fired: bool,
    /// Whether this guarantee and database pass the crash point. Then the first passing must fire; a later one may not
    /// occur when fewer batches did the work.
    pub on_path: bool,
    /// Results of a continued worker were refused.
    pub refused_late: bool,
    /// The process was frozen while it held SQLite's write lock: no other can take over then.
    pub held_file: bool,
    /// The process survived its panic.
    pub survived: bool,
    pub violations: Vec<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, action, nth, kind, guarantee } = self;
        write!(f, "{point}:{nth}:{} on {kind:?}, {guarantee:?}", action.name())
    }
}

impl Case {
    pub fn run(&self) -> Ran {
        let installation = Installation::new(self.kind, Hooks::of(self.guarantee)).in_batches_of(BATCH);
        let receiver = Receiver::start(&installation.path("journal"));
        let client = Client { installation: &installation, url: receiver.server().url("/hook"), told: Told::default() };
        let mut ran = Ran { on_path: self.is_on_path(), ..Ran::default() };
        let told = if self.point.starts_with("enqueue.") {
            self.crash_client(client, &mut ran)
        } else {
            self.crash_server(client, &mut ran)
        };
        let records = Records::read(told, &installation, receiver.server(), receiver.counts());
        ran.violations.extend(records.violations(self.guarantee));
        let counts = records.counts();
        if (counts.notifications, counts.targets, counts.sent + counts.parked) != (NOTES, TARGETS, TARGETS) {
            ran.violations.push(format!("N6 {counts:?} instead of {NOTES} notifications to {TARGETS} recipients"));
        }
        if (self.nth == 1 || !ran.on_path) && ran.fired != ran.on_path {
            ran.violations.push(format!("fired: {}, on the path: {}", ran.fired, ran.on_path));
        }
        ran
    }

    /// Sends are announced under at_most_once only. On PostgreSQL these steps are one statement each, so a crash cannot
    /// happen inside.
    fn is_on_path(&self) -> bool {
        let announced = self.guarantee == Guarantee::AtMostOnce || !self.point.starts_with("intent.");
        let inside = self.kind == Kind::Sqlite || !self.point.ends_with(".in_tx");
        announced && inside
    }

    fn crash(&self, nth: usize) -> String {
        format!("{}:{nth}:{}", self.point, self.action.name())
    }

    /// The nth process of the client crashes. The client does not know whether the notification was accepted, and
    /// repeats it with the same key.
    fn crash_client(&self, mut client: Client<'_>, ran: &mut Ran) -> Told {
        let _server = client.installation.serve();
        for i in 1..=NOTES {
            if i != self.nth {
                client.enqueue(i);
                continue;
            }
            let doomed = client.doomed(i, &self.crash(1));
            ran.fired = doomed.wait_for_line_or_exit("crash point").is_some();
            if ran.fired && self.action == Action::Stop {
                wait_until_frozen(&doomed);
                ran.held_file = client.installation.file_is_held();
                self.ask_beside(&mut client, i, &doomed);
            } else {
                doomed.wait();
                client.enqueue(i);
            }
        }
        client.installation.wait_until_quiet();
        client.told
    }

    /// Repeats the request while the first process is frozen, and then continues that process. Inside its transaction
    /// it holds the key, so the second request waits for it.
    fn ask_beside(&self, client: &mut Client<'_>, i: usize, frozen: &Child) {
        let again = Child::spawn(client.command(i));
        if self.point != "enqueue.in_tx" {
            again.wait();
        }
        frozen.cont();
        for process in [frozen, &again] {
            assert!(process.wait().success(), "{:?}", process.output());
            client.record_answer(i, &process.wait_for_line("\"id\""));
        }
    }

    fn crash_server(&self, mut client: Client<'_>, ran: &mut Ran) -> Told {
        (1..=NOTES).for_each(|i| client.enqueue(i));
        let installation = client.installation;
        let doomed = installation.doomed(&["serve"], &self.crash(self.nth));
        ran.fired = fires(&doomed, installation);
        match self.action {
            _ if !ran.fired => {}
            Action::Kill => {
                doomed.wait();
                let _healthy = installation.serve();
                installation.wait_until_quiet();
            }
            Action::Stop => self.thaw_late(&doomed, installation, ran),
            Action::Error => survive(&doomed, installation, ran),
        }
        client.told
    }

    /// N8: another worker takes over. When the frozen one continues, nothing that it does changes the ledger.
    fn thaw_late(&self, frozen: &Child, installation: &Installation, ran: &mut Ran) {
        wait_until_frozen(frozen);
        ran.held_file = installation.file_is_held();
        if ran.held_file {
            wait_until("the leases to run out", || installation.leases_are_over());
            frozen.cont();
        }
        let _healthy = installation.serve();
        if ran.held_file {
            // The writes of the frozen process stand; no other worker could take over.
            frozen.term();
            frozen.wait();
            return installation.wait_until_quiet();
        }
        installation.wait_until_quiet();
        let before = ledger(installation);
        frozen.cont();
        // Asked to stop, the process settles its results or is refused, and ends: then there is nothing left to wait
        // for.
        frozen.term();
        frozen.wait();
        let after = ledger(installation);
        if before != after {
            ran.violations.push(format!("N8 the thawed worker changed the ledger: {before:?} became {after:?}"));
        }
        ran.refused_late = stale_settles(installation) > 0;
        let had_results =
            ["intent.after_commit", "send.before", "send.answered", "settle.before"].contains(&self.point);
        if had_results && !ran.refused_late {
            ran.violations
                .push(format!("N8 the thawed worker's result is not in stale_settle; it said {:#?}", frozen.output()));
        }
    }
}

/// Waits until the crash has happened, or everything was delivered without it.
fn fires(doomed: &Child, installation: &Installation) -> bool {
    let has_fired = || doomed.output().iter().any(|line| line.starts_with("crash point"));
    wait_until("the crash, or the end of the work", || has_fired() || installation.is_quiet());
    if has_fired() {
        return true;
    }
    // Checks once more after the process ended: the last settle empties the queue just before it passes its last crash
    // point.
    doomed.term();
    doomed.wait_for_line_or_exit("crash point").is_some()
}

/// After a panic the process continues or has ended. A survivor must release its rows, so that it or another process
/// can finish.
fn survive(panicked: &Child, installation: &Installation, ran: &mut Ran) {
    let _healthy = installation.serve();
    let survived = || Path::new(&format!("/proc/{}", panicked.pid())).exists();
    if !within(HEALS_WITHIN, || installation.is_quiet()) {
        if survived() {
            ran.violations.push(format!("N2 the survivor of a panic never let go; it said {:#?}", panicked.output()));
        }
        panicked.kill9();
        installation.wait_until_quiet();
    }
    ran.survived = survived();
}

/// An application that enqueues by the command line and records the answers.
struct Client<'a> {
    installation: &'a Installation,
    url: String,
    told: Told,
}

impl Client<'_> {
    fn enqueue(&mut self, i: usize) {
        let output = self.command(i).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        self.record_answer(i, &String::from_utf8(output.stdout).unwrap());
    }

    fn command(&self, i: usize) -> std::process::Command {
        let (key, to) = (format!("k{i}"), addresses(&self.url, targets(i)));
        let mut command =
            self.installation.command(&["enqueue", "case.made", "--idempotency-key", &key, "-o", "jsonl"]);
        command.args(to.iter().flat_map(|address| ["--to".to_owned(), format!("webhook:{address}")]));
        command
    }

    fn doomed(&self, i: usize, crash: &str) -> Child {
        let mut command = self.command(i);
        command.env("POSTCOMMIT_CRASH", crash);
        Child::spawn(command)
    }

    fn record_answer(&mut self, i: usize, said: &str) {
        let answer: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
        self.told.0.push(Answer {
            key: format!("k{i}"),
            id: answer["id"].as_str().unwrap().to_owned(),
            targets: targets(i),
        });
    }
}

/// How many recipients the i-th notification has.
fn targets(i: usize) -> usize {
    1 + (i + 1) % 2
}
