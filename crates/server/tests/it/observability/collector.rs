//! The exporter of traces and its collector: the official types read what is sent; headers, repetitions, and spans that
//! the collector rejects.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use postcommit_testkit::{Child, HttpServer, Reply};
use serde_json::json;

use super::{PARENT, block_on, get, serve};
use crate::cli::Shell;

/// A shell whose server sends its traces to `collector`.
fn traced(collector: &HttpServer) -> Shell {
    Shell::ready().with("POSTCOMMIT_TELEMETRY_OTLP_ENDPOINT", &collector.url(""))
}

/// The value of a metric without labels.
fn metric(address: &str, name: &str) -> u64 {
    let text = get(address, "/metrics", "");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

fn stop(server: &Child) {
    server.term();
    assert!(server.wait().success());
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.clone()?.value? {
        AnyValue::StringValue(text) => Some(text),
        other => panic!("{name} is no text: {other:?}"),
    }
}

/// Every field of what we write is one of the protocol's: what reads nothing of it would be written again as less.
#[test]
fn the_official_types_read_our_traces() {
    let collector = HttpServer::start(|_| Reply::json(200, json!({})));
    let shell = traced(&collector).with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=refused");
    let (server, _) = serve(&shell);
    let source = format!("{{\"traceparent\": \"{PARENT}\"}}");
    shell.run(&["enqueue", "fine", "--to", "email:guest@example.com", "--source", &source, "--wait"]).ends(0);
    shell.run(&["enqueue", "refused", "--to", "email:guest@example.com", "--wait"]).ends(1);
    stop(&server);
    let read = |request: postcommit_testkit::Request| {
        serde_json::from_slice::<ExportTraceServiceRequest>(&request.body).unwrap()
    };
    let resources: Vec<_> = collector.requests().into_iter().flat_map(|request| read(request).resource_spans).collect();
    for resource in &resources {
        let named = resource.resource.as_ref().unwrap().attributes.iter().map(|attribute| attribute.key.as_str());
        assert_eq!(named.collect::<Vec<_>>(), ["service.name", "service.version"]);
    }
    let spans: Vec<Span> = resources.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans).collect();
    let sends: Vec<&Span> = spans.iter().filter(|span| span.name == "send").collect();
    let of_event = |failed: bool| *sends.iter().find(|span| span.status.is_some() == failed).unwrap();
    let (fine, refused) = (of_event(false), of_event(true));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&fine.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&fine.parent_span_id), "b7ad6b7169203331");
    assert_eq!((fine.span_id.len(), fine.kind()), (8, SpanKind::Client));
    assert!(0 < fine.start_time_unix_nano && fine.start_time_unix_nano <= fine.end_time_unix_nano, "{fine:?}");
    assert!(spans.iter().all(|span| span.trace_id.len() == 16 && span.kind() != SpanKind::Unspecified), "{spans:?}");
    let status = refused.status.as_ref().unwrap();
    assert_eq!((status.code(), status.message.as_str()), (StatusCode::Error, "capture_permanent"));
    assert!(fine.attributes.iter().all(|known| attribute(fine, &known.key).is_some()), "{fine:?}");
}

#[test]
fn the_collector_gets_the_headers_of_the_settings_or_of_the_environment() {
    let collector = HttpServer::start(|_| Reply::json(200, json!({})));
    let secret = "canary-secret";
    let by_variable =
        |shell: Shell| shell.with("OTEL_EXPORTER_OTLP_HEADERS", "api-key=canary-secret,x-site=goa%20north");
    let by_setting = |shell: Shell| by_variable(shell).with("POSTCOMMIT_TELEMETRY_OTLP_HEADERS", "api-key=another");
    for (shell, expected) in [
        (by_variable(traced(&collector)), [Some(secret), Some("goa north")]),
        (by_setting(traced(&collector)), [Some("another"), None]),
    ] {
        let before = collector.requests().len();
        let shell = shell.with("POSTCOMMIT_LOG_LEVEL", "debug");
        let (server, _) = serve(&shell);
        shell.enqueue("a", &["--wait"]);
        stop(&server);
        for request in &collector.requests()[before..] {
            assert_eq!([request.header("api-key"), request.header("x-site")], expected);
            assert_eq!(request.header("content-type"), Some("application/json"));
        }
        assert!(collector.requests().len() > before && !server.output().join("\n").contains(secret));
    }
    let bad = traced(&collector).with("OTEL_EXPORTER_OTLP_HEADERS", secret).run(&["serve"]).ends(2).stderr;
    assert!(bad.contains("OTEL_EXPORTER_OTLP_HEADERS: entry 1 is not name=value") && !bad.contains(secret), "{bad}");
}

