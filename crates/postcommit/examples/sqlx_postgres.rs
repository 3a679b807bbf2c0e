//! A booking and its notification in one transaction, with `sqlx` on PostgreSQL.
//!
//! The database needs Postcommit's schema (`postcommit migrate`). Then:
//! `cargo run --example sqlx_postgres --features sqlx-postgres -- postgres://user@localhost/app`

use postcommit::{Notification, Recipient, adapters, key};
use sqlx::postgres::PgPoolOptions;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let url = url.ok_or("which database? Give postgres://… as the argument or in DATABASE_URL")?;
    // Up to sqlx 0.9.0 a begin() that is dropped half-way, by a timeout or a select!, leaves its connection inside a
    // transaction. The next borrower's writes would then be lost; ROLLBACK ends it, and does nothing where there is none.
    let pool = PgPoolOptions::new()
        .after_release(|connection, _| {
            Box::pin(async move { sqlx::query("ROLLBACK").execute(connection).await.map(|_| true) })
        })
        .connect(&url)
        .await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS example_booking (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, guest text NOT NULL)")
        .execute(&pool)
        .await?;

    let mut transaction = pool.begin().await?;
    let guest = "guest@example.com";
    let insert = sqlx::query_scalar("INSERT INTO example_booking (guest) VALUES ($1) RETURNING id").bind(guest);
    let booking: i64 = insert.fetch_one(&mut *transaction).await?;

    let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": booking}))
        // Made of names the application knows: should this code run again for the same booking, nothing is sent twice.
        .key(key::of("booking", (booking, "confirmed", 1)))
        // So that `cancel` finds it, should the booking be taken back before it is sent.
        .entity(booking.to_string())
        .to(Recipient::email(guest))
        .build()?;
    let id = adapters::sqlx::postgres::enqueue(&mut transaction, &note).await?;

    // Now both exist; had anything above failed, neither would.
    transaction.commit().await?;
    println!("{id}");
    Ok(())
}
