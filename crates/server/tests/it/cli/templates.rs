//! `templates`, `layouts` and `content`, on both databases.

use serde_json::json;

use super::Shell;
use crate::api::on_both;

on_both! {
    fn c9_templates_are_written_previewed_and_kept_by_version(kind) {
        let shell = Shell::ready_on(kind);
        std::fs::write(shell.path().join("hello.txt"), "Hello {{ guestName }},\nsee you on {{ checkinDate }}").unwrap();
        let create = ["templates", "create", "guest", "--event-type", "booking.confirmed", "--channel", "sms", "--text", "@hello.txt", "--once-per", "entity"];
        let made = shell.run(&create).ends(0);
        assert_eq!(made.stdout, "template guest created\n");
        assert!(made.stderr.contains("the names in the template were not checked"), "{}", made.stderr);
        assert!(shell.run(&create).ends(4).stderr.contains("change it instead"));
        shell.run(&["templates", "create", "other", "--channel", "sms", "--text", "x"]).ends(2);
        assert!(shell.run(&["templates", "create", "other", "--event-type", "a", "--channel", "sms", "--text", "{{ a"]).ends(2).stderr.contains("text: line 1"));
        let preview = |more: &[&str]| shell.run(&[&["templates", "preview", "guest"], more].concat());
        let seen = preview(&["--payload", r#"{"guest": {"name": "Ada"}, "checkinDate": "2026-03-15", "guestPhone": "+4312345678"}"#]).ends(0);
        assert_eq!(seen.stdout, "--- to\n+4312345678\n--- text\nHello Ada,\nsee you on 15-Mar-2026\n--- sms\nsegments: 1, GSM-7, characters: 33\n");
        let seen = preview(&["--payload", "{}", "-o", "json"]).ends(0).json();
        assert_eq!(seen["warnings"].as_array().unwrap().len(), 2, "{seen}");
        preview(&["--payload", "[]"]).ends(2);
        let updated = shell.run(&["templates", "update", "guest", "--text", "Hi {{ guestName }}", "--missing", "refuse", "--note", "short"]).ends(0);
        assert_eq!(updated.stdout, "template guest updated\n");
        assert!(preview(&["--payload", "{}"]).ends(1).stderr.contains("missing_data: "));
        assert!(preview(&["--version", "1", "--payload", r#"{"guestName": "Eve"}"#]).ends(0).stdout.contains("Hello Eve"));
        assert_eq!(shell.run(&["templates", "update", "guest", "--text", "Hi {{ guestName }}"]).ends(0).stdout, "template guest already has these values\n");
        shell.run(&["templates", "update", "guest", "--text", "x", "--revision", "1"]).ends(4);
        let versions = shell.run(&["templates", "versions", "guest", "-o", "json"]).ends(0).json();
        assert_eq!((&versions[0]["version"], &versions[0]["note"], versions.as_array().unwrap().len()), (&json!(2), &json!("short"), 2));
        let shown = shell.run(&["templates", "show", "guest", "--version", "1"]).ends(0).stdout;
        assert!(shown.contains("--- text\nHello {{ guestName }},") && shown.contains("once per     entity"), "{shown}");
        assert_eq!(shell.run(&["templates", "list", "-o", "jsonl", "--channel", "sms"]).ends(0).stdout.lines().count(), 1);
        assert_eq!(shell.run(&["templates", "list", "--channel", "email", "-o", "json"]).ends(0).json(), json!([]));
        assert!(shell.run(&["templates", "delete", "guest", "--yes"]).ends(4).stderr.contains("deactivate it, then delete it"));
        assert_eq!(shell.run(&["templates", "deactivate", "guest"]).ends(0).stdout, "template guest deactivated\n");
        assert!(shell.run(&["templates", "delete", "guest"]).ends(4).stderr.contains("--yes"));
        shell.run(&["templates", "delete", "guest", "--yes"]).ends(0);
        shell.run(&["templates", "show", "guest"]).ends(3);
        shell.run(&create).ends(0);
        assert_eq!(shell.run(&["templates", "show", "guest", "-o", "json"]).ends(0).json()["version"], 3);
    }

    fn c1_the_language_is_chosen_as_the_documentation_says(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["content", "update", "--language", "en"]).ends(0);
        shell.run(&["users", "create", "42", "--language", "pt-BR", "--address", "email:ada@example.com"]).ends(0);
        // Each row of the table has an event type of its own. The id begins with the language, "any" for none.
        for (row, (languages, used)) in [
            (&["pt-BR", "pt", "en", "any"][..], ("pt-BR", "pt-BR")),
            (&["pt", "en", "any"], ("pt", "pt")),
            (&["en", "any"], ("en", "en")),
            (&["en-GB", "any"], ("any", "pt-BR")),
            (&["fr", "de"], ("de", "de")),
        ].into_iter().enumerate() {
            for language in languages {
                let tag = if *language == "any" { "" } else { language };
                shell.run(&["templates", "create", &format!("{language}-{row}"), "--event-type", &format!("e{row}"), "--channel", "email", "--language", tag, "--text", "Hi"]).ends(0);
            }
            let id = shell.run(&["enqueue", &format!("e{row}"), "--to", "user:42"]).ends(0).stdout.trim().to_owned();
            shell.dispatch();
            let sent = shell.run(&["deliveries", "list", "--notification-id", &id, "-o", "json"]).ends(0).json()[0].clone();
            assert_eq!((&sent["template"], &sent["language"]), (&json!(format!("{}-{row}", used.0)), &json!(used.1)), "{languages:?}");
        }
        let id = shell.enqueue("e0", &[]);
        shell.dispatch();
        let sent = shell.run(&["deliveries", "list", "--notification-id", &id, "-o", "json"]).ends(0).json()[0].clone();
        assert_eq!((&sent["template"], &sent["language"]), (&json!("en-0"), &json!("en")), "an address has the language of the tenant");
    }

    fn a_layout_and_the_content_settings_say_which_templates_they_concern(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["layouts", "create", "page", "--source", "<b>{{ content }}</b> {{ brand.name }}"]).ends(0);
        shell.run(&["layouts", "create", "foot", "--kind", "partial", "--source", "bye"]).ends(0);
        shell.run(&["templates", "create", "mail", "--event-type", "a", "--channel", "email", "--subject", "Hi", "--html", "<p>Hi</p>", "--layout", "page"]).ends(0);
        let update = |more: &[&str]| shell.run(&[&["layouts", "update", "page", "--source", "<i>{{ content }}</i> {{ brand.name }}"], more].concat());
        let tried = update(&["--dry-run"]).ends(0);
        assert_eq!(tried.stdout, "layout page would be updated\n");
        assert!(tried.stderr.contains("templates that would get a new version: mail"), "{}", tried.stderr);
        assert_eq!(update(&["-o", "json"]).ends(0).json()["templates"], json!(["mail"]));
        assert_eq!(update(&[]).ends(0).stdout, "layout page already has these values\n");
        let set = shell.run(&["content", "update", "--brand", r#"{"name": "Inn"}"#, "--time-zone", "Asia/Kolkata", "--language", "pt-br"]).ends(0);
        assert!(set.stderr.contains("templates that got a new version: mail"), "{}", set.stderr);
        assert!(shell.run(&["content", "show"]).ends(0).stdout.contains("language     pt-BR\ntime zone    Asia/Kolkata\n"));
        shell.run(&["content", "update", "--time-zone", "Mars/Olympus"]).ends(2);
        assert!(shell.run(&["templates", "preview", "mail", "--payload", "{}"]).ends(0).stdout.contains("<i><p>Hi</p></i> Inn"));
        assert!(shell.run(&["layouts", "delete", "page", "--yes"]).ends(4).stderr.contains("is used by template mail"));
        shell.run(&["templates", "update", "mail", "--without", "layout"]).ends(0);
        shell.run(&["templates", "update", "mail", "--without", "nonsense"]).ends(2);
        shell.run(&["layouts", "delete", "page", "--yes"]).ends(0);
        assert_eq!(shell.run(&["layouts", "show", "foot"]).ends(0).stdout, "bye\n");
        assert_eq!(shell.run(&["layouts", "list", "-o", "jsonl"]).ends(0).stdout.lines().count(), 1);
    }
}
