//! Users, lists, suppressions and event types on the command line, on both databases.

use serde_json::{Value, json};

use super::Shell;
use crate::api::on_both;

/// Enqueues for these recipients, sends what is due, and returns the id.
fn sent(shell: &Shell, event_type: &str, more: &[&str]) -> String {
    let id = shell.run(&[&["enqueue", event_type], more].concat()).ends(0).stdout.trim().to_owned();
    shell.dispatch();
    id
}

/// Quiet hours in Kolkata that hold the present moment, as a command takes them, and when they end.
fn quiet_now() -> (String, String) {
    let minutes = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / 60 + 330;
    let clock = |minutes: u64| format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
    (format!("{}-{}", clock(minutes - 120), clock(minutes + 180)), clock(minutes + 180))
}

fn show(shell: &Shell, noun: &str, name: &str) -> Value {
    shell.run(&[noun, "show", name, "-o", "json"]).ends(0).json()
}

on_both! {
    fn b10_users_are_kept_by_command(kind) {
        let shell = Shell::ready_on(kind);
        let created = shell.run(&["users", "create", "42", "--display-name", "Ada", "--language", "pt-BR", "--address", "email:ada@example.com", "--address", "phone:+919876543210", "--data", r#"{"room": 7}"#]).ends(0);
        assert_eq!(created.stdout, "user 42 created\n");
        assert_eq!(shell.run(&["users", "create", "42"]).ends(4).stderr, "postcommit: user \"42\" already exists; change it instead\n");
        assert_eq!(shell.run(&["users", "update", "42", "--language", ""]).ends(0).stdout, "user 42 updated\n");
        assert_eq!(shell.run(&["users", "prefer", "42", "refuse", "--channel", "sms"]).ends(0).stdout, "user 42 refuses * on sms\n");
        let user = show(&shell, "users", "42");
        assert_eq!((&user["name"], &user["language"], &user["data"], &user["addresses"][1]["address"], &user["preferences"][0]["allowed"]), (&json!("Ada"), &Value::Null, &json!({"room": 7}), &json!("+919876543210"), &json!(false)));
        let said = shell.run(&["users", "show", "42"]).ends(0).stdout;
        assert!(said.contains("  name       Ada\n") && said.contains("  phone      +919876543210\n") && said.contains("  refuses    * on sms, by cli:"), "{said}");
        let listed = shell.run(&["users", "list"]).ends(0).stdout;
        assert!(listed.contains("email:a…@example.com phone:+91…10"), "a list masks addresses: {listed}");
        let bad = shell.run(&["users", "update", "42", "--address", "phone:98765"]).ends(2);
        assert!(bad.stderr.contains("addresses[0].address: is not a phone number in E.164"), "{}", bad.stderr);
        assert!(shell.run(&["users", "delete", "42"]).ends(4).stderr.contains("nothing was done; add --yes to confirm"));
        assert_eq!(shell.run(&["users", "delete", "42", "--yes"]).ends(0).stdout, "user 42 deleted\n");
        shell.run(&["users", "show", "42"]).ends(3);
    }

    fn e4_lists_are_kept_by_command(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["lists", "create", "staff", "--description", "Everybody"]).ends(0);
        shell.run(&["lists", "create", "night"]).ends(0);
        let added = shell.run(&["lists", "add", "staff", "user:42", "ada@example.com", "list:night"]).ends(0);
        assert_eq!(added.stdout, "list staff: 3 added, 0 removed, 3 members\n");
        shell.run(&["lists", "add", "night", "phone:+919876543210", "--channel", "whatsapp"]).ends(0);
        assert!(shell.run(&["lists", "add", "night", "list:staff"]).ends(2).stderr.contains("a list cannot contain itself"));
        assert_eq!(shell.run(&["lists", "remove", "staff", "user:42"]).ends(0).stdout, "list staff: 0 added, 1 removed, 2 members\n");
        let list = show(&shell, "lists", "night");
        assert_eq!((&list["member_count"], &list["members"][0]["channel"]), (&json!(1), &json!("whatsapp")));
        assert!(shell.run(&["lists", "show", "staff"]).ends(0).stdout.starts_with("list staff: Everybody\n2 members\nKIND"));
        shell.run(&["lists", "update", "staff", "--description", ""]).ends(0);
        assert_eq!(show(&shell, "lists", "staff")["description"], Value::Null);
        assert!(shell.run(&["lists", "delete", "night", "--yes"]).ends(4).stderr.contains("is a member of list \"staff\""));
        shell.run(&["lists", "delete", "staff", "--yes"]).ends(0);
        assert_eq!(shell.run(&["lists", "list", "-o", "jsonl"]).ends(0).stdout.lines().count(), 1);
    }

    fn suppressions_and_event_types_are_kept_by_command(kind) {
        let shell = Shell::ready_on(kind);
        assert_eq!(shell.run(&["suppressions", "add", "email", "Guest@example.com", "--reason", "hard bounce"]).ends(0).stdout, "guest@example.com is suppressed on channel email\n");
        assert!(shell.run(&["suppressions", "list", "--channel", "email"]).ends(0).stdout.contains("hard bounce"));
        shell.run(&["suppressions", "add", "sms", "98765"]).ends(2);
        shell.run(&["suppressions", "remove", "email", "guest@example.com"]).ends(0);
        shell.run(&["suppressions", "remove", "email", "guest@example.com"]).ends(3);
        let declared = ["event-types", "create", "booking.confirmed", "--sample", r#"{"guestName": "Ada"}"#, "--placeholder", "guestName,amount", "--mandatory"];
        assert_eq!(shell.run(&declared).ends(0).stdout, "event type booking.confirmed declared\n");
        shell.run(&["event-types", "update", "booking.confirmed", "--mandatory", "false", "--description", "A booking"]).ends(0);
        let found = show(&shell, "event-types", "booking.confirmed");
        assert_eq!((&found["mandatory"], &found["description"], &found["placeholders"], &found["sample"]), (&json!(false), &json!("A booking"), &json!(["guestName", "amount"]), &json!({"guestName": "Ada"})));
        assert!(shell.run(&["event-types", "list"]).ends(0).stdout.contains("A booking"));
        shell.run(&["event-types", "delete", "booking.confirmed", "--yes"]).ends(0);
        shell.run(&["event-types", "show", "booking.confirmed"]).ends(3);
    }
    fn b10_a_delivery_tells_its_user_and_what_its_template_warned_of(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["users", "create", "42", "--address", "email:ada@example.com"]).ends(0);
        shell.run(&["templates", "create", "mail", "--event-type", "booking.confirmed", "--channel", "email", "--text", "Hi {{ guestName }}"]).ends(0);
        let direct = sent(&shell, "note", &["--to", "user:ada", "--title", "Hi"]);
        let list = |id: &str, more: &[&str]| shell.run(&[&["deliveries", "list", "--notification-id", id], more].concat()).ends(0);
        let listed = list(&direct, &[]).stdout;
        assert!(listed.contains("  USER ") && listed.contains("  ada   in_app") && !listed.contains("WARNING"), "{listed}");
        assert_eq!(list(&direct, &["-o", "json"]).json()[0]["user_id"], "ada", "the address of an inbox is the user");
        let shown = shell.run(&["notifications", "show", &direct]).ends(0).stdout;
        assert!(shown.contains("  .1 delivered  in_app to user ada by in_app\n"), "{shown}");

        let id = sent(&shell, "booking.confirmed", &["--to", "user:42", "--payload", "{}"]);
        let warning = "text, line 1, column 4: the payload has no value for guestName: nothing is printed";
        let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        assert!(shown.contains("email to a…@example.com (user 42) by capture\n"), "{shown}");
        assert!(shown.ends_with(&format!("  warning: {warning}\n")), "{shown}");
        let shown = shell.run(&["deliveries", "show", &format!("{id}.1")]).ends(0).stdout;
        assert!(shown.contains("  user        42\n") && shown.contains(&format!("  warning     {warning}\n")), "{shown}");
        assert!(shown.ends_with(&format!("  warning: {warning}\n")), "the attempt tells it as well: {shown}");
        let listed = list(&id, &[]).stdout;
        assert!(listed.contains("  a…@example.com  42    capture") && listed.ends_with(&format!("  {warning}\n")), "{listed}");
        let row = list(&id, &["-o", "json"]).json()[0].clone();
        assert_eq!((&row["user_id"], &row["warning"], &row["last_error"]), (&json!("42"), &json!(warning), &Value::Null));
        let followed = shell.run(&["deliveries", "tail", "--no-follow", "--since", "600", "--notification-id", &id]).ends(0).stdout;
        assert!(followed.ends_with(&format!("  warning: {warning}\n")), "{followed}");
    }

    fn c4_an_unknown_user_is_told_from_one_without_an_address_and_is_reached_once_it_exists(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["users", "create", "42"]).ends(0);
        let id = sent(&shell, "a", &["--to", "user:stranger", "--channel", "email", "--title", "Hi"]);
        let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        assert!(shown.contains(".0 parked (config)") && shown.contains("unknown_user: user \"stranger\" does not exist; create the user, then retry"), "{shown}");
        let mixed = sent(&shell, "a", &["--to", "user:stranger", "--to", "user:42", "--channel", "email", "--title", "Hi", "--entity", "b-1"]);
        let rows = shell.run(&["deliveries", "list", "--notification-id", &mixed, "-o", "json"]).ends(0).json();
        let found: Vec<_> = rows.as_array().unwrap().iter().map(|row| (row["user_id"].clone(), row["state"].clone(), row["error_code"].clone())).collect();
        assert_eq!(found, [(json!("stranger"), json!("skipped"), json!("unknown_user")), (json!("42"), json!("skipped"), json!("no_address"))]);
        shell.run(&["users", "create", "stranger", "--address", "email:new@example.com"]).ends(0);
        shell.run(&["deliveries", "retry", &format!("{id}.0")]).ends(0);
        let again = shell.run(&["deliveries", "resend", "b-1", "--channel", "email"]).ends(0).stdout.trim().to_owned();
        shell.dispatch();
        for id in [id, again] {
            let shown = shell.run(&["notifications", "show", &id]).ends(0).stdout;
            assert!(shown.contains("sent (captured, not sent)  email to n…@example.com (user stranger) by capture"), "{shown}");
        }
    }

    fn a_delivery_says_that_it_waits_for_the_end_of_quiet_hours(kind) {
        let shell = Shell::ready_on(kind);
        let (hours, until) = quiet_now();
        shell.run(&["users", "create", "42", "--time-zone", "Asia/Kolkata", "--quiet-hours", &hours, "--address", "email:ada@example.com"]).ends(0);
        let id = sent(&shell, "a", &["--to", "user:42", "--channel", "email", "--title", "Hi"]);
        let row = shell.run(&["deliveries", "list", "-o", "json"]).ends(0).json()[0].clone();
        let waits = row["waits_for"].as_str().unwrap();
        let next = row["next_attempt_at"].as_str().unwrap();
        assert!(waits.starts_with(&format!("the end of its user's quiet hours, {next} (2")) && waits.ends_with(&format!(" {until} in Asia/Kolkata)")), "{waits}");
        let list = shell.run(&["deliveries", "list"]).ends(0).stdout;
        let notification = shell.run(&["notifications", "show", &id]).ends(0).stdout;
        let delivery = shell.run(&["deliveries", "show", &format!("{id}.1")]).ends(0).stdout;
        assert!(list.contains(waits) && notification.contains(&format!("  waits for {waits}")) && delivery.contains(&format!("  waits for   {waits}\n")), "{list}{notification}{delivery}");
    }
}
