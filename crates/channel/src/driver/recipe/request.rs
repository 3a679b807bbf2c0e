//! Builds the request of a message.

use std::collections::BTreeMap;

use ::http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use minijinja::Value;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use url::Url;

use super::Refusal;
use super::expression::{Expression, Names, Piece, Text, shown};
use super::sign::{SignForm, SignText, Signer};
use super::tree::{Table, Tree};
use crate::driver::webhook::{AGENT, RESERVED};
use crate::model::ErrorClass;

/// The characters of a value that are encoded in a URL.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestText {
    #[serde(default = "post")]
    method: String,
    pub(super) url: String,
    #[serde(default)]
    query: Map<String, Json>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    basic: Option<[String; 2]>,
    bearer: Option<String>,
    sign: Option<SignText>,
    json: Option<Json>,
    form: Option<Map<String, Json>>,
    multipart: Option<Map<String, Json>>,
    request_bytes: Option<usize>,
    #[serde(default)]
    pub(super) mail: bool,
}

impl RequestText {
    /// Whether the body contains the channel data as a whole.
    pub(super) fn reads_all_data(&self) -> bool {
        let tables = [&self.form, &self.multipart].into_iter().flatten().map(|table| Json::Object(table.clone()));
        tables.chain(self.json.clone()).any(|body| {
            let text: String = body.to_string().split_whitespace().collect();
            text.contains("{{data}}") || text.contains("{{data|")
        })
    }
}

fn post() -> String {
    "POST".into()
}

/// The compiled request of a recipe.
#[derive(Debug)]
pub(super) struct RequestForm {
    method: Method,
    url: Text,
    query: Table,
    headers: Vec<(HeaderName, Text)>,
    authorization: Option<Authorization>,
    sign: Option<SignForm>,
    body: Body,
    /// The maximum number of bytes of the body.
    pub(super) request_bytes: Option<usize>,
}

#[derive(Debug)]
enum Authorization {
    Basic(Text, Text),
    Bearer(Text),
}

#[derive(Debug)]
enum Body {
    None,
    Json(Tree),
    Form(Table),
    Multipart(Table),
}

