//! B5: receipts, which providers send after they took a message; on both databases.

use postcommit::Timestamp;
use postcommit_channel::driver;
use postcommit_channel::model::{DeliveryId, Guarantee, Happened, Provider, Reported};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_engine::store::{Act, AuditFilter, Fate, SuppressionFilter};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const TO: &str = "+919876543210";

fn took(sid: &str) -> Reply {
    Reply::json(201, json!({"sid": sid}))
}

/// A provider of Twilio that sends to the scripted server.
async fn provider(world: &World, name: &str, server: &HttpServer, guarantee: Guarantee) -> Provider {
    let mut draft = driver::kind("twilio").unwrap().draft(name);
    draft.settings = json!({"base_url": server.url(""), "account_sid": "AC1", "from": "+15550001111"});
    let secrets = Secrets::from([("auth_token".to_owned(), Secret::new("tok_0123456789"))]);
    draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, name));
    (draft.rate_per_s, draft.burst, draft.guarantee) = (None, None, guarantee);
    world.provider(draft).await;
    world.store.provider(world.tenant, name).await.unwrap().unwrap()
}

async fn enqueue(world: &World, provider: &Provider) -> Uuid {
    let to = json!({"recipients": [{"provider": provider.name, "address": TO}], "body": "Booked"});
    world.enqueue("booking.confirmed", to).await
}

/// Enqueues a message and sends it.
async fn sent(world: &World, provider: &Provider) -> Uuid {
    let id = enqueue(world, provider).await;
    world.pass().await;
    id
}

fn event(happened: Happened, id: Uuid) -> Reported {
    Reported {
        event_id: Uuid::new_v4().to_string(),
        delivery: Some(DeliveryId { notification: id, n: 1 }),
        provider_ref: None,
        happened,
        at: Some("2026-03-01T09:30:00Z".parse().unwrap()),
        code: None,
        class: None,
        detail: None,
    }
}

/// The provider reports one event. Returns what became of it, or nothing if it is known.
async fn report(world: &World, provider: &Provider, event: &Reported) -> Option<Fate> {
    let received = world.store.receive(provider, std::slice::from_ref(event)).await.unwrap();
    assert_eq!(received.new, received.fates.len());
    received.fates.first().map(|(_, fate)| *fate)
}

async fn state(world: &World, id: Uuid) -> String {
    let row = world.delivery(id).await;
    row.reason.map_or(row.state.clone(), |reason| format!("{} {reason}", row.state))
}

/// Every receipt of a delivery: what happened, what became of it, and why.
async fn story(world: &World, id: Uuid) -> Vec<String> {
    let rows = world.store.receipts(world.tenant, id, 1).await.unwrap();
    rows.iter().map(|row| format!("{} {} {}", row.happened, row.fate, row.reason.as_deref().unwrap_or("-"))).collect()
}

/// Lets the duty look at every receipt that waits.
async fn look_again(world: &World) {
    world.execute("UPDATE postcommit.receipt SET look_at = {now}", vec![]).await;
    world.store.apply_receipts_once().await.unwrap();
}

async fn suppressed(world: &World) -> Vec<String> {
    let all = SuppressionFilter { tenant: Some(world.tenant), limit: 10, ..SuppressionFilter::default() };
    let rows = world.store.suppression_rows(&all).await.unwrap();
    rows.iter().map(|row| format!("{} {} {} {}", row.channel, row.address, row.reason, row.created_by)).collect()
}

