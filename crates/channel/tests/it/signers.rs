//! The signers of recipes: what they put into requests, and what happens if they cannot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use postcommit_channel::driver::{self, Driver, Kind};
use postcommit_channel::model::Report;
use postcommit_testkit::http::{HttpServer, Reply, Request};
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::recipes::{Example, RSA_KEY, example, outcome, provider, scripted, send, with_message, word};

const DEVICE: &str = "cXb7:APA91bExampleToken";
const LONG: Duration = Duration::from_secs(10);

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Signs a request as AWS would to check it, from nothing but what arrived.
fn verified(request: &Request, secret: &str) -> bool {
    let authorization = request.header("authorization").unwrap();
    let part = |name: &str| {
        let after = authorization.split(name).nth(1).unwrap();
        after.split(',').next().unwrap().trim().to_owned()
    };
    let (credential, names, signature) = (part("Credential="), part("SignedHeaders="), part("Signature="));
    let scope: Vec<&str> = credential.split('/').skip(1).collect();
    let headers: String = names.split(';').map(|name| format!("{name}:{}\n", request.header(name).unwrap())).collect();
    let hash = hex(Sha256::digest(&request.body));
    let canonical = format!("{}\n{}\n\n{headers}\n{names}\n{hash}", request.method, request.path);
    let date = request.header("x-amz-date").unwrap();
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{}\n{}", scope.join("/"), hex(Sha256::digest(canonical)));
    let key = scope.iter().fold(format!("AWS4{secret}").into_bytes(), |key, part| hmac(&key, part));
    date.starts_with(scope[0]) && hex(hmac(&key, &text)) == signature
}

#[tokio::test]
async fn the_signature_of_aws_fits_the_request_that_arrives() {
    for (name, to) in [("ses", "ann@guest.example"), ("sns", "+919876543210")] {
        let (server, _) = scripted();
        let (kind, example) = (driver::kind(name).unwrap(), example(name, &server.url("")));
        let driver = provider(&kind, &example, kind.guarantee);
        send(&*driver, &kind.channel, &word(to), LONG).await;
        let request = server.requests().pop().unwrap();
        assert!(verified(&request, &example.secrets["secret_access_key"]), "{name}: {request}");
        let mut forged = request.clone();
        forged.body.push(b'x');
        assert!(!verified(&forged, &example.secrets["secret_access_key"]), "{name}");
    }
}

/// A provider of FCM whose token service answers as `tokens` says.
fn push(tokens: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Push {
    let (server, next) = scripted();
    *next.lock().unwrap() = Reply::json(200, json!({"name": "projects/hotel/messages/1"}));
    let tokens = HttpServer::start(tokens);
    let kind = driver::kind("fcm").unwrap();
    let mut example: Example = example("fcm", &server.url(""));
    example.settings.insert("token_url".into(), tokens.url("/token").into());
    let driver = provider(&kind, &example, kind.guarantee);
    Push { server, next, tokens, kind, driver }
}

struct Push {
    server: HttpServer,
    next: Arc<Mutex<Reply>>,
    tokens: HttpServer,
    kind: Arc<Kind>,
    driver: Box<dyn Driver>,
}

impl Push {
    async fn send(&self, timeout: Duration) -> Report {
        send(&*self.driver, &self.kind.channel, &word(DEVICE), timeout).await
    }

    /// The headers `Authorization` of the messages that arrived.
    fn bearers(&self) -> Vec<String> {
        let of = |request: &Request| request.header("authorization").unwrap_or_default().to_owned();
        self.server.requests().iter().map(of).collect()
    }
}

/// A token with the number of the request, and a life in seconds.
fn numbered(life: u64) -> impl Fn(&Request) -> Reply {
    move |request| Reply::json(200, json!({"access_token": format!("ya29.{}", request.n), "expires_in": life}))
}

#[tokio::test]
async fn concurrent_messages_share_one_token_of_google() {
    let push = push(|request| {
        assert_eq!(request.n, 1, "a second token was fetched");
        numbered(3599)(request).slow()
    });
    let all = async { tokio::join!(push.send(LONG), push.send(LONG), push.send(LONG), push.send(LONG)) };
    let release = async {
        push.tokens.wait_for(1).await;
        push.tokens.release();
    };
    let ((a, b, c, d), ()) = tokio::join!(all, release);
    assert!([a, b, c, d].iter().all(|report| outcome(report) == "sent"));
    assert_eq!(push.bearers(), ["Bearer ya29.1"; 4]);
    let request = &push.tokens.requests()[0];
    let fields: Vec<(String, String)> = url::form_urlencoded::parse(&request.body).into_owned().collect();
    assert_eq!(fields[0], ("grant_type".into(), "urn:ietf:params:oauth:grant-type:jwt-bearer".into()));
    let (text, signature) = fields[1].1.rsplit_once('.').unwrap();
    let part = |n: usize| -> Value {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text.split('.').nth(n).unwrap()).unwrap()).unwrap()
    };
    assert_eq!(part(0), json!({"alg": "RS256", "typ": "JWT", "kid": "k1"}));
    let claims = part(1);
    assert_eq!(claims["iss"], "push@hotel.iam.gserviceaccount.com");
    assert_eq!(claims["scope"], "https://www.googleapis.com/auth/firebase.messaging");
    assert_eq!(claims["aud"].as_str(), Some(push.tokens.url("/token").as_str()));
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
    let pem: String = RSA_KEY.lines().filter(|line| !line.starts_with('-')).collect();
    let der = base64::engine::general_purpose::STANDARD.decode(pem).unwrap();
    let key = RsaKeyPair::from_pkcs8(&der).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key().as_ref());
    public.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
}

