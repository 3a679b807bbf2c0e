//! Every block of docs/clients.md is run against a server and its database. Those in Rust are compiled as documentation
//! tests of the crate `postcommit`.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use postcommit::webhook;
use postcommit_testkit::{HttpServer, Reply, Request};
use serde_json::json;
use serde_json::value::RawValue;

use super::{Place, built, knows, node, package, python_command};
use crate::docs::snippet;

const PAGE: &str = "docs/clients.md";

/// What follows the three backticks, of every block of the page.
fn fences() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE)).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("```")).step_by(2).map(str::to_owned).collect()
}

/// The names of the blocks that are run in one language: `python-http-run`.
fn named(language: &str) -> Vec<String> {
    let words = |fence: &String| fence.split_once(' ').map(|(_, name)| name.to_owned());
    fences().iter().filter_map(words).filter(|name| name.starts_with(&format!("{language}-"))).collect()
}

#[test]
fn every_block_of_the_page_is_run_or_compiled() {
    let ran: Vec<String> = ["python", "node"].into_iter().flat_map(named).collect();
    assert!(ran.len() >= 9, "only {ran:?} were found: has the form of the page changed?");
    for fence in fences() {
        let is_run =
            fence.split_once(' ').is_some_and(|(_, name)| name.ends_with("-run") && ran.iter().any(|r| r == name));
        // Every other fence of Rust (ignore, no_run, text) would be left out by rustdoc, or not be read as Rust.
        // `toml` is the block of dependencies, which a test of the crate `postcommit` gives to cargo.
        assert!(is_run || fence == "rust" || fence == "toml", "no test runs the block ```{fence}");
    }
}

/// The databases on which a block can run: the one that its driver speaks, or both over HTTP.
fn places<'a>(name: &str, postgres: &'a Place, sqlite: &'a Place) -> Vec<&'a Place> {
    let over_http = ["-http-", "-inbox-", "-webhook-"].iter().any(|part| name.contains(part));
    match (over_http, name.contains("-sqlite-")) {
        (true, _) => vec![postgres, sqlite],
        (false, true) => vec![sqlite],
        (false, false) => vec![postgres],
    }
}

/// A webhook as the driver really sends it, signed with two secrets as while they are rotated.
struct Sent {
    secrets: [&'static str; 2],
    request: Request,
}

impl Sent {
    fn by_the_driver(place: &Place) -> Self {
        let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
        let receiver = HttpServer::start(|_| Reply::ok());
        let secret = format!("secret={}", secrets.join(" "));
        let shell = &place.server.shell;
        shell.run(&["providers", "create", "hooks", "--driver", "webhook", "--secret", &secret]).ends(0);
        let to = format!("webhook:{}", receiver.url("/hook"));
        let booking = r#"{"bookingId": 12345, "guest": "Zoë", "to": "guest@example.com"}"#;
        let said = ["--payload", booking, "--title", "See you soon", "--to", &to, "--wait"];
        shell.run(&[["enqueue", "booking.confirmed"].as_slice(), &said].concat()).ends(0);
        Self { secrets, request: receiver.requests().remove(0) }
    }

