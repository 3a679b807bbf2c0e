//! A booking and its notification in one transaction, with `tokio-postgres`.
//!
//! The database needs Postcommit's schema (`postcommit migrate`). Then:
//! `cargo run --example tokio_postgres --features tokio-postgres -- postgres://user@localhost/app`

use postcommit::{Notification, Recipient, adapters, key};
use tokio_postgres::NoTls;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let url = url.ok_or("which database? Give postgres://… as the argument or in DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    // The connection does the reading and writing for the client, so it needs a task of its own.
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS example_booking (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, guest text NOT NULL)",
        )
        .await?;

    let transaction = client.transaction().await?;
    let guest = "guest@example.com";
    let row = transaction.query_one("INSERT INTO example_booking (guest) VALUES ($1) RETURNING id", &[&guest]).await?;
    let booking: i64 = row.get(0);

    let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": booking}))
        // Made of names the application knows: should this code run again for the same booking, nothing is sent twice.
        .key(key::of("booking", (booking, "confirmed", 1)))
        // So that `cancel` finds it, should the booking be taken back before it is sent.
        .entity(booking.to_string())
        .to(Recipient::email(guest))
        .build()?;
    let id = adapters::tokio_postgres::enqueue(&transaction, &note).await?;

    // Now both exist; had anything above failed, neither would.
    transaction.commit().await?;
    println!("{id}");
    Ok(())
}
