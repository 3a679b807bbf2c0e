//! A notification over HTTP, for an application that shares no database with Postcommit.
//!
//! `POSTCOMMIT_KEY=pc_… cargo run --example http --features http -- http://127.0.0.1:7410`

use postcommit::{Error, Notification, Recipient, http, key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("POSTCOMMIT_URL").ok());
    let url = url.ok_or("which server? Give http(s)://… as the argument or in POSTCOMMIT_URL")?;
    let secret = std::env::var("POSTCOMMIT_KEY").map_err(|_| "POSTCOMMIT_KEY must hold a key, pc_…")?;
    let client = http::Client::new(url, secret)?;

    let booking = |title: &str| {
        Notification::event("booking.confirmed", serde_json::json!({"bookingId": 12345}))
            // Made of names the application knows: should this run again for the same booking, nothing is sent twice.
            .key(key::of("booking", (12345, "confirmed", 1)))
            .entity("12345")
            .to(Recipient::email("guest@example.com"))
            .title(title)
            .build()
    };
    let enqueued = client.enqueue(&booking("See you soon")?).await?;
    println!("{} {}", enqueued.id, if enqueued.duplicate { "was there already" } else { "is new" });

    // The same key for another content is a mistake of the application, and nothing is sent.
    match client.enqueue(&booking("See you later")?).await {
        Err(Error::Conflict { first, .. }) => println!("{first} holds the key"),
        other => println!("{other:?}"),
    }
    println!("{}", client.status(enqueued.id).await?.state);
    Ok(())
}
