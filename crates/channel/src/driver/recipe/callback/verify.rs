//! Verifies that a callback comes from the provider. Signatures are checked over the raw bytes, and texts are compared
//! in constant time.

use ::http::HeaderName;
use ::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use minijinja::Value;
use ring::{hmac, signature};
use serde::Deserialize;
use serde_json::Value as Json;
use subtle::ConstantTimeEq;
use url::{Url, form_urlencoded};

use super::super::expression::{Expression, Names};
use super::as_json;
use crate::driver::callback::{CallbackRequest, Trust};
use crate::driver::webhook::sign;

/// The default of `window_s`: the maximum number of seconds between the time of a signature and the current time.
const WINDOW_S: u64 = 300;
/// The beginning of a P-256 public key in DER (SubjectPublicKeyInfo). The point follows it.
const P256_DER: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The section `[callback.verify]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(in super::super) enum VerifyText {
    Hmac {
        secret: String,
        headers: Vec<String>,
        #[serde(default)]
        algorithm: Algorithm,
        #[serde(default)]
        encoding: Encoding,
        #[serde(default)]
        prefix: String,
        signed: Option<Vec<String>>,
        timestamp: Option<String>,
        window_s: Option<u64>,
    },
    Twilio {
        secret: String,
        url: Option<String>,
    },
    Mailgun {
        secret: String,
        window_s: Option<u64>,
    },
    Basic {
        user: String,
        password: String,
    },
    Bearer {
        secret: String,
    },
    Header {
        header: String,
        secret: String,
    },
    StandardWebhooks {
        secret: String,
        window_s: Option<u64>,
    },
    EcdsaP256 {
        key: String,
        signature: String,
        timestamp: String,
        window_s: Option<u64>,
    },
    Rsa {
        keys: String,
        header: String,
    },
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Algorithm {
    Sha1,
    #[default]
    Sha256,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Encoding {
    #[default]
    Hex,
    Base64,
}

/// A part of the text that the HMAC signs.
#[derive(Debug)]
enum Piece {
    Body,
    Header(HeaderName),
    Literal(String),
}

/// The compiled section `[callback.verify]`.
#[derive(Debug)]
pub(super) struct Verify {
    /// The secret or the public key for the verification. If it has no value, the token in the URL is the only proof.
    proof: Option<Expression>,
    how: How,
}

#[derive(Debug)]
enum How {
    TokenAlone,
    Hmac {
        headers: Vec<HeaderName>,
        algorithm: Algorithm,
        encoding: Encoding,
        prefix: String,
        signed: Vec<Piece>,
        timestamp: Option<(HeaderName, u64)>,
    },
    Twilio {
        url: Option<Expression>,
    },
    Mailgun {
        window_s: u64,
    },
    Basic {
        user: Expression,
    },
    Bearer,
    Header(HeaderName),
    StandardWebhooks {
        window_s: u64,
    },
    EcdsaP256 {
        signature: HeaderName,
        timestamp: HeaderName,
        window_s: u64,
    },
    Rsa {
        header: HeaderName,
    },
}

impl Verify {
    pub(super) fn new(text: Option<VerifyText>, settings: &[String], secrets: &[String]) -> Result<Self, String> {
        let names = Names {
            roots: &["secret", "settings"],
            settings: settings.to_vec(),
            secrets: secrets.to_vec(),
            data: vec![],
        };
        let compile = |name: &str, text: &str| {
            Expression::new(text, &names).map_err(|problem| format!("callback.verify.{name}: {problem}"))
        };
        let Some(text) = text else { return Ok(Self { proof: None, how: How::TokenAlone }) };
        let (name, proof, how) = match text {
            VerifyText::Hmac { secret, headers, algorithm, encoding, prefix, signed, timestamp, window_s } => {
                let headers = headers.iter().map(|text| header("headers", text)).collect::<Result<Vec<_>, _>>()?;
                if headers.is_empty() {
                    return Err("callback.verify.headers: is empty; name the header of the signature".into());
                }
                let timestamp =
                    timestamp.map(|text| Ok::<_, String>((header("timestamp", &text)?, window_s.unwrap_or(WINDOW_S))));
                let signed = signed.unwrap_or_else(|| vec!["body".into()]);
                let signed = signed.iter().map(|text| piece(text)).collect::<Result<Vec<_>, _>>()?;
                let timestamp = timestamp.transpose()?;
                if !signed.iter().any(|piece| matches!(piece, Piece::Body)) {
                    return Err("callback.verify.signed: has no \"body\", so that any body would be accepted".into());
                }
                ("secret", secret, How::Hmac { headers, algorithm, encoding, prefix, signed, timestamp })
            }
            VerifyText::Twilio { secret, url } => {
                ("secret", secret, How::Twilio { url: url.map(|url| compile("url", &url)).transpose()? })
            }
            VerifyText::Mailgun { secret, window_s } => {
                ("secret", secret, How::Mailgun { window_s: window_s.unwrap_or(WINDOW_S) })
            }
            VerifyText::Basic { user, password } => {
                ("password", password, How::Basic { user: compile("user", &user)? })
            }
            VerifyText::Bearer { secret } => ("secret", secret, How::Bearer),
            VerifyText::Header { header: name, secret } => ("secret", secret, How::Header(header("header", &name)?)),
            VerifyText::StandardWebhooks { secret, window_s } => {
                ("secret", secret, How::StandardWebhooks { window_s: window_s.unwrap_or(WINDOW_S) })
            }
            VerifyText::EcdsaP256 { key, signature, timestamp, window_s } => {
                let (signature, timestamp) = (header("signature", &signature)?, header("timestamp", &timestamp)?);
                ("key", key, How::EcdsaP256 { signature, timestamp, window_s: window_s.unwrap_or(WINDOW_S) })
            }
            VerifyText::Rsa { keys, header: name } => ("keys", keys, How::Rsa { header: header("header", &name)? }),
        };
        Ok(Self { proof: Some(compile(name, &proof)?), how })
    }

    /// How callbacks are verified with these settings and secrets.
    pub(super) fn trust(&self, own: &Value) -> Trust {
        match &self.proof {
            None => Trust::TokenAlone,
            Some(proof) if as_json(proof, own).is_some() => Trust::Verified,
            Some(_) => Trust::TokenUntilSet,
        }
    }

    /// Checks the proof in the headers.
    pub(super) fn check(&self, request: &CallbackRequest<'_>, own: &Value) -> Result<(), String> {
        let Some(proof) = self.proof.as_ref().and_then(|proof| as_json(proof, own)) else { return Ok(()) };
        let secret = proof.as_str().unwrap_or_default().as_bytes();
        match &self.how {
            How::TokenAlone | How::Mailgun { .. } => Ok(()),
            How::Hmac { headers, algorithm, encoding, prefix, signed, timestamp } => {
                if let Some((name, window_s)) = timestamp {
                    in_window(text(request, name), *window_s, request)?;
                }
                let given = headers.iter().map(|name| text(request, name)).find(|text| !text.is_empty());
                let given = given.ok_or_else(|| format!("the header {} is missing", headers[0]))?;
                let given = given.strip_prefix(prefix.as_str()).and_then(|text| encoding.decode(text));
                let key = hmac::Key::new(algorithm.hmac(), secret);
                is_valid(given.is_some_and(|given| hmac::verify(&key, &joined(signed, request), &given).is_ok()))
            }
            How::Twilio { url } => check_twilio(request, secret, url.as_ref().and_then(|url| as_json(url, own))),
            How::Basic { user } => {
                let user = as_json(user, own).and_then(|user| user.as_str().map(str::to_owned)).unwrap_or_default();
                let wanted = [user.as_bytes(), b":", secret].concat();
                let given = text(request, &AUTHORIZATION).strip_prefix("Basic ");
                let given = given.and_then(|text| STANDARD.decode(text.trim()).ok()).unwrap_or_default();
                is_credential(bool::from(wanted.ct_eq(&given)))
            }
            How::Bearer => {
                let given = text(request, &AUTHORIZATION).strip_prefix("Bearer ").unwrap_or_default();
                is_credential(bool::from(secret.ct_eq(given.trim().as_bytes())))
            }
            How::Header(name) => is_credential(bool::from(secret.ct_eq(text(request, name).as_bytes()))),
            How::StandardWebhooks { window_s } => check_standard_webhooks(request, secret, *window_s),
            How::EcdsaP256 { signature, timestamp, window_s } => {
                let at = text(request, timestamp);
                in_window(at, *window_s, request)?;
                let key = STANDARD.decode(secret).unwrap_or_default();
                let point = key.strip_prefix(&P256_DER).ok_or("the public key of the provider is not a P-256 key")?;
                let given = STANDARD.decode(text(request, signature)).unwrap_or_default();
                let key = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_ASN1, point);
                is_valid(key.verify(&[at.as_bytes(), request.body].concat(), &given).is_ok())
            }
            How::Rsa { header } => {
                check_rsa(request, &proof, &STANDARD.decode(text(request, header)).unwrap_or_default())
            }
        }
    }

    /// Checks a proof that is in the body.
    pub(super) fn check_body(&self, body: &Json, request: &CallbackRequest<'_>, own: &Value) -> Result<(), String> {
        let (How::Mailgun { window_s }, Some(proof)) = (&self.how, &self.proof) else { return Ok(()) };
        let Some(secret) = as_json(proof, own) else { return Ok(()) };
        let part = |name: &str| body["signature"][name].as_str().unwrap_or_default();
        // The timestamp is a text or a number.
        let at = match &body["signature"]["timestamp"] {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        in_window(&at, *window_s, request)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_str().unwrap_or_default().as_bytes());
        let given = Encoding::Hex.decode(part("signature")).unwrap_or_default();
        is_valid(hmac::verify(&key, format!("{at}{}", part("token")).as_bytes(), &given).is_ok())
    }
}

impl Algorithm {
    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
        }
    }
}

impl Encoding {
    fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Base64 => STANDARD.decode(text).ok(),
            Self::Hex => {
                let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
                is_hex.then(|| (0..text.len()).step_by(2).map(byte).collect()).flatten()
            }
        }
    }
}

/// Whether two texts are equal, in constant time.
pub(super) fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn is_valid(valid: bool) -> Result<(), String> {
    if valid { Ok(()) } else { Err("the signature is wrong; check the key that verifies callbacks".into()) }
}

fn is_credential(valid: bool) -> Result<(), String> {
    if valid { Ok(()) } else { Err("the credential is missing or wrong; set it again at the provider".into()) }
}

fn header(place: &str, text: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(text).map_err(|_| format!("callback.verify.{place}: {text:?} is not the name of a header"))
}

fn piece(text: &str) -> Result<Piece, String> {
    Ok(match text.strip_prefix("header:") {
        Some(name) => Piece::Header(header("signed", name)?),
        None if text == "body" => Piece::Body,
        None => Piece::Literal(text.to_owned()),
    })
}

fn text<'r>(request: &CallbackRequest<'r>, name: &HeaderName) -> &'r str {
    request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim()
}

fn joined(signed: &[Piece], request: &CallbackRequest<'_>) -> Vec<u8> {
    let mut bytes = vec![];
    for piece in signed {
        bytes.extend_from_slice(match piece {
            Piece::Body => request.body,
            Piece::Header(name) => text(request, name).as_bytes(),
            Piece::Literal(text) => text.as_bytes(),
        });
    }
    bytes
}

/// Refuses a callback whose signature is too old or in the future, because it may be a copy of an earlier callback.
fn in_window(at: &str, window_s: u64, request: &CallbackRequest<'_>) -> Result<(), String> {
    let at: i64 = at.parse().map_err(|_| "the time of the signature is missing or is not a number".to_owned())?;
    let now = request.now.as_micros() / 1_000_000;
    match now.saturating_sub(at).unsigned_abs() {
        apart if apart > window_s => Err(format!(
            "the signature is {apart} seconds from the server's time; at most {window_s} are allowed. Check the clock of the server"
        )),
        _ => Ok(()),
    }
}

fn check_standard_webhooks(request: &CallbackRequest<'_>, secret: &[u8], window_s: u64) -> Result<(), String> {
    let header = |name: &str| {
        let names = [format!("webhook-{name}"), format!("svix-{name}")];
        let value = names.iter().find_map(|name| request.headers.get(name)).and_then(|value| value.to_str().ok());
        value.ok_or_else(|| format!("the header webhook-{name} or svix-{name} is missing"))
    };
    let (id, at, given) = (header("id")?, header("timestamp")?, header("signature")?);
    in_window(at, window_s, request)?;
    let key = secret.strip_prefix(b"whsec_").unwrap_or(secret);
    let key = STANDARD.decode(key).map_err(|_| "the webhook secret is not base64 after whsec_".to_owned())?;
    let wanted = sign(&[key], id, at.parse().unwrap_or_default(), request.body);
    // The search ends at the first match, so its duration tells which of several signatures matched. That is no secret.
    is_valid(!wanted.is_empty() && given.split_whitespace().any(|given| is_equal(given, &wanted)))
}

/// Twilio signs the URL that it was given, followed by the sorted fields of the form. The signed URL may contain the
/// standard port or not.
fn check_twilio(request: &CallbackRequest<'_>, secret: &[u8], told: Option<Json>) -> Result<(), String> {
    let signature: HeaderName = HeaderName::from_static("x-twilio-signature");
    let given = STANDARD.decode(text(request, &signature)).unwrap_or_default();
    let mut fields: Vec<(String, String)> = form_urlencoded::parse(request.body).into_owned().collect();
    fields.sort();
    fields.dedup();
    let fields: String = fields.into_iter().map(|(name, value)| name + &value).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    let told = told.as_ref().and_then(Json::as_str).map(|url| url.split(['?', '#']).next().unwrap_or_default());
    let is_signed = |url: &str| {
        let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
        with_and_without_port(url)
            .iter()
            .any(|url| hmac::verify(&key, format!("{url}{query}{fields}").as_bytes(), &given).is_ok())
    };
    let is_signed = [Some(request.url), told].into_iter().flatten().any(is_signed);
    is_signed.then_some(()).ok_or_else(|| {
        "the signature is not Twilio's for this URL; the setting api.public_url or status_callback must be the URL that Twilio calls".into()
    })
}

fn with_and_without_port(url: &str) -> Vec<String> {
    let mut all = vec![url.to_owned()];
    if let Ok(parsed) = Url::parse(url)
        && let (Some(host), Some(port)) = (parsed.host_str(), parsed.port_or_known_default())
    {
        let (scheme, path) = (parsed.scheme(), parsed.path());
        all.extend([format!("{scheme}://{host}:{port}{path}"), format!("{scheme}://{host}{path}")]);
    }
    all
}

/// Verifies with each RSA key of a JWK set, or with one JWK.
fn check_rsa(request: &CallbackRequest<'_>, keys: &Json, given: &[u8]) -> Result<(), String> {
    let all = keys["keys"].as_array().map_or_else(|| std::slice::from_ref(keys), Vec::as_slice);
    let number = |key: &Json, name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?.trim_end_matches('=')).ok();
    let is_signed = |key: &Json| {
        let (Some(n), Some(e)) = (number(key, "n"), number(key, "e")) else { return false };
        // Postal generated keys of 1,024 bits for a long time, so such keys are accepted.
        let scheme = &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY;
        signature::RsaPublicKeyComponents { n, e }.verify(scheme, request.body, given).is_ok()
    };
    is_valid(all.iter().any(is_signed))
}
