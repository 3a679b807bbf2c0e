//! Sending webhooks without a queue, a signature or a record.

use std::time::Duration;

use http_body_util::Full;
use hyper::{Request, StatusCode};

use crate::failure::Failure;
use crate::http_client::{Post, failed, pump};
use crate::load::payload;

/// Sends `count` requests over `connections` connections and returns how long that took.
pub async fn post(port: u16, count: u64, connections: u64) -> Result<Duration, Failure> {
    pump(&format!("127.0.0.1:{port}"), count, connections, StatusCode::OK, move |i| request(port, i)).await
}

/// A request with as many headers and bytes as the webhook driver sends. The signature is a fixed string.
fn request(port: u16, i: u64) -> Result<Post, Failure> {
    let body = format!(
        "{{\"type\":\"bench.booking\",\"timestamp\":\"2031-05-04T10:00:00.000000Z\",\"data\":{},\"id\":\"01960000-0000-7000-8000-{i:012x}\",\
        \"tenant\":\"default\",\"idempotency_key\":\"bench:0123456789abcdef:{i}\"}}",
        payload(i)
    );
    let id = format!("01960000-0000-7000-8000-{i:012x}.1");
    let request = Request::post("/hook")
        .header("host", format!("127.0.0.1:{port}"))
        .header("content-type", "application/json")
        .header("user-agent", concat!("postcommit/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", &id)
        .header("idempotency-key", &id)
        .header("webhook-timestamp", "1935655200")
        .header("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    request.body(Full::from(body)).map_err(failed)
}
