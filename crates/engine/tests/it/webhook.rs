//! The webhook driver against a scripted server that misbehaves, through the whole engine.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Guarantee, ProviderDraft};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_testkit::{HttpServer, Reply, Request};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

async fn hooks(world: &World, guarantee: Guarantee) -> i32 {
    let mut draft = world.draft("hooks", "webhook", json!({}));
    (draft.guarantee, draft.timeout_ms) = (guarantee, 300);
    world.provider(draft).await
}

/// A provider that does not tell hosts apart.
async fn one_lane(world: &World) -> i32 {
    world.provider(world.draft("hooks", "webhook", json!({"isolate": "lane"}))).await
}

async fn to(world: &World, server: &HttpServer, key: &str) -> Uuid {
    world
        .enqueue(
            "booking.confirmed",
            json!({"idempotency_key": key, "recipients": [{"webhook": server.url("/hook?token=hush")}]}),
        )
        .await
}

/// The state, reason and code after one attempt that got this reply.
async fn after_one(
    world: &World,
    reply: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> (String, String, String) {
    let server = HttpServer::start(reply);
    let id = to(world, &server, &Uuid::new_v4().to_string()).await;
    world.pass().await;
    let row = world.delivery(id).await;
    assert!(
        !format!("{row:?}{:?}", world.attempts(id).await).contains("hush"),
        "the URL's secret is kept nowhere but in the target"
    );
    (row.state, row.reason.unwrap_or_default(), row.error_code.unwrap_or_default())
}

on_both! {
    async fn a_webhook_on_another_channel_carries_the_recipient_and_the_message(world) {
        let server = HttpServer::start(|_| Reply::ok());
        let bridge = ProviderDraft {
            channel: "email".into(),
            ..world.draft("bridge", "webhook", json!({"url": server.url("/")}))
        };
        world.provider(bridge).await;
        let more = json!({"recipients": [{"email": "ann@example.com"}, {"email": "bob@example.com"}], "title": "Hi", "body": "See you"});
        world.enqueue("booking.confirmed", more).await;
        world.pass().await;
        world.pass().await;
        let body = |request: &Request| serde_json::from_slice::<serde_json::Value>(&request.body).unwrap();
        let mut messages: Vec<_> = server.wait_for(2).await.iter().map(|request| body(request)["message"].clone()).collect();
        messages.sort_by_key(|message| message["to"].to_string());
        let message = |to: &str| json!({"channel": "email", "to": to, "subject": "Hi", "text": "See you"});
        assert_eq!(messages, [message("ann@example.com"), message("bob@example.com")]);
    }

    async fn a9_the_receiver_sees_the_same_key_on_every_attempt(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|request| if request.n < 3 { Reply::status(500) } else { Reply::ok() });
        let id = to(&world, &server, "k").await;
        for _ in 0..3 {
            world.pass().await;
            world.make_due().await;
        }
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len()), ("sent", 3));
        let expected = format!("{id}_1");
        let requests = server.requests();
        assert!(requests.iter().all(|r| r.header("webhook-id") == Some(&expected) && r.header("idempotency-key") == Some(&expected)));
        assert!(requests.iter().all(|r| r.body == requests[0].body), "the body is the same on every attempt");
    }

    async fn d4_enqueueing_does_no_network_io(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::ok());
        to(&world, &server, "k").await;
        assert_eq!(server.connections(), 0);
        world.pass().await;
        assert_eq!(server.requests().len(), 1);
    }

    async fn e5_type_specific_data_reaches_the_adapter(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::ok());
        let more = json!({"recipients": [{"webhook": server.url("/")}], "payload": {"a": 1}, "title": "T", "data": {"webhook": {"shelf": 7}, "sms": {"x": 1}}});
        world.enqueue("t", more).await;
        world.pass().await;
        let body = server.requests()[0].json();
        assert_eq!((&body["type"], &body["data"], &body["title"], &body["webhook"]), (&json!("t"), &json!({"a": 1}), &json!("T"), &json!({"shelf": 7})));
        assert!(body.get("sms").is_none());
    }

    async fn requests_are_signed_with_every_secret(world) {
        let mut draft = world.draft("hooks", "webhook", json!({}));
        let secrets: Secrets = [("secret".to_owned(), Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"))].into();
        draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "hooks"));
        world.provider(draft).await;
        let server = HttpServer::start(|_| Reply::ok());
        to(&world, &server, "k").await;
        world.pass().await;
        let request = &server.requests()[0];
        let keys = ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"].map(|k| base64::Engine::decode(&base64::engine::general_purpose::STANDARD, k).unwrap());
        let timestamp = request.header("webhook-timestamp").unwrap().parse().unwrap();
        let expected = postcommit_channel::driver::sign(&keys, request.header("webhook-id").unwrap(), timestamp, &request.body);
        assert_eq!(request.header("webhook-signature"), Some(expected.as_str()));
    }

    async fn d6_every_answer_has_its_consequence(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let table: Vec<(u16, &str, &str)> = vec![
            (200, "sent", ""), (201, "sent", ""), (204, "sent", ""), (299, "sent", ""),
            (301, "parked", "rejected"), (302, "parked", "rejected"), (304, "parked", "rejected"),
            (400, "parked", "rejected"), (404, "parked", "rejected"), (410, "parked", "rejected"), (413, "parked", "rejected"), (422, "parked", "rejected"),
            (408, "retrying", ""), (409, "retrying", ""), (425, "retrying", ""), (429, "retrying", ""),
            (500, "retrying", ""), (502, "retrying", ""), (503, "retrying", ""), (504, "retrying", ""), (599, "retrying", ""),
        ];
        for (status, state, reason) in table {
            let seen = after_one(&world, move |_| Reply::status(status)).await;
            let code = if state == "sent" { String::new() } else { format!("http_{status}") };
            assert_eq!(seen, (state.into(), reason.into(), code), "{status}");
        }
    }

    async fn an_unknown_status_is_retried_once(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::status(666));
        let id = to(&world, &server, "k").await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "retrying");
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref(), server.requests().len()), ("parked", Some("rejected"), 2));
    }

    async fn unclear_and_unsent_differ_by_whether_bytes_were_written(world) {
        hooks(&world, Guarantee::AtMostOnce).await;
        let unknown = |code: &str| ("parked".to_owned(), "outcome_unknown".to_owned(), code.to_owned());
        assert_eq!(after_one(&world, |_| Reply::Hang).await, unknown("timeout"));
        assert_eq!(after_one(&world, |_| Reply::Reset).await, unknown("reset"));
        assert_eq!(after_one(&world, |_| Reply::Close).await, unknown("closed"));
        assert_eq!(after_one(&world, |_| Reply::Garbage).await, unknown("bad_answer"));
        assert_eq!(after_one(&world, |_| Reply::status(500)).await, unknown("http_500"));
        assert_eq!(after_one(&world, |_| Reply::status(666)).await, unknown("http_666"));
        // No process listens there: nothing can have been sent, so even at_most_once tries again.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let id = world.enqueue("t", json!({"recipients": [{"webhook": format!("http://{nobody}/")}]})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("retrying", Some("connect")));
    }

    async fn at_most_once_is_announced_before_the_first_byte(world) {
        let lane = hooks(&world, Guarantee::AtMostOnce).await;
        let server = HttpServer::start(|_| Reply::ok().slow());
        to(&world, &server, "k").await;
        let running = world.run().await;
        server.wait_for(1).await;
        let announced = "SELECT count(*) FROM postcommit.delivery_queue WHERE lane = $1 AND intent = lease_token";
        assert_eq!(world.sql(announced, vec![lane.into()]).await[0].get::<i64>(0).unwrap(), 1);
        server.release();
        running.finish().await;
    }

    async fn retry_after_moves_the_whole_lane(world) {
        one_lane(&world).await;
        let server = HttpServer::start(|_| Reply::status(429).with_header("Retry-After", "120"));
        let one = to(&world, &server, "k1").await;
        world.pass().await;
        let other = to(&world, &server, "k2").await;
        world.pass().await;
        assert_eq!(server.requests().len(), 1, "the second was not tried: the lane is held");
        let provider = world.store.provider(world.tenant, "hooks").await.unwrap().unwrap();
        let (now, held) = (world.store.now().await.unwrap(), provider.held_until.unwrap());
        assert!(held.since(now) > Duration::from_secs(100) && held.since(now) <= Duration::from_secs(120));
        let row = world.delivery(one).await;
        assert!(row.next_attempt_at.unwrap().since(row.updated_at) >= Duration::from_secs(119), "honoured in full, although the policy says one minute");
        assert_eq!(world.delivery(other).await.state, "pending");
    }

    /// The hold and the delivery that caused it end together when an operator opens the lane; other deliveries keep
    /// their times.
    async fn a_resume_brings_the_delivery_forward_that_met_the_retry_after(world) {
        let lane = one_lane(&world).await;
        let server = HttpServer::start(|_| Reply::status(429).with_header("Retry-After", "7200"));
        let later = world.store.now().await.unwrap().plus(Duration::from_secs(3600));
        let scheduled = world.enqueue("t", json!({"recipients": [{"webhook": server.url("/")}], "due_at": later})).await;
        let met = to(&world, &server, "k1").await;
        world.pass().await;
        // This delivery waits for its own backoff, which ends during the hold and was not caused by it.
        let own = to(&world, &server, "k2").await;
        world.execute("UPDATE postcommit.delivery_queue SET lane = $1, due_at = $2, attempts = 1, error_class = 'timeout', code = 'timeout' WHERE notification_id = $3",
            vec![lane.into(), later.into(), own.into()]).await;
        world.execute("UPDATE postcommit.delivery_queue SET lane = $1 WHERE notification_id = $2", vec![lane.into(), scheduled.into()]).await;
        assert!(world.store.resume_lane(lane).await.unwrap());
        let now = world.store.now().await.unwrap();
        let due = async |id: Uuid| {
            let rows = world.sql("SELECT due_at, attempts FROM postcommit.delivery_queue WHERE notification_id = $1", vec![id.into()]).await;
            (rows[0].get::<Timestamp>(0).unwrap() <= now, rows[0].get::<i32>(1).unwrap())
        };
        assert_eq!((due(met).await, due(own).await, due(scheduled).await), ((true, 1), (false, 1), (false, 0)));
        world.pass().await;
        assert_eq!(server.requests().len(), 2, "it is tried immediately, as its second attempt");
        assert_eq!(world.delivery(met).await.attempts, 2);
    }

    async fn d6_retry_after_counts_on_every_answer_and_up_to_the_expiry(world) {
        hooks(&world, Guarantee::Idempotent).await;
        for (status, state) in [(408, "retrying"), (429, "retrying"), (500, "retrying"), (502, "retrying"), (503, "retrying"), (404, "parked")] {
            let server = HttpServer::start(move |_| Reply::status(status).with_header("Retry-After", "259200"));
            let (patient, hook) = (to(&world, &server, &status.to_string()).await, server.url("/"));
            world.pass().await;
            let row = world.delivery(patient).await;
            assert_eq!(row.state, state, "{status}");
            let Some(next) = row.next_attempt_at else { continue };
            let asked = next.since(world.attempts(patient).await[0].at).as_secs();
            assert!((259_200..259_300).contains(&asked), "{status}: {asked} s are three days");
            // Without the cancel, the resume would bring it forward, and the receiver would ask it to wait again.
            assert!(world.store.cancel_delivery(world.key(patient, 1)).await.unwrap());
            world.store.resume_host(world.store.provider(world.tenant, "hooks").await.unwrap().unwrap().id, &server.addr().to_string()).await.unwrap();

            let expires = world.store.now().await.unwrap().plus(Duration::from_secs(7200));
            let brief = world.enqueue("t", json!({"recipients": [{"webhook": hook}], "expires_at": expires})).await;
            world.pass().await;
            let next = world.delivery(brief).await.next_attempt_at.unwrap();
            assert!(next < expires, "{status}: the policy's own wait, because the asked one ends after the expiry");
            let held = world.store.closed_hosts(None, None, 100).await.unwrap();
            let until = held.iter().find(|host| host.host == server.addr().to_string()).and_then(|host| host.held_until).unwrap();
            assert!(until < expires, "{status}: the host is held no longer than that wait");
        }
    }

    async fn refused_credentials_pause_the_lane_and_park_nothing_else(world) {
        one_lane(&world).await;
        let server = HttpServer::start(|_| Reply::status(401));
        for i in 0..20 {
            to(&world, &server, &format!("k{i}")).await;
        }
        world.pass().await;
        let states = |state: &'static str| world.sql("SELECT count(*) FROM postcommit.delivery WHERE state = $1 AND n > 0", vec![state.into()]);
        assert_eq!(states("parked").await[0].get::<i64>(0).unwrap(), 1);
        let waiting = world.count("delivery_queue").await;
        assert_eq!(waiting, 19, "the others wait");
        let provider = world.store.provider(world.tenant, "hooks").await.unwrap().unwrap();
        assert!(provider.paused.as_ref().unwrap().starts_with("http_401"), "{:?}", provider.paused);
        let seen = server.requests().len();
        world.make_due().await;
        world.pass().await;
        assert_eq!(server.requests().len(), seen, "a paused lane sends nothing");
    }

    async fn a_claimed_delivery_that_was_not_begun_goes_back_when_its_lane_is_closed(world) {
        for (status, name) in [(401, "paused"), (429, "held")] {
            let one_slot = ProviderDraft { concurrency: 1, ..world.draft(name, "webhook", json!({"isolate": "lane"})) };
            world.provider(one_slot).await;
            let server = HttpServer::start(move |_| Reply::status(status).with_header("Retry-After", "120"));
            for i in 0..20 {
                to(&world, &server, &format!("{name}{i}")).await;
            }
            world.pass().await;
            assert_eq!(server.requests().len(), 1, "{name}: all were claimed together, and one was sent");
        }
    }

    async fn a_lane_with_many_receivers_can_park_instead_of_pausing(world) {
        world.provider(world.draft("hooks", "webhook", json!({"on_auth_error": "park"}))).await;
        assert_eq!(after_one(&world, |_| Reply::status(403)).await, ("parked".into(), "rejected".into(), "http_403".into()));
        assert_eq!(after_one(&world, |_| Reply::ok()).await.0, "sent");
    }

    async fn a_redirect_is_not_followed(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let secret = HttpServer::start(|_| Reply::ok());
        let target = secret.url("/");
        assert_eq!(after_one(&world, move |_| Reply::RedirectTo(target.clone())).await.2, "http_307");
        assert_eq!(secret.connections(), 0);
    }

    async fn a_private_address_is_refused_unless_allowed(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let mut codes = Vec::new();
        for url in ["http://10.0.0.1/", "http://[::1]:7410/", "http://169.254.169.254/latest", "http://[::ffff:192.168.0.1]/"] {
            let id = world.enqueue("t", json!({"recipients": [{"webhook": url}]})).await;
            world.pass().await;
            let row = world.delivery(id).await;
            codes.push((row.state, row.error_code.unwrap()));
        }
        assert!(codes.iter().all(|c| *c == ("parked".to_owned(), "blocked_address".to_owned())), "{codes:?}");
    }

    async fn an_unclear_attempt_is_not_repeated_when_the_key_may_be_forgotten(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::status(500));
        let id = to(&world, &server, "k").await;
        world.pass().await;
        let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.execute("UPDATE postcommit.delivery_queue SET first_try_at = $1", vec![long_ago.into()]).await;
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref(), row.error_code.as_deref()), ("parked", Some("outcome_unknown"), Some("key_window_over")));
        assert_eq!(server.requests().len(), 1);
    }
}
