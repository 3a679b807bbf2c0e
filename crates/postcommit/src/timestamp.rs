use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICROS: i64 = 1_000_000;
const DAY: i64 = 86_400 * MICROS;
/// The range of times that RFC 3339 and both databases support: the years 1 to 9999, in microseconds since 1970.
const WRITABLE: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// A time in UTC, in microseconds since 1970. `due_at` and `expires_at` must lie in the years 1 to 9999. PostgreSQL
/// keeps their microseconds; SQLite rounds them to milliseconds.
///
/// Written and read as RFC 3339, e.g. `2026-03-15T09:30:00Z`. An offset is accepted and converted to UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The time this many microseconds after the start of 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus `by`. Saturates instead of overflowing.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    pub(crate) fn check(self) -> Result<(), String> {
        if WRITABLE.contains(&self.0) { Ok(()) } else { Err(format!("is {self}; the years 1 to 9999 are allowed")) }
    }

    /// The duration since `earlier`. Zero when `earlier` is later than this time.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(at: SystemTime) -> Self {
        match at.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => Self(-i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX)),
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0.div_euclid(DAY));
        let in_day = self.0.rem_euclid(DAY);
        let (seconds, micros) = (in_day / MICROS, in_day % MICROS);
        let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}")?;
        match micros {
            0 => f.write_str("Z"),
            _ if micros % 1000 == 0 => write!(f, ".{:03}Z", micros / 1000),
            _ => write!(f, ".{micros:06}Z"),
        }
    }
}

impl FromStr for Timestamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!("{text:?} is not a time; write RFC 3339 with an offset, e.g. 2026-03-15T09:30:00Z, year 1 to 9999")
        })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The date of a day that is counted from 1970 (H. Hinnant's algorithm; eras of 400 years make it branch-free).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * shifted_month + 2) / 5 + 1)
}

/// The day of a date, counted from 1970. The inverse of [`civil`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let shaped = bytes.len() >= 20 && text.is_ascii() && bytes[4] == b'-' && bytes[7] == b'-';
    if !shaped || !matches!(bytes[10], b'T' | b't' | b' ') || bytes[13] != b':' || bytes[16] != b':' {
        return None;
    }
    let (year, month, day) = (digits(&text[0..4])?, digits(&text[5..7])?, digits(&text[8..10])?);
    let (hour, minute, second) = (digits(&text[11..13])?, digits(&text[14..16])?, digits(&text[17..19])?);
    let days = days_from_civil(year, month, day);
    // A date that converts back to another date does not exist, such as 30 February.
    if year == 0 || civil(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (micros, offset) = fraction_and_offset(&text[19..])?;
    let seconds = hour * 3600 + minute * 60 + second.min(59) - offset;
    // The offset can move the time out of the years 1 to 9999.
    Some(days * DAY + seconds * MICROS + micros).filter(|micros| WRITABLE.contains(micros)).map(Timestamp)
}

/// Parses the text after the seconds: an optional fraction, then `Z` or an offset. Returns the fraction in microseconds
/// and the offset in seconds.
fn fraction_and_offset(rest: &str) -> Option<(i64, i64)> {
    let (micros, rest) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            let kept = &rest[..end.min(6)];
            (digits(kept)? * 10_i64.pow(6 - u32::try_from(kept.len()).ok()?), &rest[end..])
        }
    };
    if matches!(rest, "Z" | "z") {
        return Some((micros, 0));
    }
    let sign = if rest.starts_with('+') { 1 } else { -1 };
    let shaped = rest.len() == 6 && matches!(rest.as_bytes()[0], b'+' | b'-') && rest.as_bytes()[3] == b':';
    let (hours, minutes) = if shaped { (digits(&rest[1..3])?, digits(&rest[4..6])?) } else { return None };
    (hours <= 23 && minutes <= 59).then_some((micros, sign * (hours * 3600 + minutes * 60)))
}

fn digits(text: &str) -> Option<i64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Timestamp {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, schema::Type};
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(format))
            .description(Some("RFC 3339, shown in UTC."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Timestamp {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back_is_the_same_moment() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2026-03-15T09:30:00.123456Z",
            "2024-02-29T23:59:59.120Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_offset_becomes_utc() {
        let there: Timestamp = "2026-03-15T15:00:00+05:30".parse().unwrap();
        assert_eq!(there.to_string(), "2026-03-15T09:30:00Z");
    }

    #[test]
    fn an_invalid_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-03-15",
            "2026-03-15T09:30:00",
            "2026-03-15T24:00:00Z",
            "0000-01-01T00:00:00Z",
            "2026-03-15T09:30:00.Z",
            "2026-03-15T09:30:00+25:00",
            "9999-12-31T23:59:59-01:00",
            "0001-01-01T00:00:00+01:00",
            "2026-03-15T09:30:00é",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text:?} was accepted");
        }
    }
}
