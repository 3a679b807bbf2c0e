//! The SMTP driver against a scripted mail server, through the whole engine.

use std::path::Path;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::Guarantee;
use postcommit_testkit::{Heard, SmtpAct, SmtpServer, SmtpTls};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// A mail server that follows this script, and the provider `mail` for it.
async fn mail(world: &World, script: impl Fn(&Heard) -> SmtpAct + Send + Sync + 'static) -> SmtpServer {
    provider(world, "mail", script).await
}

async fn provider(world: &World, name: &str, script: impl Fn(&Heard) -> SmtpAct + Send + Sync + 'static) -> SmtpServer {
    let server = SmtpServer::start(SmtpTls::None, &[], script);
    let settings = json!({
        "host": "127.0.0.1", "port": server.addr().port(), "tls": "none", "from": "Hotel Sonne <desk@hotel.example>",
    });
    let mut draft = world.draft(name, "smtp", settings);
    (draft.channel, draft.guarantee, draft.timeout_ms) = ("email".into(), Guarantee::AtLeastOnce, 2000);
    draft.is_default = name == "mail";
    world.provider(draft).await;
    server
}

async fn booked(world: &World) -> Uuid {
    world.enqueue("booking.confirmed", json!({"title": "See you soon", "body": "Your room is ready.\n.\nBye."})).await
}

/// A server that answers `reply` to lines with this first word.
fn refusing(verb: &'static str, reply: &'static str) -> impl Fn(&Heard) -> SmtpAct + Send + Sync + 'static {
    move |heard| if heard.verb() == verb { SmtpAct::Say(reply.into()) } else { SmtpAct::Usual }
}

/// Compares the text with the file that is checked in; `UPDATE_GOLDEN=1` writes it.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/smtp").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the mail differs from {name}:\n{text}");
}

/// The end of the only lease.
async fn lease_until(world: &World) -> Timestamp {
    world.sql("SELECT lease_until FROM postcommit.delivery_queue", vec![]).await[0].get(0).unwrap()
}

