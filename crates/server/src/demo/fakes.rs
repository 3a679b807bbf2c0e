//! The services that the demo sends to: small servers on loopback in this process. They accept messages as the real
//! services do, keep the newest ones for the page of the demo, and misbehave as set on that page.

mod http;
mod mail;
mod smtp;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::egress::Egress;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use super::chaos::{Chaos, Dice, Fate, Outage};

/// How many messages each fake service keeps.
const KEPT: usize = 50;
/// The longest text of a kept message, in characters.
const TEXT_CHARS: usize = 2000;
/// Mails to addresses that begin with `NO_MAILBOX` and text messages to numbers that end with `LANDLINE` are refused
/// permanently.
pub const NO_MAILBOX: &str = "former";
pub const LANDLINE: &str = "0000";
/// A mail to an address that begins with this is deferred once. Real mail servers do so with unknown senders
/// (greylisting).
pub const PUTS_OFF: &str = "slow";

/// The services that have a fake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Mail,
    Slack,
    Sms,
    Whatsapp,
    Webhook,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Mail, Self::Slack, Self::Sms, Self::Whatsapp, Self::Webhook];

    /// The name in forms and URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Slack => "slack",
            Self::Sms => "sms",
            Self::Whatsapp => "whatsapp",
            Self::Webhook => "webhook",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Mail => "Mail",
            Self::Slack => "Slack",
            Self::Sms => "SMS",
            Self::Whatsapp => "WhatsApp",
            Self::Webhook => "Webhook",
        }
    }

    /// Returns the misbehaviour at the start: a few failures, so that the pages have some to show.
    fn usual(self) -> Chaos {
        let (errors, limited, latency_ms) = match self {
            Self::Mail => (5, 0, 120),
            Self::Slack => (0, 5, 60),
            Self::Sms => (5, 0, 100),
            Self::Whatsapp => (5, 5, 140),
            Self::Webhook => (10, 0, 40),
        };
        Chaos { errors, limited, latency_ms }
    }
}

/// A message that a fake service accepted.
#[derive(Debug, Clone, Serialize)]
pub struct Received {
    pub at: Timestamp,
    pub to: String,
    /// The subject of a mail, or the type of an event.
    pub title: String,
    pub text: String,
}

/// The number of requests that a fake service answered, by result.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counts {
    pub taken: u64,
    /// Failed by chance or by an outage, or deferred once.
    pub failed: u64,
    pub limited: u64,
    /// Refused because of the recipient's address.
    pub refused: u64,
}

struct State {
    chaos: Chaos,
    counts: Counts,
    newest: VecDeque<Received>,
    dice: Dice,
    /// The ids of the mails that were deferred. The second attempt of such a mail is accepted.
    put_off: VecDeque<String>,
}

/// One fake service.
pub struct Fake {
    pub kind: Kind,
    pub address: SocketAddr,
    state: Mutex<State>,
    outage: Arc<Mutex<Outage>>,
}

/// A fake service as the page of the demo shows it.
#[derive(Serialize)]
pub struct FakeView {
    pub kind: Kind,
    pub title: &'static str,
    pub chaos: Chaos,
    pub counts: Counts,
    /// The kept messages, the newest first.
    pub newest: Vec<Received>,
}

/// All fake services.
pub struct Fakes {
    each: Vec<Arc<Fake>>,
    outage: Arc<Mutex<Outage>>,
    /// The callback URL to which the fake WhatsApp reports delivered messages.
    reports_to: Arc<Mutex<Option<Url>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fakes {
    /// Starts every fake on a free port of 127.0.0.1.
    pub async fn start(seed: u64, egress: &Egress) -> io::Result<Self> {
        let (outage, reports_to) = (Arc::<Mutex<Outage>>::default(), Arc::default());
        let mut each = Vec::with_capacity(Kind::ALL.len());
        for (place, kind) in (0_u64..).zip(Kind::ALL) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let state = State {
                chaos: kind.usual(),
                counts: Counts::default(),
                newest: VecDeque::new(),
                dice: Dice::new(seed.wrapping_add(place)),
                put_off: VecDeque::new(),
            };
            let fake = Fake { kind, address: listener.local_addr()?, state: Mutex::new(state), outage: outage.clone() };
            let fake = Arc::new(fake);
            each.push(fake.clone());
            let reports = http::Reports { to: Arc::clone(&reports_to), egress: egress.clone() };
            tokio::spawn(accept(listener, fake, reports));
        }
        Ok(Self { each, outage, reports_to })
    }

