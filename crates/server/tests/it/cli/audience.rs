//! Users, lists, suppressions and event types on the command line, on both databases.

use serde_json::{Value, json};

use super::Shell;
use crate::api::on_both;

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
}
