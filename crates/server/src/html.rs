//! The frame of every HTML page, and the escaping of text in it.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Forms of our own pages must name their origin. Under the policy of other answers, `no-referrer`, browsers send
/// `Origin: null`.
const SAME_ORIGIN: (HeaderName, HeaderValue) = (header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
const HTML: (HeaderName, HeaderValue) = (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));

/// A whole page. `content` is HTML: the caller escapes what came from outside.
pub fn page(status: StatusCode, title: &str, content: &str) -> Response {
    let title = escape(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"/icon.svg\">\n<link rel=\"stylesheet\" href=\"/sign-in.css\">\n\
         <script type=\"module\" src=\"/sign-in.js\"></script>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         {content}\n</main>\n</body>\n</html>\n"
    );
    (status, [SAME_ORIGIN, HTML], html).into_response()
}

/// Safe as text and within quotes; control characters, which HTML forbids, are replaced.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
