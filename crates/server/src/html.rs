//! Answers with HTML: the page for people who are not signed in, and escaping. `ui/frame.rs` has the frame of all other
//! pages.

use std::collections::HashSet;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::ui::STYLE;

/// The referrer policy of our pages. Their forms must send their origin. With `no-referrer`, the policy of other
/// answers, browsers would send `Origin: null`.
const SAME_ORIGIN: (HeaderName, HeaderValue) = (header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
const HTML: (HeaderName, HeaderValue) = (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));

/// A small HTML page without navigation, for people who are not signed in. `content` is HTML, and the caller must have
/// escaped all untrusted text in it.
pub fn page(status: StatusCode, title: &str, content: &str) -> Response {
    let (title, style) = (escape(title), STYLE.path());
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"/icon.svg\">\n<link rel=\"stylesheet\" href=\"{style}\">\n</head>\n\
         <body class=\"alone\">\n<main>\n<h1>{title}</h1>\n{content}\n</main>\n</body>\n</html>\n"
    );
    answer(status, html)
}

/// The answer with a whole HTML document.
pub fn answer(status: StatusCode, html: String) -> Response {
    (status, [SAME_ORIGIN, HTML], html).into_response()
}

/// Escapes text for HTML content and quoted attributes. Line ends become `\n`. Control characters, which HTML forbids,
/// are replaced. So are characters that reverse the direction of the text after them, because they could disguise the
/// words of the page. Directional isolates that are closed within the text do not affect other text, so they stay.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let closed = closed_isolates(text);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if let Some(entity) = entity(c) {
            safe.push_str(entity);
            continue;
        }
        match c {
            '\r' => {
                let _ = chars.next_if(|(_, next)| *next == '\n');
                safe.push('\n');
            }
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            '\u{202a}'..='\u{202e}' => safe.push('\u{fffd}'),
            '\u{2066}'..='\u{2069}' if !closed.contains(&at) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The entity that HTML content and quoted attributes need in place of the character.
pub fn entity(c: char) -> Option<&'static str> {
    match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\'' => Some("&#39;"),
        _ => None,
    }
}

/// Returns the positions of directional isolates that are closed on the same line, and the positions of their ends.
fn closed_isolates(text: &str) -> HashSet<usize> {
    let (mut closed, mut open) = (HashSet::new(), Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '\u{2066}'..='\u{2068}' => open.push(at),
            '\u{2069}' => closed.extend(open.pop().into_iter().flat_map(|begin| [begin, at])),
            '\n' | '\r' | '\u{2029}' => open.clear(),
            _ => {}
        }
    }
    closed
}

/// Returns a name such as `outcome_unknown` as words: `Outcome unknown`.
pub fn sentence_case(name: &str) -> String {
    let words = name.replace('_', " ");
    let mut chars = words.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_turns_nothing_outside_of_itself() {
        for (text, shown) in [
            ("a\r\nb\rc\n\td", "a\nb\nc\n\td"),
            ("\u{0}\u{202e}x", "\u{fffd}\u{fffd}x"),
            ("Hello \u{2068}Ada\u{2069}!", "Hello \u{2068}Ada\u{2069}!"),
            ("\u{2067}a\u{2066}b\u{2069}", "\u{fffd}a\u{2066}b\u{2069}"),
            ("\u{2069}a\u{2067}\nb\u{2069}", "\u{fffd}a\u{fffd}\nb\u{fffd}"),
            ("<'\"&>", "&lt;&#39;&quot;&amp;&gt;"),
        ] {
            assert_eq!(escape(text), shown, "{text:?}");
        }
    }
}
