//! A provider refuses an address as dead in its answer to a send: the address is suppressed together with the result. On
//! both databases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postcommit_channel::driver;
use postcommit_channel::model::{Finish, FinishedState, Guarantee, Provider, Reason};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_engine::dispatch::{TrialContent, try_provider};
use postcommit_engine::store::{AuditFilter, DeadAddress, Settlement, SuppressionDraft, SuppressionFilter};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply, SmtpAct, SmtpServer, SmtpTls};
use serde_json::json;
use uuid::Uuid;

use crate::store::{claim, in_lane, settlement};
use crate::world::World;

const TO: &str = "+919876543210";
const REJECTED: Finish = Finish::Ended(FinishedState::Parked(Reason::Rejected));

/// Twilio, for which every recipient has opted out until `opted_in` is set.
struct Service {
    server: HttpServer,
    opted_in: Arc<AtomicBool>,
}

impl Service {
    fn start() -> Self {
        let opted_in = Arc::new(AtomicBool::new(false));
        let accepts = opted_in.clone();
        let server = HttpServer::start(move |_| match accepts.load(Ordering::SeqCst) {
            true => Reply::json(201, json!({"sid": "SM1"})),
            false => Reply::json(400, json!({"code": 21610, "message": "unsubscribed"})),
        });
        Self { server, opted_in }
    }

    async fn provider(&self, world: &World, name: &str, guarantee: Guarantee, failover: Option<&str>) -> Provider {
        let mut draft = driver::kind("twilio").unwrap().draft(name);
        draft.settings = json!({"base_url": self.server.url(""), "account_sid": "AC1", "from": "+15550001111"});
        let secrets = Secrets::from([("auth_token".to_owned(), Secret::new("tok_0123456789"))]);
        draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, name));
        (draft.rate_per_s, draft.burst, draft.guarantee) = (None, None, guarantee);
        (draft.is_default, draft.failover) = (failover.is_some() || name == "twilio", failover.map(str::to_owned));
        world.provider(draft).await;
        world.store.provider(world.tenant, name).await.unwrap().unwrap()
    }
}

/// Sends a text to the phone over the default provider.
async fn sent(world: &World) -> Uuid {
    let id = world.enqueue("t", json!({"recipients": [{"phone": TO}], "channels": ["sms"], "body": "Booked"})).await;
    world.pass().await;
    id
}

async fn suppressed(world: &World) -> Vec<String> {
    let all = SuppressionFilter { tenant: Some(world.tenant), limit: 10, ..SuppressionFilter::default() };
    let rows = world.store.suppression_rows(&all).await.unwrap();
    rows.iter().map(|row| format!("{} {} {} {}", row.channel, row.address, row.reason, row.created_by)).collect()
}

async fn state(world: &World, id: Uuid) -> (String, Option<String>) {
    let row = world.delivery(id).await;
    (row.state, row.reason.or(row.error_code))
}

fn ended(state: &str, reason: &str) -> (String, Option<String>) {
    (state.into(), Some(reason.into()))
}

/// A settlement of a claimed delivery whose provider refused its address.
fn dead(delivery: &postcommit_channel::model::Delivery, finish: Finish, address: &str) -> Settlement {
    let address = DeadAddress {
        channel: "email".into(),
        address: address.into(),
        reason: "hard bounce".into(),
        provider: "mail".into(),
    };
    Settlement { dead: Some(Box::new(address)), ..settlement(delivery, finish, "rejected") }
}

