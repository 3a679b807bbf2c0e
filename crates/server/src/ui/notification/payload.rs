//! Formats a payload for people.

/// The maximum number of characters that the page shows.
const CHARS: usize = 20_000;
/// The maximum depth of indentation. Deeper levels are indented as much as this one.
const DEPTH: usize = 40;

/// Returns the beginning of the JSON, with line breaks and indentation.
pub fn beginning(json: &str) -> String {
    let text = indented(json);
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The JSON with line breaks. Its numbers, texts and the order of its fields stay as they were written: nothing is parsed,
/// because a number may be too large or too exact for this program.
pub fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    let mut chars = json.trim().chars().peekable();
    while let Some(c) = chars.next() {
        if is_text {
            out.push(c);
            is_text = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            '"' => {
                is_text = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|next| next.is_whitespace()).is_some() {}
                // An empty object or array stays on one line.
                if let Some(end) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(DEPTH)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_indented_and_stays_as_it_was_written() {
        let told =
            indented(r#" {"b":1.10, "a" : [1,{"x":"a\"{,:\\"}, []],"big":123456789012345678901234567890,"e":{ }} "#);
        let lines = r#"{
  "b": 1.10,
  "a": [
    1,
    {
      "x": "a\"{,:\\"
    },
    []
  ],
  "big": 123456789012345678901234567890,
  "e": {}
}"#;
        assert_eq!(told, lines);
        assert_eq!((indented("null").as_str(), indented(r#""a b""#).as_str()), ("null", r#""a b""#));
    }

    #[test]
    fn a_long_or_deep_payload_is_cut() {
        let long = beginning(&format!("\"{}\"", "ä".repeat(CHARS)));
        assert!(long.ends_with('…') && long.chars().count() == CHARS + 1);
        let deep = indented(&"[".repeat(5000));
        assert!(deep.len() < 5000 * (DEPTH * 2 + 3));
    }
}
