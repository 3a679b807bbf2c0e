//! Enqueues sample notifications while the demo runs: about two per second, of kinds that depend only on the seed. They
//! are accepted by the same code as notifications of the API.

use std::collections::VecDeque;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_engine::dispatch::Stop;
use postcommit_engine::store::group_commit::GroupCommit;
use postcommit_engine::store::{NotAccepted, Store};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::chaos::Dice;
use super::fakes::{LANDLINE, NO_MAILBOX};
use super::story::{BAKERY, GUESTS, Guest, HOTELS, NEWSLETTER, SITES};
use crate::notifications::{self, Owner};

/// The time between two notifications.
const EVERY: Duration = Duration::from_millis(450);
/// The time from the enqueue of a reminder until it is due.
const REMIND_AFTER: Duration = Duration::from_secs(20);
/// The time from the enqueue of a reminder until it is cancelled, if its guest cancels the stay.
const CANCEL_AFTER: Duration = Duration::from_secs(8);

/// What a sample notification is about.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Booking,
    Reminder,
    Invoice,
    Alert,
    Stock,
    Payment,
    Offer,
    Order,
    Receipt,
}

use Happening::{Alert, Booking, Invoice, Offer, Order, Payment, Receipt, Reminder, Stock};

/// The first notifications are of every kind, so that a new user soon sees each.
const FIRST: [Happening; 10] = [Booking, Booking, Stock, Invoice, Reminder, Alert, Payment, Offer, Order, Receipt];
/// The kinds of the later notifications, chosen at random. A kind that is listed more often is chosen more often.
const LATER: [Happening; 20] = [
    Booking, Booking, Booking, Booking, Reminder, Reminder, Invoice, Invoice, Alert, Alert, Stock, Stock, Stock,
    Payment, Payment, Order, Order, Order, Receipt, Offer,
];

/// Enqueues the sample notifications.
pub struct Trickle {
    store: Store,
    gate: GroupCommit,
    dice: Dice,
    /// The number of notifications that were enqueued so far.
    number: u32,
    /// The URL of the fake service that receives webhooks.
    partner: String,
    /// The bookings whose reminders will be cancelled, and when.
    cancelling: VecDeque<(Timestamp, String)>,
}

impl Trickle {
    pub fn new(store: Store, gate: GroupCommit, seed: u64, partner: String) -> Self {
        Self { store, gate, dice: Dice::new(seed), number: 0, partner, cancelling: VecDeque::new() }
    }

