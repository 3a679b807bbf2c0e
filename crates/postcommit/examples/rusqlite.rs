//! A booking and its notification in one transaction, with `rusqlite`.
//!
//! The file needs Postcommit's schema (`postcommit migrate`). Then:
//! `cargo run --example rusqlite --features rusqlite -- app.db`

use postcommit::{Notification, Recipient, adapters, key};
use rusqlite::{Connection, TransactionBehavior};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let path = path.ok_or("which database? Give the path of its file as the argument or in DATABASE_URL")?;
    let mut connection = Connection::open(path.trim_start_matches("sqlite:"))?;
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS example_booking (id INTEGER PRIMARY KEY, guest TEXT NOT NULL)")?;

    // IMMEDIATE waits for its turn to write now; a transaction that has read first and then wants to write cannot wait.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let guest = "guest@example.com";
    transaction.execute("INSERT INTO example_booking (guest) VALUES (?1)", [guest])?;
    let booking = transaction.last_insert_rowid();

    let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": booking}))
        // Made of names the application knows: should this code run again for the same booking, nothing is sent twice.
        .key(key::of("booking", (booking, "confirmed", 1)))
        // So that `cancel` finds it, should the booking be taken back before it is sent.
        .entity(booking.to_string())
        .to(Recipient::email(guest))
        .build()?;
    let id = adapters::rusqlite::enqueue(&transaction, &note)?;

    // Now both exist; had anything above failed, neither would.
    transaction.commit()?;
    println!("{id}");
    Ok(())
}
