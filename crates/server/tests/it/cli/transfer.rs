//! Import and export of users, members and suppressions, on both databases.

use serde_json::{Value, json};

use super::{Ran, Shell};
use crate::api::on_both;

fn write(shell: &Shell, name: &str, text: &str) {
    std::fs::write(shell.path().join(name), text).unwrap();
}

fn imported(ran: &Ran) -> (u64, u64, u64, u64) {
    let count = |name: &str| ran.json()[name].as_u64().unwrap();
    (count("created"), count("changed"), count("unchanged"), count("refused"))
}

fn users(shell: &Shell) -> Vec<Value> {
    let exported = shell.run(&["users", "export", "--format", "jsonl"]).ends(0).stdout;
    exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

on_both! {
    fn users_are_imported_line_by_line_and_errors_name_their_line(kind) {
        let shell = Shell::ready_on(kind);
        write(&shell, "users.csv", "id,name,email,phone,data\n1,Ada,ada@example.com a2@example.com,+919876543210,\"{\"\"room\"\": 7}\"\n2,Bob,,98765,\n3,\"=HYPERLINK(\"\"x\"\")\",,,nonsense\n4,'=Eve,,'+4312345678,\n5,short\n");
        let ran = shell.run(&["users", "import", "users.csv", "-o", "json"]).ends(7);
        assert_eq!(imported(&ran), (2, 0, 0, 3));
        assert_eq!(ran.stderr, "line 3: addresses[0].address: is not a phone number in E.164: '+', then 7 to 15 digits, the first not 0\nline 4: data: is not JSON: expected ident at line 1 column 2; write a JSON object\nline 6: has 2 fields; the header has 5\n");
        let all = users(&shell);
        assert_eq!(all[0], json!({"id": "1", "name": "Ada", "language": null, "time_zone": null, "quiet_hours": null, "data": {"room": 7}, "preferences": [], "addresses": [
            {"kind": "email", "address": "ada@example.com", "verified_at": null, "disabled_reason": null},
            {"kind": "email", "address": "a2@example.com", "verified_at": null, "disabled_reason": null},
            {"kind": "phone", "address": "+919876543210", "verified_at": null, "disabled_reason": null}]}));
        assert_eq!((&all[1]["name"], &all[1]["addresses"][0]["address"]), (&json!("=Eve"), &json!("+4312345678")), "C7: byte for byte");
        write(&shell, "names.csv", "name,id\nAda L.,1\n=Eve,4\nNew,9\nNewer,9\n");
        assert_eq!(imported(&shell.run(&["users", "import", "names.csv", "--dry-run", "-o", "json"]).ends(0)).0, 2);
        assert_eq!(users(&shell).len(), 2, "a dry run writes nothing");
        let ran = shell.run(&["users", "import", "names.csv", "-o", "json"]).ends(0);
        assert_eq!(imported(&ran), (1, 2, 1, 0), "the last line of a user counts");
        let all = users(&shell);
        assert_eq!((&all[0]["name"], all[0]["addresses"].as_array().unwrap().len(), &all[2]["name"]), (&json!("Ada L."), 3, &json!("Newer")), "columns that are not there change nothing");
    }

    fn quiet_hours_are_imported_from_both_formats_and_checked(kind) {
        let shell = Shell::ready_on(kind);
        write(&shell, "users.csv", "id,time_zone,quiet_hours\n1,Asia/Kolkata,22:00-07:00\n2,,22-7\n3,Mars/Base,\n");
        let ran = shell.run(&["users", "import", "users.csv", "-o", "json"]).ends(7);
        assert_eq!(ran.stderr, "line 3: quiet_hours.from: \"22\" is not a time of day; write one such as 22:00\nline 4: time_zone: \"Mars/Base\" is not a time zone; write one such as Asia/Kolkata\n");
        assert_eq!(users(&shell)[0]["quiet_hours"], json!({"from": "22:00", "until": "07:00"}));
        write(&shell, "users.jsonl", r#"{"id": "1", "quiet_hours": {"from": "12:00", "until": "13:00"}}"#);
        assert_eq!(imported(&shell.run(&["users", "import", "users.jsonl", "-o", "json"]).ends(0)), (0, 1, 0, 0));
        assert_eq!(users(&shell)[0]["quiet_hours"], json!({"from": "12:00", "until": "13:00"}));
        let refused = shell.run(&["users", "update", "1", "--quiet-hours", "22:00"]).ends(2);
        assert!(refused.stderr.contains("write one such as 22:00-07:00"), "{}", refused.stderr);
        shell.run(&["users", "update", "1", "--quiet-hours", ""]).ends(0);
        assert_eq!(users(&shell)[0]["quiet_hours"], json!(null));
    }

    fn an_export_of_users_is_safe_in_a_spreadsheet_and_comes_back_whole(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["users", "create", "1", "--display-name", "=cmd|' /C calc'!A0", "--address", "phone:+919876543210", "--address", "email:ada@example.com", "--language", "en", "--quiet-hours", "22:00-07:00"]).ends(0);
        let keys = r#"{"p256dh":"BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4","auth":"BTBZMqHH6r4Tts7J_aSIgg"}"#;
        let browsers = ["a", "b"].map(|at| format!(r#"web_push:{{"endpoint":"https://push.example/{at}","keys":{keys}}}"#));
        shell.run(&["users", "create", "3", "--address", "push:cXb7:APA91bE", "--address", &browsers[0], "--address", &browsers[1]]).ends(0);
        shell.run(&["users", "create", "@2", "--display-name", "a \"b\", c", "--data", r#"{"a": [1, "x"]}"#]).ends(0);
        shell.run(&["users", "prefer", "1", "refuse", "--channel", "sms"]).ends(0);
        let csv = shell.run(&["users", "export"]).ends(0).stdout;
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "id,name,language,time_zone,email,phone,slack,teams,webhook,push,web_push,data,quiet_hours");
        assert_eq!(lines[1], "1,'=cmd|' /C calc'!A0,en,,ada@example.com,'+919876543210,,,,,,,22:00-07:00");
        assert!(lines[2].starts_with("3,,,,,,,,,cXb7:APA91bE,"), "{}", lines[2]);
        assert_eq!(lines[3], r#"'@2,"a ""b"", c",,,,,,,,,,"{""a"":[1,""x""]}","#);
        let before = users(&shell);
        let jsonl = shell.run(&["users", "export", "--format", "jsonl"]).ends(0).stdout;
        write(&shell, "all.csv", &csv);
        write(&shell, "all.jsonl", &jsonl);
        for file in ["all.csv", "all.jsonl"] {
            assert_eq!(imported(&shell.run(&["users", "import", file, "-o", "json"]).ends(0)), (0, 0, 3, 0), "{file}");
        }
        assert_eq!(users(&shell), before);
        for id in ["1", "@2", "3"] {
            shell.run(&["users", "delete", id, "--yes"]).ends(0);
        }
        assert_eq!(imported(&shell.run(&["users", "import", "all.jsonl", "-o", "json"]).ends(0)), (3, 0, 0, 0));
        assert_eq!(users(&shell), before, "preferences included");
    }

    fn members_and_suppressions_are_imported_and_exported(kind) {
        let shell = Shell::ready_on(kind);
        shell.run(&["lists", "create", "staff"]).ends(0);
        shell.run(&["lists", "create", "night"]).ends(0);
        let rows: String = (0..1500).map(|n| format!("user,u{n},\n")).collect();
        write(&shell, "members.csv", &format!("kind,member,channel\nphone,+919876543210,whatsapp\nlist,night,\nlist,staff,\nfax,1,\n{rows}"));
        let ran = shell.run(&["lists", "import", "staff", "members.csv", "-o", "json"]).ends(7);
        assert_eq!(imported(&ran), (1502, 0, 0, 2));
        assert!(ran.stderr.starts_with("line 4: add[0].member: list \"staff\" is \"staff\" or contains it; a list cannot contain itself\nline 5: kind: is \"fax\"; allowed are user, list"), "{}", ran.stderr);
        assert_eq!(imported(&shell.run(&["lists", "import", "staff", "members.csv", "-o", "json"]).ends(7)), (0, 0, 1502, 2));
        let exported = shell.run(&["lists", "export", "staff"]).ends(0).stdout;
        assert!(exported.lines().count() == 1503 && exported.contains("\nphone,'+919876543210,whatsapp\n"), "{exported:.200}");
        write(&shell, "back.csv", &exported);
        shell.run(&["lists", "create", "copy"]).ends(0);
        assert_eq!(imported(&shell.run(&["lists", "import", "copy", "back.csv", "-o", "json"]).ends(0)), (1502, 0, 0, 0));
        shell.run(&["lists", "import", "nobody", "members.csv"]).ends(3);

        write(&shell, "gone.jsonl", "{\"channel\": \"email\", \"address\": \"Guest@example.com\", \"reason\": \"hard bounce\"}\n{\"channel\": \"sms\", \"address\": \"98765\", \"reason\": \"x\"}\n{\"channel\": \"*\", \"address\": \"+919876543210\", \"reason\": \"asked\", \"until\": \"2099-01-01T00:00:00Z\"}\n{\"channel\": \"sms\"}\n");
        let ran = shell.run(&["suppressions", "import", "gone.jsonl", "-o", "json"]).ends(7);
        assert_eq!(imported(&ran), (2, 0, 0, 2));
        assert!(ran.stderr.contains("line 2: address: is not a phone number in E.164") && ran.stderr.contains("line 4: missing field `address`"), "{}", ran.stderr);
        let exported = shell.run(&["suppressions", "export"]).ends(0).stdout;
        assert!(exported.contains("\nemail,guest@example.com,hard bounce,\n") && exported.contains("*,'+919876543210,asked,2099-01-01T00:00:00Z\n"), "{exported}");
        write(&shell, "gone.csv", &exported);
        assert_eq!(imported(&shell.run(&["suppressions", "import", "gone.csv", "-o", "json"]).ends(0)), (0, 0, 2, 0));
        let unknown = shell.run(&["suppressions", "import", "members.csv"]).ends(2).stderr;
        assert_eq!(unknown, "postcommit: members.csv: line 1: column \"kind\" is unknown; allowed are channel, address, reason, until\n");
        assert!(shell.run(&["suppressions", "import", "-"]).ends(2).stderr.contains("--format"));
    }
}