    /// Enqueues notifications until the process stops.
    pub async fn run(mut self, mut stop: watch::Receiver<Stop>) {
        let mut beat = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                _ = beat.tick() => {}
                _ = stop.wait_for(|stop| *stop != Stop::No) => return,
            }
            // After an error the loop continues with the next notification, because the database may only be busy for a
            // moment.
            match self.step().await {
                Ok(()) => {}
                Err(problem @ NotAccepted::Invalid { .. }) => {
                    tracing::error!(%problem, "a notification of the demo was refused; report it as a bug");
                }
                Err(problem) => tracing::debug!(%problem, "a notification of the demo was not accepted"),
            }
        }
    }

    async fn step(&mut self) -> Result<(), NotAccepted> {
        let now = self.store.now().await.map_err(|problem| NotAccepted::unread(&problem))?;
        self.cancel_due(now).await?;
        let place = usize::try_from(self.number).unwrap_or(usize::MAX);
        let happening = FIRST.get(place).copied().unwrap_or_else(|| {
            let place = self.dice.roll(LATER.len() as u32);
            LATER[place as usize]
        });
        self.number += 1;
        let (tenant, note) = self.told(happening, now);
        let owner = Owner { id: self.store.tenant(tenant).await.map_err(|e| NotAccepted::unread(&e))?, name: tenant };
        let request = notifications::read(&self.store, owner, &note.to_string(), None).await?;
        self.gate.accept(request).await.map(drop)
    }

    /// Cancels the reminders of the guests who have cancelled their stay by now.
    async fn cancel_due(&mut self, now: Timestamp) -> Result<(), NotAccepted> {
        while let Some((_, entity)) = self.cancelling.pop_front_if(|(at, _)| *at <= now) {
            let unread = |problem| NotAccepted::unread(&problem);
            let Some(tenant) = self.store.tenant(HOTELS).await.map_err(unread)? else { continue };
            self.store.cancel_entity(tenant, &entity, Some("booking.reminder")).await.map_err(unread)?;
        }
        Ok(())
    }

    /// Returns a notification of this kind, and its tenant.
    fn told(&mut self, happening: Happening, now: Timestamp) -> (&'static str, Value) {
        let (number, site) = (self.number, SITES[self.dice.roll(SITES.len() as u32) as usize]);
        // The first two bookings are of the first two guests: the mail to the second guest is deferred once, which is
        // then soon visible.
        let guest = match number {
            1..=2 => &GUESTS[number as usize - 1],
            _ => &GUESTS[self.dice.roll(GUESTS.len() as u32) as usize],
        };
        let mut note = match happening {
            Booking => booking(number, guest, site),
            Reminder => self.reminder(number, guest, now),
            Invoice => invoice(number, guest, self.dice.roll(4)),
            Alert => alert(number, self.dice.roll(3)),
            Stock => json!({"event_type": "stock.changed", "entity": format!("item-{}", number % 40),
                "recipients": [{"webhook": format!("{}/stock", self.partner)}],
                "payload": {"item": format!("item-{}", number % 40), "left": self.dice.roll(90)}}),
            Payment => payment(number, guest, self.dice.roll(5)),
            Offer => json!({"event_type": "offer.weekly", "recipients": [{"list": NEWSLETTER}], "priority": 1,
                "payload": {"title": "Three nights for two"}}),
            Order => json!({"event_type": "order.ready", "entity": format!("order-{number}"), "channels": ["sms"],
                "recipients": [{"phone": guest.phone}], "title": "Your order is ready",
                "body": format!("{}, order {number} is ready at the counter.", first_name(guest))}),
            Receipt => {
                json!({"event_type": "order.receipt", "entity": format!("order-{number}"), "channels": ["email"],
                "recipients": [{"email": guest.email}], "title": format!("Receipt for order {number}"),
                "body": "Two loaves of rye, one plum cake. Thank you, and see you tomorrow."})
            }
        };
        let tenant = if matches!(happening, Order | Receipt) { BAKERY } else { HOTELS };
        let source = if tenant == BAKERY { json!({"site": "market-street"}) } else { json!({"site": site}) };
        note["idempotency_key"] = format!("demo:{number}").into();
        note["correlation_id"] = format!("stay-{}", number / 3).into();
        note["source"] = source;
        (tenant, note)
    }

    /// Returns a reminder. Half of the reminders are cancelled before they are due.
    fn reminder(&mut self, number: u32, guest: &Guest, now: Timestamp) -> Value {
        let mut note = booking(number, guest, "goa-beach");
        note["event_type"] = "booking.reminder".into();
        note["due_at"] = now.plus(REMIND_AFTER).to_string().into();
        if self.dice.roll(2) == 0 {
            self.cancelling.push_back((now.plus(CANCEL_AFTER), format!("booking-{number}")));
        }
        note
    }
}

fn first_name(guest: &Guest) -> &'static str {
    guest.name.split(' ').next().unwrap_or(guest.name)
}

fn booking(number: u32, guest: &Guest, site: &str) -> Value {
    json!({"event_type": "booking.confirmed", "entity": format!("booking-{number}"), "recipients": [{"user": guest.id}],
        "payload": {"bookingId": 4000 + number, "guestName": guest.name, "nights": 1 + number % 5,
            "checkinDate": format!("2026-12-{:02}", 1 + number % 28), "hotel": site}})
}

/// Returns an invoice. The first one, and later one in four, goes to a mailbox that does not exist.
fn invoice(number: u32, guest: &Guest, chance: u32) -> Value {
    let is_gone = number <= FIRST.len() as u32 || chance == 0;
    let to = if is_gone { format!("{NO_MAILBOX}.{}", guest.email) } else { guest.email.to_owned() };
    json!({"event_type": "invoice.issued", "entity": format!("booking-{number}"), "recipients": [{"email": to}],
        "payload": {"bookingId": 4000 + number, "amount": format!("{},{:03}", 3 + number % 20, number * 37 % 1000),
            "currency": "INR"}})
}

fn alert(number: u32, chance: u32) -> Value {
    let what = ["needs towels", "reports a cold shower", "asks for a late checkout"][chance as usize % 3];
    json!({"event_type": "housekeeping.alert", "entity": format!("room-{}", 100 + number % 60), "recipients": [{"provider": "slack", "address": "front-desk"}], "priority": 8, "title": format!("Room {} {what}", 100 + number % 60),
        "body": format!("*Room {}* {what}.", 100 + number % 60)})
}

/// Returns a failed payment. One in five goes to a landline, and one in five to a user that does not exist.
fn payment(number: u32, guest: &Guest, chance: u32) -> Value {
    let to = match chance {
        0 => json!({"phone": format!("+912245{:02}{LANDLINE}", number % 100)}),
        1 => json!({"user": "guest-unknown"}),
        _ => json!({"phone": guest.phone}),
    };
    // The second recipient always exists, so that a notification to an unknown user is still delivered to one
    // recipient.
    json!({"event_type": "payment.failed", "entity": format!("booking-{number}"), "channels": ["sms"], "priority": 9,
        "recipients": [to, {"phone": "+919876500099"}], "title": "Payment failed",
        "body": format!("The payment for booking {} failed. Please pay at the desk.", 4000 + number)})
}
