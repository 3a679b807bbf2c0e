//! Hosts of one lane: a host that asks to wait, refuses the provider's account, or hangs delays only its own
//! deliveries. On both databases.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Guarantee, ProviderDraft};
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{CloseOutcome, ClosedHost, MAX_CLOSED_HOSTS};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply, Request};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const DAY: Duration = Duration::from_secs(86_400);

/// A well-behaved host of a scripted server, and a bad host of the same server.
struct Pair {
    server: HttpServer,
    bad: SocketAddr,
}

/// Answers the bad host's requests with `answer`, and all others with 200.
fn pair(answer: impl Fn() -> Reply + Send + Sync + 'static) -> Pair {
    let server = HttpServer::start(move |request| if is_good(request) { Reply::ok() } else { answer() });
    let bad = server.one_more();
    Pair { server, bad }
}

/// The good host has a path of its own, because its address is not known before it listens.
fn is_good(request: &Request) -> bool {
    request.path.starts_with("/good")
}

impl Pair {
    fn good_url(&self) -> String {
        self.server.url("/good")
    }

    fn bad_url(&self) -> String {
        format!("http://{}/bad", self.bad)
    }

    /// How many requests the bad host got.
    fn bad_requests(&self) -> usize {
        self.server.requests().iter().filter(|request| !is_good(request)).count()
    }
}

async fn hooks(world: &World, settings: serde_json::Value) -> i32 {
    world.provider(ProviderDraft { concurrency: 16, ..world.draft("hooks", "webhook", settings) }).await
}

async fn to(world: &World, url: &str) -> Uuid {
    world.enqueue("t", json!({"recipients": [{"webhook": url}]})).await
}

/// The closed hosts, with the time until which each is held and the reason of a pause.
async fn shut(world: &World) -> Vec<ClosedHost> {
    world.store.closed_hosts(None, None, 100).await.unwrap()
}

async fn states(world: &World, ids: &[Uuid]) -> Vec<String> {
    let mut states = Vec::new();
    for id in ids {
        states.push(world.delivery(*id).await.state);
    }
    states
}

/// A waiting delivery: its state, attempts, error code, and the time from now.
async fn waits(world: &World, id: Uuid) -> (String, i64, Option<String>, Duration) {
    let (row, now) = (world.delivery(id).await, world.store.now().await.unwrap());
    (row.state, row.attempts, row.error_code, row.next_attempt_at.map_or(Duration::ZERO, |at: Timestamp| at.since(now)))
}

