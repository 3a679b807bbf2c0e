//! Many connections: ten thousand of one client, and a server without free connections.

use std::net::Ipv4Addr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{RawClient, TestServer};
use crate::installation::wait_until;

const CROWD: usize = 10_000;
/// The default limits.
const PER_ADDRESS: usize = 256;
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn is_turned_away(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 503 ")
        && answer.contains("retry-after: 1\r\n")
        && answer.contains("problem:too-many-connections")
}

/// The number of connections to open, limited by this process's file descriptors, because it holds the other end of
/// each.
fn crowd() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let most = usize::try_from(limit.maximum.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let crowd = CROWD.min(most.saturating_sub(200));
    eprintln!("{crowd} connections");
    assert!(crowd > 2 * PER_ADDRESS, "ulimit -n is {most}: too low for a crowd");
    crowd
}

#[test]
fn ten_thousand_connections_of_one_client_lock_out_no_other() {
    let server = TestServer::with(&[("SERVER_HEADER_DEADLINE_MS", "600000"), ("SERVER_IDLE_DEADLINE_MS", "3600000")]);
    let mut old = server.connect();
    assert!(old.is_healthy());
    let mut crowd: Vec<RawClient> = Vec::new();
    for n in 0..self::crowd() {
        crowd.push(server.connect());
        if n % 1000 == 999 {
            assert!(old.is_healthy(), "a connection from before the crowd");
            assert!(server.connect_from(NEIGHBOUR).is_healthy(), "a new connection of another client");
        }
    }
    let turned_away = crowd.split_off(PER_ADDRESS - 1);
    for mut raw in turned_away {
        assert!(is_turned_away(&raw.read_to_end()));
    }
    for inside in &mut crowd {
        assert!(inside.is_healthy(), "those who were first are inside");
    }
    assert!(old.is_healthy());
}

#[test]
fn a_server_without_free_connections_says_so_and_recovers_when_one_closes() {
    let server = TestServer::with(&[
        ("SERVER_CONNECTIONS", "3"),
        ("SERVER_STREAMS", "1"),
        ("SERVER_CONNECTIONS_PER_ADDRESS", "2"),
    ]);
    let mut inside = [server.connect(), server.connect()];
    assert!(inside.iter_mut().all(RawClient::is_healthy));
    // The request is already sent when the server refuses: the answer must arrive nevertheless.
    let answer = server.ask("GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n");
    assert!(is_turned_away(&answer) && answer.contains("2 connections from this address"), "{answer}");
    let mut third = server.connect_from(NEIGHBOUR);
    assert!(third.is_healthy());
    let answer = server.connect_from(NEIGHBOUR).read_to_end();
    assert!(is_turned_away(&answer) && answer.contains("3 connections are open"), "{answer}");
    assert!(inside.iter_mut().all(RawClient::is_healthy), "those inside are served");
    server.process.wait_for_line("connections are refused, because a limit is reached");
    drop(third);
    wait_until("a place", || server.connect_from(NEIGHBOUR).is_healthy());
}

#[test]
fn the_limit_per_address_does_not_apply_to_a_trusted_proxy() {
    let server =
        TestServer::with(&[("SERVER_CONNECTIONS_PER_ADDRESS", "1"), ("SERVER_TRUSTED_PROXIES", "127.0.0.2/32")]);
    let mut many: Vec<RawClient> = (0..20).map(|_| server.connect_from(NEIGHBOUR)).collect();
    assert!(many.iter_mut().all(RawClient::is_healthy));
    let _one = server.connect();
    assert!(is_turned_away(&server.connect().read_to_end()));
}
