//! Providers that no running process can serve, because it does not know their driver or their settings. On both
//! databases.

use std::collections::BTreeMap;

use postcommit_channel::driver::{self, Recipe};
use postcommit_engine::store::Lacking;
use serde_json::json;

use crate::world::World;

/// The lanes that no process can serve, with the reason.
async fn closed(world: &World) -> BTreeMap<i32, (Lacking, String)> {
    let lanes = world.store.unopened(None).await.unwrap();
    lanes.into_iter().map(|(lane, not)| (lane, (not.lacking, not.reason))).collect()
}

/// A provider of a driver that is named after the database, because drivers are added for the whole process.
async fn stranger(world: &World) -> (i32, String) {
    let lane = world.capture(json!({})).await;
    let driver = format!("stranger_on_{}", world.store.db().kind());
    world.execute("UPDATE postcommit.provider SET driver = $1", vec![driver.as_str().into()]).await;
    (lane, driver)
}

on_both! {
    async fn a_provider_of_an_unknown_recipe_is_shown_closed_until_a_process_knows_it(world) {
        let (lane, driver) = stranger(&world).await;
        let id = world.enqueue("t", json!({})).await;
        let running = world.run().await;
        world.until("the worker has said so", async || !closed(&world).await.is_empty()).await;
        let (lacking, reason) = closed(&world).await.remove(&lane).unwrap();
        assert_eq!(lacking, Lacking::Driver);
        assert!(reason.contains(&driver), "{reason}");
        assert_eq!(world.store.count_closed(Some(world.tenant)).await.unwrap().lanes_unopened, 1);
        world.until("the delivery is in the lane", async || world.delivery(id).await.provider.is_some()).await;
        let waits = world.delivery(id).await.waits_for.unwrap();
        assert!(waits.starts_with("its provider, whose driver no running process can set up: "), "{waits}");
        let other = world.store.create_tenant("acme").await.unwrap();
        assert!(world.store.of_tenant(other).unopened(Some(other)).await.unwrap().is_empty());

        // Now this process knows the recipe, as after a restart.
        let recipe = format!(
            "name = '{driver}'\ntitle = 'Stranger'\nchannel = 'x'\naddress = 'a word'\nguarantee = 'idempotent'\n\
             because = 'it has keys'\nrequest = {{ url = 'http://127.0.0.1:1/' }}\nsuccess.when = 'true'\n"
        );
        driver::add_recipe(Recipe::read(&recipe).unwrap()).unwrap();
        world.until("the lane is open", async || closed(&world).await.is_empty()).await;
        running.finish().await;
        assert_eq!(world.count("unopened_secret").await, 0);
    }

    async fn settings_that_this_version_does_not_know_are_shown(world) {
        let lane = world.capture(json!({})).await;
        world.execute("UPDATE postcommit.provider SET settings = '{\"of_tomorrow\": 1}'", vec![]).await;
        // Two passes look like cron.
        world.pass().await;
        world.pass().await;
        let (lacking, reason) = closed(&world).await.remove(&lane).unwrap();
        assert!(lacking == Lacking::Driver && reason.contains("of_tomorrow"), "{reason}");
        world.execute("UPDATE postcommit.provider SET enabled = $1", vec![false.into()]).await;
        world.pass().await;
        assert!(closed(&world).await.is_empty(), "a disabled provider needs no process");
    }
}
