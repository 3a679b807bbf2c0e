//! Failover: deliveries go on with the next provider while theirs cannot send, and new ones come back to the first. On
//! both databases.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Guarantee, Policy, Provider, ProviderDraft};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::Act;
use serde_json::json;
use uuid::Uuid;

use crate::service::Service;
use crate::world::World;

/// Providers of mail: `first` fails over to `second`, and `second` to `third`.
struct Chain {
    first: Service,
    second: Service,
    lanes: [i32; 3],
}

impl World {
    fn mailer(&self, name: &str, service: &Service, failover: Option<&str>) -> ProviderDraft {
        let settings = json!({"url": service.server.url("/in")});
        ProviderDraft {
            channel: "email".into(),
            is_default: name == "first",
            failover: failover.map(str::to_owned),
            breaker_cool_down_s: 100,
            ..self.draft(name, "webhook", settings)
        }
    }

    /// Creates the chain. The third provider only records.
    async fn chain(&self, status: u16, guarantee: Guarantee) -> Chain {
        let (first, second) = (Service::answering(status), Service::answering(200));
        let third =
            ProviderDraft { channel: "email".into(), is_default: false, ..self.draft("third", "capture", json!({})) };
        let third = self.provider(third).await;
        let draft = ProviderDraft { guarantee, ..self.mailer("second", &second, Some("third")) };
        let next = self.provider(draft).await;
        let draft = ProviderDraft { guarantee, ..self.mailer("first", &first, Some("second")) };
        let lanes = [self.provider(draft).await, next, third];
        Chain { first, second, lanes }
    }

    async fn mail(&self) -> Uuid {
        self.enqueue("t", json!({})).await
    }

    async fn mails(&self, count: usize) -> Vec<Uuid> {
        let mut ids = vec![];
        for _ in 0..count {
            ids.push(self.mail().await);
        }
        ids
    }

    /// The providers of a delivery's attempts with their outcomes.
    async fn tried(&self, id: Uuid) -> Vec<(String, String)> {
        self.attempts(id)
            .await
            .into_iter()
            .map(|attempt| (attempt.provider.unwrap_or_default(), attempt.outcome))
            .collect()
    }

    /// The state of a delivery, and the provider in whose lane it is or ended.
    async fn stands(&self, id: Uuid) -> (String, String) {
        let row = self.delivery(id).await;
        (row.state, row.provider.unwrap_or_default())
    }

    async fn named(&self, name: &str) -> Provider {
        self.store.provider(self.tenant, name).await.unwrap().unwrap()
    }

    /// Ends all holds, as if their time had passed.
    async fn end_of_holds(&self) {
        self.execute("UPDATE postcommit.provider SET held_until = {now} WHERE held_until > {now}", vec![]).await;
    }

    /// What was claimed when its lane was closed is due again in a moment. This makes it due now.
    async fn due_now(&self) {
        let sql = "UPDATE postcommit.delivery_queue SET due_at = {now} WHERE due_at > {now} AND attempts = 0";
        self.execute(sql, vec![]).await;
    }
}

fn tries(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(provider, outcome)| ((*provider).to_owned(), (*outcome).to_owned())).collect()
}

fn stands(state: &str, provider: &str) -> (String, String) {
    (state.to_owned(), provider.to_owned())
}

const FREE: [Guarantee; 2] = [Guarantee::Idempotent, Guarantee::AtLeastOnce];

