//! Splits a part of a template into plain text and tags, and tags into tokens. Signs that templates may not use are
//! refused: arithmetic, concatenation, assignment and braces.

use super::limits;

/// An error in a template, and its byte offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    /// A string literal with its quotes.
    Text,
    Number,
    Sign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind,
    pub(super) text: &'s str,
    pub(super) at: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Name | Kind::Sign) && self.text == text
    }
}

/// A tag with its whitespace control: `-`, `+` or nothing at either end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tag<'s> {
    pub(super) at: usize,
    pub(super) source: &'s str,
    pub(super) left: &'static str,
    pub(super) right: &'static str,
    pub(super) tokens: Vec<Token<'s>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'s> {
    Text(&'s str),
    /// A tag that prints a value: `{{ … }}`.
    Print(Tag<'s>),
    /// A block tag: `{% … %}`.
    Block(Tag<'s>),
    /// A comment: `{# … #}`. Only its whitespace control has an effect.
    Comment {
        left: &'static str,
        right: &'static str,
    },
    /// The text between `{% raw %}` and `{% endraw %}`.
    Raw {
        left: &'static str,
        right: &'static str,
        text: &'s str,
    },
}

/// Splits a part of a template into its pieces.
pub(super) fn pieces(source: &str) -> Result<Vec<Piece<'_>>, Fault> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(open) = opener(source, at) {
        if open > at {
            all.push(Piece::Text(&source[at..open]));
        }
        let left = mark(source, open + 2);
        let body = open + 2 + left.len();
        match source.as_bytes()[open + 1] {
            b'#' => {
                let end = source[body..]
                    .find("#}")
                    .ok_or_else(|| Fault::new(open, "the comment has no end; end it with #}"))?;
                let right = if source[..body + end].ends_with('-') { "-" } else { "" };
                all.push(Piece::Comment { left, right });
                at = body + end + 2;
            }
            b'{' => {
                let (tokens, right, end) = tokens(source, body, "}}", open)?;
                all.push(Piece::Print(Tag { at: open, source: &source[open..end], left, right, tokens }));
                at = end;
            }
            _ => {
                let (tokens, right, end) = tokens(source, body, "%}", open)?;
                at = end;
                if tokens.len() == 1 && tokens[0].is("raw") {
                    let (text, after, end) = raw(source, end, open)?;
                    all.push(Piece::Raw {
                        left,
                        right: after,
                        text: if right == "-" { text.trim_start() } else { text },
                    });
                    at = end;
                } else {
                    all.push(Piece::Block(Tag { at: open, source: &source[open..end], left, right, tokens }));
                }
            }
        }
    }
    if at < source.len() {
        all.push(Piece::Text(&source[at..]));
    }
    keep_lines(&mut all);
    Ok(all)
}

/// Keeps the space and the line end around a block tag or a comment that shares its line with other text. The engine
/// would remove them around every tag, but only a line that contains nothing but tags should vanish from the output.
fn keep_lines(all: &mut [Piece<'_>]) {
    let is_mute = |piece: &Piece<'_>| matches!(piece, Piece::Block(_) | Piece::Comment { .. });
    // Whether this piece shows that the line contains other text. `None` means that the next piece decides.
    let tells = |piece: &Piece<'_>, part: fn(&str) -> &str| match piece {
        Piece::Text(text) if !part(text).trim_matches([' ', '\t', '\r']).is_empty() => Some(true),
        Piece::Text(text) => text.contains('\n').then_some(false),
        mute if is_mute(mute) => None,
        _ => Some(true),
    };
    let shares = |all: &[Piece<'_>], place: usize| {
        all[..place].iter().rev().find_map(|piece| tells(piece, last_line)).unwrap_or(false)
            || all[place + 1..].iter().find_map(|piece| tells(piece, first_line)).unwrap_or(false)
    };
    for place in 0..all.len() {
        if !is_mute(&all[place]) || !shares(all, place) {
            continue;
        }
        if let Piece::Block(Tag { left, right, .. }) | Piece::Comment { left, right } = &mut all[place] {
            for mark in [left, right].into_iter().filter(|mark| mark.is_empty()) {
                *mark = "+";
            }
        }
    }
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

fn last_line(text: &str) -> &str {
    text.rsplit('\n').next().unwrap_or_default()
}

fn opener(source: &str, from: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1)).find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
}

fn mark(source: &str, at: usize) -> &'static str {
    match source.as_bytes().get(at) {
        Some(b'-') => "-",
        Some(b'+') => "+",
        _ => "",
    }
}

/// Returns the text up to `{% endraw %}`, the whitespace control after `endraw`, and the byte offset after the tag.
fn raw(source: &str, from: usize, open: usize) -> Result<(&str, &'static str, usize), Fault> {
    let mut at = from;
    while let Some(next) = source[at..].find("{%").map(|next| at + next) {
        let left = mark(source, next + 2);
        let inside = source[next + 2 + left.len()..].trim_start();
        if let Some(rest) = inside.strip_prefix("endraw") {
            let rest = rest.trim_start();
            let right = mark(rest, 0);
            if let Some(rest) = rest[right.len()..].strip_prefix("%}") {
                let text = &source[from..next];
                return Ok((if left == "-" { text.trim_end() } else { text }, right, source.len() - rest.len()));
            }
        }
        at = next + 2;
    }
    Err(Fault::new(open, "the tag `raw` has no end; end it with {% endraw %}"))
}

type Tokens<'s> = (Vec<Token<'s>>, &'static str, usize);

