//! A lease ran out, and another event follows before any worker has judged the loss. The store must remember that the
//! delivery may have been sent.

use postcommit_channel::model::{Finish, Guarantee};
use postcommit_channel::secret::{KeySource, Secret};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{Lease, Settlement};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::lost::{an_hour_before, ended, lose, parked};
use crate::store::{claim, in_lane};

on_both! {
    // The dispatcher gives back rows that it cannot read or serve, whether they were lost before or not.
    async fn a_row_given_back_unjudged_is_still_lost(world) {
        let held = lose(&world, json!({})).await;
        let taken = claim(&world.store, -world.tenant, 1).await.remove(0);
        assert_eq!(taken.lost_since, Some(held.leased_at));
        world.store.settle(vec![Settlement::unbegun(Lease::of(&taken), Finish::Returned)]).await.unwrap();
        let next = claim(&world.store, -world.tenant, 1).await.remove(0);
        assert_eq!((next.lost_since, next.losses), (Some(held.leased_at), 1));
    }

    async fn a_row_given_back_unjudged_is_still_announced(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        world.store.announce(&[Lease::of(&held)]).await.unwrap();
        world.expire_leases().await;
        let taken = claim(&world.store, lane, 1).await.remove(0);
        assert_eq!((taken.lost_since, taken.intent_stands), (Some(held.leased_at), true));
        world.store.settle(vec![Settlement::unbegun(Lease::of(&taken), Finish::Returned)]).await.unwrap();
        let next = claim(&world.store, lane, 1).await.remove(0);
        assert_eq!((next.lost_since, next.intent_stands), (Some(held.leased_at), true));
    }

    // An example is a manual pass in an environment without the secrets key.
    async fn a_pass_that_cannot_serve_the_lane_does_not_forget_the_announced_send(world) {
        let server = HttpServer::start(|_| Reply::ok());
        let secrets = [("secret".to_owned(), Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))].into();
        let mut draft = world.draft("hooks", "webhook", json!({}));
        draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "hooks"));
        draft.guarantee = Guarantee::AtMostOnce;
        let lane = world.provider(draft).await;
        world.store.pause_lane(lane, None, "so that the expansion alone runs").await.unwrap();
        let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        world.pass().await;
        world.store.resume_lane(lane).await.unwrap();
        let held = claim(&world.store, lane, 1).await.remove(0);
        world.store.announce(&[Lease::of(&held)]).await.unwrap();
        world.expire_leases().await;
        let KeySource::File(file) = world.keys.clone() else { panic!("a file") };
        let away = file.with_extension("away");
        std::fs::rename(&file, &away).unwrap();
        let mut without_key = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
        without_key.pass(Some((world.tenant, id))).await.unwrap();
        std::fs::rename(&away, &file).unwrap();
        world.pass().await;
        assert_eq!(server.requests().len(), 0, "the one whose lease ran out may have sent it");
        assert_eq!(ended(&world, id).await, parked("outcome_unknown", true));
    }

    // A second worker that dies before it has judged the first loss must not replace the time of that loss with its
    // own. At that later time at_most_once had been in force for long.
    async fn a_row_lost_twice_may_have_been_sent_by_the_first_worker(world) {
        let mut draft = world.draft("capture", "capture", json!({}));
        world.provider(draft.clone()).await;
        let id = lose(&world, json!({})).await.key.notification;
        // The first worker ran under idempotent, two hours ago. The guarantee has been at_most_once for an hour. The
        // second worker ran a moment ago.
        let an_hour_ago = an_hour_before(world.store.now().await.unwrap());
        world.execute("UPDATE postcommit.delivery_queue SET leased_at = $1", vec![an_hour_before(an_hour_ago).into()]).await;
        draft.guarantee = Guarantee::AtMostOnce;
        world.update(&draft).await;
        world.execute("UPDATE postcommit.provider SET guarantee_since = $1", vec![an_hour_ago.into()]).await;
        assert_eq!(claim(&world.store, -world.tenant, 1).await.len(), 1);
        world.expire_leases().await;
        world.pass().await;
        assert_eq!(ended(&world, id).await, parked("outcome_unknown", true));
    }

    async fn a_row_lost_twice_in_its_lane_may_have_been_sent_by_the_first_worker(world) {
        let mut draft = world.draft("capture", "capture", json!({}));
        let lane = world.provider(draft.clone()).await;
        let id = in_lane(&world, lane, 1).await[0];
        let an_hour_ago = an_hour_before(world.store.now().await.unwrap());
        assert_eq!(claim(&world.store, lane, 1).await.len(), 1);
        world.expire_leases().await;
        world.execute("UPDATE postcommit.delivery_queue SET leased_at = $1", vec![an_hour_before(an_hour_ago).into()]).await;
        draft.guarantee = Guarantee::AtMostOnce;
        world.update(&draft).await;
        world.execute("UPDATE postcommit.provider SET guarantee_since = $1", vec![an_hour_ago.into()]).await;
        assert_eq!(claim(&world.store, lane, 1).await.len(), 1);
        world.expire_leases().await;
        world.pass().await;
        world.pass().await;
        assert_eq!(ended(&world, id).await, parked("outcome_unknown", true));
    }

    // The notification's row does not say which provider sent it, and another provider has become the default in the
    // meantime.
    async fn another_provider_s_guarantee_says_nothing_about_the_lost_attempt(world) {
        world.capture(json!({})).await;
        let id = lose(&world, json!({})).await.key.notification;
        let mut newer = world.draft("newer", "capture", json!({}));
        newer.guarantee = Guarantee::AtMostOnce;
        world.provider(newer).await;
        world.pass().await;
        assert_eq!(ended(&world, id).await, parked("outcome_unknown", true));
    }

    // Regression test: a row that was given back unjudged carries its loss in lost_since, without a token.
    // `reroute_strays_once` checked only the token, and `enter_lane` cleared lost_since: the loss was forgotten, and
    // the at_most_once provider sent again.
    async fn a_row_given_back_unjudged_whose_lane_is_deleted_may_have_been_sent(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        assert_eq!(claim(&world.store, lane, 1).await.len(), 1);
        world.expire_leases().await;
        let taken = claim(&world.store, lane, 1).await.remove(0);
        world.store.settle(vec![Settlement::unbegun(Lease::of(&taken), Finish::Returned)]).await.unwrap();
        // The provider is deleted directly, because the store would refuse. This is like a worker that had not read the
        // deletion when it wrote the row.
        world.execute("DELETE FROM postcommit.provider", vec![]).await;
        let mut newer = world.draft("newer", "capture", json!({}));
        newer.guarantee = Guarantee::AtMostOnce;
        world.provider(newer).await;
        assert_eq!(world.store.reroute_strays_once().await.unwrap(), 1);
        world.pass().await;
        world.pass().await;
        assert_eq!(ended(&world, id).await, parked("outcome_unknown", true));
    }

    // Regression test: a cancel, by an operator or by the application, forgot the loss. The ledger said that the
    // delivery was cancelled, and not that it may have arrived.
    async fn a_row_given_back_unjudged_and_cancelled_may_have_arrived(world) {
        world.capture(json!({})).await;
        let mut seen = Vec::new();
        for by_hand in [true, false] {
            let held = lose(&world, json!({"entity": "e1"})).await;
            let taken = claim(&world.store, -world.tenant, 1).await.remove(0);
            world.store.settle(vec![Settlement::unbegun(Lease::of(&taken), Finish::Returned)]).await.unwrap();
            if by_hand {
                assert!(world.store.cancel_delivery(held.key).await.unwrap());
            } else {
                world.cancel("e1").await;
            }
            let row = world.delivery(held.key.notification).await;
            seen.push((row.state, row.unclear));
        }
        assert_eq!(seen, [("cancelled".to_owned(), true), ("cancelled".to_owned(), true)]);
    }

    // Regression test: settling an unreadable notification (`Settler::orphan`) forgot the loss.
    async fn a_lost_and_unreadable_row_may_have_arrived(world) {
        world.capture(json!({})).await;
        lose(&world, json!({})).await;
        world.execute("DELETE FROM postcommit.notification", vec![]).await;
        world.pass().await;
        let row = world.sql("SELECT state, code, unclear FROM postcommit.delivery_ledger", vec![]).await.remove(0);
        assert_eq!((row.get::<String>(0).unwrap(), row.get::<String>(1).unwrap(), row.get::<bool>(2).unwrap()), ("parked".into(), "notification_unreadable".into(), true));
    }
}