    pub fn get(&self, kind: Kind) -> &Fake {
        // `start` has started a service of every kind, so the fallback is never used.
        self.each.iter().find(|fake| fake.kind == kind).unwrap_or(&self.each[0])
    }

    pub fn named(&self, name: &str) -> Option<&Fake> {
        self.each.iter().map(Arc::as_ref).find(|fake| fake.kind.name() == name)
    }

    pub fn views(&self) -> Vec<FakeView> {
        self.each.iter().map(|fake| fake.view()).collect()
    }

    pub fn break_all(&self) {
        locked(&self.outage).begin();
    }

    /// Ends the outage. The failure rates that were set on the page stay.
    pub fn mend(&self) {
        locked(&self.outage).end();
    }

    pub fn outage_left(&self) -> Option<Duration> {
        locked(&self.outage).left()
    }

    /// Sets the callback URL to which the fake WhatsApp reports delivered messages.
    pub fn report_to(&self, url: Option<Url>) {
        *locked(&self.reports_to) = url;
    }
}

impl Fake {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, chaos: Chaos) {
        locked(&self.state).chaos = chaos;
    }

    fn view(&self) -> FakeView {
        let state = locked(&self.state);
        FakeView {
            kind: self.kind,
            title: self.kind.title(),
            chaos: state.chaos,
            counts: state.counts,
            newest: state.newest.iter().cloned().collect(),
        }
    }

    /// Waits for the latency that is set on the page, then decides about a request.
    async fn meet(&self) -> Fate {
        let latency = locked(&self.state).chaos.latency_ms;
        tokio::time::sleep(Duration::from_millis(latency.into())).await;
        let is_broken = locked(&self.outage).left().is_some();
        let mut state = locked(&self.state);
        let chaos = state.chaos;
        let fate = if is_broken { Fate::Failed } else { state.dice.decide(chaos) };
        match fate {
            Fate::Taken => {}
            Fate::Failed => state.counts.failed += 1,
            Fate::Limited => state.counts.limited += 1,
        }
        fate
    }

    fn refused(&self) {
        locked(&self.state).counts.refused += 1;
    }

    /// Returns whether the mail with this id is deferred now. Its second attempt is not.
    fn puts_off(&self, id: &str) -> bool {
        let mut state = locked(&self.state);
        if let Some(place) = state.put_off.iter().position(|known| known == id) {
            state.put_off.remove(place);
            return false;
        }
        state.put_off.truncate(KEPT);
        state.put_off.push_front(id.to_owned());
        state.counts.failed += 1;
        true
    }

    fn keep(&self, to: impl Into<String>, title: impl Into<String>, text: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let text = lines.join("\n").chars().take(TEXT_CHARS).collect();
        let received = Received { at: clock::now(), to: to.into(), title: title.into(), text };
        let mut state = locked(&self.state);
        state.counts.taken += 1;
        state.newest.truncate(KEPT - 1);
        state.newest.push_front(received);
    }
}

async fn accept(listener: TcpListener, fake: Arc<Fake>, reports: http::Reports) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // A likely cause is that the process has too many open files. Wait until some are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::spawn(talk(stream, fake.clone(), reports.clone()));
    }
}

async fn talk(stream: TcpStream, fake: Arc<Fake>, reports: http::Reports) {
    match fake.kind {
        // The error is ignored: it only says that the client disconnected.
        Kind::Mail => drop(smtp::serve(stream, &fake).await),
        _ => http::serve(stream, fake, reports).await,
    }
}
