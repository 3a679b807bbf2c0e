//! Derives the plain text of an HTML message, for mail programs that show no HTML. The HTML is read once. The
//! conversion never fails: unknown markup is treated as text.

/// Tags that begin a new line.
const BLOCKS: [&str; 33] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "center",
    "dd",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "html",
    "li",
    "main",
    "nav",
    "ol",
    "p",
    "section",
    "table",
    "tbody",
    "thead",
    "tr",
    "ul",
];
/// Tags that are surrounded by empty lines.
const PARAGRAPHS: [&str; 11] = ["blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "ul", "hr"];
/// Tags whose content is not shown to readers.
const SILENT: [&str; 6] = ["head", "script", "style", "template", "title", "noscript"];
/// The named entities. Numeric entities are decoded separately.
const ENTITIES: [(&str, &str); 34] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", " "),
    ("ensp", " "),
    ("emsp", " "),
    ("thinsp", " "),
    ("zwnj", ""),
    ("zwj", ""),
    ("shy", ""),
    ("copy", "©"),
    ("reg", "®"),
    ("trade", "™"),
    ("deg", "°"),
    ("middot", "·"),
    ("bull", "•"),
    ("hellip", "…"),
    ("ndash", "–"),
    ("mdash", "—"),
    ("lsquo", "‘"),
    ("rsquo", "’"),
    ("ldquo", "“"),
    ("rdquo", "”"),
    ("laquo", "«"),
    ("raquo", "»"),
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
    ("cent", "¢"),
    ("times", "×"),
    ("larr", "←"),
    ("rarr", "→"),
];

/// The plain text of an HTML message. Links are written after their text: `Pay now (https://example.com/pay)`.
#[must_use]
pub fn text_of_html(html: &str) -> String {
    let mut text = Writer::default();
    // No tag starts after the last `>`. Splitting there avoids searching the rest again for each `<`.
    let (mut rest, end) = html.split_at(html.rfind('>').map_or(0, |last| last + 1));
    while let Some(open) = rest.find('<') {
        text.words(&rest[..open]);
        rest = &rest[open..];
        rest = match tag(rest) {
            Some((tag, after)) => after_tag(&mut text, &tag, after),
            None => {
                text.words("<");
                &rest[1..]
            }
        };
    }
    text.words(rest);
    text.words(end);
    text.out
}

struct Tag<'h> {
    /// The name of the tag in lower case.
    name: String,
    closes: bool,
    attributes: &'h str,
}

/// Reads the tag, comment or declaration at the beginning of `rest`, and returns it with the remaining HTML. `None`:
/// this `<` does not begin a tag.
fn tag(rest: &str) -> Option<(Tag<'_>, &str)> {
    if let Some(comment) = rest.strip_prefix("<!--") {
        let after = comment.split_once("-->").map_or("", |(_, after)| after);
        return Some((Tag { name: String::new(), closes: false, attributes: "" }, after));
    }
    let inside = &rest[1..];
    let (closes, inside) = inside.strip_prefix('/').map_or((false, inside), |inside| (true, inside));
    if !inside.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!' || c == '?') {
        return None;
    }
    let end = end_of_tag(inside)?;
    let (body, after) = (&inside[..end], &inside[end + 1..]);
    let name = body.find(|c: char| c.is_ascii_whitespace() || c == '/').unwrap_or(body.len());
    Some((Tag { name: body[..name].to_ascii_lowercase(), closes, attributes: &body[name..] }, after))
}

/// The position of the first `>` that is not in quotes.
fn end_of_tag(inside: &str) -> Option<usize> {
    let mut quote = None;
    for (i, c) in inside.char_indices() {
        match (quote, c) {
            (None, '>') => return Some(i),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    inside.find('>')
}

fn after_tag<'h>(text: &mut Writer, tag: &Tag<'_>, after: &'h str) -> &'h str {
    let name = tag.name.as_str();
    match name {
        "br" => text.line(),
        "hr" => {
            text.gap();
            text.words("----");
            text.gap();
        }
        "td" | "th" => text.space(),
        "img" if !tag.closes => text.words(attribute(tag.attributes, "alt").as_deref().unwrap_or("")),
        "a" if !tag.closes => text.link = attribute(tag.attributes, "href"),
        "a" => text.end_link(),
        "pre" => {
            text.line();
            text.preformatted = !tag.closes;
        }
        _ if SILENT.contains(&name) && !tag.closes => return after_silence(name, after),
        _ if PARAGRAPHS.contains(&name) => text.gap(),
        _ if BLOCKS.contains(&name) => text.line(),
        _ => {}
    }
    if name == "li" && !tag.closes {
        text.words("- ");
    }
    after
}

/// The HTML after the end tag of a silent tag. Empty if there is no end tag.
fn after_silence<'h>(name: &str, after: &'h str) -> &'h str {
    let mut rest = after;
    while let Some(close) = rest.find("</") {
        rest = &rest[close + 2..];
        let named = rest.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name));
        if named && !rest[name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return rest.split_once('>').map_or("", |(_, after)| after);
        }
    }
    ""
}

