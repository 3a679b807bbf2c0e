//! The Web Push driver against a scripted push service, through the whole engine.

use postcommit_channel::driver;
use postcommit_channel::model::Guarantee;
use postcommit_channel::secret::Secrets;
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::users::user;
use crate::world::World;

/// A subscription at this endpoint. The key is that of the example in RFC 8291.
fn subscription(endpoint: &str) -> String {
    let p256dh = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    json!({"endpoint": endpoint, "keys": {"p256dh": p256dh, "auth": "BTBZMqHH6r4Tts7J_aSIgg"}}).to_string()
}

/// The default provider of the channel `web_push`, with a new pair of keys.
async fn provider(world: &World) {
    let made = (driver::kind("web_push").unwrap().new_secret.as_ref().unwrap().make)();
    let settings = json!({"subject": "mailto:desk@hotel.example", "public_key": made.public});
    let mut draft = world.draft("browsers", "web_push", settings);
    (draft.channel, draft.guarantee, draft.is_default) = ("web_push".into(), Guarantee::AtLeastOnce, true);
    let secrets = Secrets::from([("private_key".to_owned(), made.secret)]);
    draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "browsers"));
    world.provider(draft).await;
}

on_both! {
    async fn a_browser_and_a_user_with_a_browser_are_reached(world) {
        let server = HttpServer::start(|_| Reply::status(201).with_header("location", "https://push.example/m/m-1"));
        provider(&world).await;
        let (own, hers) = (subscription(&server.url("/own")), subscription(&server.url("/hers")));
        world.store.create_user(world.tenant, "42", &user(&[("web_push", &hers)])).await.unwrap();
        let to = json!({"recipients": [{"web_push": own}, {"user": "42"}], "channels": ["web_push"], "priority": 9});
        let id = world.enqueue("booking.confirmed", to).await;
        world.pass().await;
        let rows = world.deliveries(id).await;
        assert!(rows.iter().all(|row| row.state == "sent"), "{rows:?}");
        let host = format!("http://{}/…", server.addr());
        assert!(rows.iter().all(|row| row.target.as_deref() == Some(host.as_str())), "the subscription is not shown: {rows:?}");
        let mut seen: Vec<_> = server.requests().iter().map(|request| (request.path.clone(), request.header("urgency").map(str::to_owned))).collect();
        seen.sort();
        assert_eq!(seen, [("/hers".into(), Some("high".into())), ("/own".into(), Some("high".into()))]);
        assert_eq!(world.attempts(id).await[0].provider_ref.as_deref(), Some("m-1"));
    }

    async fn a_bad_subscription_ends_alone_and_a_refused_signature_pauses_one_host(world) {
        let server = HttpServer::start(|request| Reply::status(match request.path.as_str() {
            "/gone" => 410,
            "/of-another-key" => 403,
            _ => 401,
        }));
        provider(&world).await;
        let other = server.one_more();
        let to = |endpoint: String| json!({"recipients": [{"web_push": subscription(&endpoint)}]});
        let gone = world.enqueue("booking.confirmed", to(server.url("/gone"))).await;
        let foreign = world.enqueue("booking.confirmed", to(server.url("/of-another-key"))).await;
        let refused = world.enqueue("booking.confirmed", to(format!("http://{other}/x"))).await;
        world.pass().await;
        for (id, code, class) in [(gone, "http_410", "invalid_address"), (foreign, "http_403", "config")] {
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("parked", Some(code)));
            assert_eq!(world.attempts(id).await[0].error_class.as_deref(), Some(class));
        }
        assert_eq!(world.delivery(refused).await.error_code.as_deref(), Some("http_401"));
        // Only the host that refused our signature is paused.
        let closed = world.store.closed_hosts(None, None, 10).await.unwrap();
        assert_eq!(closed.iter().map(|host| host.host.as_str()).collect::<Vec<_>>(), [other.to_string()]);
        let again = world.enqueue("booking.confirmed", to(server.url("/of-another-key"))).await;
        let ended = world.enqueue("booking.confirmed", to(server.url("/gone"))).await;
        world.pass().await;
        assert_eq!(world.attempts(again).await.len(), 1, "the other host goes on");
        assert_eq!(world.delivery(ended).await.error_code.as_deref(), Some("suppressed"));
    }
}