#[tokio::test]
async fn a_token_is_not_used_in_its_last_five_minutes() {
    for (life, wanted) in [(900, ["Bearer ya29.1"; 2]), (300, ["Bearer ya29.1", "Bearer ya29.2"])] {
        let push = push(numbered(life));
        push.send(LONG).await;
        push.send(LONG).await;
        assert_eq!(push.bearers(), wanted, "{life}");
    }
}

#[tokio::test]
async fn a_refused_token_is_replaced_once() {
    let push = push(numbered(3599));
    assert_eq!(outcome(&push.send(LONG).await), "sent");
    *push.next.lock().unwrap() = Reply::json(401, json!({"error": {"status": "UNAUTHENTICATED"}}));
    let report = push.send(LONG).await;
    assert_eq!((outcome(&report), report.class().unwrap().name()), ("config", "auth_failed"), "{report:?}");
    assert_eq!(push.bearers(), ["Bearer ya29.1", "Bearer ya29.1", "Bearer ya29.2"]);
}

#[tokio::test]
async fn without_a_token_the_message_is_certainly_not_sent() {
    let grant = json!({"error": "invalid_grant", "error_description": "Invalid JWT Signature."});
    for (reply, wanted, class, code) in [
        (Reply::json(400, grant), "config", "auth_failed", "invalid_grant"),
        (Reply::json(401, json!({"error": "invalid_client"})), "config", "auth_failed", "invalid_client"),
        (Reply::status(404), "config", "config", "http_404"),
        (Reply::RedirectTo("http://127.0.0.1:1/".into()), "config", "config", "http_307"),
        (Reply::status(429).with_header("retry-after", "30"), "deferred", "rate_limited", "http_429"),
        (Reply::status(500), "deferred", "server_error", "http_500"),
        (Reply::json(503, json!({"error": "backend_error"})), "deferred", "server_error", "backend_error"),
        (Reply::ok().with_body("<html>"), "deferred", "server_error", "bad_token"),
        (Reply::json(200, json!({"access_token": "a\nb", "expires_in": 9})), "deferred", "server_error", "bad_token"),
        (Reply::Close, "deferred", "network", "closed"),
    ] {
        let given = reply.clone();
        let push = push(move |_| given.clone());
        let report = push.send(LONG).await;
        let got = (outcome(&report), report.class().unwrap().name(), report.outcome.code().unwrap());
        assert_eq!(got, (wanted, class, code), "{reply:?}: {report:?}");
        assert!(report.evidence.detail.as_ref().is_some_and(|text| text.contains("nothing was sent")), "{report:?}");
        assert_eq!(push.server.requests().len(), 0, "{reply:?}");
        assert_eq!(report.after, (code == "http_429").then_some(Duration::from_secs(30)), "{reply:?}");
    }
    let push = push(|_| Reply::ok().slow());
    let report = push.send(Duration::from_millis(200)).await;
    assert_eq!(
        (outcome(&report), report.outcome.code(), push.server.requests().len()),
        ("deferred", Some("timeout"), 0)
    );
    push.tokens.release();
}

#[tokio::test]
async fn no_secret_of_a_signer_is_shown_or_kept() {
    let push = push(|request| Reply::json(400, json!({"error": String::from_utf8_lossy(&request.body)})));
    let report = push.send(LONG).await;
    let body = String::from_utf8(push.tokens.requests()[0].body.clone()).unwrap();
    let jwt = body.rsplit('=').next().unwrap();
    assert!(!format!("{report:?}").contains(&jwt[..40]), "{report:?}");
    let private = RSA_KEY.lines().nth(3).unwrap();
    for (name, to) in [("ses", "ann@guest.example"), ("sns", "+919876543210"), ("fcm", DEVICE)] {
        let echo = move |request: &Request| {
            let values: Vec<&str> = request.headers.iter().map(|(_, value)| value.as_str()).collect();
            Reply::status(400).with_body(format!("{} {}", values.join(" "), if name == "fcm" { private } else { "" }))
        };
        let server = HttpServer::start(echo);
        let (kind, example) = (driver::kind(name).unwrap(), example(name, &server.url("")));
        let driver = provider(&kind, &example, kind.guarantee);
        let shown = with_message(&kind.channel, &word(to), LONG, async |message| driver.shown_request(&message)).await;
        let shown = shown.unwrap();
        assert!(shown.contains("authorization: [redacted]"), "{shown}");
        let kept = format!("{:?}", send(&*driver, &kind.channel, &word(to), LONG).await.evidence);
        let request = server.requests().pop().unwrap();
        let token = request.header("authorization").unwrap().rsplit([' ', '=']).next().unwrap();
        let secrets = example.secrets.values().map(String::as_str).filter(|text| !text.starts_with('{'));
        for secret in secrets.chain([token, private]) {
            assert!(!shown.contains(secret) && !kept.contains(secret), "{name}: {secret} in {shown} or {kept}");
        }
    }
}

