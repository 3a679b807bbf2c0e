//! `apply` and `export`, on both databases.

use std::path::Path;

use serde_json::json;

use super::Shell;
use crate::api::on_both;

fn write(shell: &Shell, file: &str, text: &str) {
    let file = shell.path().join(file);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

fn read(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// A hotel: two templates in a layout with a partial, a list in a list, a declared event type, a provider with a secret.
fn hotel(shell: &Shell) {
    write(shell, "hotel/content.json", r#"{"language": "en", "time_zone": "Asia/Kolkata", "brand": {"name": "Inn"}}"#);
    write(shell, "hotel/layouts/page.html", "<b>{{ content }}</b>{% include \"foot\" %}\n");
    write(shell, "hotel/partials/foot.html", "Yours, {{ brand.name }}\n");
    write(
        shell,
        "hotel/event-types/booking.confirmed.json",
        r#"{"placeholders": ["guestName"], "sample": {"guestName": "Ada"}}"#,
    );
    write(
        shell,
        "hotel/lists/all%2Fstaff.json",
        r#"{"members": [{"kind": "list", "member": "desk"}, {"kind": "user", "member": "7"}]}"#,
    );
    write(
        shell,
        "hotel/lists/desk.json",
        r#"{"description": "Front desk", "members": [{"kind": "phone", "member": "+4312345678", "channel": "sms"}]}"#,
    );
    write(
        shell,
        "hotel/providers/hooks.json",
        r#"{"driver": "webhook", "settings": {"url": "https://example.com/in"}, "secrets": {"secret": "env:HOOKS_SECRET"}}"#,
    );
    write(
        shell,
        "hotel/templates/guest/template.json",
        r#"{"event_type": "booking.confirmed", "channel": "email", "subject": "For {{ guestName }}", "layout": "page"}"#,
    );
    write(shell, "hotel/templates/guest/html.html", "<p>Hi {{ guestName }}</p>\n");
    write(
        shell,
        "hotel/templates/sms/template.json",
        r#"{"event_type": "booking.confirmed", "channel": "sms", "once_per": "entity", "time_zone": "Asia/Kolkata"}"#,
    );
    write(shell, "hotel/templates/sms/text.txt", "Hi {{ guestName }},\nwelcome\n");
}

on_both! {
    fn a_folder_is_applied_and_exported_again(kind) {
        let secret = format!("whsec_{}", "QUJD".repeat(8));
        let shell = Shell::ready_on(kind).with("HOOKS_SECRET", &secret);
        hotel(&shell);
        let tried = shell.run(&["apply", "-f", "hotel", "--dry-run"]).ends(0);
        assert!(tried.stdout.contains("create template sms\n") && tried.stdout.contains("    + welcome"), "{}", tried.stdout);
        assert_eq!(shell.run(&["templates", "list", "-o", "json"]).ends(0).json(), json!([]));
        let made = shell.run(&["apply", "-f", "hotel"]).ends(0);
        assert!(!format!("{}{}", made.stdout, made.stderr).contains(&secret));
        let seen = shell.run(&["templates", "preview", "guest", "-o", "json"]).ends(0).json();
        assert_eq!((&seen["html"], &seen["data_from"]), (&json!("<b><p>Hi Ada</p></b>Yours, Inn"), &json!("sample")));
        // A second time nothing differs, also where the secret is compared.
        assert_eq!(shell.run(&["apply", "-f", "hotel", "--dry-run", "-o", "json"]).ends(0).json(), json!([]));
        assert_eq!(shell.run(&["apply", "-f", "hotel", "-o", "json"]).ends(0).json(), json!([]));
        // What is exported is the same, with the providers that were there, and without the secret.
        shell.run(&["export", "copy"]).ends(0);
        let copy = shell.path().join("copy");
        assert_eq!(read(&copy, "templates/sms/text.txt"), "Hi {{ guestName }},\nwelcome\n");
        assert_eq!(read(&copy, "partials/foot.html"), "Yours, {{ brand.name }}\n");
        let hooks: serde_json::Value = serde_json::from_str(&read(&copy, "providers/hooks.json")).unwrap();
        assert_eq!((&hooks["secrets"], &hooks["driver"]), (&json!({"secret": "stored"}), &json!("webhook")));
        assert!(copy.join("providers/capture.json").exists() && copy.join("lists/all%2Fstaff.json").exists());
        assert_eq!(shell.run(&["apply", "-f", "copy", "-o", "json"]).ends(0).json(), json!([]));
        // Elsewhere the secret is missing, and a reference to it is asked for.
        shell.run(&["tenants", "create", "other"]).ends(0);
        let refused = shell.run(&["apply", "-f", "copy", "--tenant", "other"]).ends(2);
        assert!(refused.stderr.contains("provider hooks: ") && refused.stderr.contains("write env:NAME or file:PATH"), "{}", refused.stderr);
    }

    fn a_change_of_files_is_shown_and_made_and_the_rest_is_pruned_when_asked(kind) {
        let shell = Shell::ready_on(kind).with("HOOKS_SECRET", &format!("whsec_{}", "QUJD".repeat(8)));
        hotel(&shell);
        shell.run(&["apply", "-f", "hotel"]).ends(0);
        write(&shell, "hotel/templates/sms/text.txt", "Hi {{ guestName }},\ngood bye\n");
        write(&shell, "hotel/lists/desk.json", r#"{"members": [{"kind": "user", "member": "9"}]}"#);
        std::fs::remove_dir_all(shell.path().join("hotel/templates/guest")).unwrap();
        for file in ["layouts/page.html", "partials/foot.html", "lists/all%2Fstaff.json"] {
            std::fs::remove_file(shell.path().join("hotel").join(file)).unwrap();
        }
        let tried = shell.run(&["apply", "-f", "hotel", "--dry-run"]).ends(0).stdout;
        assert!(tried.contains("update template sms\n  text\n    - welcome\n    + good bye") && !tried.contains("delete"), "{tried}");
        let tried = shell.run(&["apply", "-f", "hotel", "--dry-run", "--prune"]).ends(0).stdout;
        assert!(tried.contains("delete template guest") && tried.contains("delete layout page") && tried.contains("delete provider capture"), "{tried}");
        // Without its folder a kind is left alone.
        std::fs::remove_dir_all(shell.path().join("hotel/providers")).unwrap();
        let made = shell.run(&["apply", "-f", "hotel", "--prune", "-o", "json"]).ends(0).json();
        let told: Vec<String> = made.as_array().unwrap().iter().map(|one| format!("{} {} {}", one["action"], one["kind"], one["name"]).replace('"', "")).collect();
        let expected = ["update list desk", "update template sms", "delete template guest", "delete list all/staff", "delete layout page", "delete layout foot"];
        assert_eq!({ let mut told = told; told.sort(); told }, { let mut all = expected.map(str::to_owned).to_vec(); all.sort(); all });
        let members = shell.run(&["lists", "show", "desk", "-o", "json"]).ends(0).json()["members"].clone();
        assert_eq!((&members[0]["member"], members.as_array().unwrap().len()), (&json!("9"), 1));
        assert_eq!(shell.run(&["templates", "show", "sms", "-o", "json"]).ends(0).json()["version"], 2);
        shell.run(&["templates", "show", "guest"]).ends(3);
        assert_eq!(shell.run(&["apply", "-f", "hotel", "--prune", "-o", "json"]).ends(0).json(), json!([]));
    }

    fn a_wrong_file_is_named_and_nothing_is_changed(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["apply", "-f", "nowhere"]).ends(2);
        for (file, text, said) in [
            ("templates/a/template.json", r#"{"event_type": "a", "channel": "sms", "nonsense": 1}"#, "nonsense"),
            ("templates/a/template.json", r#"{"channel": "sms"}"#, "event_type"),
            ("lists/a.json", r#"{"members": [{"kind": 7}]}"#, "members[0].kind"),
            ("content.json", "{", "is not JSON"),
        ] {
            let folder = format!("wrong-{}", said.replace(['[', ']', '.', ' '], ""));
            write(&shell, &format!("{folder}/{file}"), text);
            let refused = shell.run(&["apply", "-f", &folder]).ends(2).stderr;
            assert!(refused.contains(&format!("{folder}/{file}: ")) && refused.contains(said), "{refused}");
        }
        // What cannot be done is said, with what was done before it.
        write(&shell, "partly/event-types/a.json", "{}");
        write(&shell, "partly/templates/a/template.json", r#"{"event_type": "a", "channel": "sms", "text": "{{ a"}"#);
        let refused = shell.run(&["apply", "-f", "partly"]).ends(2);
        assert!(refused.stdout.contains("create event type a") && refused.stderr.contains("template a: text: line 1"), "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("the changes above were made before the error and are kept"), "{}", refused.stderr);
    }
}
