//! Deterministic idempotency keys.
//!
//! There are two kinds: a key of names that the application already has ([`of`]), and a key of the content
//! ([`from_content`]) for applications without such names.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Builds a key from parts: `booking:{id}:{event}:{version}` is `of("booking", (id, event, version))`.
///
/// A part is a string or an integer. An integer counts as its digits: 7 and `"7"` give the same key. A `:` or `%`
/// inside a part is written as `%3A` or `%25`, so that two different lists of parts never give the same key. A key of
/// more than 255 characters is refused when the notification is built.
///
/// ```
/// use postcommit::key;
///
/// assert_eq!(key::of("booking", (12345, "confirmed", 1)), "booking:12345:confirmed:1");
/// assert_eq!(key::of("avail", &["i7", "2026-W11", "changed", "2"]), "avail:i7:2026-W11:changed:2");
/// ```
#[must_use]
pub fn of(kind: &str, parts: impl Parts) -> String {
    let mut key = escape(kind);
    parts.each(&mut |part| {
        key.push(':');
        key.push_str(&escape(part));
    });
    key
}

/// One part of a key: a string or an integer. Floating-point numbers are not allowed, because languages format them
/// differently.
pub trait Part: sealed::Part {}

impl<T: sealed::Part + ?Sized> Part for T {}

/// The parts of a key: a tuple of up to eight, or a reference to a slice or array of parts of one type.
pub trait Parts: sealed::Parts {}

impl<T: sealed::Parts> Parts for T {}

mod sealed {
    pub trait Part {
        fn written(&self) -> String;
    }

    pub trait Parts {
        fn each(&self, see: &mut dyn FnMut(&str));
    }

    impl<T: Part + ?Sized> Part for &T {
        fn written(&self) -> String {
            (**self).written()
        }
    }

    impl<T: Part> Parts for &[T] {
        fn each(&self, see: &mut dyn FnMut(&str)) {
            self.iter().for_each(|part| see(&part.written()));
        }
    }

    impl<T: Part, const N: usize> Parts for &[T; N] {
        fn each(&self, see: &mut dyn FnMut(&str)) {
            self.as_slice().each(see);
        }
    }

    macro_rules! parts {
        ($($whole:ty),+) => { $(impl Part for $whole {
            fn written(&self) -> String {
                self.to_string()
            }
        })+ };
    }
    parts!(str, String, i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

    macro_rules! tuples {
        ($first:ident $($rest:ident)*) => {
            impl<$first: Part, $($rest: Part),*> Parts for ($first, $($rest,)*) {
                #[allow(non_snake_case)]
                fn each(&self, see: &mut dyn FnMut(&str)) {
                    let ($first, $($rest,)*) = self;
                    see(&$first.written());
                    $(see(&$rest.written());)*
                }
            }
            tuples!($($rest)*);
        };
        () => {};
    }
    tuples!(A B C D E F G H);
}

/// Builds a key from content: the rule that fired, the requested provider, the payload and the run.
///
/// The payload is hashed in its [`canonical`] form: the order of object keys and white space do not change the key.
#[must_use]
pub fn from_content(rule: &str, provider: &str, payload: &Value, run: &str) -> String {
    let digest = Sha256::digest(canonical(payload).as_bytes());
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    of("content", &[rule, provider, run, &hex])
}

/// Returns JSON with sorted keys and without white space. `serde_json` formats the numbers: 1.50 becomes 1.5, but 1 and
/// 1.0 differ.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(name, _)| *name);
            write_all(entries, out, ['{', '}'], |(name, value), out| {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            });
        }
        Value::Array(items) => write_all(items, out, ['[', ']'], write_canonical),
        leaf => out.push_str(&leaf.to_string()),
    }
}

fn write_all<T>(
    items: impl IntoIterator<Item = T>,
    out: &mut String,
    brackets: [char; 2],
    each: impl Fn(T, &mut String),
) {
    out.push(brackets[0]);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(brackets[1]);
}

fn escape(part: &str) -> String {
    part.replace('%', "%25").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_str, json};

    #[test]
    fn a5_keys_of_names_are_deterministic() {
        assert_eq!(of("booking", &["42", "confirmed", "3"]), "booking:42:confirmed:3");
        assert_eq!(of("avail", &["i7", "2026-W11", "changed", "1"]), "avail:i7:2026-W11:changed:1");
        assert_eq!(of("booking", (42, String::from("confirmed"), 3u8)), "booking:42:confirmed:3");
        assert_eq!(of("n", &[i128::MIN, 7]), format!("n:{}:7", i128::MIN));
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(of("a", &["b:c"]), of("a", &["b", "c"]));
        assert_ne!(of("a", &["b%3Ac"]), of("a", &["b:c"]));
    }

    #[test]
    fn d3_key_order_and_white_space_do_not_change_the_key() {
        let one: Value = from_str(r#"{"b": [1, {"y": null, "x": "é"}], "a": 1.50}"#).unwrap();
        let two: Value = from_str("{\"a\":1.50,\n\"b\":[1,{\"x\":\"\\u00e9\",\"y\":null}]}").unwrap();
        assert_eq!(from_content("rule-1", "siren", &one, "run-9"), from_content("rule-1", "siren", &two, "run-9"));
    }

    #[test]
    fn d3_every_part_of_the_content_counts() {
        let base = from_content("r", "p", &json!({"a": [1, 2]}), "1");
        for other in [
            from_content("s", "p", &json!({"a": [1, 2]}), "1"),
            from_content("r", "q", &json!({"a": [1, 2]}), "1"),
            from_content("r", "p", &json!({"a": [2, 1]}), "1"),
            from_content("r", "p", &json!({"a": [1, 2]}), "2"),
        ] {
            assert_ne!(base, other);
        }
    }
}