on_both! {
    async fn a_refused_account_and_a_failure_of_the_service_move_the_delivery_on(world) {
        for guarantee in FREE {
            for (status, outcome) in [(401, "rejected"), (503, "deferred"), (429, "deferred")] {
                let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
                let chain = world.chain(status, guarantee).await;
                let id = world.mail().await;
                world.pass().await;
                assert_eq!(world.stands(id).await, stands("sent", "second"), "{status} {guarantee:?}");
                assert_eq!(world.tried(id).await, tries(&[("first", outcome), ("second", "sent")]), "{status}");
                assert_eq!((chain.first.requests(), chain.second.requests()), (1, 1));
                let paused = world.named("first").await.paused;
                assert_eq!(paused.is_some(), status == 401, "the lane is paused all the same");
            }
        }
    }

    async fn an_answer_about_the_message_or_without_certainty_never_moves_it(world) {
        for (status, state) in [(404, "parked"), (400, "parked"), (500, "retrying"), (502, "retrying")] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let chain = world.chain(status, Guarantee::Idempotent).await;
            let id = world.mail().await;
            world.pass().await;
            assert_eq!(world.stands(id).await, stands(state, "first"), "{status}");
            // What may have arrived stays, whatever happens to its lane.
            chain.first.answer(503);
            world.make_due().await;
            world.pass().await;
            world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
            world.make_due().await;
            world.pass().await;
            assert_eq!(world.stands(id).await, stands(state, "first"), "{status}");
            assert_eq!(chain.second.requests(), 0);
        }
    }

    async fn under_at_most_once_only_what_was_never_attempted_moves(world) {
        let chain = world.chain(503, Guarantee::AtMostOnce).await;
        let tried = world.mail().await;
        world.pass().await;
        assert_eq!(world.stands(tried).await, stands("retrying", "first"));
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        world.make_due().await;
        let new = world.mail().await;
        world.pass().await;
        assert_eq!(world.stands(new).await, stands("sent", "second"), "it passes the closed one over");
        assert_eq!(world.stands(tried).await, stands("retrying", "first"), "it was announced");
        world.store.resume_lane(chain.lanes[0]).await.unwrap();
        chain.first.answer(401);
        world.pass().await;
        assert_eq!(world.stands(tried).await, stands("parked", "first"));
        assert_eq!((chain.first.requests(), chain.second.requests()), (2, 1));
    }

    async fn what_waits_in_a_closed_lane_moves_and_new_deliveries_pass_it_over(world) {
        for guarantee in Guarantee::ALL {
            for close in ["pause", "hold", "trip"] {
                let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
                let chain = world.chain(200, guarantee).await;
                let lane = chain.lanes[0];
                // A paused lane keeps them waiting; its failover is set afterwards.
                world.update(&ProviderDraft { guarantee, ..world.mailer("first", &chain.first, None) }).await;
                world.store.pause_lane(lane, None, "by hand").await.unwrap();
                let waiting = world.mails(5).await;
                world.pass().await;
                assert_eq!(world.stands(waiting[0]).await, stands("pending", "first"));
                world.update(&ProviderDraft { guarantee, ..world.mailer("first", &chain.first, Some("second")) }).await;
                if close != "pause" {
                    world.store.resume_lane(lane).await.unwrap();
                }
                match close {
                    "hold" => drop(world.store.hold_lane(lane, None, Duration::from_secs(600)).await.unwrap()),
                    "trip" => drop(world.store.trip_lane(lane, None, (0, Duration::from_secs(20), "it failed")).await.unwrap()),
                    _ => {}
                }
                let new = world.mail().await;
                world.pass().await;
                for id in waiting.iter().chain([&new]) {
                    assert_eq!(world.stands(*id).await, stands("sent", "second"), "{close} {guarantee:?}");
                    assert_eq!(world.tried(*id).await, tries(&[("second", "sent")]));
                }
                // When the first one is open again, new deliveries come back to it.
                world.store.resume_lane(lane).await.unwrap();
                let later = world.mail().await;
                world.pass().await;
                assert_eq!(world.stands(later).await, stands("sent", "first"), "{close} {guarantee:?}");
            }
        }
    }

    async fn a_short_hold_moves_nothing(world) {
        let chain = world.chain(200, Guarantee::Idempotent).await;
        world.store.hold_lane(chain.lanes[0], None, Duration::from_secs(20)).await.unwrap();
        let id = world.mail().await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("pending", "first"));
        world.update(&ProviderDraft { failover_after_s: 5, ..world.mailer("first", &chain.first, Some("second")) }).await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("sent", "second"), "it is longer than 5 s");
    }

    async fn a_delivery_whose_recipient_named_its_provider_stays(world) {
        let chain = world.chain(503, Guarantee::Idempotent).await;
        let named = json!({"recipients": [{"provider": "first", "address": "x@example.com"}]});
        let id = world.enqueue("t", named.clone()).await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("retrying", "first"));
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        let later = world.enqueue("t", named).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.stands(id).await, world.stands(later).await), (stands("retrying", "first"), stands("pending", "first")));
        assert_eq!(chain.second.requests(), 0);
    }

    /// When every provider has failed, the last one's policy goes on, and a retry begins with the first.
    async fn the_last_of_the_chain_goes_on_by_its_own_policy(world) {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 60, "max_attempts": 2})).unwrap();
        let (first, second) = (Service::answering(503), Service::answering(503));
        world.provider(ProviderDraft { policy, ..world.mailer("second", &second, None) }).await;
        world.provider(world.mailer("first", &first, Some("second"))).await;
        let id = world.mail().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.provider.as_deref(), row.attempts), ("retrying", Some("second"), 1), "one of the second's");
        world.make_due().await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("exhausted")));
        assert_eq!(world.tried(id).await, tries(&[("first", "deferred"), ("second", "deferred"), ("second", "deferred")]));
        let numbers: Vec<i64> = world.sql("SELECT seq FROM postcommit.attempt ORDER BY seq", vec![]).await.iter().map(|row| row.get(0).unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3], "the attempts are numbered on");

        first.answer(200);
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("sent", "first"));
    }

    async fn a_next_provider_that_cannot_send_is_passed_over_too(world) {
        for obstacle in ["paused", "held", "disabled", "deleted", "secrets"] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let chain = world.chain(503, Guarantee::Idempotent).await;
            match obstacle {
                "paused" => drop(world.store.pause_lane(chain.lanes[1], None, "by hand").await.unwrap()),
                "held" => drop(world.store.hold_lane(chain.lanes[1], None, Duration::from_secs(600)).await.unwrap()),
                "disabled" => {
                    world.update(&ProviderDraft { enabled: false, ..world.mailer("second", &chain.second, Some("third")) }).await;
                }
                "deleted" => assert_eq!(world.store.delete_provider(world.tenant, "second").await.unwrap(), Some(0)),
                _ => {
                    let secrets = Some(b"sealed with a key that is lost".to_vec());
                    world.update(&ProviderDraft { secrets, ..world.mailer("second", &chain.second, Some("third")) }).await;
                }
            }
            let id = world.mail().await;
            world.pass().await;
            // Without its second link nothing tells which provider would be next.
            let expected = if obstacle == "deleted" { stands("retrying", "first") } else { stands("sent", "third") };
            assert_eq!(world.stands(id).await, expected, "{obstacle}");
            world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
            let waiting = world.mail().await;
            world.pass().await;
            let expected = if obstacle == "deleted" { stands("pending", "first") } else { stands("sent", "third") };
            assert_eq!(world.stands(waiting).await, expected, "{obstacle}");
        }
    }

    /// What would be parked goes to a next provider that is only held, and waits there.
    async fn a_delivery_that_would_be_parked_waits_for_a_provider_that_comes_back(world) {
        let (first, second) = (Service::answering(401), Service::answering(200));
        let lane = world.provider(world.mailer("second", &second, None)).await;
        world.provider(world.mailer("first", &first, Some("second"))).await;
        world.store.hold_lane(lane, None, Duration::from_secs(600)).await.unwrap();
        let id = world.mail().await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("pending", "second"));
        world.end_of_holds().await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("sent", "second"));
    }

    async fn nothing_moves_while_the_tenant_is_suspended(world) {
        let chain = world.chain(200, Guarantee::Idempotent).await;
        let ids = world.mails(3).await;
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        world.store.suspend_tenant(world.tenant, "unpaid").await.unwrap();
        world.pass().await;
        assert_eq!((chain.first.requests(), chain.second.requests()), (0, 0));
        world.store.resume_tenant(world.tenant).await.unwrap();
        world.pass().await;
        assert_eq!((world.stands(ids[0]).await, chain.second.requests()), (stands("sent", "second"), 3));
    }

    async fn a_rate_limited_next_provider_keeps_its_limit(world) {
        let chain = world.chain(200, Guarantee::Idempotent).await;
        let limited = ProviderDraft { rate_per_s: Some(0.001), burst: Some(2), ..world.mailer("second", &chain.second, None) };
        world.update(&limited).await;
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        world.mails(5).await;
        world.pass().await;
        assert_eq!((chain.first.requests(), chain.second.requests()), (0, 2));
    }

    /// While the breaker is tripped everything goes to the second. Afterwards one new delivery probes the first.
    async fn it_comes_back_when_a_probe_succeeds(world) {
        let chain = world.chain(503, Guarantee::Idempotent).await;
        world.mails(30).await;
        world.pass().await;
        world.due_now().await;
        world.pass().await;
        assert_eq!(world.count("delivery_queue").await, 0, "all went on");
        let tripped = chain.first.requests();
        assert!((5..=5 + 7).contains(&tripped) && world.named("first").await.trips == 1, "{tripped}");
        assert_eq!(chain.second.requests(), 30);

        world.end_of_holds().await;
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        world.mails(10).await;
        dispatcher.pass(None).await.unwrap();
        assert_eq!((chain.first.requests(), chain.second.requests()), (tripped + 1, 40), "one probe, which went on as well");
        assert_eq!(world.named("first").await.trips, 2);

        world.end_of_holds().await;
        chain.first.answer(200);
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        world.mails(10).await;
        dispatcher.pass(None).await.unwrap();
        assert_eq!((chain.first.requests(), chain.second.requests()), (tripped + 2, 49), "the probe succeeds");
        world.mails(10).await;
        world.pass().await;
        assert_eq!((chain.first.requests(), chain.second.requests()), (tripped + 12, 49), "and all come back");
        assert!(chain.second.arrived().iter().all(|count| *count == 1));
    }

    /// A worker is lost while it may have sent from the notification's own row over the first provider. Whatever happens
    /// to that provider, the delivery stays with it.
    async fn a_lost_attempt_never_moves(world) {
        for guarantee in FREE {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let chain = world.chain(200, guarantee).await;
            let id = world.mail().await;
            let lease = Duration::from_secs(60);
            let wants = [postcommit_engine::store::Want { lane: -world.tenant, quota: 1 }];
            assert_eq!(world.store.claim(&wants, lease, None).await.unwrap().deliveries.len(), 1);
            world.expire_leases().await;
            world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
            world.pass().await;
            world.make_due().await;
            world.pass().await;
            let row = world.delivery(id).await;
            assert_eq!((row.provider.as_deref(), row.unclear), (Some("first"), true), "{guarantee:?}");
            assert_eq!(chain.second.requests(), 0);
            world.store.resume_lane(chain.lanes[0]).await.unwrap();
            world.pass().await;
            assert_eq!(world.stands(id).await, stands("sent", "first"));
        }
    }

    /// The first provider would recognise the key of a retried delivery. No other one does.
    async fn a_retry_of_what_may_have_arrived_never_moves(world) {
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let chain = world.chain(500, guarantee).await;
            let draft = world.mailer("first", &chain.first, Some("second"));
            let once = Policy::from_json(&json!({"name": "fixed", "interval_s": 60, "max_attempts": 1})).unwrap();
            world.update(&ProviderDraft { guarantee, policy: once, ..draft }).await;
            let id = world.mail().await;
            world.pass().await;
            assert_eq!(world.stands(id).await, stands("parked", "first"), "{guarantee:?}");
            world.store.act_on_many(Act::Retry, &[world.key(id, 1)], true).await.unwrap();
            world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
            world.pass().await;
            assert_eq!(world.stands(id).await, stands("pending", "first"), "{guarantee:?}");
            world.store.resume_lane(chain.lanes[0]).await.unwrap();
            chain.first.answer(401);
            world.pass().await;
            assert_eq!(world.stands(id).await, stands("parked", "first"), "{guarantee:?}");
            assert_eq!((chain.first.requests(), chain.second.requests()), (2, 0));
        }
    }

    /// Otherwise what the second takes would wait there until it recovers, long after the first one did.
    async fn a_next_provider_that_is_probed_takes_one_delivery(world) {
        let chain = world.chain(200, Guarantee::Idempotent).await;
        let second = world.mailer("second", &chain.second, None);
        world.update(&second).await;
        world.store.trip_lane(chain.lanes[1], None, (0, Duration::from_secs(20), "it failed")).await.unwrap();
        world.end_of_holds().await;
        chain.second.answer(503);
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        let ids = world.mails(20).await;
        world.pass().await;
        assert_eq!((chain.first.requests(), chain.second.requests()), (0, 1), "one delivery probes it");
        let mut lanes = vec![];
        for id in ids {
            lanes.push(world.stands(id).await.1);
        }
        assert_eq!(lanes.iter().filter(|lane| *lane == "first").count(), 19, "{lanes:?}");
        // It works again: the next probe succeeds, and then all go on.
        world.end_of_holds().await;
        chain.second.answer(200);
        for _ in 0..3 {
            world.make_due().await;
            world.pass().await;
        }
        assert_eq!((world.count("delivery_queue").await, chain.first.requests(), chain.second.requests()), (0, 0, 21));
    }

    /// 409 may say that our own request is in progress. The statement that moves what waits is as strict as the move
    /// after an attempt.
    async fn what_got_an_answer_without_certainty_stays_when_its_lane_closes(world) {
        let chain = world.chain(409, Guarantee::Idempotent).await;
        let id = world.mail().await;
        world.pass().await;
        assert_eq!(world.stands(id).await, stands("retrying", "first"));
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.stands(id).await, chain.second.requests()), (stands("retrying", "first"), 0));
    }

    /// A row whose lease ran out in a closed lane is left to the claim that takes it over.
    async fn a_row_that_a_worker_lost_is_not_moved(world) {
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let chain = world.chain(200, guarantee).await;
            let two = json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}]});
            world.store.hold_lane(chain.lanes[0], None, Duration::from_secs(10)).await.unwrap();
            world.enqueue("t", two).await;
            world.pass().await;
            world.end_of_holds().await;
            let wants = [postcommit_engine::store::Want { lane: chain.lanes[0], quota: 1 }];
            assert_eq!(world.store.claim(&wants, Duration::from_secs(60), None).await.unwrap().deliveries.len(), 1);
            let first = world.named("first").await;
            world.store.pause_lane(first.id, None, "by hand").await.unwrap();
            let moved = async || world.store.move_waiting(&first, chain.lanes[1], world.store.now().await.unwrap(), 9).await.unwrap();
            assert_eq!(moved().await, 1, "not the leased one");
            world.expire_leases().await;
            assert_eq!(moved().await, 0, "{guarantee:?}: nor the lost one");
        }
    }

    /// The statement reads both providers itself, so a process with old knowledge moves nothing.
    async fn nothing_moves_on_outdated_knowledge(world) {
        let chain = world.chain(200, Guarantee::Idempotent).await;
        world.store.hold_lane(chain.lanes[0], None, Duration::from_secs(10)).await.unwrap();
        world.mail().await;
        world.pass().await;
        let first = world.named("first").await;
        let moved = async || world.store.move_waiting(&first, chain.lanes[1], world.store.now().await.unwrap(), 9).await.unwrap();
        assert_eq!(moved().await, 0, "a short hold");
        world.store.pause_lane(chain.lanes[0], None, "by hand").await.unwrap();
        world.store.pause_lane(chain.lanes[1], None, "by hand").await.unwrap();
        assert_eq!(moved().await, 0, "the next one is paused");
        world.store.resume_lane(chain.lanes[1]).await.unwrap();
        world.execute("UPDATE postcommit.delivery_queue SET due_at = $1", vec![Timestamp::from_micros(4_000_000_000_000_000).into()]).await;
        assert_eq!(moved().await, 0, "it is not due");
        world.make_due().await;
        assert_eq!(moved().await, 1);
        let row = world.sql("SELECT moves, attempts, code, detail FROM postcommit.delivery_queue", vec![]).await.remove(0);
        assert_eq!((row.get::<i32>(0).unwrap(), row.get::<i32>(1).unwrap(), row.get::<String>(2).unwrap()), (1, 0, "failed_over".into()));
        assert_eq!(row.get::<String>(3).unwrap(), "moved from provider first, which cannot send now");
    }

    /// A circle that was written by hand: the delivery moves a limited number of times.
    async fn nothing_bounces_between_lanes_without_end(world) {
        let (first, second) = (Service::answering(503), Service::answering(503));
        world.provider(world.mailer("second", &second, None)).await;
        world.provider(world.mailer("first", &first, Some("second"))).await;
        world.execute("UPDATE postcommit.provider SET failover = 'first' WHERE name = 'second'", vec![]).await;
        let id = world.mail().await;
        world.pass().await;
        assert_eq!((first.requests(), second.requests()), (3, 2), "four moves, then it waits");
        assert_eq!(world.stands(id).await, stands("retrying", "first"));
    }
}
