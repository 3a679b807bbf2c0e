//! Observability: metrics, the log of attempts, traces.

use std::collections::BTreeMap;

use postcommit::{Source, TraceParent};
use postcommit_channel::driver::FailOn;
use postcommit_engine::metrics::Scrape;
use postcommit_engine::store::KpiSettings;
use postcommit_engine::trace::{Span, Tracer};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::world::World;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn scrape(world: &World) -> Scrape {
    Scrape::new(world.metrics.clone(), world.store.clone(), KpiSettings::default())
}

/// Samples of the metrics by name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let sample =
        |line: &'_ str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap()));
    assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| sample(line).is_some()), "{text}");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

on_both! {
    async fn a10_attempts_outcomes_and_latency_by_event_type(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("permanent=no,transient*1=again").unwrap();
        world.capture(json!({})).await;
        for event in ["yes", "yes", "no", "again"] {
            world.enqueue(event, json!({})).await;
        }
        world.enqueue("yes", json!({"channels": ["email"], "recipients": [{"email": "a@example.com"}, {"phone": "+4915112345678"}]})).await;
        let parked = world.enqueue("nobody", json!({"recipients": []})).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.delivery(parked).await.state, "parked");

        let text = scrape(&world).text().await;
        let samples = samples(&text);
        let of = |name: &str| samples.get(name).copied().unwrap_or_else(|| panic!("{name} is not in {text}"));
        assert_eq!(of("postcommit_attempts_total{event_type=\"yes\",channel=\"email\",outcome=\"sent\"}"), 3.0);
        assert_eq!(of("postcommit_attempts_total{event_type=\"no\",channel=\"email\",outcome=\"rejected\",error_class=\"unknown\"}"), 1.0);
        assert_eq!(of("postcommit_attempts_total{event_type=\"again\",channel=\"email\",outcome=\"deferred\",error_class=\"unknown\"}"), 1.0);
        assert_eq!(of("postcommit_attempts_total{event_type=\"again\",channel=\"email\",outcome=\"sent\"}"), 1.0);
        assert_eq!(of("postcommit_deliveries_total{event_type=\"yes\",channel=\"email\",state=\"sent\"}"), 3.0);
        assert_eq!(of("postcommit_deliveries_total{event_type=\"yes\",channel=\"sms\",state=\"skipped\"}"), 1.0);
        assert_eq!(of("postcommit_deliveries_total{event_type=\"no\",channel=\"email\",state=\"parked\"}"), 1.0);
        assert_eq!(of("postcommit_deliveries_total{event_type=\"again\",channel=\"email\",state=\"sent\"}"), 1.0);
        assert_eq!(of("postcommit_deliveries_total{event_type=\"nobody\",channel=\"\",state=\"parked\"}"), 1.0);
        assert_eq!(of("postcommit_send_seconds_count{event_type=\"again\",channel=\"email\"}"), 2.0);
        assert_eq!(of("postcommit_commit_to_send_seconds_count"), 5.0, "first attempts alone");
        assert_eq!((of("postcommit_queue_depth{state=\"pending\"}"), of("postcommit_stuck"), of("postcommit_database_up")), (0.0, 0.0, 1.0));
        assert_eq!((of("postcommit_parked{reason=\"rejected\"}"), of("postcommit_parked{reason=\"config\"}")), (1.0, 1.0));
        assert!(!text.contains("tenant=") && !text.contains("example.com"), "no tenant and no address is a label");
    }

    /// The log of attempts gives success rate, latency and retries.
    async fn b6_success_rate_latency_and_retries_can_be_read_from_attempts(world) {
        let mut world = world;
        world.fail_on = FailOn::parse("permanent=no,transient*1=again").unwrap();
        world.capture(json!({})).await;
        for event in ["yes", "no", "again"] {
            world.enqueue(event, json!({})).await;
        }
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        let sql = "SELECT count(*), count(*) FILTER (WHERE outcome IN ('sent', 'delivered')), count(*) FILTER (WHERE seq > 1), count(*) FILTER (WHERE latency_ms >= 0 AND provider = 'capture')
            FROM postcommit.attempt";
        let row = &world.sql(sql, vec![]).await[0];
        let read: Vec<i64> = (0..4).map(|place| row.get(place).unwrap()).collect();
        assert_eq!(read, [4, 2, 1, 4], "4 attempts, 2 of them a success, 1 a retry, each with its latency and provider");
    }

    async fn without_its_database_a_process_still_serves_its_metrics(world) {
        world.capture(json!({})).await;
        world.enqueue("yes", json!({})).await;
        world.pass().await;
        let gone = scrape(&world);
        let rename = if world.is_postgres() { "ALTER TABLE postcommit.delivery_queue RENAME TO elsewhere" } else { "ALTER TABLE postcommit_delivery_queue RENAME TO elsewhere" };
        world.execute(rename, vec![]).await;
        let text = gone.text().await;
        assert!(text.contains("postcommit_database_up 0\n") && text.contains("event_type=\"yes\"") && !text.contains("postcommit_stuck "), "{text}");
    }

    /// The enqueue, the expansion and the provider's call are one trace, which is passed on to the receiver.
    async fn a_trace_reaches_the_receiver(world) {
        let mut world = world;
        let server = HttpServer::start(|_| Reply::status(200));
        world.provider(world.draft("hook", "webhook", json!({"url": server.url("/secret-path")}))).await;
        let (tracer, mut spans) = Tracer::new(1.0, world.metrics.clone());
        let parent: TraceParent = PARENT.parse().unwrap();
        let traced = json!({"recipients": [{"webhook": server.url("/secret-path")}], "correlation_id": "c-1", "source": Source::default().traced_by(parent), "body": "canary"});
        // Without tracing the traceparent is passed on unchanged.
        world.enqueue("first", traced.clone()).await;
        world.pass().await;
        assert_eq!(server.wait_for(1).await[0].header("traceparent"), Some(PARENT));
        // With tracing the span of the attempt is the parent of the receiver's spans.
        world.tracer = tracer;
        let id = world.enqueue("second", traced.clone()).await;
        world.pass().await;
        let told: TraceParent = server.wait_for(2).await[1].header("traceparent").unwrap().parse().unwrap();
        let mut taken: BTreeMap<&str, Span> = BTreeMap::new();
        while let Ok(span) = spans.try_recv() {
            taken.insert(span.name, span);
        }
        let (expand, send) = (&taken["expand"], &taken["send"]);
        assert_eq!((send.context, send.context.trace_id), (told, parent.trace_id));
        assert_eq!((expand.context.trace_id, expand.parent, send.parent), (parent.trace_id, Some(parent.span_id), Some(parent.span_id)));
        let attributes: BTreeMap<&str, &str> = send.attributes.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(attributes["postcommit.delivery"], format!("{id}.1"));
        assert_eq!((attributes["postcommit.outcome"], attributes["postcommit.provider"], attributes["postcommit.correlation_id"]), ("sent", "hook", "c-1"));
        assert!(!format!("{taken:?}").contains("secret-path") && !format!("{taken:?}").contains("canary"));
        // A notification without a traceparent begins a trace of its own, whose id is derived from the notification's.
        let mut alone = traced;
        alone["source"] = json!({});
        let id = world.enqueue("third", alone).await;
        world.pass().await;
        let told: TraceParent = server.wait_for(3).await[2].header("traceparent").unwrap().parse().unwrap();
        assert_eq!(told.trace_id, id.as_u128());
    }

    /// Plain SQL may have written any text as the traceparent.
    async fn an_invalid_traceparent_is_ignored(world) {
        let server = HttpServer::start(|_| Reply::status(200));
        world.provider(world.draft("hook", "webhook", json!({"url": server.url("/")}))).await;
        let id = world.enqueue_by_sql("a", &json!([{"webhook": server.url("/")}]).to_string()).await;
        let sql = "UPDATE postcommit.notification SET source = '{\"traceparent\": \"x\\r\\ny\"}' WHERE id = $1";
        world.execute(sql, vec![id.into()]).await;
        world.pass().await;
        assert_eq!(server.wait_for(1).await[0].header("traceparent"), None);
    }
}

#[test]
fn a_traceparent_in_the_body_is_checked() {
    let note = |parent: &str| {
        serde_json::from_value::<postcommit::Notification>(
            json!({"event_type": "a", "source": {"traceparent": parent}}),
        )
    };
    assert_eq!(note(PARENT).unwrap().source.traceparent.as_deref(), Some(PARENT));
    let problem = note("00-x").unwrap_err().to_string();
    assert!(problem.contains("source.traceparent") && problem.contains("W3C traceparent such as"), "{problem}");
}
