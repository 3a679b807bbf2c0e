//! The parts that all drivers for brokers share. Such a driver publishes an event as CloudEvents over a dialled stream
//! and waits until the broker has acknowledged it.
//!
//! The step that failed decides the outcome. Before the last byte of the event was written, the broker does not have
//! the event, so the attempt is deferred. After that only the broker's own answer tells; without an answer the attempt
//! is unclear.

mod wire;
mod writer;

use std::time::{Duration, Instant};

use postcommit::{Timestamp, check};
use serde::Deserialize;

use super::idle::{IdleConnections, Reusable};
use super::redact::Redactions;
use super::{Driver, KeyWindow, Kind, Message, Parts, Sending, cloudevents, http};
use crate::clock;
use crate::egress::{Deadline, Egress, EgressFailure, Endpoint};
use crate::model::{ErrorClass, Guarantee, Outcome, Policy, Report, Schedule};
use crate::secret::Secret;

pub(super) use wire::{ANSWER_BYTES, Wire};
pub(super) use writer::Writer;

/// How a connection is encrypted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Encryption {
    /// TLS from the first byte.
    #[default]
    Implicit,
    /// No TLS, for brokers on the same machine or in a closed network.
    None,
}

/// The treatment of an event that the broker can give to no queue or subscriber.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unrouted {
    /// The delivery is rejected, so that no event is lost silently.
    #[default]
    Refuse,
    /// The event is dropped, and the delivery counts as sent.
    Drop,
}

/// The user and the password of a provider.
#[derive(Debug)]
pub(super) struct SignIn {
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

impl SignIn {
    /// Reads the user from the settings and the password from the secrets.
    pub(super) fn read(username: Option<&str>, parts: &Parts<'_>) -> Result<Self, String> {
        if let Some(name) = username {
            check::one_line(name).map_err(|problem| format!("settings.username: {problem}"))?;
        }
        Ok(Self { username: username.map(str::to_owned), password: parts.secrets.get("password").cloned() })
    }

    /// Refuses a user without a password and a password without a user.
    pub(super) fn whole(self) -> Result<Self, String> {
        match (&self.username, &self.password) {
            (Some(_), None) => {
                Err("secret: settings.username needs the secret \"password\"; set it with --secret".into())
            }
            (None, Some(_)) => {
                Err("settings.username: is missing; set it, because the secret \"password\" is set".into())
            }
            _ => Ok(self),
        }
    }
}

/// Builds the endpoint from the settings `host` and `port`, and checks it with the address filter.
pub(super) fn endpoint(host: &str, port: u16, egress: &Egress) -> Result<Endpoint, String> {
    let endpoint = Endpoint::new(host, port).map_err(|bad| format!("settings.host: {}", bad.detail))?;
    egress.check_endpoint(&endpoint).map_err(|bad| format!("settings.host: {}", bad.detail))?;
    Ok(endpoint)
}

/// An event that is ready to be published.
pub(super) struct Event<'a> {
    /// The key of the delivery, which is the id of the event.
    pub(super) id: &'a str,
    /// The address of the event: a NATS subject, a Redis stream, an MQTT topic or a routing key of RabbitMQ.
    pub(super) target: &'a str,
    /// The envelope: the event as CloudEvents, in JSON.
    pub(super) body: &'a [u8],
    pub(super) event_type: &'a str,
    pub(super) correlation_id: Option<&'a str>,
    /// The trace context of this attempt.
    pub(super) traceparent: Option<&'a str>,
    pub(super) created_at: Timestamp,
    /// The time until the event expires, at least one millisecond.
    pub(super) lifetime: Duration,
}

/// The broker's acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// The broker's own id of the event.
    pub(super) reference: Option<String>,
    /// The text of the acknowledgement.
    pub(super) text: Option<String>,
}

/// The failure of a publish.
#[derive(Debug)]
pub(super) struct Failed {
    /// Whether the broker may have the event.
    pub(super) is_published: bool,
    pub(super) cause: Cause,
}

/// The cause of a failure.
#[derive(Debug)]
pub(super) enum Cause {
    /// No connection could be opened.
    NotConnected(EgressFailure),
    /// The connection broke, was silent for too long, or carried bytes that the protocol does not allow.
    Broken { code: &'static str, class: Option<ErrorClass>, detail: String },
    /// The broker, or a check before the publish, refused the event. If `leaves_connection`, the connection can be used
    /// again.
    Refused { outcome: Outcome, class: ErrorClass, detail: String, leaves_connection: bool },
}

impl Failed {
    fn not_connected(failure: EgressFailure) -> Self {
        Self { is_published: false, cause: Cause::NotConnected(failure) }
    }