on_both! {
    async fn a_recipient_who_has_opted_out_is_suppressed_and_gets_nothing_more(world) {
        for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
            let service = Service::start();
            let provider = service.provider(&world, "twilio", guarantee, None).await;
            let id = sent(&world).await;
            assert_eq!(state(&world, id).await, ended("parked", "rejected"));
            assert_eq!(suppressed(&world).await, [format!("sms {TO} opted out provider:twilio")], "{guarantee:?}");
            let audit = AuditFilter { action: Some("suppression.create".into()), limit: 10, ..AuditFilter::default() };
            let audit = world.store.audit_rows(&audit).await.unwrap().remove(0);
            assert_eq!((audit.actor.as_str(), audit.subject.as_str()), ("provider:twilio", "sms +91…10"));
            assert_eq!(audit.details, Some(json!({"reason": "opted out", "delivery": format!("{id}.1")})));
            let later = sent(&world).await;
            assert_eq!((state(&world, later).await, service.server.requests().len()), (ended("skipped", "suppressed"), 1));

            // The recipient opts in again, and an operator removes the suppression.
            service.opted_in.store(true, Ordering::SeqCst);
            assert!(world.store.remove_suppression(world.tenant, "sms", TO).await.unwrap());
            let again = sent(&world).await;
            assert_eq!((state(&world, again).await, service.server.requests().len()), (("sent".into(), None), 2));
            assert!(suppressed(&world).await.is_empty());
            assert_eq!(world.store.delete_provider(world.tenant, &provider.name).await.unwrap(), Some(0));
        }
    }

    async fn a_dead_address_is_not_tried_at_the_next_provider(world) {
        let (first, second) = (Service::start(), Service::start());
        second.opted_in.store(true, Ordering::SeqCst);
        second.provider(&world, "second", Guarantee::AtLeastOnce, None).await;
        first.provider(&world, "first", Guarantee::AtLeastOnce, Some("second")).await;
        let id = sent(&world).await;
        assert_eq!(state(&world, id).await, ended("parked", "rejected"));
        assert_eq!(state(&world, sent(&world).await).await, ended("skipped", "suppressed"));
        assert_eq!((first.server.requests().len(), second.server.requests().len()), (1, 0));
    }

    async fn a_mailbox_that_does_not_exist_is_suppressed_and_a_refusal_by_policy_is_not(world) {
        let server = SmtpServer::start(SmtpTls::None, &[], |heard| match heard.line.contains("Gone@") {
            _ if !heard.line.starts_with("RCPT") => SmtpAct::Usual,
            true => SmtpAct::Say("550 5.1.1 no such user".into()),
            false => SmtpAct::Say("550 5.7.1 looks like spam".into()),
        });
        let settings = json!({"host": "127.0.0.1", "port": server.addr().port(), "tls": "none", "from": "desk@hotel.example"});
        let mut draft = world.draft("mail", "smtp", settings);
        (draft.channel, draft.guarantee) = ("email".into(), Guarantee::AtLeastOnce);
        world.provider(draft).await;
        for to in ["Gone@guest.example", "here@guest.example"] {
            let id = world.enqueue("t", json!({"recipients": [{"email": to}], "title": "Hi", "body": "Booked"})).await;
            world.pass().await;
            assert_eq!(state(&world, id).await, ended("parked", "rejected"), "{to}");
        }
        assert_eq!(suppressed(&world).await, ["email gone@guest.example hard bounce provider:mail"]);
    }

    async fn a_test_of_a_provider_suppresses_nothing(world) {
        let service = Service::start();
        let provider = service.provider(&world, "twilio", Guarantee::AtLeastOnce, None).await;
        let content = TrialContent { text: Some("Booked".into()), ..TrialContent::default() };
        let trial = try_provider(&world.tools(world.store.clone()), &provider, "default", TO, &content).await.unwrap();
        assert_eq!(trial.report.suppress.as_deref(), Some("opted out"));
        assert!(suppressed(&world).await.is_empty());
    }

    /// The worker may be killed at any moment, so a result without its suppression must not be readable.
    async fn a_result_and_its_suppression_are_written_together_or_not_at_all(world) {
        let lane = world.capture(json!({})).await;
        let ids = in_lane(&world, lane, 3).await;
        let claimed = claim(&world.store, lane, 3).await;
        let [one, two, three] = claimed.as_slice() else { panic!("{claimed:?}") };
        let later = Finish::Again { at: world.store.now().await.unwrap().plus(Duration::from_secs(600)), counted: true };
        let batch = || vec![dead(one, REJECTED, "A@x.example"), settlement(two, later, "deferred"), dead(three, REJECTED, "b@x.example")];
        let refusal = RefusedWrite::of("INSERT", "suppression").when("NEW.address = 'b@x.example'");
        world.refuse(refusal).await;
        assert!(world.store.settle(batch()).await.is_err());
        assert_eq!((world.count("delivery_ledger").await, world.count("logged_attempt").await), (0, 0));
        assert!(suppressed(&world).await.is_empty());
        world.heal(refusal).await;
        assert_eq!(world.store.settle(batch()).await.unwrap().applied.len(), 3);
        assert_eq!(suppressed(&world).await, ["email a@x.example hard bounce provider:mail", "email b@x.example hard bounce provider:mail"]);
        assert_eq!((world.count("delivery_ledger").await, ids.len()), (2, 3));
    }

    async fn a_result_that_comes_too_late_suppresses_nothing(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 2).await;
        let old = claim(&world.store, lane, 2).await;
        world.expire_leases().await;
        let new = claim(&world.store, lane, 2).await;
        let other = old.iter().find(|old| old.key != new[0].key).unwrap();
        let settled = world.store.settle(vec![dead(&new[0], REJECTED, "a@x.example"), dead(other, REJECTED, "b@x.example")]).await.unwrap();
        assert_eq!((settled.applied.len(), settled.stale.len()), (1, 1));
        assert_eq!(suppressed(&world).await, ["email a@x.example hard bounce provider:mail"]);
    }

    async fn a_suppression_without_an_end_keeps_its_reason(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 2).await;
        let claimed = claim(&world.store, lane, 2).await;
        let until = Some("2099-01-01T00:00:00Z".parse().unwrap());
        for (address, until) in [("a@x.example", None), ("b@x.example", until)] {
            let draft = SuppressionDraft { channel: "email".into(), address: address.into(), reason: "asked us".into(), until };
            world.store.suppress(world.tenant, &draft).await.unwrap();
        }
        world.store.settle(vec![dead(&claimed[0], REJECTED, "a@x.example"), dead(&claimed[1], REJECTED, "b@x.example")]).await.unwrap();
        let reasons: Vec<String> = suppressed(&world).await.iter().map(|row| row.split(" provider").next().unwrap().to_owned()).collect();
        assert_eq!(reasons[1], "email b@x.example hard bounce");
        assert!(reasons[0].starts_with("email a@x.example asked us"), "{reasons:?}");
    }
}