on_both! {
    async fn a_mail_is_delivered_and_the_server_s_answer_is_kept(world) {
        let server = mail(&world, |_| SmtpAct::Usual).await;
        let id = booked(&world).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.attempts, row.channel.as_deref()), ("sent", 1, Some("email")));
        assert_eq!(world.attempts(id).await[0].provider_ref.as_deref(), Some("2.0.0 queued as T1"));
        let mails = server.mails();
        let text = String::from_utf8(mails[0].bytes()).unwrap();
        assert_eq!((mails.len(), &mails[0].recipients[..]), (1, &["TO:<guest@example.com>".to_owned()][..]));
        for line in ["From: \"Hotel Sonne\" <desk@hotel.example>\r\n", "To: guest@example.com\r\n", "Subject: See you soon\r\n"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.contains(&format!("Message-ID: <{id}_1@hotel.example>\r\n")), "{text}");
        assert!(text.ends_with("\r\n\r\nYour room is ready.\r\n.\r\nBye.\r\n"), "{text}");
    }

    async fn an_event_enqueued_by_sql_becomes_the_mail_of_the_golden_file(world) {
        let server = mail(&world, |_| SmtpAct::Usual).await;
        let template = json!({
            "subject": "Booking {{bookingId}} – {{guestName}}",
            "text": "Dear {{guestName}},\n\nsee you on {{arrival}}.\n.\nYour Hotel Sonne",
            "html": "<p>Dear {{guestName}},</p>\n<p>see you on <b>{{arrival}}</b>.</p>",
        });
        world.write_template("confirmed", "email", template).await;
        let payload = json!({"bookingId": 12345, "guestName": "Jürgen <Müller>", "arrival": "1 March"}).to_string();
        let id = world.enqueue_raw("booking.confirmed", &payload).await;
        // The date of the mail is the time of the enqueue.
        let created = "UPDATE postcommit.notification SET created_at = $1 WHERE id = $2";
        let time = Timestamp::from_micros(1_772_000_000_000_000);
        assert_eq!(world.execute(created, vec![time.into(), id.into()]).await, 1);
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent");
        let mail = server.mails().remove(0);
        let text = String::from_utf8(mail.bytes()).unwrap();
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
        golden("booking.eml", &text.replace("\r\n", "\n").replace(&id.to_string(), "{notification}"));
    }

    async fn a_repeated_mail_has_the_same_bytes(world) {
        let server = mail(&world, |heard| match (heard.verb().as_str(), heard.before) {
            // The server takes the first mail, and the connection breaks before it says so.
            (".", 0) => SmtpAct::Close,
            _ => SmtpAct::Usual,
        }).await;
        let id = booked(&world).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("retrying", Some("closed")));
        assert_eq!(world.attempts(id).await[0].outcome, "unclear");
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len()), ("sent", 2));
        let contents = server.contents();
        assert_eq!(contents.len(), 2);
        assert_eq!(contents[0], contents[1]);
    }

    async fn every_refusal_has_its_consequence(world) {
        let table = [
            ("RCPT", "550 5.1.1 no such user", ("parked", Some("rejected"), "smtp_550", "invalid_address")),
            ("RCPT", "550 5.1.8 Sender address rejected: Domain not found", ("parked", Some("config"), "smtp_550", "account")),
            ("RCPT", "553 5.7.1 Sender address rejected: not owned by user", ("parked", Some("config"), "smtp_553", "account")),
            ("RCPT", "451 4.3.0 try later", ("retrying", None, "smtp_451", "server_error")),
            (".", "554 5.6.0 unreadable", ("parked", Some("rejected"), "smtp_554", "invalid_content")),
            ("MAIL", "530 5.7.0 sign in first", ("parked", Some("config"), "smtp_530", "auth_failed")),
        ];
        for (place, (verb, reply, expected)) in table.into_iter().enumerate() {
            let name = format!("mail-{place}");
            let server = provider(&world, &name, refusing(verb, reply)).await;
            // The first refusal suppresses its address.
            let address = format!("guest-{place}@example.com");
            let to = json!([{"provider": name, "address": address}]);
            let id = world.enqueue("booking.confirmed", json!({"title": "See you soon", "recipients": to})).await;
            world.pass().await;
            let row = world.delivery(id).await;
            let attempt = world.attempts(id).await.remove(0);
            let seen = (row.state.as_str(), row.reason.as_deref(), attempt.code.as_deref().unwrap(), attempt.error_class.as_deref().unwrap());
            assert_eq!(seen, expected, "{verb} {reply}");
            assert!(!attempt.detail.unwrap().contains(&address));
            let paused = world.store.provider(world.tenant, &name).await.unwrap().unwrap().paused;
            assert_eq!(paused.is_some(), row.reason.as_deref() == Some("config"), "{reply}: {paused:?}");
            assert_eq!(server.mails().len(), 0);
        }
    }

    async fn an_answer_later_than_the_lease_is_waited_for(world) {
        let mut world = world;
        world.settings.lease_s = 2;
        let server = mail(&world, |heard| if heard.verb() == "." { SmtpAct::Hold } else { SmtpAct::Usual }).await;
        let id = booked(&world).await;
        let (first, second) = (world.run().await, world.run().await);
        server.wait_until_heard(".", 1).await;
        let end = lease_until(&world).await;
        let outlived = "SELECT count(*) FROM postcommit.delivery_queue WHERE $1 < {now} AND {now} < lease_until";
        world.until("the lease is renewed beyond its first end", async || {
            world.sql(outlived, vec![end.into()]).await[0].get::<i64>(0).unwrap() == 1
        }).await;
        server.release();
        world.drained().await;
        first.finish().await;
        second.finish().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len()), ("sent", 1));
        assert_eq!((server.mails().len(), server.count("DATA")), (1, 1));
    }

    async fn a_send_whose_lease_was_taken_over_is_given_up_and_settles_nothing(world) {
        let mut world = world;
        // A stop waits longer than this test may last, so it returns because the send has ended.
        (world.settings.lease_s, world.settings.stop_grace_s) = (2, 600);
        let server = mail(&world, |heard| if heard.verb() == "." { SmtpAct::Hold } else { SmtpAct::Usual }).await;
        let id = booked(&world).await;
        let running = world.run().await;
        server.wait_until_heard(".", 1).await;
        let (other, late) = (Uuid::new_v4(), lease_until(&world).await.plus(Duration::from_secs(600)));
        let take_over = "UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = $2";
        assert_eq!(world.execute(take_over, vec![other.into(), late.into()]).await, 1);
        tokio::time::timeout(Duration::from_secs(60), running.finish()).await.expect("the send is given up");
        assert_eq!(world.attempts(id).await.len(), 0);
        let left = world.sql("SELECT lease_token, lease_until FROM postcommit.delivery_queue", vec![]).await.remove(0);
        assert_eq!((left.get::<Uuid>(0).unwrap(), left.get::<Timestamp>(1).unwrap()), (other, late));
    }
}
