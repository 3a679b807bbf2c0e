//! Which addresses egress connects to, and which it refuses.

mod dial;
mod exchange;
pub(crate) mod peer;
mod reuse;
pub(crate) mod tls;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peer::{OK, Peer, Script, answer_all, answered, brief, egress, failed, get, open};
use postcommit_channel::egress::{Egress, EgressSettings, Phase, Resolved, Resolver, forbidden};
use url::Url;

/// Hosts that are not public, or resolve to an address that is not. Names resolve to loopback here.
const CLOSED: &str = "
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.1 127.255.255.254
    168.63.129.16 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1
    192.168.0.1 192.168.255.255 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 0 0x7f.1 0x7f000001 2130706433 017700000001 0177.0.0.1 0xa9fea9fe 2852039166 0251.0376.0251.0376
    127.0.0.1. %31%32%37.0.0.1 127。0。0。1 169.254.169。254
    [::] [::1] [::2] [::127.0.0.1] [::a9fe:a9fe] [::ffff:127.0.0.1] [::ffff:169.254.169.254] [::ffff:a9fe:a9fe]
    [::ffff:10.0.0.1] [0:0:0:0:0:ffff:7f00:1] [::ffff:0:7f00:1] [::ffff:0:8.8.8.8] [64:ff9b::a9fe:a9fe] [64:ff9b::8.8.8.8]
    [64:ff9b:1::7f00:1] [100::1] [2001::1] [2001:0:a9fe:a9fe::1] [2001:0:4136:e378:8000:63bf:3fff:fdd2] [2001:10::1]
    [2001:1ff::1] [2001:db8::1] [2002:a9fe:a9fe::] [2002:7f00:1::1] [2002:808:808::1] [3fff::1] [5f00::1] [fc00::1]
    [fd00:ec2::254] [fdff::1] [fe80::1] [febf::1] [fec0::1] [feff::1] [ff02::1] [ff0e::1] [200::1] [4000::1]
    [2606:4700::5efe:7f00:1] [2606:4700::200:5efe:a9fe:a9fe]
    localhost localhost. LOCALHOST sub.localhost metadata.google.internal 127.0.0.1.nip.io xn--ls8h.example";

const PUBLIC: &str = "
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 169.253.0.1 172.15.0.1
    172.32.0.1 192.0.1.1 192.167.0.1 192.169.0.1 198.17.0.1 198.20.0.1 223.255.255.255 134744072 0x08.0x08.0x08.0x08
    [2606:4700:4700::1111] [2001:4860:4860::8888] [2a00:1450:4001::1] [2003::1] [::ffff:8.8.8.8] [2606:4700::5eff:7f00:1]";

