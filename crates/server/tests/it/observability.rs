//! Observability of a running server: metrics, traces, logs; and that alerts and dashboards name existing metrics.

mod collector;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use postcommit_testkit::{Child, HttpClient, HttpServer, Reply};
use serde_json::Value;

use crate::cli::Shell;
use crate::installation::wait_until;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn get(address: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A running server and its address.
fn serve(shell: &Shell) -> (Child, String) {
    let server = Child::spawn(shell.command(&["serve", "--listen", "127.0.0.1:0"]));
    let line = server.wait_for_line("/healthz");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    (server, address)
}

fn deploy(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

/// The metrics that a file names.
fn named(file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy(file)).unwrap();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics = words.filter(|word| word.starts_with("postcommit_") && *word != "postcommit_");
    // A histogram is named by its parts.
    let family = |word: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word).to_owned()
    };
    metrics.map(family).collect()
}

#[test]
fn a11_every_metric_that_alerts_and_dashboard_name_exists() {
    let shell = Shell::ready();
    let (_server, address) = serve(&shell);
    // The server listens before its dispatcher runs.
    wait_until("the dispatcher to run", || get(&address, "/metrics", "").contains("postcommit_dispatcher_last_look"));
    let answer = get(&address, "/metrics", "");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    let told: BTreeSet<String> =
        answer.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect();
    for file in ["prometheus/alerts.yml", "grafana/postcommit.json"] {
        let named = named(file);
        assert!(named.len() > 8, "{named:?}");
        assert_eq!(named.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "{file}");
    }
    let on_the_page = named("../docs/names.md");
    assert!(on_the_page.is_subset(&told) && !on_the_page.is_empty(), "{on_the_page:?}");
    // The dashboard shows every metric.
    let unseen: Vec<_> = told
        .difference(&named("grafana/postcommit.json"))
        .filter(|name| !name.ends_with("_timestamp_seconds"))
        .cloned()
        .collect();
    assert_eq!(unseen, Vec::<String>::new());
}

/// The `runbook_url` of an alert leads to its section in docs/monitoring.md.
#[test]
fn a11_every_alert_says_what_to_do() {
    let rules = std::fs::read_to_string(deploy("prometheus/alerts.yml")).unwrap();
    let page = std::fs::read_to_string(deploy("../docs/monitoring.md")).unwrap();
    let after = |start: &'static str| {
        rules.lines().filter_map(move |line| line.trim().strip_prefix(start)).map(str::to_owned).collect::<Vec<_>>()
    };
    let (alerts, links) = (after("- alert: "), after("runbook_url: "));
    assert!(alerts.len() > 10);
    let repository = "https://github.com/postcommit/postcommit/blob/main/docs/monitoring.md#";
    let expected: Vec<_> = alerts.iter().map(|name| format!("{repository}{}", name.to_lowercase())).collect();
    assert_eq!(links, expected);
    let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(sections, alerts, "one section for each alert, in the same order");
}

/// Runs promtool, which comes with Debian's package `prometheus`, and asserts that it found nothing wrong.
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(deploy("prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = "promtool is missing; ./scripts/test installs it: Debian's package prometheus";
    let mut process = command.spawn().unwrap_or_else(|problem| panic!("{missing}: {problem}"));
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = process.wait_with_output().unwrap();
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn a11_promtool_accepts_rules_and_their_tests() {
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
}

#[test]
fn a10_promtool_accepts_the_metrics() {
    let shell = Shell::ready();
    let (_server, address) = serve(&shell);
    shell.run(&["enqueue", "booking.confirmed", "--to", "email:guest@example.com", "--wait"]).ends(0);
    let answer = get(&address, "/metrics", "");
    let text = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(text.contains("postcommit_send_seconds_bucket{event_type=\"booking.confirmed\""), "{text}");
    promtool(&["check", "metrics"], text);
}

#[test]
fn requests_and_deliveries_are_in_metrics() {
    let shell = Shell::ready();
    let (server, address) = serve(&shell);
    shell.run(&["enqueue", "booking.confirmed", "--to", "email:guest@example.com", "--wait"]).ends(0);
    get(&address, "/nothing/secret-path", "");
    let text = get(&address, "/metrics", "");
    for expected in [
        "postcommit_attempts_total{event_type=\"booking.confirmed\",channel=\"email\",outcome=\"sent\"} 1",
        "postcommit_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"} 1",
        "postcommit_dispatchers 1",
        "postcommit_http_connections 1",
        "postcommit_database_up 1",
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected}: {text}");
    }
    assert!(!text.contains("secret-path") && !text.contains("guest@"), "{text}");
    server.term();
    server.wait();
}

