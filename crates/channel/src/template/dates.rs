//! Dates and times: how they are recognized in a payload, and how they are written.

use std::sync::Arc;

use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::limits;

/// A date or time in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// A date: `2026-03-15`.
    Date(Date),
    /// A local time without a time zone: `2026-03-15T14:00:00`. It is never converted.
    Local(DateTime),
    /// An instant: `2026-03-15T14:00:00Z`. It is converted to the time zone of the rendering.
    Instant(Timestamp),
}

impl Moment {
    /// Reads a string that consists of an ISO 8601 date or time. `T` or a space separates the date from the time.
    pub(super) fn read(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let digits =
            |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|all| all.iter().all(u8::is_ascii_digit));
        let shaped =
            bytes.len() <= 40 && digits(0..4) && digits(5..7) && digits(8..10) && bytes[4] == b'-' && bytes[7] == b'-';
        if !shaped {
            return None;
        }
        if bytes.len() == 10 {
            return text.parse().ok().map(Self::Date);
        }
        let clock = matches!(bytes[10], b'T' | b't' | b' ') && digits(11..13) && bytes.get(13) == Some(&b':');
        if !clock || text.contains('[') {
            return None;
        }
        let instant = text.parse::<Timestamp>().ok().map(Self::Instant);
        instant.or_else(|| text.parse::<DateTime>().ok().map(Self::Local))
    }

    /// Formats the date or time with a strftime pattern, in a time zone.
    pub(super) fn write(self, format: &str, zone: &TimeZone) -> Result<String, String> {
        let zoned = match self {
            Self::Date(date) => date.to_datetime(jiff::civil::Time::midnight()).to_zoned(zone.clone()),
            Self::Local(time) => time.to_zoned(zone.clone()),
            Self::Instant(instant) => Ok(instant.to_zoned(zone.clone())),
        };
        written(format, &zoned.map_err(|_| "the date is out of range; allowed are the years -9999 to 9999".to_owned())?)
    }
}

fn written(format: &str, zoned: &Zoned) -> Result<String, String> {
    strtime::format(format, zoned).map_err(|_| format!("{format:?} is not a date format; an example is %d-%b-%Y"))
}

/// Checks a date format by formatting a date with it.
pub(super) fn check_format(format: &str) -> Result<(), String> {
    let limit = limits::DATE_FORMAT_CHARS;
    if format.is_empty() || format.chars().count() > limit {
        return Err(format!("the date format has {} characters; 1 to {limit} are allowed", format.chars().count()));
    }
    // A width such as %999999Y would produce that many characters.
    let wide = format.split('%').skip(1).any(|directive| {
        directive.trim_start_matches(['-', '_', '0', '^', '#']).chars().take_while(char::is_ascii_digit).count() > 1
    });
    if wide {
        return Err(format!("{format:?} is not a date format; a width has one digit, such as %5Y"));
    }
    written(format, &Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC)).map(drop)
}

/// Returns the time zone with this IANA name, from the time zone data in this program, which are the same on every
/// machine.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| format!("{name:?} is not a time zone; write one such as Asia/Kolkata"))
}

/// Checks that a time zone is known to this program.
///
/// # Errors
/// Names the value and an example.
pub fn check_time_zone(name: &str) -> Result<(), String> {
    zone(name).map(drop)
}

/// The format of dates, the time zone and the language of one rendering.
#[derive(Debug)]
pub(super) struct Manner {
    pub(super) date_format: Arc<str>,
    pub(super) zone: TimeZone,
    pub(super) language: Option<String>,
}

impl Manner {
    /// Formats a date that has no format of its own.
    pub(super) fn date(&self, moment: Moment) -> Result<String, String> {
        moment.write(&self.date_format, &self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(text: &str, name: &str) -> Option<String> {
        Moment::read(text).map(|moment| moment.write("%d-%b-%Y %H:%M", &zone(name).unwrap()).unwrap())
    }

    #[test]
    fn iso_dates_and_times_are_found() {
        for (text, written) in [
            ("2026-03-15", "15-Mar-2026 00:00"),
            ("2026-03-15T20:30:00Z", "16-Mar-2026 02:00"),
            ("2026-03-15T20:30:00.123456+00:00", "16-Mar-2026 02:00"),
            ("2026-03-15 20:30:00+00", "16-Mar-2026 02:00"),
            ("2026-03-15T20:30", "15-Mar-2026 20:30"),
            ("2026-03-15 20:30:15", "15-Mar-2026 20:30"),
        ] {
            assert_eq!(bare(text, "Asia/Kolkata").as_deref(), Some(written), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-30",
            "2026-03-15 is a Sunday",
            "20260315",
            "15-03-2026",
            "2026-03-15T",
            "2026-03-15T25:00:00Z",
            "2026-03-15T20:30:00Z[Asia/Kolkata]",
            " 2026-03-15",
            "٢٠٢٦-٠٣-١٥",
        ] {
            assert_eq!(Moment::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_day_stays_the_same_day_where_midnight_does_not_exist() {
        // In 2017 the clocks of São Paulo went from 23:59 on 14 October to 01:00.
        let moment = Moment::read("2017-10-15").unwrap();
        assert_eq!(moment.write("%d-%b-%Y", &zone("America/Sao_Paulo").unwrap()).unwrap(), "15-Oct-2017");
    }

    #[test]
    fn formats_and_zones_are_checked() {
        for good in ["%d-%b-%Y", "%A, %e %B %Y %-I:%M %p", "%H:%M %Z", "%d/%m/%y", "%3f"] {
            assert_eq!(check_format(good), Ok(()), "{good}");
        }
        for bad in ["", "%", "%Ö", "%999999Y", "%_99d", &"%Y".repeat(40)] {
            assert!(check_format(bad).is_err(), "{bad}");
        }
        assert!(zone("Asia/Calcutta").is_ok());
        for bad in ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime"] {
            assert!(zone(bad).is_err(), "{bad}");
        }
    }
}