    /// A refusal of the event by the broker, or by a check before the publish.
    pub(super) fn refused(outcome: Outcome, class: ErrorClass, detail: impl Into<String>) -> Self {
        let cause = Cause::Refused { outcome, class, detail: detail.into(), leaves_connection: false };
        Self { is_published: false, cause }
    }

    /// A failure because the account or the settings are wrong. It pauses the lane.
    pub(super) fn config(code: &str, class: ErrorClass, detail: impl Into<String>) -> Self {
        Self::refused(Outcome::config(code), class, detail)
    }

    /// Marks that the connection can carry the next event after this failure.
    pub(super) fn and_leaves_connection(mut self) -> Self {
        if let Cause::Refused { leaves_connection, .. } = &mut self.cause {
            *leaves_connection = true;
        }
        self
    }

    /// Sets the class of the error of a broken connection, if its code does not imply the class.
    pub(super) fn of_class(mut self, known: ErrorClass) -> Self {
        if let Cause::Broken { class, .. } = &mut self.cause {
            *class = Some(known);
        }
        self
    }
}

/// A connection that publishes events, one after the other.
pub(super) trait Publisher: Send + Sized + 'static {
    /// The broker's address and the account at the broker.
    type Account: Send + Sync;
    /// The bytes that announce the end of a connection. Some brokers log a warning without them.
    const FAREWELL: &'static [u8] = b"";
    /// Whether a broker may send something on an idle connection without ending it. If false, a connection with unread
    /// bytes is not used again: the broker is ending it, or the bytes could be taken for the next answer.
    const SPEAKS_UNASKED: bool = false;

    /// Checks an address. The error completes a sentence that begins with "the address".
    fn check_target(account: &Self::Account, target: &str) -> Result<(), String>;

    /// Connects, encrypts the connection as the settings ask, and signs in.
    fn open(
        account: &Self::Account,
        egress: &Egress,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self, Failed>> + Send;

    /// Publishes an event and waits for its acknowledgement.
    fn publish(
        &mut self,
        account: &Self::Account,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Acknowledged, Failed>> + Send;

    fn wire(&mut self) -> &mut Wire;

    /// The time at which the connection was opened.
    fn opened(&self) -> Instant;

    /// The idle time after which the broker may close the connection, if the broker has announced one.
    fn idle_limit(&self) -> Option<Duration> {
        None
    }
}

/// An open connection that waits for the next event.
struct Kept<P>(P);

impl<P: Publisher> Reusable for Kept<P> {
    fn opened(&self) -> Instant {
        self.0.opened()
    }

    fn idle_limit(&self) -> Option<Duration> {
        self.0.idle_limit()
    }

    async fn close(mut self) {
        let _ = self.0.wire().write(P::FAREWELL, Deadline::after(Duration::from_secs(5))).await;
    }
}

/// The driver for one kind of broker.
pub(super) struct Broker<P: Publisher> {
    account: P::Account,
    /// The attribute `source` of the events, if the settings have one.
    source: Option<String>,
    secrets: Vec<Secret>,
    egress: Egress,
    guarantee: Guarantee,
    idle: IdleConnections<Kept<P>>,
}

impl<P: Publisher> Broker<P> {
    /// The driver for this account. `source` is the setting `source`.
    pub(super) fn boxed(
        account: P::Account,
        source: Option<String>,
        parts: &Parts<'_>,
    ) -> Result<Box<dyn Driver>, String> {
        cloudevents::check_source(source.as_deref())?;
        Ok(Box::new(Self {
            account,
            source,
            secrets: parts.secrets.values().cloned().collect(),
            egress: parts.egress.clone(),
            guarantee: parts.guarantee,
            idle: IdleConnections::default(),
        }))
    }

    async fn publish(&self, event: &Event<'_>, deadline: Deadline) -> Result<Acknowledged, Failed> {
        if let Some(idle) = self.usable().await {
            match self.publish_over(idle, event, deadline).await {
                // The idle connection broke before the event was written. The broker does not have the event, so a new
                // connection is opened.
                Err(Failed { is_published: false, cause: Cause::Broken { .. } }) => {}
                result => return result,
            }
        }
        let publisher = P::open(&self.account, &self.egress, deadline).await?;
        self.publish_over(publisher, event, deadline).await
    }

    async fn publish_over(
        &self,
        mut publisher: P,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> Result<Acknowledged, Failed> {
        publisher.wire().begin();
        let result = publisher.publish(&self.account, event, deadline).await;
        let is_usable = match &result {
            Ok(_) => true,
            Err(failed) => matches!(failed.cause, Cause::Refused { leaves_connection: true, .. }),
        };
        if is_usable && self.guarantee != Guarantee::AtMostOnce {
            self.idle.put(Kept(publisher));
        }
        result
    }

    /// Takes an idle connection that the broker has not closed. If the broker closes it during a publish, the outcome
    /// is unclear. With `at_most_once` an unclear send is not repeated, so there no connection is kept.
    async fn usable(&self) -> Option<P> {
        while let Some(Kept(mut publisher)) = self.idle.take() {
            let wire = publisher.wire();
            if !wire.is_closed().await && (P::SPEAKS_UNASKED || !wire.has_unread()) {
                return Some(publisher);
            }
        }
        None
    }

    fn report(&self, result: Result<Acknowledged, Failed>, target: &str) -> Report {
        let Failed { is_published, cause } = match result {
            Ok(acknowledged) => {
                let mut report = Report::from(Outcome::Sent);
                report.evidence.provider_ref = acknowledged.reference.filter(|text| is_reference(text));
                report.evidence.excerpt = acknowledged.text.map(|text| self.clean(&text, target));
                return report;
            }
            Err(failed) => failed,
        };
        match cause {
            Cause::NotConnected(failure) => super::not_connected(failure),
            Cause::Broken { code, class, detail } => {
                let detail = self.clean(&detail, target);
                let report = match is_published {
                    true => Report::from(Outcome::unclear(code))
                        .because(format!("{detail}, after the event was sent; the broker may have taken it")),
                    false => Report::from(Outcome::deferred(code)).because(detail),
                };
                Report { class, ..report }
            }
            Cause::Refused { outcome, class, detail, .. } => {
                Report { class: Some(class), ..Report::from(outcome).because(self.clean(&detail, target)) }
            }
        }
    }

    /// A text from the broker as one line, without the secrets and the address.
    fn clean(&self, text: &str, target: &str) -> String {
        let mut redactions = Redactions::default();
        // The secrets are revealed here to search for them in the text.
        self.secrets.iter().for_each(|secret| redactions.secrets(secret.reveal()));
        redactions.address(target, None);
        http::excerpt(text.as_bytes(), &redactions.into_texts())
    }
}

impl<P: Publisher> Driver for Broker<P> {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            if let Err(problem) = P::check_target(&self.account, message.target) {
                return Report::from(Outcome::refused("bad_address")).because(format!("the address {problem}"));
            }
            let id = message.key.provider_key();
            let body = cloudevents::envelope(&message, &id, self.source.as_deref());
            let event = Event {
                id: &id,
                target: message.target,
                body: &body,
                event_type: message.raw_event.event_type,
                correlation_id: message.raw_event.correlation_id,
                traceparent: message.traceparent,
                created_at: message.raw_event.created_at,
                lifetime: message.raw_event.expires_at.since(clock::now()).max(Duration::from_millis(1)),
            };
            let result = self.publish(&event, Deadline::after(message.timeout)).await;
            self.report(result, message.target)
        })
    }

