//! The objects that the demo creates before it begins: two tenants with their providers, templates, users and lists. A
//! chain of hotels sends confirmations, reminders and alerts, and a bakery tells customers that their orders are ready.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::egress::Egress;
use postcommit_channel::model::{Actor, QuietHours};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_engine::dispatch::Tools;
use postcommit_engine::store::{
    EventTypeDraft, MemberDraft, PreferenceDraft, Store, SuppressionDraft, UserAddress, UserDraft,
};
use serde_json::{Map, Value, json};
use url::Url;

use super::fakes::{Fakes, Kind};
use crate::callbacks::{self, Rotation};
use crate::output::Failure;
use crate::providers::{self, Workshop};
use crate::templates::{self, Templates};

/// The names of the two tenants: the hotels and the bakery.
pub const HOTELS: &str = "default";
pub const BAKERY: &str = "bakery";
/// The sites of the hotels.
pub const SITES: [&str; 5] = ["goa-beach", "munnar-hills", "jaipur-fort", "kochi-harbour", "leh-lodge"];
/// The list to which the weekly offer is sent.
pub const NEWSLETTER: &str = "newsletter";
/// The id of the user with quiet hours.
const QUIET: &str = "guest-hugo";

/// A guest of the hotels.
pub struct Guest {
    pub id: &'static str,
    pub name: &'static str,
    pub email: &'static str,
    pub phone: &'static str,
}

const fn guest(id: &'static str, name: &'static str, email: &'static str, phone: &'static str) -> Guest {
    Guest { id, name, email, phone }
}

/// The guests. Farid's address begins with `slow`, so the fake mail server defers the first attempt of each mail to
/// him.
pub const GUESTS: [Guest; 8] = [
    guest("guest-ada", "Ada Lind", "ada@guest.example", "+919876500001"),
    guest("guest-farid", "Farid Haddad", "slow.farid@guest.example", "+919876500002"),
    guest("guest-ben", "Ben Okafor", "ben@guest.example", "+919876500003"),
    guest("guest-chitra", "Chitra Rao", "chitra@guest.example", "+919876500004"),
    guest(QUIET, "Hugo Martin", "hugo@guest.example", "+919876500005"),
    guest("guest-dmitri", "Dmitri Weber", "dmitri@guest.example", "+919876500006"),
    guest("guest-elena", "Elena Costa", "elena@guest.example", "+919876500007"),
    guest("guest-grace", "Grace Kim", "grace@guest.example", "+919876500008"),
];

/// Creates the tenants with all their objects.
pub async fn plant(tools: &Tools, egress: &Egress, fakes: &Fakes, base_url: &str) -> Result<(), Failure> {
    let store = tools.store.by(Actor::new("demo"));
    let (hotels, bakery) = (store.tenant_or_new(HOTELS).await?, store.tenant_or_new(BAKERY).await?);
    let installation = store.clone();
    let workshop = Workshop { store: &store, installation, keys: &tools.keys, egress, is_local: true, new_key: false };
    for (tenant, sender) in
        [(hotels, "Hotel Sonne <desk@hotel.example>"), (bakery, "Bakery North <shop@bakery.example>")]
    {
        create(&workshop, tenant, mail(fakes, sender)).await?;
        create(&workshop, tenant, sms(fakes)).await?;
    }
    for made in [slack(fakes), whatsapp(fakes), partners()] {
        create(&workshop, hotels, made).await?;
    }
    if let Some(provider) = store.provider(hotels, "whatsapp").await? {
        let url = callbacks::url(&store, &tools.keys, base_url, &provider, Rotation::Keep).await;
        fakes.report_to(url.ok().and_then(|told| Url::parse(&told.url).ok()));
    }
    plant_content(&store, hotels).await?;
    plant_people(&store, hotels).await
}

/// A provider to create: its name, its driver and its fields.
type Made = (&'static str, &'static str, providers::Change);