#[test]
fn the_address_of_the_token_service_decides_where_the_secret_goes() {
    let routes = &driver::kind("fcm").unwrap().secret_routes;
    assert!(["base_url", "token_url"].iter().all(|name| routes.iter().any(|route| route == name)), "{routes:?}");
}

/// A setting that is not of the type `url` decides it as well, if the name of the server is made of it.
#[test]
fn what_the_name_of_the_server_is_made_of_decides_where_the_secret_goes() {
    let routes = |url: &str| {
        let settings =
            ["base", "host", "region", "account"].map(|name| format!("[settings.{name}]\nhelp = 'x'\n")).concat();
        let text = format!(
            "name = 'own'\ntitle = 'Own'\nchannel = 'own'\naddress = 'x'\nguarantee = 'at_least_once'\n\
             because = 'x'\nsuccess.when = 'status == 200'\n{settings}[secrets.k]\nhelp = 'x'\n[request]\nurl = \"{url}\"\n\
             bearer = '{{{{ secret.k }}}}'"
        );
        driver::Recipe::read(&text).unwrap().into_kind().secret_routes
    };
    assert_eq!(routes("{{ settings.base }}/x/{{ settings.account }}"), ["base"]);
    assert_eq!(routes("https://{{ settings.host }}/{{ settings.account }}"), ["host"]);
    assert_eq!(routes("https://api.{{ settings.region or 'a/b' }}.example:443/{{ settings.account }}"), ["region"]);
    // Other spellings of the same expression.
    for base in ["settings .base", "(settings).base", "settings. base"] {
        assert_eq!(routes(&format!("{{{{ {base} }}}}/x/{{{{ settings.account }}}}")), ["base"], "{base}");
    }
    assert!(routes("https://api.example/{{ settings.account }}").is_empty());
}

#[test]
fn a_recipe_that_signs_wrongly_is_refused_with_its_line() {
    let recipe = |sign: &str| {
        let text = format!(
            "name = 'own'\ntitle = 'Own'\nchannel = 'own'\naddress = 'x'\nguarantee = 'at_least_once'\n\
             because = 'x'\nsuccess.when = 'status == 200'\n[secrets.k]\nhelp = 'x'\n[request]\nurl = 'https://a.example'\n{sign}"
        );
        driver::Recipe::read(&text).err().unwrap_or_default()
    };
    let whole = "service = 'sns'\nregion = 'r'\naccess_key_id = 'a'\nsecret_access_key = '{{ secret.k }}'\n";
    for (sign, wanted) in [
        (
            "[request.sign]\nregion = 'r'\n".to_owned(),
            "line 12: request.sign.by: is missing; allowed are google_jwt, sigv4",
        ),
        ("[request.sign]\nby = 'sigv5'\n".to_owned(), "line 13: request.sign.by: \"sigv5\" is not known"),
        ("[request.sign]\nby = 'sigv4'\n".to_owned(), "line 12: request.sign.service: is missing; sigv4 needs it"),
        (
            format!("[request.sign]\nby = 'sigv4'\n{whole}regoin = 'r'\n"),
            "line 18: request.sign.regoin: is not known; sigv4 takes",
        ),
        (
            format!("[request.sign]\nby = 'sigv4'\n{whole}session_token = '{{{{ to }}}}'\n"),
            "line 18: request.sign.session_token: \"to\" does not exist here",
        ),
        (
            format!("bearer = 'x'\n[request.sign]\nby = 'sigv4'\n{whole}"),
            "line 13: request.sign: cannot be used together",
        ),
        (
            format!("headers.Authorization = 'x'\n[request.sign]\nby = 'sigv4'\n{whole}"),
            "line 12: request.headers.Authorization: is set by postcommit",
        ),
    ] {
        let problem = recipe(&sign);
        assert!(problem.starts_with(wanted), "{sign}: {problem}");
    }
    assert_eq!(recipe(&format!("[request.sign]\nby = 'sigv4'\n{whole}")), "");
}
