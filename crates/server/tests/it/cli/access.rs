//! PostgreSQL databases as commands see them: their encoding, their roles, and which other logins may connect.

use postcommit_testkit::{Child, HttpClient, Postgres, TestDatabase, TestLogin};
use serde_json::json;

use super::Shell;
use crate::api::app::{address, refused};
use crate::installation::Kind;

/// Runs a future that prepares the cluster.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn on(database: &TestDatabase) -> Shell {
    Shell::empty().with("POSTCOMMIT_DATABASE_URL", &database.url).with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0")
}

#[test]
fn every_command_refuses_a_database_that_is_not_utf8() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let options = format!("TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'");
        let database = wait(Postgres::shared().database_with(&options));
        let shell = on(&database);
        let sentence = format!("has the encoding {encoding}, and postcommit needs UTF8");
        for arguments in [
            &["migrate"][..],
            &["migrate", "--dry-run"],
            &["serve"],
            &["serve", "--no-migrate"],
            &["notifications", "list"],
        ] {
            let refused = shell.run(arguments).ends(4).stderr;
            assert!(
                refused.contains(&sentence) && refused.contains("CREATE DATABASE name"),
                "{arguments:?}: {refused}"
            );
        }
        assert!(shell.run(&["doctor"]).ends(1).stdout.contains(&sentence));
    }
}

#[test]
fn created_roles_are_named() {
    let shell = Shell::empty_on(Kind::Postgres);
    let made = shell.run(&["migrate", "--roles", "-o", "json"]).ends(0).json();
    let names: Vec<&str> = made["roles"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let oid = names[0].strip_prefix("postcommit_owner_").unwrap();
    assert_eq!(names[1..], ["producer", "worker", "reader"].map(|kind| format!("postcommit_{kind}_{oid}")));
    assert_eq!(made["grants"].as_array().unwrap().len(), 0);
    let again = shell.run(&["migrate", "--roles"]).ends(0).stdout;
    assert!(again.contains(&format!("nothing to do; roles and grants are set: {}", names.join(", "))), "{again}");
    assert_eq!(shell.run(&["migrate", "-o", "json"]).ends(0).json()["roles"].as_array().unwrap().len(), 0);
}

#[test]
fn roles_made_by_a_superuser_are_reported_and_the_owner_of_the_schema_still_enqueues() {
    let app: TestLogin = wait(Postgres::shared().login(""));
    let options = format!("OWNER {} TEMPLATE template0 ENCODING 'UTF8'", app.name());
    let database = wait(Postgres::shared().database_with(&options));
    let (owner, admin) = (on(&database).with("POSTCOMMIT_DATABASE_URL", &database.url_as(app.name())), on(&database));
    owner.run(&["migrate"]).ends(0);
    let said = admin.run(&["migrate", "--roles"]).ends(0).stderr;
    let granted = format!("is granted to {}, so that this login keeps its privileges", app.name());
    assert!(said.contains(&granted) && said.contains(&format!("it belonged to {} before", app.name())), "{said}");
    assert!(said.contains("an application that only enqueues needs: GRANT postcommit_producer_"), "{said}");
    owner.enqueue("booking.confirmed", &[]);
    assert_eq!(owner.run(&["migrate", "-o", "json"]).ends(0).json()["granted"].as_array().unwrap().len(), 0);
    drop(database);
}

#[test]
fn the_api_says_so_when_the_database_takes_the_rights_of_its_login_away() {
    let app: TestLogin = wait(Postgres::shared().login(""));
    let database = wait(postcommit_testkit::database());
    let admin = on(&database);
    let roles = admin.run(&["migrate", "--roles", "-o", "json"]).ends(0).json();
    let worker = roles["roles"][2].as_str().unwrap();
    wait(Postgres::shared().execute(&format!("GRANT {worker} TO {}", app.name())));
    let made = admin.run(&["keys", "create", "all", "--scope", "enqueue,read,operate", "-o", "json"]).ends(0).json();
    let login = on(&database).with("POSTCOMMIT_DATABASE_URL", &database.url_as(app.name()));
    let server = Child::spawn(login.command(&["serve", "--role", "api"]));
    let client = HttpClient::new(address(&server)).key(made["token"].as_str().unwrap());
    let note =
        |key: &str| json!({"event_type": "a", "idempotency_key": key, "recipients": [{"email": "a@example.com"}]});
    let _ = client.post("/v1/notifications", &note("before")).expect(202);
    wait(Postgres::shared().execute(&format!("REVOKE {worker} FROM {}", app.name())));
    for answer in [
        client.get("/v1/deliveries"),
        client.get("/v1/kpis"),
        client.post("/v1/notifications", &note("after")),
        client.post("/v1/deliveries/retry", &json!({"filter": {"state": "parked"}})),
    ] {
        let problem = refused(answer, 503, None);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("refuses the server's login") && detail.contains("`postcommit doctor`"), "{problem}");
        assert!(detail.contains("`postcommit migrate --roles`") && !detail.contains("permission denied"), "{problem}");
    }
    let batch = client.post("/v1/notifications/batch", &json!({"notifications": [note("after")]})).expect(200).json();
    assert!(batch["results"][0].to_string().contains("refuses the server's login"), "{batch}");
    wait(Postgres::shared().execute(&format!("GRANT {worker} TO {}", app.name())));
    let _ = client.post("/v1/notifications", &note("after")).expect(202);
    drop(server);
    drop(database);
}