    /// What a receiver needs in its environment.
    fn tell(&self, command: &mut Command, secret: &str) {
        let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        let header = |name: &&'static str| (*name, self.request.header(name).unwrap());
        let headers: HashMap<_, _> = names.iter().map(header).collect();
        let request = json!({"headers": headers, "body": self.request.text()});
        command.env("HOOK_SECRET", secret).env("HOOK_REQUEST", request.to_string()).env("PORT", "0");
    }
}

#[tokio::test]
async fn what_the_driver_sends_is_verified_by_the_sdk() {
    for place in [Place::postgres().await, Place::sqlite()] {
        let sent = Sent::by_the_driver(&place);
        let header = |name: &'static str| sent.request.header(name);
        let verify = |secret: &str, body: &[u8]| webhook::verify(secret, header, body, SystemTime::now());
        for secret in sent.secrets {
            assert_eq!(verify(secret, &sent.request.body), Ok(header("webhook-id").unwrap()));
            assert_eq!(verify(secret, b"{}"), Err(webhook::Unverified::Signature));
        }
        let other = "whsec_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";
        assert_eq!(verify(other, &sent.request.body), Err(webhook::Unverified::Signature));
    }
}

/// The names of the members of a JSON object, in the order in which they are written.
fn members(object: &str) -> Vec<String> {
    let values: HashMap<String, Box<RawValue>> = serde_json::from_str(object).unwrap();
    let place = |name: &String| object.find(&format!("{name:?}:{}", values[name])).unwrap();
    let mut names: Vec<_> = values.keys().cloned().collect();
    names.sort_by_key(place);
    names
}

#[tokio::test]
async fn the_body_of_a_webhook_is_written_as_the_page_shows_it() {
    let sent = members(Sent::by_the_driver(&Place::sqlite()).request.text());
    let page = snippet("docs/providers.md", "```http");
    let mut shown = members(page.lines().last().unwrap());
    // The page's notification has an entity and a title.
    shown.retain(|name| sent.contains(name));
    assert_eq!(shown, sent);
}

#[tokio::test]
async fn the_python_blocks_do_what_the_page_says() {
    let (postgres, sqlite) = (Place::postgres().await, Place::sqlite());
    let sent = Sent::by_the_driver(&postgres);
    for name in named("python") {
        for place in places(&name, &postgres, &sqlite) {
            let folder = tempfile::tempdir().unwrap();
            let receives = ["django", "fastapi"];
            let command = match receives.into_iter().find(|receiver| name.contains(receiver)) {
                None => script(&snippet(PAGE, &name)),
                Some(receiver) => {
                    std::fs::write(folder.path().join("page.py"), snippet(PAGE, &name)).unwrap();
                    let mut command = script(include_str!("frameworks.py"));
                    command.args([receiver, "page"]).current_dir(folder.path());
                    sent.tell(&mut command, sent.secrets[0]);
                    command
                }
            };
            knows(place, &name, &place.run(command));
        }
    }
}

fn script(text: &str) -> Command {
    let mut command = python_command();
    command.args(["-c", text]);
    command
}

/// Sends the request of HOOK_REQUEST to the block's server, unchanged and changed, and ends it.
const NODE_RECEIVES: &str = r#"
await new Promise((listening) => server.once("listening", listening));
const { headers, body } = JSON.parse(process.env.HOOK_REQUEST);
// A secret that is missing is the receiver's own mistake: 400 would park the delivery.
const secret = process.env.HOOK_SECRET;
for (const [sent, status, known] of [[body, 204, secret], [`${body} `, 400, secret], [body, 500, ""]]) {
  process.env.HOOK_SECRET = known;
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/hook`, { method: "POST", headers, body: sent });
  if (answer.status !== status) throw new Error(`${answer.status} instead of ${status}`);
}
server.close();
server.closeAllConnections();
"#;

#[tokio::test]
async fn the_node_blocks_do_what_the_page_says() {
    built();
    let (postgres, sqlite) = (Place::postgres().await, Place::sqlite());
    let sent = Sent::by_the_driver(&postgres);
    for name in named("node") {
        let receives = name.contains("-webhook-");
        // Inside the package, where Node resolves the package's own name as for users who installed it.
        let file = package("typescript").join("build").join(format!("{name}.mjs"));
        std::fs::write(&file, snippet(PAGE, &name) + if receives { NODE_RECEIVES } else { "" }).unwrap();
        for place in places(&name, &postgres, &sqlite) {
            let mut command = node(&[file.to_str().unwrap()]);
            sent.tell(&mut command, sent.secrets[1]);
            let printed = place.run(command);
            if receives {
                assert_eq!(printed.trim(), format!("received {}", sent.request.header("webhook-id").unwrap()));
            } else {
                knows(place, &name, &printed);
            }
        }
    }
}
