//! POSTs over kept connections, as bare as hyper makes them: what a webhook costs without a queue, a signature or a record of it.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use postcommit_engine::clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bench::load::payload;
use crate::output::{Exit, Failure};

/// Sends that many over so many connections and tells how long it took.
pub async fn post(port: u16, count: u64, connections: u64) -> Result<Duration, Failure> {
    let mut ready = Vec::new();
    for _ in 0..connections {
        let mut sender = connect(port).await?;
        send(&mut sender, port, 0).await?;
        ready.push(sender);
    }
    let started = clock::monotonic();
    let mut sending = JoinSet::new();
    for (place, mut sender) in (0..connections).zip(ready) {
        sending.spawn(async move {
            for i in (place..count).step_by(usize::try_from(connections).unwrap_or(1)) {
                send(&mut sender, port, i).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    Ok(clock::monotonic().duration_since(started))
}

async fn connect(port: u16) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, port: u16, i: u64) -> Result<(), Failure> {
    sender.ready().await.map_err(failed)?;
    let answer = sender.send_request(request(port, i)?).await.map_err(failed)?;
    if answer.status() != 200 {
        return Err(failed(format!("the sink answered {}", answer.status())));
    }
    answer.into_body().collect().await.map_err(failed)?;
    Ok(())
}

/// As many headers and bytes as our driver sends; the signature is a fixed text.
fn request(port: u16, i: u64) -> Result<Request<Full<Bytes>>, Failure> {
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

fn failed(problem: impl ToString) -> Failure {
    Failure::new(Exit::Failed, format!("the bare client: {}", problem.to_string()))
}