/// A collector that is busy once gets every span, each batch at most twice.
#[test]
fn a_batch_is_sent_once_more_when_the_collector_asks_for_it() {
    for busy in [429, 502, 503, 504] {
        let collector = HttpServer::start(move |request| match request.n {
            1 => Reply::status(busy).with_header("retry-after", "0.05"),
            _ => Reply::json(200, json!({})),
        });
        let shell = traced(&collector);
        let (server, address) = serve(&shell);
        shell.enqueue("a", &["--wait"]);
        let sent = block_on(collector.wait_for(2));
        assert_eq!(sent[0].body, sent[1].body, "{busy}: the same batch");
        stop(&server);
        assert!(std::net::TcpStream::connect(&address).is_err());
        let said = server.output().join("\n");
        assert!(!said.contains("the OTLP collector does not accept spans"), "{busy}: {said}");
    }
}

/// OTLP forbids to repeat these, and a wait of hours would hold up all later spans.
#[test]
fn a_batch_is_not_sent_again_when_that_cannot_help() {
    for (status, wait) in [(400, "0.05"), (500, "0.05"), (503, "3600")] {
        let collector = HttpServer::start(move |_| Reply::status(status).with_header("retry-after", wait));
        let shell = traced(&collector);
        let (server, address) = serve(&shell);
        shell.enqueue("a", &["--wait"]);
        server.wait_for_line("the OTLP collector does not accept spans");
        assert!(metric(&address, "postcommit_spans_dropped_total") > 0);
        stop(&server);
        let bodies: Vec<_> = collector.requests().into_iter().map(|request| request.body).collect();
        let distinct: std::collections::BTreeSet<_> = bodies.iter().collect();
        assert_eq!(distinct.len(), bodies.len(), "{status}: no batch twice");
    }
}

#[test]
fn spans_that_the_collector_rejects_are_logged_and_counted_as_dropped() {
    let partial = json!({"partialSuccess": {"rejectedSpans": "1", "errorMessage": "attribute too long"}});
    let collector = HttpServer::start(move |_| Reply::json(200, partial.clone()));
    let shell = traced(&collector);
    let (server, address) = serve(&shell);
    shell.enqueue("a", &["--wait"]);
    let said = server.wait_for_line("the OTLP collector does not accept spans");
    assert!(said.contains("partial_success: attribute too long") && said.contains("\"dropped\":1"), "{said}");
    assert_eq!(metric(&address, "postcommit_spans_dropped_total"), 1, "{said}");
    assert!(metric(&address, "postcommit_spans_exported_total") > 0);
    stop(&server);
}

/// Whether the collector took the spans is not known, so they count neither as exported nor as dropped.
#[test]
fn an_answer_that_cannot_be_read_counts_its_spans_as_unknown() {
    let long = json!({"partialSuccess": {"rejectedSpans": "1", "errorMessage": "x".repeat(2_000_000)}}).to_string();
    for (body, reason) in [(long, "is longer than 65536 bytes"), ("accepted".to_owned(), "is not OTLP in JSON")] {
        let collector = HttpServer::start(move |_| Reply::ok().with_body(body.clone()));
        let shell = traced(&collector);
        let (server, address) = serve(&shell);
        shell.enqueue("a", &["--wait"]);
        let said = server.wait_for_line("the OTLP collector may have rejected spans");
        assert!(said.contains(reason), "{said}");
        assert!(metric(&address, "postcommit_spans_unknown_total") > 0);
        for known in ["postcommit_spans_exported_total", "postcommit_spans_dropped_total"] {
            assert_eq!(metric(&address, known), 0, "{said}");
        }
        stop(&server);
    }
}