/// A request that is ready to be sent.
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl RequestForm {
    pub(super) fn new(text: &RequestText, names: &Names<'_>) -> Result<Self, String> {
        let method = match text.method.as_str() {
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "GET" => Method::GET,
            other => return Err(format!("request.method: {other:?} is not allowed; use POST, PUT, PATCH or GET")),
        };
        let compile = |path: &str, text: &str| Text::new(text, names).map_err(|problem| format!("{path}: {problem}"));
        let authorization = match (&text.basic, &text.bearer) {
            (Some([user, password]), None) => {
                Some(Authorization::Basic(compile("request.basic[0]", user)?, compile("request.basic[1]", password)?))
            }
            (None, Some(token)) => Some(Authorization::Bearer(compile("request.bearer", token)?)),
            (None, None) => None,
            _ => return Err("request.bearer: cannot be used together with request.basic".into()),
        };
        let sign = text.sign.as_ref().map(|sign| SignForm::new(sign, names)).transpose()?;
        if sign.is_some() && authorization.is_some() {
            return Err("request.sign: cannot be used together with request.basic or request.bearer".into());
        }
        let is_authorized = authorization.is_some() || sign.is_some();
        let body = match (&text.json, &text.form, &text.multipart) {
            (Some(json), None, None) => Body::Json(Tree::new(json, "request.json", names)?),
            (None, Some(form), None) => Body::Form(Table::new(form, "request.form", names)?),
            (None, None, Some(form)) => Body::Multipart(Table::new(form, "request.multipart", names)?),
            (None, None, None) => Body::None,
            _ => return Err("request: has several bodies; use one of json, form and multipart".into()),
        };
        let header = |(name, value): (&String, &String)| {
            let path = format!("request.headers.{name}");
            let header =
                HeaderName::try_from(name.as_str()).map_err(|_| format!("{path}: is not the name of a header"))?;
            let is_key = header == "idempotency-key";
            if (RESERVED.contains(&header.as_str()) && !is_key) || (header == AUTHORIZATION && is_authorized) {
                return Err(format!("{path}: is set by postcommit; remove it from the recipe"));
            }
            Ok((header, compile(&path, value)?))
        };
        if !["http://", "https://", "{{"].iter().any(|start| text.url.trim().starts_with(start)) {
            return Err("request.url: must begin with https:// or with a value, such as {{ settings.base_url }}".into());
        }
        Ok(Self {
            method,
            url: compile("request.url", text.url.trim())?,
            query: Table::new(&text.query, "request.query", names)?,
            headers: text.headers.iter().map(header).collect::<Result<_, String>>()?,
            authorization,
            sign,
            body,
            request_bytes: text.request_bytes,
        })
    }

    /// The settings from which the name of the server, or the URL of the signer's token service, is built.
    pub(super) fn routes(&self) -> Vec<&str> {
        let token_url = self.sign.as_ref().and_then(SignForm::token_url);
        self.url
            .before_path()
            .chain(token_url.into_iter().flat_map(Text::expressions))
            .flat_map(Expression::settings)
            .collect()
    }

    /// Whether an address may be the URL that is called, as a whole or its beginning.
    pub(super) fn has_url_of_recipient(&self) -> bool {
        matches!(self.url.0.first(), Some(Piece::Value(expression)) if expression.reads("to"))
    }

    /// Whether the address alone, of all values of a message, decides which server is called.
    pub(super) fn has_server_of_recipient(&self) -> bool {
        self.url.before_path().any(|expression| expression.reads("to"))
            && self.url.before_path().all(|expression| expression.reads_only(&["secret", "settings", "to"]))
    }

    /// The server that a request to an address calls, as a URL. `context` holds the address, the settings and the
    /// secrets.
    pub(super) fn server(&self, context: &Value) -> Option<Url> {
        let mut url = String::new();
        for piece in self.url.server() {
            match piece {
                Piece::Literal(text) => url.push_str(text),
                Piece::Value(expression) => url.push_str(&shown(&expression.value(context).ok()?)),
            }
        }
        // The literal with the beginning of the path may also have the end of the server's name.
        if let Some(Piece::Literal(text)) = self.url.0.get(self.url.server().len()) {
            url.push_str(text.split('/').next().unwrap_or_default());
        }
        Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
    }

    /// The signer of a provider, if its requests are signed. `context` holds the provider's settings and secrets.
    pub(super) fn signer(&self, context: &Value) -> Result<Option<Signer>, String> {
        self.sign.as_ref().map(|sign| sign.signer(context)).transpose()
    }

    /// Builds the request. It is byte for byte the same on every attempt. The signature is added later, when it is
    /// sent.
    pub(super) fn build(&self, context: &Value, body: Json, boundary: &str) -> Result<Request, Refusal> {
        let url = self.url(context)?;
        let (kind, body) = self.encoded(body, boundary)?;
        if let Some(most) = self.request_bytes.filter(|most| body.len() > *most) {
            return Err(Refusal::too_long(format!("the request has {} bytes; the service takes {most}", body.len())));
        }
        let mut headers = self.headers(context)?;
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, header_value(CONTENT_TYPE.as_str(), &kind)?);
        }
        Ok(Request { method: self.method.clone(), url, headers, body: body.into() })
    }

    fn url(&self, context: &Value) -> Result<Url, Refusal> {
        let text = self.url_text(context)?;
        let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let mut url = url.ok_or_else(|| Refusal {
            code: "bad_url",
            class: if self.url.reads("to") { ErrorClass::InvalidAddress } else { ErrorClass::Config },
            detail: "neither the address nor the provider has an http or https URL; name a URL as address, or set one"
                .into(),
        })?;
        let query = self.query.build(context).map_err(Refusal::content)?.unwrap_or_default();
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs(query).map_err(Refusal::content)?);
        }
        Ok(url)
    }

    /// The text of the URL. Every value in it is percent-encoded, except a value at its beginning.
    fn url_text(&self, context: &Value) -> Result<String, Refusal> {
        // If the whole URL is one value, it is not changed, because a slash at its end has a meaning.
        if let Some(whole) = self.url.only() {
            return whole.value(context).map(|value| shown(&value)).map_err(|problem| blame(whole, problem));
        }
        let mut url = String::new();
        for (place, piece) in self.url.0.iter().enumerate() {
            let expression = match piece {
                Piece::Literal(text) => {
                    url.push_str(text);
                    continue;
                }
                Piece::Value(expression) => expression,
            };
            let value = shown(&expression.value(context).map_err(|problem| blame(expression, problem))?);
            match (place, value.as_str()) {
                (0, _) => url.push_str(value.trim_end_matches('/')),
                (_, "" | "." | "..") => {
                    return Err(blame(expression, format!("{value:?} cannot be a part of the service's URL")));
                }
                (_, value) => url.extend(utf8_percent_encode(value, ENCODED)),
            }
        }
        Ok(url)
    }

    fn headers(&self, context: &Value) -> Result<HeaderMap, Refusal> {
        let mut headers = HeaderMap::new();
        for (name, text) in &self.headers {
            let value = text.render(context).map_err(Refusal::content)?;
            if !value.is_empty() {
                headers.insert(name.clone(), header_value(name.as_str(), &value)?);
            }
        }
        let render = |text: &Text| text.render(context).map_err(Refusal::content);
        let value = match &self.authorization {
            Some(Authorization::Basic(user, password)) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{}:{}", render(user)?, render(password)?))))
            }
            Some(Authorization::Bearer(token)) => {
                Some(render(token)?).filter(|token| !token.is_empty()).map(|token| format!("Bearer {token}"))
            }
            None => None,
        };
        if let Some(value) = value {
            headers.insert(AUTHORIZATION, header_value("authorization", &value)?);
        }
        Ok(headers)
    }

    /// Whether the body may have a field at this path.
    pub(super) fn has_field(&self, path: &[String]) -> bool {
        match &self.body {
            Body::None => false,
            Body::Json(tree) => tree.has(path),
            Body::Form(form) | Body::Multipart(form) => form.has(path),
        }
    }

    /// The body with its values, before it is encoded.
    pub(super) fn body(&self, context: &Value) -> Result<Json, Refusal> {
        let built = match &self.body {
            Body::None => Ok(None),
            Body::Json(tree) => tree.build(context),
            Body::Form(form) | Body::Multipart(form) => form.build(context).map(|fields| fields.map(Json::Object)),
        };
        Ok(built.map_err(Refusal::content)?.unwrap_or_default())
    }

    /// The content type and the bytes of the body.
    fn encoded(&self, body: Json, boundary: &str) -> Result<(Option<String>, Vec<u8>), Refusal> {
        let fields = |body: Json| match body {
            Json::Object(fields) => pairs(fields).map_err(Refusal::content),
            _ => Ok(vec![]),
        };
        Ok(match &self.body {
            Body::None => (None, vec![]),
            Body::Json(_) => (Some("application/json".into()), body.to_string().into_bytes()),
            Body::Form(_) => {
                let encoded = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields(body)?).finish();
                (Some("application/x-www-form-urlencoded".into()), encoded.into_bytes())
            }
            Body::Multipart(_) => {
                let mut bytes = Vec::new();
                for (name, value) in fields(body)? {
                    // The name may come from the channel data, so it must not end the header.
                    let name = name.replace(['\r', '\n', '"'], "_");
                    let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
                    bytes.extend_from_slice(head.as_bytes());
                    bytes.extend_from_slice(value.as_bytes());
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
                (Some(format!("multipart/form-data; boundary={boundary}")), bytes)
            }
        })
    }
}