/// The tokens of a tag, the whitespace control at its end, and the byte offset after the tag.
fn tokens<'s>(source: &'s str, from: usize, close: &str, open: usize) -> Result<Tokens<'s>, Fault> {
    let (mut all, mut at) = (Vec::<Token<'s>>::new(), from);
    loop {
        let rest = &source[at..];
        at += rest.len() - rest.trim_start().len();
        let rest = &source[at..];
        if rest.is_empty() {
            return Err(Fault::new(open, format!("the tag has no end; end it with {close}")));
        }
        let right = mark(rest, 0);
        if rest[right.len()..].starts_with(close) {
            return Ok((all, right, at + right.len() + close.len()));
        }
        if all.len() == limits::TOKENS {
            let limit = limits::TOKENS;
            return Err(Fault::new(
                open,
                format!("the tag has more than {limit} names, values and signs; at most {limit} are allowed"),
            ));
        }
        let token = token(rest, at, all.last().is_some_and(|last| last.is(".")))?;
        at += token.text.len();
        all.push(token);
    }
}

fn token(rest: &str, at: usize, after_dot: bool) -> Result<Token<'_>, Fault> {
    let first = rest.chars().next().unwrap_or_default();
    let (kind, length) = match first {
        '"' | '\'' => (
            Kind::Text,
            text_length(rest, first).ok_or_else(|| Fault::new(at, "the text has no closing quote; add it"))?,
        ),
        '0'..='9' => (Kind::Number, number_length(rest, after_dot)),
        '-' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            (Kind::Number, 1 + number_length(&rest[1..], false))
        }
        c if c.is_alphabetic() || c == '_' => {
            (Kind::Name, rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()))
        }
        _ => (Kind::Sign, sign_length(rest, first).map_err(|message| Fault::new(at, message))?),
    };
    Ok(Token { kind, text: &rest[..length], at })
}

fn text_length(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(i + 1),
            _ => {}
        }
    }
    None
}

fn number_length(rest: &str, whole: bool) -> usize {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let length = digits(rest);
    match rest[length..].strip_prefix('.') {
        Some(fraction) if !whole && fraction.starts_with(|c: char| c.is_ascii_digit()) => length + 1 + digits(fraction),
        _ => length,
    }
}

fn sign_length(rest: &str, first: char) -> Result<usize, String> {
    if ["==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign)) {
        return Ok(2);
    }
    match first {
        '<' | '>' | '(' | ')' | '[' | ']' | ',' | '.' | '|' => Ok(1),
        '+' => Err("templates do not add with +; use the filter plus: {{ nights|plus(1) }}".to_owned()),
        '-' => Err("templates do not subtract with -; use the filter minus: {{ nights|minus(1) }}".to_owned()),
        '*' => Err("templates do not multiply with *; use the filter times: {{ price|times(nights) }}".to_owned()),
        '~' => Err("templates do not join texts with ~; write {{ a }}{{ b }}".to_owned()),
        '=' => Err("= is not allowed in a tag: templates cannot assign values; compare with ==".to_owned()),
        '{' | '}' => Err(format!("{first} is not expected in a tag; a tag ends with }}}} or %}}")),
        _ => Err(format!("{first:?} is not expected in a tag")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        pieces(source)
            .unwrap()
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => format!("text {text}"),
                Piece::Print(tag) | Piece::Block(tag) => {
                    let tokens: Vec<_> = tag.tokens.iter().map(|token| token.text).collect();
                    format!("{}{}tag {}", tag.left, tag.right, tokens.join(" "))
                }
                Piece::Comment { left, right } => format!("{left}{right}comment"),
                Piece::Raw { text, .. } => format!("raw {text}"),
            })
            .collect()
    }

    #[test]
    fn a_text_is_split_into_tags_and_tokens() {
        assert_eq!(
            words("Dear {{guest.Name|default(\"}}\")}}, {%- if a>=-1.5 -%} {# {{ no }} #}{% endif %}"),
            [
                "text Dear ",
                "tag guest . Name | default ( \"}}\" )",
                "text , ",
                "--tag if a >= -1.5",
                "text  ",
                "++comment",
                "++tag endif"
            ]
        );
        assert_eq!(words("{% raw %}{{ x }} {% if %}{% endraw %}!"), ["raw {{ x }} {% if %}", "text !"]);
        assert_eq!(words("a { b } {"), ["text a { b } {"]);
        assert_eq!(words("{{ items.0.name }}{{ 1.25 }}"), ["tag items . 0 . name", "tag 1.25"]);
    }

    #[test]
    fn what_templates_may_not_use_is_refused_with_advice() {
        for (source, at, part) in [
            ("x{{ a + b }}", 6, "plus"),
            ("{{ a * 9 }}", 5, "times"),
            ("{{ a ~ b }}", 5, "{{ a }}{{ b }}"),
            ("{{ a - b }}", 5, "minus"),
            ("{{ a = b }}", 5, "=="),
            ("{{ {} }}", 3, "not expected"),
            ("é{{ a", 2, "}}"),
            ("{% if a", 0, "%}"),
            ("{# a", 0, "#}"),
            ("{% raw %} a", 0, "endraw"),
            ("{{ 'a }}", 3, "no closing quote"),
            ("{{ a; b }}", 4, "';'"),
        ] {
            let fault = pieces(source).unwrap_err();
            assert!(fault.message.contains(part), "{source}: {}", fault.message);
            assert_eq!(fault.at, at, "{source}");
        }
        let long = format!("{{{{ {} }}}}", "not ".repeat(limits::TOKENS + 1));
        assert!(pieces(&long).unwrap_err().message.contains("200"));
    }
}
