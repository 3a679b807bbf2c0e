//! The fake HTTP services. Each answers in the format of the real service, so that the driver of the real service
//! understands the answer.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use postcommit_channel::egress::{Call, Egress};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use url::Url;
use uuid::Uuid;

use super::{Fake, Kind, LANDLINE, locked};
use crate::demo::chaos::Fate;

/// The maximum number of bytes of a request's body.
const BODY_BYTES: usize = 1 << 20;
/// The `Retry-After` of an answer that refuses by a rate limit, in seconds.
const WAIT_S: u64 = 3;
/// The time from a message to the report of WhatsApp that it was delivered.
const REPORTED_AFTER: Duration = Duration::from_secs(2);
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The callback URL for reports of delivered messages, and the egress that sends them.
#[derive(Clone)]
pub struct Reports {
    pub to: Arc<Mutex<Option<Url>>>,
    pub egress: Egress,
}

pub async fn serve(stream: TcpStream, fake: Arc<Fake>, reports: Reports) {
    let service = service_fn(|request| answer(fake.clone(), reports.clone(), request));
    // The error is ignored: it only says that the client disconnected.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(fake: Arc<Fake>, reports: Reports, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(Body::new(body), BODY_BYTES).await else {
        return Ok(said(StatusCode::PAYLOAD_TOO_LARGE, "too large"));
    };
    if parts.method != Method::POST {
        return Ok(said(StatusCode::METHOD_NOT_ALLOWED, "only POST is understood"));
    }
    let fate = fake.meet().await;
    Ok(match fake.kind {
        Kind::Sms => sms(&fake, fate, &body),
        Kind::Whatsapp => whatsapp(&fake, fate, &body, reports),
        Kind::Webhook => webhook(&fake, fate, &parts.headers, &body),
        Kind::Slack | Kind::Mail => slack(&fake, fate, &body),
    })
}

/// Answers like an incoming webhook of Slack.
fn slack(fake: &Fake, fate: Fate, body: &[u8]) -> Response<Body> {
    match fate {
        Fate::Failed => said(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable"),
        Fate::Limited => waiting(said(StatusCode::TOO_MANY_REQUESTS, "rate_limited")),
        Fate::Taken => {
            let json = read(body);
            let section = json["blocks"][0]["text"]["text"].as_str();
            fake.keep("#front-desk", "", section.or(json["text"].as_str()).unwrap_or("no text"));
            said(StatusCode::OK, "ok")
        }
    }
}

/// Answers like the Messages API of Twilio.
fn sms(fake: &Fake, fate: Fate, body: &[u8]) -> Response<Body> {
    let field = |name: &str| form_urlencoded::parse(body).find(|(known, _)| known == name).map(|(_, value)| value);
    let (to, text) = (field("To").unwrap_or_default(), field("Body").unwrap_or_default());
    let problem = |status, code: u32, message: &str| object(status, &json!({"code": code, "message": message}));
    if to.ends_with(LANDLINE) {
        fake.refused();
        return problem(StatusCode::BAD_REQUEST, 21614, "the number is not a mobile number");
    }
    match fate {
        // With this code, Twilio may have accepted the message, so the outcome is unclear.
        Fate::Failed => problem(StatusCode::INTERNAL_SERVER_ERROR, 20500, "internal server error"),
        Fate::Limited => waiting(problem(StatusCode::TOO_MANY_REQUESTS, 20429, "too many requests")),
        Fate::Taken => {
            fake.keep(to, "", &text);
            object(StatusCode::CREATED, &json!({"sid": format!("SM{}", Uuid::new_v4().simple()), "status": "queued"}))
        }
    }
}

/// Answers like the WhatsApp Cloud API when a message is sent.
fn whatsapp(fake: &Fake, fate: Fate, body: &[u8], reports: Reports) -> Response<Body> {
    let problem =
        |status, code: u32, message: &str| object(status, &json!({"error": {"code": code, "message": message}}));
    match fate {
        Fate::Failed => problem(StatusCode::SERVICE_UNAVAILABLE, 131_016, "service unavailable"),
        Fate::Limited => waiting(problem(StatusCode::TOO_MANY_REQUESTS, 130_429, "rate limit hit")),
        Fate::Taken => {
            let (json, id) = (read(body), format!("wamid.{}", Uuid::new_v4().simple()));
            let to = json["to"].as_str().unwrap_or_default().to_owned();
            fake.keep(format!("+{to}"), "", json["text"]["body"].as_str().unwrap_or("a template"));
            let key = json["biz_opaque_callback_data"].as_str().unwrap_or_default().to_owned();
            tokio::spawn(report(reports, id.clone(), key, to));
            object(StatusCode::OK, &json!({"messaging_product": "whatsapp", "messages": [{"id": id}]}))
        }
    }
}

/// Sends the callback of WhatsApp that a message was delivered.
async fn report(reports: Reports, id: String, key: String, to: String) {
    tokio::time::sleep(REPORTED_AFTER).await;
    let Some(url) = locked(&reports.to).clone() else { return };
    let at = postcommit_channel::clock::now().as_micros() / 1_000_000;
    let status = json!({"id": id, "status": "delivered", "timestamp": at.to_string(), "recipient_id": to,
        "biz_opaque_callback_data": key});
    let body = json!({"entry": [{"changes": [{"value": {"statuses": [status]}}]}]});
    let call = Call {
        method: Method::POST,
        url,
        headers: HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]),
        body: body.to_string().into(),
        timeout: REPORT_TIMEOUT,
        fresh: false,
    };
    if let Err(failure) = reports.egress.send(call).await {
        tracing::debug!(problem = failure.detail, "the fake of WhatsApp could not report that a message arrived");
    }
}

/// Answers like the system of a partner that receives webhooks.
fn webhook(fake: &Fake, fate: Fate, headers: &HeaderMap, body: &[u8]) -> Response<Body> {
    match fate {
        Fate::Failed => object(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": "the stock system is restarting"})),
        Fate::Limited => waiting(object(StatusCode::TOO_MANY_REQUESTS, &json!({"error": "too many requests"}))),
        Fate::Taken => {
            let json = read(body);
            let signed = if headers.contains_key("webhook-signature") { "signed" } else { "not signed" };
            let data = serde_json::to_string(&json["data"]).unwrap_or_default();
            let kind = json["type"].as_str().unwrap_or("an event");
            fake.keep(format!("the stock system, {signed}"), kind, &data);
            object(StatusCode::OK, &json!({"ok": true}))
        }
    }
}

fn read(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

fn said(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

fn object(status: StatusCode, json: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(json.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn waiting(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(WAIT_S));
    response
}