on_both! {
    async fn b5_a_receipt_confirms_what_was_sent(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let before = world.delivery(id).await;
        assert_eq!((before.state.as_str(), before.delivered_at), ("sent", None));
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, id)).await, Some(Fate::Applied));
        let after = world.delivery(id).await;
        assert_eq!((after.state.as_str(), after.sent_at, after.attempts), ("delivered", before.sent_at, 1));
        assert!(after.delivered_at >= before.sent_at, "{after:?}");
        let receipts = world.store.receipts(world.tenant, id, 1).await.unwrap();
        assert_eq!(receipts[0].happened_at, Some("2026-03-01T09:30:00Z".parse().unwrap()));
        assert_eq!(receipts[0].provider.as_deref(), Some("twilio"));
        let audit = AuditFilter { action: Some("delivery.receipt".into()), limit: 10, ..AuditFilter::default() };
        let audit = world.store.audit_rows(&audit).await.unwrap();
        assert_eq!((audit.len(), audit[0].actor.as_str(), &audit[0].subject), (1, "provider:twilio", &after.id));
        let counts = world.sql("SELECT state, count FROM postcommit.rollup_fresh ORDER BY state", vec![]).await;
        let counts: Vec<(String, i64)> = counts.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap())).collect();
        assert_eq!(counts, [("confirmed".to_owned(), 1), ("sent".to_owned(), 1)]);
    }

    async fn b6_a_bounced_delivery_that_is_sent_again_keeps_its_attempts(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let first = world.attempts(id).await;
        let mut bounce = event(Happened::Failed, id);
        (bounce.code, bounce.detail) = (Some("30003".into()), Some("unreachable".into()));
        assert_eq!(report(&world, &provider, &bounce).await, Some(Fate::Applied));
        assert_eq!(state(&world, id).await, "parked rejected");
        assert_eq!(format!("{:?}", world.attempts(id).await), format!("{first:?}"), "a receipt changes no attempt");
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        assert_eq!(format!("{:?}", world.attempts(id).await), format!("{first:?}"), "it left the ledger, its attempt did not");
        world.pass().await;
        let attempts = world.attempts(id).await;
        let told: Vec<_> = attempts.iter().map(|a| (a.seq, a.outcome.as_str(), a.provider_ref.as_deref())).collect();
        assert_eq!(told, [(1, "sent", Some("SM1")), (2, "sent", Some("SM1"))]);
        let newest = world.store.newest_attempts(world.tenant, 10).await.unwrap();
        assert_eq!(newest.iter().map(|a| a.seq).collect::<Vec<_>>(), [2, 1]);
        let log = "SELECT count(*) FROM postcommit.logged_attempt";
        assert_eq!(world.sql(log, vec![]).await[0].get::<i64>(0).unwrap(), 1, "the ledger has the second one");
    }

    async fn b5_a_receipt_that_comes_twice_counts_once(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let twice = event(Happened::Delivered, id);
        let both = world.store.receive(&provider, &[twice.clone(), twice.clone()]).await.unwrap();
        assert_eq!((both.new, both.fates), (1, vec![(Happened::Delivered, Fate::Applied)]));
        assert_eq!(report(&world, &provider, &twice).await, None);
        assert_eq!(story(&world, id).await, ["delivered applied -"]);
        let audit = AuditFilter { action: Some("delivery.receipt".into()), limit: 10, ..AuditFilter::default() };
        assert_eq!(world.store.audit_rows(&audit).await.unwrap().len(), 1);
    }

    async fn b5_receipts_out_of_order_never_lead_backwards(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        for (happened, fate) in [
            (Happened::Delivered, Fate::Applied),
            (Happened::Sent, Fate::Ignored),
            (Happened::Failed, Fate::Ignored),
            (Happened::Delivered, Fate::Ignored),
        ] {
            assert_eq!(report(&world, &provider, &event(happened, id)).await, Some(fate), "{happened:?}");
            assert_eq!(state(&world, id).await, "delivered");
        }
        let refused = sent(&world, &provider).await;
        assert_eq!(report(&world, &provider, &event(Happened::Failed, refused)).await, Some(Fate::Applied));
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, refused)).await, Some(Fate::Ignored));
        assert_eq!(state(&world, refused).await, "parked rejected");
        assert_eq!(story(&world, refused).await, ["failed applied -", "delivered ignored already_parked"]);
    }

    async fn b5_a_receipt_that_comes_before_the_answer_waits_for_it(world) {
        let server = HttpServer::start(|_| took("SM1").slow());
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = enqueue(&world, &provider).await;
        let running = world.run().await;
        world.until("the request has arrived", async || server.requests().len() == 1).await;
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, id)).await, Some(Fate::Waiting));
        // The provider's own id of the message is not known here yet.
        let by_ref = Reported { delivery: None, provider_ref: Some("SM1".into()), ..event(Happened::Sent, id) };
        assert_eq!(report(&world, &provider, &by_ref).await, Some(Fate::Waiting));
        server.release();
        // The duty of the running dispatcher applies it.
        world.until("the delivery is delivered", async || state(&world, id).await == "delivered").await;
        running.finish().await;
        look_again(&world).await;
        assert_eq!(story(&world, id).await, ["delivered applied -", "sent ignored already_delivered"]);
        assert_eq!(server.requests().len(), 1);
    }

    async fn b5_a_receipt_settles_an_unknown_outcome(world) {
        let server = HttpServer::start(|_| Reply::Close);
        let provider = provider(&world, "twilio", &server, Guarantee::AtMostOnce).await;
        for (happened, wanted) in [
            (Happened::Sent, "sent"),
            (Happened::Delivered, "delivered"),
            (Happened::Failed, "parked rejected"),
        ] {
            let id = sent(&world, &provider).await;
            assert_eq!(state(&world, id).await, "parked outcome_unknown");
            let coded = Reported { code: Some("30008".into()), detail: Some("lost".into()), ..event(happened, id) };
            assert_eq!(report(&world, &provider, &coded).await, Some(Fate::Applied), "{happened:?}");
            let row = world.delivery(id).await;
            assert_eq!((state(&world, id).await.as_str(), row.unclear), (wanted, false));
            let failed = happened == Happened::Failed;
            assert_eq!((row.error_code.as_deref(), row.sent_at.is_some()), (failed.then_some("30008"), !failed));
            // What certainly failed is retried without consent.
            let retried = world.store.act_on_many(Act::Retry, &[world.key(id, 1)], false).await.unwrap();
            assert_eq!(json!(retried)[0]["result"] == "done", failed, "{retried:?}");
        }
    }

    /// Two messages may have arrived. What the provider says of one of them does not settle the other.
    async fn b5_the_failure_of_one_of_two_unclear_messages_leaves_the_other_unclear(world) {
        let server = HttpServer::start(|_| Reply::Close);
        let provider = provider(&world, "twilio", &server, Guarantee::AtMostOnce).await;
        let id = sent(&world, &provider).await;
        let retry = async |consent| world.store.act_on_many(Act::Retry, &[world.key(id, 1)], consent).await.unwrap();
        retry(true).await;
        world.pass().await;
        assert_eq!((state(&world, id).await.as_str(), server.requests().len()), ("parked outcome_unknown", 2));
        assert_eq!(report(&world, &provider, &event(Happened::Failed, id)).await, Some(Fate::Applied));
        assert_eq!((state(&world, id).await.as_str(), world.delivery(id).await.unclear), ("parked rejected", true));
        assert_eq!(json!(retry(false).await)[0]["result"], "unclear", "a third message needs consent");
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, id)).await, Some(Fate::Applied));
        assert_eq!(state(&world, id).await, "delivered");
    }

    async fn b5_a_retry_that_waits_is_not_sent_once_the_first_message_has_arrived(world) {
        let server = HttpServer::start(|_| Reply::Close);
        let provider = provider(&world, "twilio", &server, Guarantee::AtMostOnce).await;
        let id = sent(&world, &provider).await;
        world.store.pause_lane(provider.id, None, "by hand").await.unwrap();
        world.store.act_on_many(Act::Retry, &[world.key(id, 1)], true).await.unwrap();
        assert_eq!(state(&world, id).await, "pending");
        // A failure of the first message leaves the retry as it is.
        assert_eq!(report(&world, &provider, &event(Happened::Failed, id)).await, Some(Fate::Waiting));
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, id)).await, Some(Fate::Applied));
        assert_eq!(state(&world, id).await, "delivered");
        world.store.resume_lane(provider.id).await.unwrap();
        world.pass().await;
        assert_eq!((server.requests().len(), world.count("delivery_queue").await), (1, 0));
    }

    /// An account that other programs use as well sends receipts that belong to no delivery.
    async fn b5_receipts_of_one_tenant_do_not_delay_those_of_another(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let other = world.store.create_tenant("other").await.unwrap();
        let mut draft = provider.draft.clone();
        draft.secrets = None;
        assert!(world.store.create_provider(other, &draft).await.unwrap());
        let theirs = world.store.provider(other, "twilio").await.unwrap().unwrap();
        let foreign = |n: u32| Reported { delivery: None, provider_ref: Some(format!("X{n}")), ..event(Happened::Sent, Uuid::nil()) };
        let many: Vec<Reported> = (0..600).map(foreign).collect();
        world.store.of_tenant(other).receive(&theirs, &many).await.unwrap();
        let id = enqueue(&world, &provider).await;
        let by_ref = Reported { delivery: None, provider_ref: Some("SM1".into()), ..event(Happened::Delivered, id) };
        assert_eq!(report(&world, &provider, &by_ref).await, Some(Fate::Waiting));
        world.pass().await;
        // Theirs have been due for longer.
        look_again(&world).await;
        assert_eq!(state(&world, id).await, "delivered");
    }

    async fn b5_a_receipt_ends_what_would_have_been_sent_again(world) {
        let server = HttpServer::start(|_| Reply::Close);
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        for (happened, wanted) in [
            (Happened::Delivered, "delivered"),
            (Happened::Sent, "sent"),
            (Happened::Bounced, "parked rejected"),
        ] {
            world.execute("DELETE FROM postcommit.suppression", vec![]).await;
            let (id, before) = (sent(&world, &provider).await, server.requests().len());
            assert_eq!(state(&world, id).await, "retrying");
            assert_eq!(report(&world, &provider, &event(happened, id)).await, Some(Fate::Applied));
            assert_eq!(state(&world, id).await, wanted);
            world.make_due().await;
            world.pass().await;
            assert_eq!(server.requests().len(), before, "it was not sent again");
        }
        // A failure of the attempt that may have arrived leaves the next attempt as it is.
        let id = sent(&world, &provider).await;
        assert_eq!(state(&world, id).await, "skipped", "the bounce suppressed the address");
        world.execute("DELETE FROM postcommit.suppression", vec![]).await;
        let id = sent(&world, &provider).await;
        assert_eq!(report(&world, &provider, &event(Happened::Failed, id)).await, Some(Fate::Ignored));
        assert_eq!((state(&world, id).await.as_str(), story(&world, id).await), ("retrying", vec!["failed ignored tried_again".to_owned()]));
    }

    async fn b5_a_receipt_never_reaches_another_tenant_provider_or_delivery(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let own = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let second = provider(&world, "second", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &own).await;
        let other = world.store.create_tenant("other").await.unwrap();
        let mut draft = own.draft.clone();
        draft.secrets = None;
        assert!(world.store.create_provider(other, &draft).await.unwrap());
        let theirs = world.store.provider(other, "twilio").await.unwrap().unwrap();
        for (by, by_ref, fate) in [(&theirs, false, Fate::Ignored), (&theirs, true, Fate::Waiting), (&second, false, Fate::Ignored), (&second, true, Fate::Waiting)] {
            let mut forged = event(Happened::Bounced, id);
            if by_ref {
                (forged.delivery, forged.provider_ref) = (None, Some("SM1".into()));
            }
            // As the handler does it: with the store of the token's tenant alone.
            let received = world.store.of_tenant(by.tenant).receive(by, &[forged]).await.unwrap();
            assert_eq!(received.fates, [(Happened::Bounced, fate)], "{} {by_ref}", by.name);
        }
        look_again(&world).await;
        assert_eq!((state(&world, id).await.as_str(), suppressed(&world).await), ("sent", vec![]));
        assert_eq!(story(&world, id).await, ["bounced ignored other_provider"]);
        assert_eq!(report(&world, &own, &event(Happened::Delivered, Uuid::now_v7())).await, Some(Fate::Ignored));
        let nameless = Reported { delivery: None, ..event(Happened::Delivered, id) };
        assert_eq!(report(&world, &own, &nameless).await, Some(Fate::Ignored));
        let why = world.sql("SELECT reason FROM postcommit.receipt WHERE fate = 'ignored' ORDER BY id", vec![]).await;
        let why: Vec<String> = why.iter().map(|row| row.get(0).unwrap()).collect();
        assert_eq!(why, ["unknown_delivery", "other_provider", "unknown_delivery", "no_reference"]);
    }

    async fn b5_a_delivery_is_found_by_the_providers_own_id(world) {
        let server = HttpServer::start(|_| took("SM77"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = enqueue(&world, &provider).await;
        let by_ref = Reported { delivery: None, provider_ref: Some("SM77".into()), ..event(Happened::Delivered, id) };
        assert_eq!(report(&world, &provider, &by_ref).await, Some(Fate::Waiting));
        world.pass().await;
        look_again(&world).await;
        assert_eq!((state(&world, id).await.as_str(), story(&world, id).await), ("delivered", vec!["delivered applied -".to_owned()]));
    }

    async fn b5_late_news_of_a_failed_attempt_does_not_undo_the_retry(world) {
        let answers = std::sync::atomic::AtomicU32::new(0);
        let server = HttpServer::start(move |_| took(&format!("SM{}", answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed))));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let failed = |event: Reported| Reported { provider_ref: Some("SM0".into()), ..event };
        assert_eq!(report(&world, &provider, &failed(event(Happened::Failed, id))).await, Some(Fate::Applied));
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(state(&world, id).await, "sent");
        assert_eq!(report(&world, &provider, &failed(event(Happened::Failed, id))).await, Some(Fate::Ignored));
        assert_eq!((state(&world, id).await.as_str(), story(&world, id).await.pop().as_deref()), ("sent", Some("failed ignored earlier_attempt")));
    }

    async fn b5_a_bounce_and_a_complaint_suppress_the_address(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let bounced = Reported { code: Some("30005".into()), ..event(Happened::Bounced, id) };
        assert_eq!(report(&world, &provider, &bounced).await, Some(Fate::Applied));
        let row = world.delivery(id).await;
        assert_eq!((state(&world, id).await.as_str(), row.error_code.as_deref(), row.error_class.as_deref()), ("parked rejected", Some("30005"), Some("invalid_address")));
        assert_eq!(suppressed(&world).await, [format!("sms {TO} hard bounce provider:twilio")]);
        let next = world.delivery(sent(&world, &provider).await).await;
        assert_eq!((next.state.as_str(), next.error_code.as_deref()), ("skipped", Some("suppressed")));
        assert_eq!(server.requests().len(), 1);

        world.execute("DELETE FROM postcommit.suppression", vec![]).await;
        let id = sent(&world, &provider).await;
        report(&world, &provider, &event(Happened::Delivered, id)).await;
        assert_eq!(report(&world, &provider, &event(Happened::Complained, id)).await, Some(Fate::Applied));
        assert_eq!(state(&world, id).await, "delivered");
        assert_eq!(story(&world, id).await, ["delivered applied -", "complained applied already_delivered"]);
        assert_eq!(suppressed(&world).await, [format!("sms {TO} complaint provider:twilio")]);
        // The first reason of a suppression that never ends stays.
        assert_eq!(report(&world, &provider, &event(Happened::Bounced, id)).await, Some(Fate::Applied));
        assert_eq!(suppressed(&world).await, [format!("sms {TO} complaint provider:twilio")]);
    }

    async fn b5_a_receipt_waits_for_a_day_at_most(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = enqueue(&world, &provider).await;
        assert!(!world.store.any_receipt_waits().await.unwrap());
        assert_eq!(world.store.apply_receipts_once().await.unwrap(), None);
        report(&world, &provider, &event(Happened::Delivered, id)).await;
        // It is not looked at before its time.
        assert_eq!(world.store.apply_receipts_once().await.unwrap(), Some(vec![]));
        for _ in 0..20 {
            look_again(&world).await;
        }
        let waits = world.sql("SELECT looks FROM postcommit.receipt WHERE fate = 'waiting'", vec![]).await;
        assert_eq!(waits[0].get::<i64>(0).unwrap(), 21);
        let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.execute("UPDATE postcommit.receipt SET received_at = $1", vec![long_ago.into()]).await;
        look_again(&world).await;
        assert!(!world.store.any_receipt_waits().await.unwrap());
        let why = world.sql("SELECT fate, reason FROM postcommit.receipt", vec![]).await;
        assert_eq!((why[0].get::<String>(0).unwrap(), why[0].get::<String>(1).unwrap()), ("ignored".to_owned(), "never_sent".to_owned()));
    }

    async fn b5_a_callback_token_leads_to_its_provider_and_is_rotated(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let first = world.store.callback_token(&provider).await.unwrap();
        assert!(first.reveal().len() >= 32);
        assert_eq!(world.store.callback_token(&provider).await.unwrap(), first, "it stays the same");
        let found = async |token: &Secret| world.store.provider_of_callback(token.reveal()).await.unwrap().map(|p| p.name.clone());
        assert_eq!(found(&first).await.as_deref(), Some("twilio"));
        for other in ["", "nonsense", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(found(&Secret::new(other)).await, None, "{other}");
        }
        let second = world.store.rotate_callback_token(&provider, false).await.unwrap();
        assert_ne!(first, second);
        assert_eq!(world.store.callback_token(&provider).await.unwrap(), second);
        assert_eq!((found(&first).await, found(&second).await), (Some("twilio".into()), Some("twilio".into())), "both work for a day");
        let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.execute("UPDATE postcommit.callback_token SET expires_at = $1 WHERE expires_at IS NOT NULL", vec![long_ago.into()]).await;
        assert_eq!(found(&first).await, None);
        let third = world.store.rotate_callback_token(&provider, true).await.unwrap();
        assert_eq!((found(&second).await, found(&third).await), (None, Some("twilio".into())), "the old one no longer works");
        assert_eq!(world.count("callback_token").await, 1);
        world.store.delete_provider(world.tenant, "twilio").await.unwrap();
        assert_eq!(found(&third).await, None);
    }

    async fn b5_concurrent_receipts_and_operators_agree_on_one_outcome(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let mut ids = vec![];
        for _ in 0..8 {
            ids.push(sent(&world, &provider).await);
        }
        let (repeated, store) = (event(Happened::Delivered, ids[0]), &world.store);
        let act = async |place: usize| {
            let id = ids[place % 8];
            match place / 8 {
                0 => drop(store.receive(&provider, std::slice::from_ref(&repeated)).await.unwrap()),
                1 => drop(store.receive(&provider, &[event(Happened::Delivered, id)]).await.unwrap()),
                2 => drop(store.receive(&provider, &[event(Happened::Failed, id)]).await.unwrap()),
                3 => drop(store.apply_receipts_once().await.unwrap()),
                _ => drop(store.mark_delivered(world.key(id, 1)).await.unwrap()),
            }
        };
        futures_util::future::join_all((0..40).map(act)).await;
        world.store.apply_receipts_once().await.unwrap();
        assert!(!world.store.any_receipt_waits().await.unwrap());
        for id in ids {
            let state = state(&world, id).await;
            assert!(["delivered", "parked rejected"].contains(&state.as_str()), "{state}");
            let changes = AuditFilter { subject: Some(format!("{id}.1")), limit: 10, ..AuditFilter::default() };
            let changes = world.store.audit_rows(&changes).await.unwrap();
            assert_eq!(changes.len(), 1, "one change of the state, by a receipt or by an operator: {changes:?}");
            let applied = story(&world, id).await.iter().filter(|line| line.contains(" applied ")).count();
            assert_eq!(applied, usize::from(changes[0].action == "delivery.receipt"), "{changes:?}");
        }
    }

    async fn b5_a_large_callback_is_answered_before_all_of_it_is_applied(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        let many: Vec<Reported> = (0..130).map(|_| event(Happened::Sent, id)).collect();
        let received = world.store.receive(&provider, &many).await.unwrap();
        assert_eq!((received.new, received.fates.len()), (130, 100));
        assert_eq!(world.store.apply_receipts_once().await.unwrap().map(|fates| fates.len()), Some(30));
        assert!(!world.store.any_receipt_waits().await.unwrap());
    }

    async fn b5_a_delivery_that_may_have_been_sent_twice_stays_marked(world) {
        let answers = std::sync::atomic::AtomicU32::new(0);
        let server = HttpServer::start(move |_| match answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Reply::Close,
            _ => took("SM2"),
        });
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!((state(&world, id).await.as_str(), world.delivery(id).await.unclear), ("sent", true));
        assert_eq!(report(&world, &provider, &event(Happened::Delivered, id)).await, Some(Fate::Applied));
        assert_eq!((state(&world, id).await.as_str(), world.delivery(id).await.unclear), ("delivered", true));
    }

    async fn b5_a_receipt_that_cannot_be_applied_now_is_applied_later(world) {
        let server = HttpServer::start(|_| took("SM1"));
        let provider = provider(&world, "twilio", &server, Guarantee::AtLeastOnce).await;
        let id = sent(&world, &provider).await;
        for refusal in [RefusedWrite::of("UPDATE", "delivery_ledger"), RefusedWrite::of("INSERT", "suppression")] {
            world.refuse(refusal).await;
            let bounced = event(Happened::Bounced, id);
            assert_eq!(report(&world, &provider, &bounced).await, Some(Fate::Waiting), "{refusal:?}");
            let looks = world.sql("SELECT min(looks) FROM postcommit.receipt", vec![]).await;
            assert_eq!(looks[0].get::<i64>(0).unwrap(), 1, "the next try comes later");
            // Nothing of its transaction was written.
            assert_eq!((state(&world, id).await.as_str(), suppressed(&world).await), ("sent", vec![]));
            world.heal(refusal).await;
        }
        look_again(&world).await;
        assert_eq!((state(&world, id).await.as_str(), suppressed(&world).await.len()), ("parked rejected", 1));
        assert_eq!(story(&world, id).await, ["bounced applied -", "bounced applied already_parked"]);
    }
}
