//! Recipes of an operator: a file makes a driver, and a file that cannot work is refused with its line.

use postcommit_testkit::{Child, HttpServer, Reply};
use serde_json::json;

use super::Shell;
use super::quick_start::get;
use crate::docs::snippet;

/// A folder `recipes` with the example of the documentation, changed by `change`.
fn with_recipe(change: impl FnOnce(String) -> String) -> Shell {
    let shell =
        Shell::empty().with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8").with("POSTCOMMIT_RECIPES_FOLDER", "recipes");
    std::fs::create_dir(shell.path().join("recipes")).unwrap();
    std::fs::write(shell.path().join("recipes/pager.toml"), change(snippet("docs/recipes.md", "pager.toml"))).unwrap();
    std::fs::write(shell.path().join("recipes/README"), "no recipe").unwrap();
    shell
}

#[test]
fn a_provider_is_added_by_the_recipe_of_the_documentation() {
    assert!(snippet("docs/recipes.md", "pager.toml").lines().count() < 60);
    let server = HttpServer::start(|_| Reply::json(202, json!({"accepted": true, "page_id": "p-1"})));
    let shell = with_recipe(|text| text);
    let checked = Shell::empty();
    std::fs::copy(shell.path().join("recipes/pager.toml"), checked.path().join("pager.toml")).unwrap();
    let said = checked.run(&["providers", "check", "pager.toml"]).ends(0).stdout;
    assert_eq!(said.trim(), "pager.toml: recipe pager is valid");

    shell.run(&["migrate"]).ends(0);
    let shown = shell.run(&["providers", "drivers", "pager"]).ends(0).stdout;
    assert!(shown.contains("--secret token=@FILE  the token of the account"), "{shown}");
    let listed = shell.run(&["providers", "drivers"]).ends(0).stdout;
    assert!(
        ["pager", "smtp", "twilio"].iter().all(|name| listed.lines().any(|line| line.starts_with(name))),
        "{listed}"
    );
    let create = ["providers", "create", "night", "--driver", "pager"];
    let said = shell.run(&create).ends(2).stderr;
    assert!(
        said.contains("secret: \"token\" is missing: the token of the account; set it with --secret token=@FILE"),
        "{said}"
    );
    std::fs::write(shell.path().join("token.txt"), "tok_4711_secret").unwrap();
    let base = format!("base_url={}", server.url(""));
    shell.run(&[&create[..], &["--secret", "token=@token.txt", "--set", &base]].concat()).ends(0);

    let test = ["providers", "test", "night", "--address", "team-7", "--data", r#"{"urgent": true}"#, "--show-request"];
    let tested = shell.run(&test).ends(0).stdout;
    assert!(tested.contains("/v1/teams/team-7/pages\n") && tested.contains("authorization: [redacted]\n"), "{tested}");
    assert!(
        tested.contains(r#""message":"This is a test of the provider.""#) && tested.contains("\n\nsent  "),
        "{tested}"
    );
    assert!(tested.trim_end().ends_with(r#"answer: {"accepted":true,"page_id":"p-1"}"#), "{tested}");
    let to = ["enqueue", "alarm.raised", "--to", "provider:night:team-7/..", "--title", "Pump 3 stopped"];
    let id = shell.run(&[&to[..], &["--body", "Pressure 0.2 bar", "--action-url", "https://plant.example/3"]].concat());
    let id = id.ends(0).stdout.trim().to_owned();
    shell.dispatch();
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].path, "/v1/teams/team-7%2F../pages");
    assert_eq!(requests[1].header("authorization"), Some("Bearer tok_4711_secret"));
    assert_eq!(requests[1].header("idempotency-key"), Some(format!("{id}_1").as_str()));
    let wanted = json!({"title": "Pump 3 stopped", "message": "Pressure 0.2 bar",
        "link": {"href": "https://plant.example/3", "label": "View"}});
    assert_eq!(requests[1].json(), wanted);
    let delivery = shell.run(&["deliveries", "show", &format!("{id}.1"), "-o", "json"]).ends(0).json();
    assert_eq!((&delivery["state"], &delivery["provider"]), (&"sent".into(), &"night".into()), "{delivery}");
    assert_eq!(delivery["attempt_log"][0]["provider_ref"], "p-1", "{delivery}");
}

#[test]
fn a_recipe_that_cannot_work_is_refused_with_its_line() {
    let told = |from: &str, to: &str| {
        let shell = with_recipe(|text| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        let started = shell.run(&["serve"]).ends(2).stderr;
        let checked = shell.run(&["providers", "check", "recipes/pager.toml"]).ends(1).stdout;
        assert!(started.contains(checked.trim()), "{started}\n{checked}");
        checked.trim().strip_prefix("recipes/pager.toml: ").unwrap().to_owned()
    };
    for (from, to, wanted) in [
        ("{{ subject }}", "{{ sbject }}", "line 23: request.json.title: \"sbject\" does not exist here"),
        ("[success]", "[sucess]", "line 27: sucess: unknown field `sucess`"),
        ("202 and", "202 and and", "line 28: success.when: "),
        ("\"rejected\"", "\"dropped\"", "line 37: error[0].outcome: unknown variant `dropped`"),
        ("name = \"pager\"", "name = \"smtp\"", "name: another driver is named \"smtp\""),
        ("\"url\"", "\"link\"", "line 10: settings.base_url.type: unknown variant `link`"),
        ("secret.token", "secret.tokn", "line 20: request.headers.Authorization: secret.tokn is not declared"),
        ("[request]", "[request", "line 17: "),
    ] {
        let told = told(from, to);
        assert!(told.starts_with(wanted), "{told}");
    }
    let missing = Shell::empty().with("POSTCOMMIT_RECIPES_FOLDER", "nowhere").run(&["serve"]).ends(2).stderr;
    assert!(missing.contains("recipes.folder: nowhere: "), "{missing}");
}

#[test]
fn b5_an_operator_sets_callbacks_up() {
    let callback = snippet("docs/recipes.md", "pager-callback.toml");
    let server = HttpServer::start(|_| Reply::json(202, json!({"accepted": true, "page_id": "p-1"})));
    let shell = with_recipe(|text| format!("{text}\n{callback}"));
    shell.run(&["migrate"]).ends(0);
    let drivers = shell.run(&["providers", "drivers", "pager"]).ends(0).stdout;
    assert!(
        drivers.contains("  callbacks  in the settings of the service, enter this URL as the webhook"),
        "{drivers}"
    );
    let base = format!("base_url={}", server.url(""));
    let create = ["providers", "create", "night", "--driver", "pager", "--secret", "token=tok_4711", "--set", &base];
    shell.run(&create).ends(0);

    let shown = shell.run(&["providers", "callback", "night"]).ends(0);
    assert!(shown.stdout.starts_with("/v1/callbacks/"), "{}", shown.stdout);
    assert!(shown.stderr.contains("trusted by the token in the URL alone, until"), "{}", shown.stderr);
    assert!(shown.stderr.contains("or set api.public_url"), "{}", shown.stderr);
    let open = shell.run(&["providers", "show", "night"]).ends(0).stdout;
    assert!(open.contains("callbacks    trusted by the token in the URL alone, until"), "{open}");
    shell.run(&["providers", "update", "night", "--secret", "signing_secret=sig_0123456789"]).ends(0);
    let public = shell.with("POSTCOMMIT_API_PUBLIC_URL", "https://hooks.hotel.example");
    let again = public.run(&["providers", "callback", "night", "-o", "json"]).ends(0).json();
    let first = format!("https://hooks.hotel.example{}", shown.stdout.trim());
    assert_eq!((again["url"].as_str(), again["trust"].as_str()), (Some(first.as_str()), Some("verified")));
    let rotated = public.run(&["providers", "callback", "night", "--rotate"]).ends(0).stdout;
    assert_ne!(rotated.trim(), first);
    public.run(&["providers", "callback", "night", "--now"]).ends(2);
    public.run(&["providers", "callback", "nobody"]).ends(3);
    public.run(&["providers", "create", "hooks", "--driver", "webhook"]).ends(0);
    let none = public.run(&["providers", "callback", "hooks"]).ends(4).stderr;
    assert!(none.contains("driver \"webhook\" takes no callbacks"), "{none}");
}

#[test]
fn a_server_that_does_not_know_a_recipe_says_so_everywhere() {
    let shell = with_recipe(|text| text).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
    shell.run(&["migrate"]).ends(0);
    let create = ["providers", "create", "night", "--driver", "pager", "--secret", "token=tok_4711_secret"];
    shell.run(&create).ends(0);
    let mut serve = shell.command(&["serve"]);
    serve.env("POSTCOMMIT_RECIPES_FOLDER", "");
    let server = Child::spawn(serve);
    let health = server.wait_for_line("/healthz");
    let address = health.split("http://").nth(1).unwrap().trim_end_matches("/healthz").to_owned();
    let lane = || shell.run(&["providers", "list"]).ends(0).stdout;
    let reason = "no running process can set up its driver: the driver \"pager\" is not known";
    crate::installation::wait_until("the lane is shown closed", || lane().contains(&format!("closed: {reason}")));
    let shown = shell.run(&["providers", "show", "night", "-o", "json"]).ends(0).json();
    assert_eq!(
        (&shown["lacking"], &shown["unopened"]),
        (&json!("driver"), &json!("the driver \"pager\" is not known"))
    );
    let findings = shell.run(&["doctor", "-o", "json"]).ends(1).json();
    let found = findings.as_array().unwrap().iter().find(|one| one["detail"].to_string().contains("night: ")).unwrap();
    let detail = found["detail"].as_str().unwrap();
    assert!(found["result"] == "problem" && detail.starts_with(&format!("night: nothing is sent, because {reason}; ")));
    assert!(detail.contains("recipes.folder") && !detail.contains("On this host"), "{detail}");
    assert_eq!(shell.run(&["kpis", "-o", "json"]).ends(0).json()["shut"]["lanes_unopened"], 1);
    let ready = get(&address, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(ready.contains("ready\nlanes closed: 1, because no running process can set up the drivers"), "{ready}");
    assert!(get(&address, "/metrics").contains("\npostcommit_lanes_unopened 1\n"));
    server.term();
    server.wait();

    let server = Child::spawn(shell.command(&["serve"]));
    server.wait_for_line("is ready");
    crate::installation::wait_until("the lane is open", || !lane().contains("closed"));
    server.term();
    server.wait();
}
