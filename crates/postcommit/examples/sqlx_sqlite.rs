//! A booking and its notification in one transaction, with `sqlx` on SQLite.
//!
//! The file needs Postcommit's schema (`postcommit migrate`). Then:
//! `cargo run --example sqlx_sqlite --features sqlx-sqlite -- app.db`

use postcommit::{Notification, Recipient, adapters, key};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let path = path.ok_or("which database? Give the path of its file as the argument or in DATABASE_URL")?;
    // No after_release hook as on PostgreSQL: here sqlx takes back a begin() that is dropped half-way.
    let pool =
        SqlitePool::connect_with(SqliteConnectOptions::new().filename(path.trim_start_matches("sqlite:"))).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS example_booking (id INTEGER PRIMARY KEY, guest TEXT NOT NULL)")
        .execute(&pool)
        .await?;

    // IMMEDIATE waits for its turn to write now; a transaction that has read first and then wants to write cannot wait.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let guest = "guest@example.com";
    let insert = sqlx::query_scalar("INSERT INTO example_booking (guest) VALUES (?1) RETURNING id").bind(guest);
    let booking: i64 = insert.fetch_one(&mut *transaction).await?;

    let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": booking}))
        // Made of names the application knows: should this code run again for the same booking, nothing is sent twice.
        .key(key::of("booking", (booking, "confirmed", 1)))
        // So that `cancel` finds it, should the booking be taken back before it is sent.
        .entity(booking.to_string())
        .to(Recipient::email(guest))
        .build()?;
    let id = adapters::sqlx::sqlite::enqueue(&mut transaction, &note).await?;

    // Now both exist; had anything above failed, neither would.
    transaction.commit().await?;
    println!("{id}");
    Ok(())
}
