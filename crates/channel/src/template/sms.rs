//! Counts the SMS segments of a message. Alphabets of single countries (national shift tables) depend on the provider
//! and are not considered.

use serde::Serialize;

/// The characters of GSM 03.38 that take one place each.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZ\
                     ÄÖÑÜ§¿\
                     abcdefghijklmnopqrstuvwxyzäöñüà";
/// The characters of the GSM 03.38 extension, which take two places each.
const EXTENSION: &str = "\u{c}^{}\\[~]|€";

/// The encoding of an SMS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Encoding {
    /// GSM-7: 160 places in a single segment, 153 in each of several segments.
    #[serde(rename = "GSM-7")]
    Gsm7,
    /// UCS-2: 70 places in a single segment, 67 in each of several segments. One character outside of GSM-7 makes the
    /// whole message UCS-2.
    #[serde(rename = "UCS-2")]
    Ucs2,
}

/// The size of a message as an SMS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Segments {
    /// The encoding of the message.
    pub encoding: Encoding,
    /// The number of places. Most characters take one place.
    pub characters: usize,
    /// The number of segments. An empty message has 0.
    pub segments: usize,
}

/// Counts the segments of a message.
#[must_use]
pub fn segments(text: &str) -> Segments {
    let gsm: Option<Vec<usize>> = text.chars().map(gsm_places).collect();
    let (encoding, places, alone, each) = match gsm {
        Some(places) => (Encoding::Gsm7, places, 160, 153),
        None => (Encoding::Ucs2, text.chars().map(char::len_utf16).collect(), 70, 67),
    };
    let characters = places.iter().sum();
    let segments = match characters {
        0 => 0,
        few if few <= alone => 1,
        _ => filled(&places, each),
    };
    Segments { encoding, characters, segments }
}

/// The first character that is not in GSM-7, if there is one.
#[must_use]
pub fn outside_gsm7(text: &str) -> Option<char> {
    text.chars().find(|c| gsm_places(*c).is_none())
}

fn gsm_places(c: char) -> Option<usize> {
    if BASIC.contains(c) { Some(1) } else { EXTENSION.contains(c).then_some(2) }
}

/// Counts segments of `each` places. A character of two places is never split.
fn filled(places: &[usize], each: usize) -> usize {
    let (mut segments, mut used) = (1, 0);
    for place in places {
        if used + place > each {
            segments += 1;
            used = 0;
        }
        used += place;
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> (Encoding, usize, usize) {
        let it = segments(text);
        (it.encoding, it.characters, it.segments)
    }

    #[test]
    fn gsm7_has_160_places_and_153_in_several() {
        use Encoding::Gsm7;
        assert_eq!(counted(""), (Gsm7, 0, 0));
        assert_eq!(counted(&"a".repeat(160)), (Gsm7, 160, 1));
        assert_eq!(counted(&"a".repeat(161)), (Gsm7, 161, 2));
        assert_eq!(counted(&"a".repeat(306)), (Gsm7, 306, 2));
        assert_eq!(counted(&"a".repeat(307)), (Gsm7, 307, 3));
        assert_eq!(counted("Ç£ñ\n"), (Gsm7, 4, 1));
    }

    #[test]
    fn characters_of_the_extension_take_two_places_and_are_not_split() {
        use Encoding::Gsm7;
        assert_eq!(counted("€[]"), (Gsm7, 6, 1));
        assert_eq!(counted(&"€".repeat(80)), (Gsm7, 160, 1));
        // 152 places and a euro sign of two places: the euro sign begins the second segment, so three segments are
        // needed.
        let text = format!("{}€{}", "a".repeat(152), "a".repeat(152));
        assert_eq!(counted(&text), (Gsm7, 306, 3));
    }

    #[test]
    fn one_other_character_makes_it_ucs2() {
        use Encoding::Ucs2;
        assert_eq!(counted("ç"), (Ucs2, 1, 1));
        assert_eq!(counted("`"), (Ucs2, 1, 1));
        assert_eq!(counted("“Hi”"), (Ucs2, 4, 1));
        assert_eq!(counted(&"ह".repeat(70)), (Ucs2, 70, 1));
        assert_eq!(counted(&"ह".repeat(71)), (Ucs2, 71, 2));
        // 66 places and an emoji of two places: the emoji begins the second segment.
        let text = format!("{}😀{}", "ह".repeat(66), "ह".repeat(66));
        assert_eq!(counted(&text), (Ucs2, 134, 3));
        assert_eq!(outside_gsm7("it’s"), Some('’'));
        assert_eq!(outside_gsm7("it's"), None);
    }
}
