//! Formats phone numbers for readers. The number that a message is sent to is never changed.

/// Country calling codes of one and two digits. All others have three.
const SHORT_CODES: &str = "1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 \
                           63 64 65 66 81 82 84 86 90 91 92 93 94 95 98";

/// Formats an E.164 number in groups: `+91 98765 43210`, `+1 415 555 0100`. Another string is returned unchanged.
pub(super) fn displayed(number: &str) -> String {
    let Some(digits) = number.strip_prefix('+') else { return number.to_owned() };
    if !(7..=15).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return number.to_owned();
    }
    let code = SHORT_CODES.split(' ').find(|code| digits.starts_with(code)).map_or(3, str::len);
    let (code, national) = digits.split_at(code);
    match (code, national.len()) {
        ("91", 10) => format!("+91 {} {}", &national[..5], &national[5..]),
        _ => format!("+{code} {}", in_threes(national)),
    }
}

/// Splits digits into groups of three. The last group has two to four digits.
fn in_threes(digits: &str) -> String {
    let (mut all, mut rest) = (String::new(), digits);
    while rest.len() > 4 {
        let (group, more) = rest.split_at(3);
        all = all + group + " ";
        rest = more;
    }
    all + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_in_groups() {
        for (number, shown) in [
            ("+919876543210", "+91 98765 43210"),
            ("+14155550100", "+1 415 555 0100"),
            ("+4930123456", "+49 301 234 56"),
            ("+351912345678", "+351 912 345 678"),
            ("+9779812345678", "+977 981 234 5678"),
            ("09876543210", "09876543210"),
            ("+91 98765", "+91 98765"),
            ("+123", "+123"),
            ("", ""),
        ] {
            assert_eq!(displayed(number), shown);
        }
    }
}