async fn create(workshop: &Workshop<'_>, tenant: i32, (name, driver, change): Made) -> Result<(), Failure> {
    workshop.create(tenant, name, driver, change).await?;
    Ok(())
}

/// Returns the fields of a provider. The timeout is short, so that failures are soon visible.
fn usual(settings: Value, secrets: &[(&str, &str)], policy: Value) -> providers::Change {
    let settings = if let Value::Object(settings) = settings { settings } else { Map::new() };
    let secrets: Secrets = secrets.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect();
    providers::Change { settings, secrets, policy: Some(policy), timeout_ms: Some(5000), ..Default::default() }
}

fn growing() -> Value {
    json!({"name": "exponential", "base_s": 2, "cap_s": 15, "max_attempts": 5})
}

fn mail(fakes: &Fakes, from: &str) -> Made {
    let address = fakes.get(Kind::Mail).address;
    let settings = json!({"host": address.ip().to_string(), "port": address.port(), "tls": "none", "from": from});
    ("mail", "smtp", usual(settings, &[], growing()))
}

fn sms(fakes: &Fakes) -> Made {
    let settings = json!({"base_url": fakes.get(Kind::Sms).url(), "account_sid": "AC00000000000000000000000000000000",
        "from": "+15550001111"});
    let policy = json!({"name": "fixed", "interval_s": 4, "max_attempts": 3});
    let change = usual(settings, &[("auth_token", "of-the-demo")], policy);
    ("sms", "twilio", providers::Change { rate_per_s: Some(Some(10.0)), ..change })
}

fn slack(fakes: &Fakes) -> Made {
    let url = format!("{}/services/T0/B0/demo", fakes.get(Kind::Slack).url());
    let change = usual(json!({}), &[("url", &url)], growing());
    ("slack", "slack", providers::Change { rate_per_s: Some(Some(5.0)), ..change })
}

fn whatsapp(fakes: &Fakes) -> Made {
    let settings = json!({"base_url": fakes.get(Kind::Whatsapp).url(), "phone_number_id": "100200300"});
    ("whatsapp", "whatsapp_cloud", usual(settings, &[("token", "of-the-demo")], growing()))
}

/// The provider of webhooks to a partner has no circuit breaker, so that an outage parks some of its deliveries.
fn partners() -> Made {
    let change = usual(json!({}), &[], json!({"name": "fixed", "interval_s": 2, "max_attempts": 3}));
    ("partners", "webhook", providers::Change { breaker_failures: Some(0), ..change })
}

async fn plant_content(store: &Store, tenant: i32) -> Result<(), Failure> {
    for (name, description, sample) in [
        ("booking.confirmed", "A guest has booked a stay", sample_booking()),
        ("booking.reminder", "The stay begins soon", sample_booking()),
        ("invoice.issued", "An invoice for a stay", json!({"bookingId": 4711, "amount": "14,200", "currency": "INR"})),
        ("offer.weekly", "The offer of the week, for those who want it", json!({"title": "Three nights for two"})),
    ] {
        let draft = EventTypeDraft {
            description: Some(description.into()),
            sample: Some(sample),
            placeholders: vec![],
            ..EventTypeDraft::default()
        };
        store.create_event_type(tenant, name, &draft).await?;
    }
    let templates = Templates { store, tenant };
    for (id, event_type, channel, subject, text, html) in TEMPLATES {
        let part = |text: &str| (!text.is_empty()).then(|| Some(text.to_owned()));
        let change = templates::Change {
            event_type: Some(event_type.into()),
            channel: Some(channel.into()),
            subject: part(subject),
            text: part(text),
            html: part(html),
            layout: (!html.is_empty()).then(|| Some("mail".to_owned())),
            note: Some("made for the demo".into()),
            ..templates::Change::default()
        };
        templates.create(id, &change).await?;
    }
    Ok(())
}

fn sample_booking() -> Value {
    json!({"bookingId": 4711, "guestName": "Ada Lind", "nights": 3, "checkinDate": "2026-03-15", "hotel": "goa-beach"})
}