on_both! {
    async fn a_host_that_asks_to_wait_for_a_day_keeps_only_its_own_waiting(world) {
        let lane = hooks(&world, json!({})).await;
        for (n, status) in [429, 503].into_iter().enumerate() {
            let pair = pair(move || Reply::status(status).with_header("Retry-After", "86400"));
            let first = to(&world, &pair.bad_url()).await;
            world.pass().await;
            let others = [to(&world, &pair.good_url()).await, to(&world, &pair.bad_url()).await, to(&world, &pair.good_url()).await];
            world.pass().await;
            assert_eq!(states(&world, &others).await, ["sent", "pending", "sent"]);
            let (state, attempts, _, wait) = waits(&world, first).await;
            assert_eq!((state.as_str(), attempts, wait > DAY - Duration::from_secs(60)), ("retrying", 1, true), "honoured in full");
            let (state, attempts, code, wait) = waits(&world, others[1]).await;
            assert_eq!((state.as_str(), attempts, code.as_deref()), ("pending", 0, Some("host_held")));
            assert!(wait > Duration::from_secs(3000), "not looked at over and over: {wait:?}");
            assert_eq!((pair.bad_requests(), world.attempts(others[1]).await.len()), (1, 0));

            let held = shut(&world).await.into_iter().find(|host| host.host == pair.bad.to_string()).unwrap();
            assert!(held.lane == lane && held.paused.is_none() && held.held_until.is_some());
            let provider = world.store.provider(world.tenant, "hooks").await.unwrap().unwrap();
            assert!(provider.held_until.is_none() && provider.paused.is_none(), "the lane is open");
            let waiting = world.store.count_closed(Some(world.tenant)).await.unwrap();
            assert_eq!((waiting.lanes_held, waiting.hosts_held, waiting.hosts_paused), (0, i64::try_from(n).unwrap() + 1, 0));
        }
    }

    async fn a_host_that_refuses_our_account_is_paused_alone_until_it_is_resumed(world) {
        let lane = hooks(&world, json!({})).await;
        let pair = pair(|| Reply::status(401));
        let first = to(&world, &pair.bad_url()).await;
        world.pass().await;
        let others = [to(&world, &pair.good_url()).await, to(&world, &pair.bad_url()).await];
        world.pass().await;
        assert_eq!(states(&world, &others).await, ["sent", "pending"]);
        let row = world.delivery(first).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("config")));
        let (_, attempts, code, wait) = waits(&world, others[1]).await;
        assert_eq!((attempts, code.as_deref()), (0, Some("host_paused")));
        assert!(wait > Duration::from_secs(60), "{wait:?}");
        let paused = shut(&world).await.remove(0);
        assert!(paused.host == pair.bad.to_string() && paused.paused.as_ref().unwrap().starts_with("http_401"), "{paused:?}");
        world.make_due().await;
        world.pass().await;
        assert_eq!(pair.bad_requests(), 1, "and it is asked nothing more");

        assert!(!world.store.resume_host(lane, "elsewhere.example:443").await.unwrap());
        assert!(world.store.resume_host(lane, &paused.host).await.unwrap() && shut(&world).await.is_empty());
        world.pass().await;
        assert_eq!((pair.bad_requests(), states(&world, &others[1..]).await), (2, vec!["parked".to_owned()]), "what waited was brought forward");
        let audit = world.sql("SELECT action, details FROM postcommit.audit WHERE subject = 'hooks' ORDER BY id", vec![]).await;
        let audit: Vec<(String, serde_json::Value)> = audit.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap())).collect();
        assert_eq!(audit[1].0, "provider.pause");
        assert_eq!(audit[1].1["host"], paused.host);
        assert_eq!(audit[2], ("provider.resume".into(), json!({"host": paused.host})));
    }

    async fn a_resume_of_the_lane_opens_all_its_hosts(world) {
        let lane = hooks(&world, json!({})).await;
        let pair = pair(|| Reply::status(429).with_header("Retry-After", "3600"));
        to(&world, &pair.bad_url()).await;
        world.pass().await;
        let waiting = to(&world, &pair.bad_url()).await;
        world.pass().await;
        assert_eq!(waits(&world, waiting).await.2.as_deref(), Some("host_held"));
        assert_eq!(world.store.pause_host(lane, "other.example:443", None, "by hand").await.unwrap(), CloseOutcome::Now);
        assert_eq!(world.store.pause_host(lane, "other.example:443", None, "again").await.unwrap(), CloseOutcome::Already);
        assert_eq!(shut(&world).await.len(), 2);
        assert!(world.store.resume_lane(lane).await.unwrap() && !world.store.resume_lane(lane).await.unwrap());
        assert!(shut(&world).await.is_empty());
        world.pass().await;
        assert_eq!(pair.bad_requests(), 3, "what waited for a day comes now, and with it what had met the hold");
        world.execute("UPDATE postcommit.lane_host SET updated_at = $1, held_until = NULL", vec![Timestamp::from_micros(0).into()]).await;
        assert_eq!((world.store.forget_open_hosts_once().await.unwrap(), world.count("lane_host").await), (2, 0));
    }

    /// Both hosts asked to wait for an hour. Opening one of them affects only its own delivery.
    async fn a_resume_of_a_host_brings_the_delivery_forward_that_it_asked_to_wait(world) {
        let lane = hooks(&world, json!({})).await;
        let (one, two) = (pair(|| Reply::status(503).with_header("Retry-After", "3600")), pair(|| Reply::status(429).with_header("Retry-After", "3600")));
        let ids = [to(&world, &one.bad_url()).await, to(&world, &two.bad_url()).await];
        world.pass().await;
        assert_eq!(states(&world, &ids).await, ["retrying", "retrying"]);
        assert!(world.store.resume_host(lane, &one.bad.to_string()).await.unwrap());
        world.pass().await;
        assert_eq!((one.bad_requests(), two.bad_requests()), (2, 1));
        assert!(world.store.resume_lane(lane).await.unwrap());
        world.pass().await;
        assert_eq!((one.bad_requests(), two.bad_requests()), (3, 2));
    }

    async fn another_process_learns_of_a_closed_host_with_its_next_claim(world) {
        let lane = hooks(&world, json!({})).await;
        let pair = pair(|| Reply::status(429).with_header("Retry-After", "86400"));
        let mut other = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
        to(&world, &pair.bad_url()).await;
        world.pass().await;
        let waiting = to(&world, &pair.bad_url()).await;
        other.pass(None).await.unwrap();
        assert_eq!((pair.bad_requests(), waits(&world, waiting).await.2.as_deref()), (1, Some("host_held")));
        // The resume opens the host again as well.
        assert!(world.store.resume_host(lane, &pair.bad.to_string()).await.unwrap());
        other.pass(None).await.unwrap();
        assert_eq!(pair.bad_requests(), 3, "both of its deliveries come");
    }

    /// Both forms: the rows come from one notification, or each is sent from its notification's own row.
    async fn one_hanging_host_of_two_hundred_delays_no_other(world) {
        for expanded in [true, false] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let draft = world.draft("hooks", "webhook", json!({}));
            world.provider(ProviderDraft { concurrency: 16, timeout_ms: 30_000, ..draft }).await;
            let server = HttpServer::start(|request| if is_good(request) { Reply::ok() } else { Reply::Hang });
            let bad = server.one_more();
            let bad_url = |n: usize| json!({"webhook": format!("http://{bad}/bad/{n}")});
            match expanded {
                true => drop(world.enqueue("t", json!({"recipients": (0..300).map(bad_url).collect::<Vec<_>>()})).await),
                false => {
                    for n in 0..300 {
                        world.enqueue("t", json!({"recipients": [bad_url(n)]})).await;
                    }
                }
            }
            let running = world.run().await;
            server.wait_for(1).await;
            for _ in 0..199 {
                to(&world, &format!("http://{}/good", server.one_more())).await;
            }
            world.until("all others are sent", async || world.count("delivery_ledger").await == 199).await;
            let bad_requests = server.requests().iter().filter(|request| !is_good(request)).count();
            assert!((1..=12).contains(&bad_requests), "{bad_requests} of 16 slots hang");
            let left = world.sql("SELECT count(*), max(attempts) FROM postcommit.delivery_queue", vec![]).await;
            assert_eq!((left[0].get::<i64>(0).unwrap(), left[0].get::<i64>(1).unwrap()), (300, 0), "none of its own is lost or counted");
            drop(running);
        }
    }

    async fn rows_of_a_held_host_that_are_due_are_moved_once_each(world) {
        let lane = hooks(&world, json!({})).await;
        let pair = pair(Reply::ok);
        assert_eq!(world.store.hold_host(lane, &pair.bad.to_string(), None, DAY).await.unwrap(), CloseOutcome::Now);
        let recipients: Vec<_> = (0..500).map(|n| json!({"webhook": format!("{}/{n}", pair.bad_url())})).collect();
        world.enqueue("t", json!({"recipients": recipients})).await;
        world.pass().await;
        assert_eq!((pair.bad_requests(), world.count("delivery_queue").await, world.count("attempt").await), (0, 500, 0));
        let before = world.store.db().trips();
        world.pass().await;
        let asked = world.store.db().trips().since(before);
        // A pass reads providers, hosts and templates first; moving 500 rows again would cost far more.
        assert!(asked.commits < 16, "what was put off is left alone: {asked:?}");
        assert!(world.store.resume_host(lane, &pair.bad.to_string()).await.unwrap());
        world.pass().await;
        assert_eq!((pair.bad_requests(), world.count("delivery_queue").await), (500, 0), "and then each is sent");
    }

    async fn a_delivery_that_waits_for_its_host_is_not_announced_and_expires_in_time(world) {
        let draft = ProviderDraft { guarantee: Guarantee::AtMostOnce, ..world.draft("hooks", "webhook", json!({})) };
        let lane = world.provider(draft).await;
        let pair = pair(Reply::ok);
        assert_eq!(world.store.hold_host(lane, &pair.bad.to_string(), None, DAY).await.unwrap(), CloseOutcome::Now);
        let soon = world.store.now().await.unwrap().plus(Duration::from_secs(600));
        let id = world.enqueue("t", json!({"recipients": [{"webhook": pair.bad_url()}], "expires_at": soon})).await;
        world.pass().await;
        let row = world.sql("SELECT intent IS NULL, lease_token IS NULL, due_at FROM postcommit.delivery_queue", vec![]).await.remove(0);
        assert_eq!((row.get::<bool>(0).unwrap(), row.get::<bool>(1).unwrap(), row.get::<Timestamp>(2).unwrap()), (true, true, soon));
        assert_eq!((pair.bad_requests(), world.delivery(id).await.state.as_str()), (0, "pending"));
    }

    async fn a_lane_may_be_held_as_a_whole(world) {
        let pair = pair(|| Reply::status(429).with_header("Retry-After", "3600"));
        for settings in [json!({"isolate": "lane"}), json!({"url": pair.bad_url()})] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let lane = hooks(&world, settings).await;
            to(&world, &pair.bad_url()).await;
            world.pass().await;
            let other = to(&world, &pair.good_url()).await;
            world.pass().await;
            let provider = world.store.provider(world.tenant, "hooks").await.unwrap().unwrap();
            assert!(provider.held_until.is_some() && shut(&world).await.is_empty());
            assert_eq!(world.delivery(other).await.state, "pending");
            assert_eq!(world.store.count_closed(None).await.unwrap().lanes_held, 1);
            assert!(world.store.resume_lane(lane).await.unwrap());
        }
        // A provider with a URL of its own that also sends to other receivers can be configured to tell hosts apart.
        hooks(&world, json!({"url": pair.bad_url(), "isolate": "host"})).await;
        world.enqueue("t", json!({"recipients": [{"provider": "hooks", "address": "whoever"}]})).await;
        world.pass().await;
        let other = to(&world, &pair.good_url()).await;
        world.pass().await;
        assert_eq!((shut(&world).await.len(), world.delivery(other).await.state.as_str()), (1, "sent"));
    }

    /// The delivery is put off just after a resume brought waiting deliveries forward. The process that put it off then
    /// reads that the host is open.
    async fn a_delivery_put_off_during_a_resume_is_brought_forward_too(world) {
        let lane = hooks(&world, json!({})).await;
        let pair = pair(Reply::ok);
        assert_eq!(world.store.pause_host(lane, &pair.bad.to_string(), None, "by hand").await.unwrap(), CloseOutcome::Now);
        let running = world.run().await;
        let id = to(&world, &pair.bad_url()).await;
        world.until("it waits", async || waits(&world, id).await.2.as_deref() == Some("host_paused")).await;
        world.execute("UPDATE postcommit.lane_host SET paused = NULL", vec![]).await;
        world.drained().await;
        running.finish().await;
        assert_eq!((pair.bad_requests(), world.delivery(id).await.state.as_str()), (1, "sent"));
    }

    async fn an_answer_to_old_settings_closes_no_host(world) {
        let lane = hooks(&world, json!({})).await;
        let old = world.store.provider(world.tenant, "hooks").await.unwrap().unwrap().revision;
        let host = "receiver.example:443";
        assert_eq!(world.store.pause_host(lane, host, Some(old), "http_401").await.unwrap(), CloseOutcome::Now);
        assert!(world.store.resume_host(lane, host).await.unwrap());
        assert_eq!(world.store.pause_host(lane, host, Some(old), "http_401").await.unwrap(), CloseOutcome::Outdated, "another one of the same moment");
        assert_eq!(world.store.hold_host(lane, host, Some(old), DAY).await.unwrap(), CloseOutcome::Outdated);
        assert_eq!(world.store.hold_host(lane, host, None, DAY).await.unwrap(), CloseOutcome::Now);
        assert_eq!(world.store.hold_host(lane, host, None, Duration::from_secs(1)).await.unwrap(), CloseOutcome::Already, "a longer hold stays");
        assert_eq!(world.store.delete_provider(world.tenant, "hooks").await.unwrap(), Some(0));
        assert_eq!(world.count("lane_host").await, 0, "its hosts go with a provider");
    }

    async fn beyond_the_limit_of_hosts_a_hold_applies_to_its_delivery_alone(world) {
        let lane = hooks(&world, json!({})).await;
        let insert = "INSERT INTO postcommit.lane_host (tenant, lane, host, paused, updated_at) \
            VALUES ($1, $2, $3, 'full', {now})";
        for n in 0..MAX_CLOSED_HOSTS {
            world.execute(insert, vec![world.tenant.into(), lane.into(), format!("h{n}.example:443").into()]).await;
        }
        let pair = pair(|| Reply::status(429).with_header("Retry-After", "3600"));
        assert_eq!(world.store.hold_host(lane, &pair.bad.to_string(), None, DAY).await.unwrap(), CloseOutcome::TooMany);
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        for requests in [1, 2] {
            let id = to(&world, &pair.bad_url()).await;
            dispatcher.pass(None).await.unwrap();
            assert_eq!((world.delivery(id).await.state.as_str(), pair.bad_requests()), ("retrying", requests));
        }
        assert_eq!(shut(&world).await.len(), 100, "lists are bounded, too");
    }

    async fn a_host_whose_hold_or_pause_cannot_be_written_stays_closed_in_this_process(world) {
        const VERSION: RefusedWrite = RefusedWrite::of("UPDATE", "provider_version");
        let answers = HashMap::from([(401, "parked"), (429, "retrying")]);
        for (status, state) in answers {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            hooks(&world, json!({})).await;
            let pair = pair(move || Reply::status(status).with_header("Retry-After", "3600"));
            world.refuse(VERSION).await;
            let running = world.run().await;
            let first = to(&world, &pair.bad_url()).await;
            world.until("it is judged", async || world.delivery(first).await.state == state).await;
            let others = [to(&world, &pair.bad_url()).await, to(&world, &pair.good_url()).await];
            world.until("the good one is sent", async || world.delivery(others[1]).await.state == "sent").await;
            world.until("the bad one waits", async || waits(&world, others[0]).await.2.as_deref() == Some("host_held")).await;
            world.heal(VERSION).await;
            world.until("it is written at last", async || shut(&world).await.len() == 1).await;
            running.finish().await;
            assert_eq!((pair.bad_requests(), world.delivery(first).await.attempts), (1, 1), "{status}");
        }
    }

    /// A recipe whose address is the URL: a server that fails trips the breaker of its own host, and the rate limit of
    /// one webhook holds nothing else.
    async fn a_recipe_tells_hosts_apart_where_the_address_is_the_url(world) {
        let draft = postcommit_channel::driver::kind("mattermost").unwrap().draft("chat");
        world.provider(ProviderDraft { breaker_failures: 2, breaker_cool_down_s: 100, is_default: true, ..draft }).await;
        let chat = async |url: &str| {
            let to = json!({"recipients": [{"provider": "chat", "address": url}], "body": "Booked"});
            world.enqueue("t", to).await
        };
        let pair = pair(|| Reply::status(503));
        let ok = HttpServer::start(|request| match request.path.as_str() {
            "/limited" => Reply::status(429).with_header("Retry-After", "3600"),
            _ => Reply::ok().with_body("ok"),
        });
        for _ in 0..2 {
            chat(&pair.bad_url()).await;
        }
        world.pass().await;
        let tripped = shut(&world).await;
        assert_eq!((tripped.len(), tripped[0].host.as_str()), (1, pair.bad.to_string().as_str()));
        let limited = chat(&ok.url("/limited")).await;
        world.pass().await;
        assert_eq!(waits(&world, limited).await.0, "retrying");
        let others = [chat(&ok.url("/desk")).await, chat(&pair.bad_url()).await];
        world.pass().await;
        assert_eq!(states(&world, &others).await, ["sent", "pending"]);
        assert_eq!(waits(&world, others[1]).await.2.as_deref(), Some("host_held"));
        assert_eq!((pair.bad_requests(), shut(&world).await.len()), (2, 1));
        let lane = world.store.provider(world.tenant, "chat").await.unwrap().unwrap();
        assert!(lane.held_until.is_none() && lane.paused.is_none() && lane.trips == 0, "the lane is open");
    }

    /// Deliveries over the provider's own URL share the breaker of the lane, although the lane tells hosts apart.
    async fn the_own_url_of_a_provider_is_probed_with_one_send(world) {
        let pair = pair(|| Reply::status(503));
        let draft = postcommit_channel::driver::kind("mattermost").unwrap().draft("chat");
        let secrets = Secrets::from([("url".to_owned(), Secret::new(pair.bad_url()))]);
        let secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "chat"));
        let draft = ProviderDraft { breaker_failures: 3, breaker_cool_down_s: 100, is_default: true, secrets, ..draft };
        world.provider(draft).await;
        for _ in 0..3 {
            let to = json!({"recipients": [{"provider": "chat", "address": "desk"}], "body": "Booked"});
            world.enqueue("t", to).await;
        }
        world.pass().await;
        let lane = async || world.store.provider(world.tenant, "chat").await.unwrap().unwrap();
        assert_eq!((pair.bad_requests(), lane().await.trips, shut(&world).await.len()), (3, 1, 0));
        world.execute("UPDATE postcommit.provider SET held_until = {now}", vec![]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!((pair.bad_requests(), lane().await.trips), (4, 2));
    }
}