/// The fields of a form as text. A list becomes several fields of the same name.
fn pairs(fields: Map<String, Json>) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (name, value) in fields {
        let values = match value {
            Json::Array(items) => items,
            other => vec![other],
        };
        for value in values {
            let text = match value {
                Json::String(text) => text,
                Json::Number(number) => number.to_string(),
                Json::Bool(yes) => yes.to_string(),
                Json::Null => continue,
                Json::Array(_) | Json::Object(_) => {
                    return Err(format!("{name}: is a list or an object; it must be a text or a number"));
                }
            };
            pairs.push((name.clone(), text));
        }
    }
    Ok(pairs)
}

/// The refusal of a message whose URL cannot be built. The values that the URL reads show what is wrong: the address,
/// the content, or the provider itself, which would fail every message.
fn blame(expression: &Expression, problem: String) -> Refusal {
    let is_of_message =
        ["action_url", "data", "event", "html", "subject", "text"].iter().any(|root| expression.reads(root));
    match (expression.reads("to"), is_of_message) {
        (true, _) => Refusal { code: "bad_address", class: ErrorClass::InvalidAddress, detail: problem },
        (false, true) => Refusal::content(problem),
        (false, false) => Refusal { code: "bad_url", class: ErrorClass::Config, detail: problem },
    }
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, Refusal> {
    HeaderValue::from_str(value).map_err(|_| Refusal {
        code: "bad_header",
        class: ErrorClass::InvalidContent,
        detail: format!("the value of the header {name} has a line break or characters other than ASCII"),
    })
}
