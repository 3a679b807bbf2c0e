//! A host whose clock is wrong: expiry follows the database's clock.

use std::path::Path;
use std::process::Command;

use postcommit_testkit::{Child, HttpClient};
use serde_json::{Value, json};

use crate::api::app::{address, text};
use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};

/// A library that is preloaded before the C library and shifts the wall clock by a number of seconds.
const SHIM: &str = "#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, id, at);
  const char *off = getenv(\"CLOCK_OFF\");
  if (!failed && id == CLOCK_REALTIME && off) at->tv_sec += atol(off);
  return failed;
}
";

fn shim(folder: &Path) -> String {
    let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&source, SHIM).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library.display().to_string()
}

/// A server whose clock is shifted by `off_s` seconds.
fn serve(installation: &Installation, shim: &str, off_s: i64) -> Child {
    let mut command = installation.command(&["serve", "--role", "api"]);
    command.env("LD_PRELOAD", shim).env("CLOCK_OFF", off_s.to_string());
    Child::spawn(command)
}

#[test]
fn user_tokens_follow_the_databases_clock() {
    let installation = Installation::new(Kind::Postgres, Hooks::of(Guarantee::Idempotent));
    let folder = tempfile::tempdir().unwrap();
    let shim = shim(folder.path());
    const HOURS: i64 = 5 * 3600;
    let ahead = serve(&installation, &shim, HOURS);
    let key = ahead.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let behind = serve(&installation, &shim, -HOURS);
    let clients = [&ahead, &behind].map(|server| HttpClient::new(address(server)));
    let mint = |client: &HttpClient, ttl: u32| -> Value {
        client.clone().key(&key).post(&format!("/v1/inbox/zoe/token?ttl_s={ttl}"), &json!({})).expect(200).json()
    };
    for client in &clients {
        let minted = mint(client, 3600);
        let until = text(&minted, "expires_at");
        let left =
            installation.count(&format!("SELECT extract(epoch FROM '{until}'::timestamptz - clock_timestamp())::int"));
        assert!((1800..=3600).contains(&left), "{until} is {left} s from now");
        for reader in &clients {
            let _ = reader.clone().key(&text(&minted, "token")).get("/v1/inbox/zoe").expect(200);
        }
    }
    // An expired token is refused, although one server's clock is hours behind.
    let short = mint(&clients[1], 1);
    let over = format!("SELECT (clock_timestamp() >= '{}'::timestamptz)::int", text(&short, "expires_at"));
    wait_until("a second to pass", || installation.count(&over) == 1);
    for reader in &clients {
        let answer = reader.clone().key(&text(&short, "token")).get("/v1/inbox/zoe").expect(401);
        assert!(text(&answer.json(), "detail").contains("expired"), "{}", answer.text());
    }
}
