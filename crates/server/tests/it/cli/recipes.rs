//! Recipes of an operator: a file makes a driver, and a file that cannot work is refused with its line.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use super::Shell;
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
