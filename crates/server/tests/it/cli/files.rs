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

/// A folder, its files with their texts, the exit code of `apply`, and what it says.
type Case<'a> = (&'a str, Vec<(&'a str, String)>, i32, &'a [&'a str]);

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
        // Before anything is removed, all of it is listed, and somebody must agree.
        let asked = shell.run(&["apply", "-f", "hotel", "--prune"]).ends(4);
        assert!(asked.stdout.is_empty() && asked.stderr.starts_with("to be removed:\n  template guest, active for booking.confirmed: it is deactivated and hidden, its versions stay\n"), "{}", asked.stderr);
        assert!(asked.stderr.contains("\n  list all/staff, with its members\n") && asked.stderr.contains("\n  layout page\n"), "{}", asked.stderr);
        assert!(asked.stderr.ends_with("4 will be removed: nothing was done; add --yes to confirm (--dry-run shows all changes)\n"), "{}", asked.stderr);
        assert_eq!(shell.run(&["templates", "show", "sms", "-o", "json"]).ends(0).json()["version"], 1, "nothing was changed");
        assert_eq!(shell.run(&["templates", "show", "guest", "-o", "json"]).ends(0).json()["active"], true);
        let ran = shell.run(&["apply", "-f", "hotel", "--prune", "--yes", "-o", "json"]).ends(0);
        assert!(ran.stderr.starts_with("to be removed:\n"), "{}", ran.stderr);
        let made = ran.json();
        let told: Vec<String> = made.as_array().unwrap().iter().map(|one| format!("{} {} {}", one["action"], one["kind"], one["name"]).replace('"', "")).collect();
        let expected = ["update list desk", "update template sms", "delete template guest", "delete list all/staff", "delete layout page", "delete layout foot"];
        assert_eq!({ let mut told = told; told.sort(); told }, { let mut all = expected.map(str::to_owned).to_vec(); all.sort(); all });
        let members = shell.run(&["lists", "show", "desk", "-o", "json"]).ends(0).json()["members"].clone();
        assert_eq!((&members[0]["member"], members.as_array().unwrap().len()), (&json!("9"), 1));
        assert_eq!(shell.run(&["templates", "show", "sms", "-o", "json"]).ends(0).json()["version"], 2);
        shell.run(&["templates", "show", "guest"]).ends(3);
        assert_eq!(shell.run(&["apply", "-f", "hotel", "--prune", "-o", "json"]).ends(0).json(), json!([]));
        // C9: a template is hidden and never deleted. Made again, it goes on with its versions.
        shell.run(&["templates", "create", "guest", "--event-type", "booking.confirmed", "--channel", "email", "--text", "Hi"]).ends(0);
        let versions = shell.run(&["templates", "versions", "guest", "-o", "json"]).ends(0).json();
        assert_eq!(versions.as_array().unwrap().iter().map(|one| one["version"].clone()).collect::<Vec<_>>(), [json!(2), json!(1)]);
    }

    fn a_kind_of_layouts_without_a_folder_is_not_pruned(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["layouts", "create", "page", "--source", "{{ content }}"]).ends(0);
        shell.run(&["layouts", "create", "foot", "--kind", "partial", "--source", "bye"]).ends(0);
        std::fs::create_dir_all(shell.path().join("only/layouts")).unwrap();
        let made = shell.run(&["apply", "-f", "only", "--prune", "--yes"]).ends(0).stdout;
        assert_eq!(made, "delete layout page\n");
    }

    fn c9_a_dry_run_finds_what_apply_refuses_and_changes_nothing(kind) {
        let shell = Shell::ready_on(kind).with("HOOKS_SECRET", &format!("whsec_{}", "QUJD".repeat(8)));
        hotel(&shell);
        shell.run(&["apply", "-f", "hotel"]).ends(0);
        shell.run(&["export", "before"]).ends(0);
        let template = |channel: &str, more: &str| format!(r#"{{"event_type": "booking.confirmed", "channel": "{channel}"{more}}}"#);
        let of = |channel: &str| template(channel, "");
        let cases: [Case; 12] = [
            ("text", vec![("templates/a/template.json", of("voice")), ("templates/a/text.txt", "Hi\n{{ a".into()), ("templates/b/template.json", of("slack")), ("templates/b/html.html", "<p>{% if x %}</p>".into())], 2,
                &["text/templates/a/text.txt: template a: text: line 2, column ", "text/templates/b/html.html: template b: html: line 1, column "]),
            ("json", vec![("templates/a/template.json", template("voice", r#", "text": "{{ a""#))], 2, &["json/templates/a/template.json: template a: text: line 1, column "]),
            ("data", vec![("templates/a/template.json", of("voice")), ("templates/a/data.json", r#"{"list": ["{{ a"]}"#.into())], 2, &["data/templates/a/data.json: template a: data.list[0]: line 1, column "]),
            ("layout", vec![("layouts/new.html", "{{ content }}{% include \"none\" %}".into())], 2, &["layout/layouts/new.html: layout new: source: includes \"none\", which is not a partial"]),
            ("used", vec![("layouts/page.html", "{{ content".into())], 2, &["used/layouts/page.html: layout page: source: line 1, column "]),
            ("place", vec![("templates/other/template.json", of("sms")), ("templates/other/text.txt", "Hi".into())], 4, &["place/templates/other/template.json: template other: template \"sms\" is active for the same event type"]),
            ("kinds", vec![("partials/page.html", "x".into())], 4, &["kinds/partials/page.html: layout page: layout \"page\" is a layout; it cannot become a partial"]),
            ("zone", vec![("content.json", r#"{"time_zone": "Mars/Olympus"}"#.into())], 2, &["zone/content.json: content settings: time_zone: "]),
            ("sample", vec![("event-types/a.json", r#"{"sample": 7}"#.into())], 2, &["sample/event-types/a.json: event type a: sample: must be an object"]),
            ("cycle", vec![("lists/desk.json", r#"{"members": [{"kind": "list", "member": "all/staff"}]}"#.into()), ("lists/x.json", r#"{"members": [{"kind": "list", "member": "none"}]}"#.into())], 2,
                &["cycle/lists/desk.json: list desk: add[0].member: list \"all/staff\" is \"desk\" or contains it", "cycle/lists/x.json: list x: add[0].member: there is no list \"none\""]),
            ("provider", vec![("providers/a.json", r#"{"driver": "webhook", "settings": {"url": 7}}"#.into()), ("providers/hooks.json", r#"{"driver": "capture"}"#.into())], 2,
                &["provider/providers/a.json: provider a: ", "provider/providers/hooks.json: provider hooks: driver: cannot be changed"]),
            ("secret", vec![("providers/a.json", r#"{"driver": "webhook", "secrets": {"secret": "env:NOWHERE"}}"#.into())], 2, &["secret/providers/a.json: provider a: secrets.secret: the environment has no variable NOWHERE"]),
        ];
        for (folder, files, code, said) in &cases {
            files.iter().for_each(|(file, text)| write(&shell, &format!("{folder}/{file}"), text));
            let tried = shell.run(&["apply", "-f", folder, "--dry-run"]).ends(*code).stderr;
            for part in *said {
                assert!(tried.contains(part), "{folder}: {tried}");
            }
            assert_eq!(tried, shell.run(&["apply", "-f", folder, "--dry-run"]).ends(*code).stderr);
        }
        assert!(!shell.run(&["export", "after"]).ends(0).stderr.contains("not in the database"));
        let differ = std::process::Command::new("diff").args(["-r", "before", "after"]).current_dir(shell.path()).output().unwrap();
        assert!(differ.status.success(), "a dry run changes nothing: {}", String::from_utf8_lossy(&differ.stdout));
        for (folder, _, code, _) in &cases {
            let tried = shell.run(&["apply", "-f", folder, "--dry-run"]).ends(*code).stderr;
            let made = shell.run(&["apply", "-f", folder]).ends(*code).stderr.replace("the changes above were made before that, and stay\n", "");
            assert_eq!(tried, made, "{folder}: apply says the same");
        }
    }

    fn a_dry_run_of_a_prune_finds_what_cannot_be_removed(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["layouts", "create", "page", "--source", "{{ content }}"]).ends(0);
        shell.run(&["templates", "create", "mail", "--event-type", "a", "--channel", "email", "--html", "<p>Hi</p>", "--layout", "page"]).ends(0);
        for folder in ["layouts", "event-types"] {
            std::fs::create_dir_all(shell.path().join("bare").join(folder)).unwrap();
        }
        let (dry, made) = (["apply", "-f", "bare", "--prune", "--dry-run"], ["apply", "-f", "bare", "--prune", "--yes"]);
        let refused = "postcommit: layout page: layout \"page\" is used by template mail; change these first\n";
        assert_eq!(shell.run(&dry).ends(4).stderr, refused);
        assert!(shell.run(&made).ends(4).stderr.ends_with(refused));
        // With its templates it goes.
        std::fs::create_dir_all(shell.path().join("bare/templates")).unwrap();
        let told = "delete template mail, active for a: it is deactivated and hidden, its versions stay\ndelete layout page\n";
        assert_eq!(shell.run(&dry).ends(0).stdout, told);
        assert_eq!(shell.run(&made).ends(0).stdout, told);
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