    fn shown_request(&self, message: &Message<'_>) -> Option<String> {
        P::check_target(&self.account, message.target).ok()?;
        let body = cloudevents::envelope(message, &message.key.provider_key(), self.source.as_deref());
        Some(format!("PUBLISH {}\n\n{}", message.target, String::from_utf8_lossy(&body)))
    }
}

/// Whether a broker's own id of an event can be stored. An id that is too long is not shortened, but ignored.
fn is_reference(text: &str) -> bool {
    (1..=http::REFERENCE_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// The properties of a driver for a broker. The channel has the same name as the driver.
pub(super) fn kind(
    name: &'static str,
    guarantee: Guarantee,
    key_window: KeyWindow,
    secrets: &[&'static str],
    build: fn(&Parts<'_>) -> Result<Box<dyn Driver>, String>,
) -> Kind {
    Kind {
        policy: policy(),
        secrets: secrets.iter().map(|name| (*name).into()).collect(),
        secret_routes: ["host", "port", "tls"].map(Into::into).into(),
        ..Kind::new(name, guarantee, key_window, build)
    }
}

/// The default policy. A broker that fails usually works again after seconds or minutes, and events should not wait
/// much longer. The last of 100 attempts is 15 hours after the first.
fn policy() -> Policy {
    let schedule = Schedule::Exponential { base_s: 1.0, factor: 2.0, cap_s: 600.0 };
    Policy { max_attempts: 100, ..schedule.into() }
}

/// Refuses an address that is empty, has more than `most` bytes, or contains a control character or one of `forbidden`.
pub(super) fn check_characters(target: &str, most: usize, forbidden: &[char]) -> Result<(), String> {
    if target.is_empty() || target.len() > most {
        return Err(format!("has {} bytes; 1 to {most} are allowed", target.len()));
    }
    match target.chars().find(|c| c.is_control() || forbidden.contains(c)) {
        Some(c) => Err(format!("holds {c:?}, which is not allowed")),
        None => Ok(()),
    }
}