fn hosts(list: &str) -> impl Iterator<Item = Url> {
    list.split_whitespace().map(|host| Url::parse(&format!("http://{host}/hook?token=s3cret")).unwrap())
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_however_they_are_spelled() {
    let loopback = Script::new(&[&["127.0.0.1", "::1", "::ffff:127.0.0.1"]]);
    let egress = Egress::with_resolver(&EgressSettings::default(), loopback).unwrap();
    assert!(hosts(CLOSED).count() >= 60);
    for url in hosts(CLOSED) {
        let failure = failed(&egress, get(url.as_str())).await;
        assert_eq!((failure.phase, failure.code), (Phase::Refused, "blocked_address"), "{url}");
        assert!(!failure.reached_wire());
        // A literal address is refused when the provider is saved, before anything is sent.
        let saved = egress.check_url(&url);
        assert_eq!(saved.is_err(), url.domain().is_none(), "{url}");
    }
}

#[test]
fn public_addresses_pass() {
    let egress = Egress::new(&EgressSettings::default()).unwrap();
    for url in hosts(PUBLIC) {
        assert_eq!(egress.check_url(&url), Ok(()), "{url}");
    }
    assert_eq!(forbidden("8.8.8.8".parse().unwrap()), None);
    assert_eq!(forbidden("::ffff:169.254.169.254".parse().unwrap()), Some("link-local or cloud metadata"));
}

#[test]
fn urls_that_cannot_be_called_are_refused_without_repeating_them() {
    let egress = egress();
    let long = format!("http://example.com/{}", "s3cret".repeat(12_000));
    let bad = [
        "ftp://example.com/s3cret",
        "file:///s3cret",
        "mailto:s3cret@example.com",
        "data:,s3cret",
        "https://s3cret@example.com/",
        "https://:s3cret@example.com/",
        "https://example.com:0/s3cret",
        &long,
    ];
    for url in bad {
        let failure = egress.check_url(&Url::parse(url).unwrap()).unwrap_err();
        assert_eq!((failure.phase, failure.code, failure.bytes_written), (Phase::Refused, "bad_url", 0), "{url}");
        assert!(!failure.to_string().contains("s3cret"), "{failure}");
    }
    let fine = format!("https://example.com:8443/{}?q=a|b^`{{}}#part", "p".repeat(8192));
    assert_eq!(egress.check_url(&Url::parse(&fine).unwrap()), Ok(()));
}

#[tokio::test]
async fn opening_a_range_opens_that_range_only() {
    let peer = Peer::answering(OK).await;
    let opened = Egress::new(&open(&["127.0.0.0/8"])).unwrap();
    assert_eq!(answered(&opened, get(&peer.url())).await.status, 200);
    let mapped = format!("http://[::ffff:127.0.0.1]:{}/", peer.port);
    assert_eq!(answered(&opened, get(&mapped)).await.status, 200);
    for url in ["http://10.0.0.1/", "http://[::1]/", "http://[::127.0.0.1]/"] {
        assert_eq!(failed(&opened, get(url)).await.code, "blocked_address", "{url}");
    }
    let other = Egress::new(&open(&["127.0.0.2/32"])).unwrap();
    assert_eq!(failed(&other, get(&peer.url())).await.code, "blocked_address");
}

/// 127.0.0.2 is allowed and stands for a public address, 127.0.0.1 for a private one. The private one listens on the
/// same port and must never see a connection.
async fn public_and_private() -> (Peer, TcpListener) {
    let private = TcpListener::bind("127.0.0.1:0").unwrap();
    private.set_nonblocking(true).unwrap();
    let public = format!("127.0.0.2:{}", private.local_addr().unwrap().port());
    (Peer::at(&public, |stream| answer_all(stream, Arc::new(OK.into()))).await, private)
}

fn never_connected(listener: &TcpListener) -> bool {
    listener.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn a_name_that_is_rebound_to_a_private_address_is_never_connected() {
    let (public, private) = public_and_private().await;
    let names = Script::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let egress = Egress::with_resolver(&open(&["127.0.0.2/32"]), names.clone()).unwrap();
    let mut call = get(&format!("http://rebound.example:{}/", public.port));
    call.fresh = true;
    assert_eq!(answered(&egress, call.clone()).await.status, 200);
    assert_eq!(names.asked.load(Ordering::SeqCst), 1, "checked and connected by the same answer");
    let failure = failed(&egress, call).await;
    assert_eq!((failure.phase, failure.code), (Phase::Refused, "blocked_address"));
    assert_eq!(names.asked.load(Ordering::SeqCst), 2);
    assert!(never_connected(&private));
}

#[tokio::test]
async fn of_mixed_dns_answers_only_public_addresses_are_connected() {
    let (public, private) = public_and_private().await;
    let mixed = ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.2", "10.0.0.1"];
    let egress = Egress::with_resolver(&open(&["127.0.0.2/32"]), Script::new(&[&mixed])).unwrap();
    let url = format!("http://mixed.example:{}/", public.port);
    assert_eq!(answered(&egress, get(&url)).await.status, 200);
    assert_eq!(public.accepted(), 1);
    assert!(never_connected(&private));
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_does_not_answer() {
    let peer = Peer::answering(OK).await;
    let names = Script::new(&[&["127.0.0.9", "127.0.0.1"]]);
    let egress = Egress::with_resolver(&open(&["127.0.0.0/8"]), names).unwrap();
    assert_eq!(answered(&egress, get(&format!("http://two.example:{}/", peer.port))).await.status, 200);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest/\r\ncontent-length: 0\r\n\r\n";
    let peer = Peer::answering(redirect).await;
    let answer = answered(&egress(), get(&peer.url())).await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.headers["location"], "http://169.254.169.254/latest/");
    assert_eq!(peer.accepted(), 1);
}

/// A resolver that never answers.
struct Silent;

impl Resolver for Silent {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolved<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_fails_before_anything_is_sent() {
    let settings = EgressSettings::default();
    let unknown: Arc<dyn Resolver> = Script::new(&[]);
    let empty: Arc<dyn Resolver> = Script::new(&[&[]]);
    for (resolver, code) in [(unknown, "dns"), (empty, "dns"), (Arc::new(Silent), "timeout")] {
        let egress = Egress::with_resolver(&settings, resolver).unwrap();
        let failure = failed(&egress, brief(get("http://unknown.example/hook?token=s3cret"))).await;
        assert_eq!((failure.phase, failure.code, failure.bytes_written), (Phase::Resolve, code, 0));
    }
}

#[test]
fn settings_out_of_range_are_named() {
    for seconds in [0, 61] {
        let settings = EgressSettings { connect_timeout_s: seconds, ..EgressSettings::default() };
        let problem = settings.validate().unwrap_err();
        assert_eq!(problem, format!("egress.connect_timeout_s: is {seconds}; 1 to 60 are allowed"));
        assert_eq!(Egress::new(&settings).unwrap_err().to_string(), problem);
    }
    assert!(open(&["::ffff:10.0.0.0/104"]).validate().unwrap_err().contains("egress.allow"));
    assert_eq!(open(&["10.0.0.0/8", "fd00::/8"]).validate(), Ok(()));
}
