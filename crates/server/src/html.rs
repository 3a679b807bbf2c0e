//! The frame of every HTML page, and HTML escaping.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The referrer policy of our pages. Their forms must send their origin. With `no-referrer`, the policy of other
/// answers, browsers would send `Origin: null`.
const SAME_ORIGIN: (HeaderName, HeaderValue) = (header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
const HTML: (HeaderName, HeaderValue) = (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));

/// A whole HTML page. `content` is HTML, and the caller must have escaped all untrusted text in it.
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

/// Escapes text for HTML content and quoted attributes. Control characters, which HTML forbids, are replaced.
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