#[test]
fn doctor_finds_missing_roles_before_the_start_and_logins_that_could_not_serve() {
    let (app, late): (TestLogin, TestLogin) = (wait(Postgres::shared().login("")), wait(Postgres::shared().login("")));
    let options = format!("OWNER {} TEMPLATE template0 ENCODING 'UTF8'", app.name());
    let database = wait(Postgres::shared().database_with(&options));
    let (owner, admin) = (on(&database).with("POSTCOMMIT_DATABASE_URL", &database.url_as(app.name())), on(&database));
    let found = |shell: &Shell, code: i32| shell.run(&["doctor"]).ends(code).stdout;
    let missing = "`serve` refuses to start: the role postcommit_tenant_";
    let told = found(&owner, 1);
    assert!(told.contains("schema version 0") && told.contains(missing) && told.contains("CREATE ROLE"), "{told}");
    owner.run(&["migrate"]).ends(0);
    let told = found(&owner, 1);
    assert!(told.contains("`serve` refuses to start: tenants are not isolated from each other: the role "), "{told}");
    let roles = admin.run(&["migrate", "--roles", "-o", "json"]).ends(0).json();
    assert!(!found(&owner, 0).contains("refuses to start"));
    let grant = format!("GRANT {} TO {}", roles["roles"][0].as_str().unwrap(), late.name());
    wait(Postgres::shared().execute(&grant));
    let told = found(&admin, 0);
    let line = told.lines().find(|line| line.contains("`serve` refuses to start as ")).expect(&told);
    assert!(line.contains(late.name()) && line.contains("warning"), "{line}");
    wait(Postgres::shared().execute(line.split("administrator: ").nth(1).unwrap().trim()));
    assert!(!found(&admin, 0).contains("refuses to start"));
    drop(database);
}

#[test]
fn doctor_and_the_start_report_other_logins_that_may_connect() {
    let stranger: TestLogin = wait(Postgres::shared().login(""));
    let database = wait(postcommit_testkit::database());
    let shell = on(&database);
    shell.run(&["migrate"]).ends(0);
    let (open, closing) = ("is open to PUBLIC", format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", database.name()));
    let told = || {
        let all = shell.run(&["doctor", "-o", "json"]).ends(0).json();
        let notes: Vec<_> =
            all.as_array().unwrap().iter().filter(|finding| finding["check"] == "access").cloned().collect();
        notes
            .iter()
            .map(|note| (note["result"].as_str().unwrap().to_owned(), note["detail"].as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    let notes = told();
    assert!(
        notes.len() == 1 && notes[0].0 == "note" && notes[0].1.contains(open) && notes[0].1.contains(&closing),
        "{notes:?}"
    );
    let server = Child::spawn(shell.command(&["serve"]));
    let line = server.wait_for_line(open);
    assert!(line.contains(&closing), "{line}");
    server.term();
    server.wait();

    wait(Postgres::shared().execute(&closing));
    assert_eq!(told(), vec![]);
    wait(
        Postgres::at(database.url.clone())
            .execute(&format!("GRANT SELECT ON postcommit.delivery TO {}", stranger.name())),
    );
    let notes = told();
    assert!(notes.len() == 1 && notes[0].1.starts_with(&format!("{} holds privileges", stranger.name())), "{notes:?}");
    drop(database);
}