#[test]
fn on_other_addresses_than_loopback_metrics_need_a_token() {
    let token = "0123456789abcdef";
    let shell = Shell::ready()
        .with("POSTCOMMIT_METRICS_TOKEN", token)
        .with("POSTCOMMIT_SERVER_TRUSTED_PROXIES", "127.0.0.1/32");
    let (_server, address) = serve(&shell);
    let refused = get(&address, "/metrics", "");
    assert!(
        refused.starts_with("HTTP/1.1 401") && refused.contains("listens on loopback and trusts no proxy"),
        "{refused}"
    );
    assert!(get(&address, "/metrics", "authorization: Bearer 0123456789abcdeX\r\n").starts_with("HTTP/1.1 401"));
    assert!(get(&address, "/metrics", &format!("authorization: Bearer {token}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(!shell.run(&["config", "show"]).ends(0).stdout.contains(token));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The spans that a collector received.
fn spans(collector: &HttpServer) -> Vec<Value> {
    let bodies =
        collector.requests().into_iter().map(|request| serde_json::from_slice::<Value>(&request.body).unwrap());
    let spans = bodies.flat_map(|body| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    spans.collect()
}

#[test]
fn traces_reach_the_collector() {
    let collector = HttpServer::start(|_| Reply::json(200, serde_json::json!({})));
    let shell = Shell::ready().with("POSTCOMMIT_TELEMETRY_OTLP_ENDPOINT", &collector.url(""));
    let (server, address) = serve(&shell);
    let source = format!("{{\"traceparent\": \"{PARENT}\"}}");
    shell
        .run(&[
            "enqueue",
            "a",
            "--to",
            "email:guest@example.com",
            "--source",
            &source,
            "--correlation-id",
            "c-1",
            "--wait",
        ])
        .ends(0);
    get(&address, "/healthz", &format!("traceparent: {PARENT}\r\n"));
    get(&address, "/healthz", "traceparent: nonsense\r\n");
    // A stop sends the remaining spans.
    server.term();
    server.wait();
    let spans = spans(&collector);
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).cloned().collect::<Vec<_>>();
    let (send, request) = (named("send").remove(0), named("request"));
    assert_eq!(
        (&send["traceId"], &send["parentSpanId"]),
        (&"0af7651916cd43dd8448eb211c80319c".into(), &"b7ad6b7169203331".into())
    );
    assert_eq!(named("expand").len(), 1);
    assert!(send["attributes"].to_string().contains("c-1") && !format!("{spans:?}").contains("guest@"), "{send}");
    let traces: Vec<bool> = request.iter().map(|span| span["traceId"] == send["traceId"]).collect();
    assert_eq!(traces, [true, false], "a header that is no traceparent begins a trace of its own");
    assert!(collector.requests().iter().all(|request| request.header("content-type") == Some("application/json")));
}

/// One trace from the HTTP request to the provider's call.
#[test]
fn a_request_and_the_call_that_it_leads_to_are_one_trace() {
    let collector = HttpServer::start(|_| Reply::json(200, serde_json::json!({})));
    let receiver = HttpServer::start(|_| Reply::ok());
    let shell = Shell::ready()
        .with("POSTCOMMIT_TELEMETRY_OTLP_ENDPOINT", &collector.url(""))
        .with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
    shell.run(&["providers", "create", "hook", "--driver", "webhook"]).ends(0);
    let key =
        shell.run(&["keys", "create", "test", "--scope", "enqueue", "--scope", "read", "-o", "json"]).ends(0).json();
    let (server, address) = serve(&shell);
    let client =
        HttpClient::new(address.parse().unwrap()).key(key["token"].as_str().unwrap()).with("traceparent", PARENT);
    let note = serde_json::json!({"event_type": "a", "recipients": [{"webhook": receiver.url("/hook")}], "correlation_id": "c-7"});
    assert!(client.post("/v1/notifications", &note).expect(202).header("location").is_some());
    let told = block_on(receiver.wait_for(1))[0].header("traceparent").unwrap().to_owned();
    let kpis = client.get("/v1/kpis?by=site").expect(200).json();
    assert!(kpis["total"]["queue"].is_object() && kpis["stuck_after_s"] == 600, "{kpis}");
    let series = client.get("/v1/kpis/series?per=hour&by=channel").expect(200).json();
    assert_eq!(series["slots"].as_array().unwrap().len(), 61);
    assert_eq!(client.get("/v1/kpis/series?from=2020-01-01T00:00:00Z").expect(422).json()["field"], "from");
    assert_eq!(client.get("/v1/kpis?interval_s=1").expect(422).json()["field"], "interval_s");
    let bad = serde_json::json!({"event_type": "a", "source": {"traceparent": "nonsense"}});
    assert_eq!(client.post("/v1/notifications", &bad).expect(422).json()["field"], "source.traceparent");
    server.term();
    server.wait();
    let spans = spans(&collector);
    let named = |name: &str| {
        let of_name = |span: &&Value| span["name"] == name && span["traceId"] == "0af7651916cd43dd8448eb211c80319c";
        spans.iter().find(of_name).unwrap_or_else(|| panic!("{name} is not in {spans:#?}")).clone()
    };
    let (request, enqueue, expand, send) = (named("request"), named("enqueue"), named("expand"), named("send"));
    assert_eq!(request["parentSpanId"], "b7ad6b7169203331", "the caller's");
    assert_eq!(enqueue["parentSpanId"], request["spanId"]);
    assert_eq!((&expand["parentSpanId"], &send["parentSpanId"]), (&enqueue["spanId"], &enqueue["spanId"]));
    assert!(told.contains(send["spanId"].as_str().unwrap()), "the receiver goes on from the attempt: {told}");
}

#[test]
fn an_unreachable_collector_costs_only_spans() {
    let gone = HttpServer::start(|_| Reply::status(503));
    let shell = Shell::ready().with("POSTCOMMIT_TELEMETRY_OTLP_ENDPOINT", &gone.url("/v1/traces"));
    let (server, _) = serve(&shell);
    shell.run(&["enqueue", "a", "--to", "email:guest@example.com", "--wait"]).ends(0);
    server.wait_for_line("the OTLP collector does not accept spans");
    server.term();
    assert!(server.wait().success());
}

/// Texts that must never be logged, each in its own field.
const CANARIES: [&str; 8] = [
    "d2hzZWMtY2FuYXJ5LWNhbmFyeS1jYW5hcnktMDE=",
    "metrics-canary-0001",
    "canary-mail@example.com",
    "+4915755500099",
    "canary-body",
    "canary-title",
    "canary-action",
    "canary-hook-path",
];

fn plant(shell: &Shell, server: &HttpServer) {
    let hook = server.url("/canary-hook-path?token=canary-hook-path");
    let [secret, ..] = CANARIES;
    shell
        .run(&["providers", "create", "hook", "--driver", "webhook", "--secret", &format!("secret=whsec_{secret}")])
        .ends(0);
    for event in ["fine", "again", "no"] {
        let to =
            ["email:canary-mail@example.com", "phone:+4915755500099", &format!("webhook:{hook}")].map(str::to_owned);
        let mut arguments = vec![
            "enqueue",
            event,
            "--title",
            "canary-title",
            "--body",
            "canary-body",
            "--action-url",
            "https://example.com/canary-action",
        ];
        to.iter().for_each(|to| arguments.extend(["--to", to]));
        shell.run(&arguments).ends(0);
    }
}

#[test]
fn logs_contain_no_secret_no_address_and_no_content() {
    let receiver = HttpServer::start(|request| match request.n % 3 {
        0 => Reply::status(500).with_body("canary-body canary-title"),
        1 => Reply::status(410).with_body("canary-hook-path"),
        _ => Reply::ok(),
    });
    let shell = Shell::ready()
        .with("POSTCOMMIT_LOG_LEVEL", "debug")
        .with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8")
        .with("POSTCOMMIT_METRICS_TOKEN", CANARIES[1])
        .with("POSTCOMMIT_CAPTURE_FAIL_ON", "transient=again,permanent=no");
    plant(&shell, &receiver);
    let (server, address) = serve(&shell);
    // One is sent, one is retried, one is parked: each on a channel of its own.
    server.wait_for_line("an attempt failed; the delivery is tried again later");
    server.wait_for_lines("delivery parked, operator action needed", 2);
    get(&address, "/canary-hook-path?q=canary-body", "authorization: Bearer metrics-canary-0001\r\n");
    server.term();
    server.wait();
    let log = server.output().join("\n");
    assert!(log.contains("DEBUG"), "nothing was said at this level: {log}");
    for canary in CANARIES {
        assert!(!log.contains(canary), "{canary} is in the log: {log}");
    }
}

#[test]
fn parked_deliveries_are_logged_in_one_form() {
    let shell = Shell::ready().with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=refused");
    // One is parked by an attempt, one before any attempt.
    let attempted = shell.run(&["enqueue", "refused", "--to", "email:canary-mail@example.com"]).ends(0).stdout;
    let unknown = shell.run(&["enqueue", "unknown", "--to", "list:nobody"]).ends(0).stdout;
    let (server, _) = serve(&shell);
    server.wait_for_lines("delivery parked, operator action needed", 2);
    let log = server.output();
    let told: Vec<Value> = log.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |event: &str| told.iter().map(|line| &line["fields"]).find(|fields| fields["event_type"] == event);
    let message = "delivery parked, operator action needed";
    let refused = serde_json::json!({"message": message, "tenant": "default", "event_type": "refused", "channel": "email", "provider": "capture",
        "delivery": format!("{}.1", attempted.trim()), "reason": "rejected", "code": "capture_permanent"});
    // The recipient of a notification that was not expanded is unknown.
    let unknown = serde_json::json!({"message": message, "tenant": "default", "event_type": "unknown", "channel": "",
        "delivery": format!("{}.0", unknown.trim()), "reason": "config", "code": "unknown_list"});
    assert_eq!((about("refused"), about("unknown")), (Some(&refused), Some(&unknown)), "{log:?}");
}

#[test]
fn a_database_password_is_not_logged() {
    let shell = Shell::empty()
        .with("POSTCOMMIT_LOG_LEVEL", "debug")
        .with("POSTCOMMIT_DATABASE_URL", "postgres://somebody:canary-password@127.0.0.1:1/none");
    let ran = shell.run(&["serve", "--listen", "127.0.0.1:0"]).ends(5);
    assert!(!ran.stderr.contains("canary-password") && !ran.stdout.contains("canary-password"), "{}", ran.stderr);
}

#[test]
fn e10_kpis_by_hand() {
    let shell = Shell::ready();
    for site in ["goa", "goa", "berlin"] {
        shell.enqueue("a", &["--source", &format!("{{\"site\": \"{site}\"}}")]);
    }
    shell.dispatch();
    shell.enqueue("a", &["--due-at", "2099-01-01T00:00:00Z"]);
    let kpis = shell.run(&["kpis", "--by", "site", "-o", "json"]).ends(0).json();
    assert_eq!((&kpis["total"]["captured"], &kpis["total"]["queue"]["scheduled"]), (&3.into(), &1.into()));
    let goa = kpis["groups"].as_array().unwrap().iter().find(|one| one["label"] == "goa").unwrap();
    assert_eq!((&kpis["by"], &goa["delivered"], &goa["captured"]), (&"site".into(), &0.into(), &2.into()));
    let shown = shell.run(&["kpis", "--by", "site"]).ends(0).stdout;
    assert!(
        shown.contains("(no site)") && shown.contains("DELIVERED") && shown.contains("in the last 60 minutes"),
        "{shown}"
    );
    assert!(shell.run(&["kpis", "--tenant", "nobody"]).ends(3).stderr.contains("there is no tenant"));
    shell.run(&["kpis", "--interval-s", "1"]).ends(2);
}
