//! How many segments of an SMS a text takes. Alphabets of single countries (national shift tables) depend on the
//! provider and are not considered.

use serde::Serialize;

/// The characters of GSM 03.38 that take one place.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZ\
                     ÄÖÑÜ§¿\
                     abcdefghijklmnopqrstuvwxyzäöñüà";
/// The characters of its extension, which take two.
const EXTENSION: &str = "\u{c}^{}\\[~]|€";

/// How an SMS is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Encoding {
    /// 160 places in one segment, 153 in each of several.
    #[serde(rename = "GSM-7")]
    Gsm7,
    /// 70 places in one segment, 67 in each of several. One character outside GSM-7 is enough for it.
    #[serde(rename = "UCS-2")]
    Ucs2,
}

/// What a text takes as an SMS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Segments {
    /// How it is encoded.
    pub encoding: Encoding,
    /// Places: most characters take one.
    pub characters: usize,
    /// Segments; 0 for an empty text.
    pub segments: usize,
}

/// Counts the segments of a text.
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

/// The first character that makes a text UCS-2, if there is one.
#[must_use]
pub fn outside_gsm7(text: &str) -> Option<char> {
    text.chars().find(|c| gsm_places(*c).is_none())
}

fn gsm_places(c: char) -> Option<usize> {
    if BASIC.contains(c) { Some(1) } else { EXTENSION.contains(c).then_some(2) }
}

/// Segments of `each` places, where a character of two places is never split.
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
        // 152 places and a euro: the euro begins the second segment, so 153 - 1 + … do not fit into two.
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
        // 66 and an emoji of two places: it begins the second segment.
        let text = format!("{}😀{}", "ह".repeat(66), "ह".repeat(66));
        assert_eq!(counted(&text), (Ucs2, 134, 3));
        assert_eq!(outside_gsm7("it’s"), Some('’'));
        assert_eq!(outside_gsm7("it's"), None);
    }
}