/// The value of an attribute, decoded.
fn attribute(attributes: &str, wanted: &str) -> Option<String> {
    let mut rest = attributes;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
        let end = rest.find(|c: char| c.is_ascii_whitespace() || c == '=' || c == '/').unwrap_or(rest.len());
        if rest.is_empty() {
            return None;
        }
        let name = &rest[..end];
        rest = rest[end..].trim_start();
        let mut value = "";
        if let Some(given) = rest.strip_prefix('=') {
            let given = given.trim_start();
            let quote = given.chars().next().filter(|c| matches!(c, '"' | '\''));
            let (found, after) = match quote {
                Some(quote) => given[1..].split_once(quote).unwrap_or((&given[1..], "")),
                None => given.split_at(given.find(|c: char| c.is_ascii_whitespace()).unwrap_or(given.len())),
            };
            (value, rest) = (found, after);
        } else if end == 0 {
            return None;
        }
        if name.eq_ignore_ascii_case(wanted) {
            return Some(decoded(value).trim().to_owned());
        }
    }
}

/// Returns the text with its entities decoded.
fn decoded(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.as_bytes().iter().take(12).position(|b| *b == b';');
        match end.and_then(|end| entity(&rest[..end]).map(|found| (found, end))) {
            Some((found, end)) => {
                out.push_str(&found);
                rest = &rest[end + 1..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    out
}

fn entity(name: &str) -> Option<String> {
    let Some(number) = name.strip_prefix('#') else {
        return ENTITIES.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    };
    let code = match number.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => number.parse().ok()?,
    };
    char::from_u32(code).filter(|c| !c.is_control() || *c == '\n').map(String::from)
}

/// Collects words and breaks. Breaks are written only before the next word.
#[derive(Default)]
struct Writer {
    out: String,
    /// Line breaks to write before the next word. 2 make an empty line.
    breaks: usize,
    space: bool,
    preformatted: bool,
    link: Option<String>,
    /// The byte offset at which the text of the link begins.
    link_from: usize,
}

impl Writer {
    fn line(&mut self) {
        self.breaks = self.breaks.max(1);
    }

    fn gap(&mut self) {
        self.breaks = 2;
    }

    fn space(&mut self) {
        self.space = true;
    }

    fn words(&mut self, html: &str) {
        let text = decoded(html);
        if self.preformatted {
            self.begin();
            self.out.push_str(&text);
            return;
        }
        for c in text.chars() {
            if c.is_whitespace() {
                self.space = true;
            } else {
                self.begin();
                self.out.push(c);
            }
        }
    }

    fn begin(&mut self) {
        if self.out.is_empty() {
            // There are no line breaks before the first word.
        } else if self.breaks > 0 {
            self.out.push_str(if self.breaks > 1 { "\n\n" } else { "\n" });
        } else if self.space {
            self.out.push(' ');
        }
        (self.breaks, self.space) = (0, false);
        if self.link.is_some() && self.link_from == 0 {
            self.link_from = self.out.len() + 1;
        }
    }

    fn end_link(&mut self) {
        let from = std::mem::take(&mut self.link_from);
        let Some(link) = self.link.take().filter(|link| !link.is_empty() && !link.starts_with('#')) else { return };
        let shown = if from == 0 { "" } else { self.out.get(from - 1..).unwrap_or("") };
        let address = link.split_once(':').map_or(link.as_str(), |(_, rest)| rest);
        if shown != link && shown != address {
            self.space |= !shown.is_empty();
            let written = if shown.is_empty() { link } else { format!("({link})") };
            self.words(&written.replace('&', "&amp;"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_lists_and_links_are_readable() {
        let html = "<!DOCTYPE html><html><head><title>T</title><style>p{color:red}</style></head><body>\
            <h1>Booking\n confirmed</h1><p>Dear <b>Asha</b>,<br>see&nbsp;you &amp; yours.</p>\
            <ul><li>Check in: 15-Mar</li><li>Guests: 2</li></ul><table><tr><td>Total</td><td>INR 5</td></tr></table>\
            <p><a href=\"https://example.com/pay?a=1&amp;b=2\">Pay now</a> or <a href='mailto:a@b.c'>a@b.c</a></p><hr>\
            <img src=x alt='Logo'><!-- <p>no</p> -->&copy; 2026</body></html>";
        assert_eq!(
            text_of_html(html),
            "Booking confirmed\n\nDear Asha,\nsee you & yours.\n\n- Check in: 15-Mar\n- Guests: 2\n\nTotal INR 5\n\n\
             Pay now (https://example.com/pay?a=1&b=2) or a@b.c\n\n----\n\nLogo© 2026"
        );
    }

    #[test]
    fn html_that_is_broken_is_text() {
        for (html, text) in [
            ("", ""),
            ("a < b > c", "a < b > c"),
            ("1 <2", "1 <2"),
            ("<p", "<p"),
            ("<script>x</b>", ""),
            ("<script>if (a</b>) x</script>y", "y"),
            ("<STYLE>x</StYlE >y", "y"),
            ("<!-- x>", ""),
            ("&#65;&#x42;&#0;&#xD800;&nope;&", "AB&#0;&#xD800;&nope;&"),
            ("<a href=x", "<a href=x"),
            ("<a href>x</a>", "x"),
            ("<a title='>' href=\"#top\">x</a>", "x"),
            ("<p =>x</p>", "x"),
            ("<a href=https://example.com></a>", "https://example.com"),
            ("<pre>a\n  b</pre>", "a\n  b"),
            ("é<ü>ß&ü;", "é<ü>ß&ü;"),
        ] {
            assert_eq!(text_of_html(html), text, "{html}");
        }
    }

    #[test]
    fn deep_nesting_takes_no_longer() {
        let deep = "<div>".repeat(50_000) + "x" + &"</div>".repeat(50_000);
        assert_eq!(text_of_html(&deep), "x");
        assert_eq!(text_of_html(&"<a".repeat(100_000)).len(), 200_000);
        assert_eq!(text_of_html(&("<a\"".repeat(100_001) + ">")), "");
    }
}