/// The templates: id, event type, channel, subject, text and HTML. An empty string is a missing part.
const TEMPLATES: [(&str, &str, &str, &str, &str, &str); 6] = [
    (
        "booking-mail",
        "booking.confirmed",
        "email",
        "Booking {{ bookingId }} is confirmed",
        "",
        "<h1>See you soon, {{ guestName }}</h1><p>Your booking {{ bookingId }} at {{ hotel }} is confirmed: {{ nights }} nights \
         from {{ checkinDate }}.</p><p>Your room is ready from 2 pm.</p>",
    ),
    (
        "booking-whatsapp",
        "booking.confirmed",
        "whatsapp",
        "",
        "Dear {{ guestName }}, booking {{ bookingId }} at {{ hotel }} is confirmed. We expect you on {{ checkinDate }}.",
        "",
    ),
    (
        "booking-inbox",
        "booking.confirmed",
        "in_app",
        "Booking {{ bookingId }} is confirmed",
        "{{ nights }} nights at {{ hotel }}, from {{ checkinDate }}.",
        "",
    ),
    (
        "reminder-sms",
        "booking.reminder",
        "sms",
        "",
        "{{ guestName }}, your stay at {{ hotel }} begins on {{ checkinDate }}. Booking {{ bookingId }}.",
        "",
    ),
    (
        "invoice-mail",
        "invoice.issued",
        "email",
        "Your invoice for booking {{ bookingId }}",
        "",
        "<h1>Thank you for your stay</h1><p>Your invoice for booking {{ bookingId }}: <b>{{ currency }} {{ amount }}</b>.</p>",
    ),
    (
        "offer-mail",
        "offer.weekly",
        "email",
        "This week: {{ title }}",
        "",
        "<h1>{{ title }}</h1><p>Only this week, at all of our houses.</p>",
    ),
];

async fn plant_people(store: &Store, tenant: i32) -> Result<(), Failure> {
    let now = store.now().await?;
    for one in &GUESTS {
        let address = |kind: &str, address: &str| UserAddress {
            kind: kind.into(),
            address: address.into(),
            verified_at: Some(now),
            disabled_reason: None,
        };
        let user = UserDraft {
            name: Some(one.name.into()),
            time_zone: Some("UTC".into()),
            quiet_hours: (one.id == QUIET).then(|| quiet_around(now)),
            addresses: vec![address("email", one.email), address("phone", one.phone)],
            ..UserDraft::default()
        };
        store.create_user(tenant, one.id, &user).await?;
    }
    let unwanted = PreferenceDraft { event_type: "offer.weekly".into(), channel: "email".into(), allowed: Some(false) };
    store.set_preferences(tenant, GUESTS[0].id, &[unwanted]).await?;
    store.create_list(tenant, NEWSLETTER, Some("Guests who get the offer of the week")).await?;
    let member = |kind: &str, member: &str| MemberDraft { kind: kind.into(), member: member.into(), channel: None };
    let mut members: Vec<MemberDraft> = GUESTS.iter().take(4).map(|one| member("user", one.id)).collect();
    members.push(member("email", "complained@guest.example"));
    store.change_members(tenant, NEWSLETTER, &members, &[]).await?;
    let suppressed = SuppressionDraft {
        channel: "email".into(),
        address: "complained@guest.example".into(),
        reason: "marked our mail as spam".into(),
        until: None,
    };
    store.suppress(tenant, &suppressed).await?;
    Ok(())
}

/// Returns quiet hours that began an hour ago and last for three more hours.
fn quiet_around(now: Timestamp) -> QuietHours {
    let clock = |at: Timestamp| at.to_string().chars().skip(11).take(5).collect();
    let hour = Duration::from_secs(3600);
    let began = Timestamp::from_micros(now.as_micros() - i64::try_from(hour.as_micros()).unwrap_or(0));
    QuietHours { from: clock(began), until: clock(now.plus(3 * hour)) }
}
