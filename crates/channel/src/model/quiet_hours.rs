//! Quiet hours: the hours in which a user receives no messages, and the due time of messages in these hours. The hours
//! are local times of the user's time zone, so they do not shift with daylight saving time.

use jiff::ToSpan;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::template::zone;

/// The field of a delivery's context that holds the [`QuietWindow`] of its user.
const IN_CONTEXT: &str = "quiet_hours";

/// The daily hours in which a user receives no messages. `from` is included and `until` is not. If `until` is before
/// `from`, the hours end on the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuietHours {
    /// The beginning of the quiet hours, such as `22:00`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$", example = "22:00"))]
    pub from: String,
    /// The end of the quiet hours, such as `07:00`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$", example = "07:00"))]
    pub until: String,
}

/// The rule of an event type for messages in the quiet hours of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum QuietRule {
    /// Send the message when the quiet hours end.
    #[default]
    Delay,
    /// Skip the message.
    Skip,
    /// Send the message immediately, despite the quiet hours.
    Ignore,
}

impl QuietRule {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::Delay, Self::Skip, Self::Ignore];

    /// The name of the rule, as it is stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Skip => "skip",
            Self::Ignore => "ignore",
        }
    }

    /// The rule with this name.
    ///
    /// # Errors
    /// A sentence with the value and the allowed names. The caller adds the name of the field.
    pub fn named(name: &str) -> Result<Self, String> {
        let allowed = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| format!("{name:?} is not known; allowed are {}", allowed()))
    }
}

impl QuietHours {
    /// Checks that `from` and `until` are times of day and differ.
    ///
    /// # Errors
    /// Names the field, its value and an example.
    pub fn check(&self) -> Result<(), String> {
        for (field, text) in [("from", &self.from), ("until", &self.until)] {
            if clock(text).is_none() {
                return Err(format!("quiet_hours.{field}: {text:?} is not a time of day; write one such as 22:00"));
            }
        }
        match self.from == self.until {
            true => Err("quiet_hours.until: is the same as `from`; write another time such as 07:00".into()),
            false => Ok(()),
        }
    }

    /// Reads `22:00-07:00`, as it is written in command lines and CSV files.
    ///
    /// # Errors
    /// Says what is wrong, with the field.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = || format!("quiet_hours: {text:?} is not a range of hours; write one such as 22:00-07:00");
        let (from, until) = text.split_once('-').ok_or_else(wrong)?;
        let hours = Self { from: from.trim().to_owned(), until: until.trim().to_owned() };
        hours.check().map(|()| hours)
    }

    /// Formats the hours as `22:00-07:00`, the form that [`QuietHours::read`] reads.
    #[must_use]
    pub fn written(&self) -> String {
        format!("{}-{}", self.from, self.until)
    }

    /// The end of the quiet hours that include this time. `None` if the time is not in quiet hours.
    fn end(&self, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let (from, until) = (clock(&self.from)?, clock(&self.until)?);
        let now = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?;
        let today = now.to_zoned(zone.clone()).date();
        let instant = |date: Date, time: Time| Some(date.to_datetime(time).to_zoned(zone.clone()).ok()?.timestamp());
        // Quiet hours that began yesterday may not have ended yet.
        [today.checked_sub(1.day()).ok()?, today].into_iter().find_map(|first| {
            let last = if until > from { first } else { first.checked_add(1.day()).ok()? };
            let (begin, end) = (instant(first, from)?, instant(last, until)?);
            (begin <= now && now < end).then(|| Timestamp::from_micros(end.as_microsecond()))
        })
    }
}

/// Reads a time of day: two digits, a colon, two digits.
fn clock(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let number =
        |digits: &str| digits.parse::<i8>().ok().filter(|_| digits.len() == 2 && !digits.starts_with(['+', '-']));
    Time::new(number(hour)?, number(minute)?, 0, 0).ok()
}

/// The quiet hours of a user and their time zone. A delivery stores them in its context, so that every attempt uses the
/// same hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuietWindow {
    hours: QuietHours,
    time_zone: String,
}

impl QuietWindow {
    /// The quiet hours in the first of these time zones that is set and known. If there is none, in UTC.
    #[must_use]
    pub fn new(hours: &QuietHours, zones: [Option<&str>; 2]) -> Self {
        let known = zones.into_iter().flatten().find(|name| zone(name).is_ok());
        Self { hours: hours.clone(), time_zone: known.unwrap_or("UTC").to_owned() }
    }

    /// The end of the quiet hours that include this time. `None` if the time is not in quiet hours.
    #[must_use]
    pub fn end(&self, at: Timestamp) -> Option<Timestamp> {
        self.hours.end(at, &zone(&self.time_zone).ok()?)
    }

    /// A time as the user's clock shows it, with the name of the time zone. `None` if the zone is UTC.
    #[must_use]
    pub fn local(&self, at: Timestamp) -> Option<String> {
        let zone = zone(&self.time_zone).ok().filter(|_| self.time_zone != "UTC")?;
        let local = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?.to_zoned(zone);
        Some(format!("{} in {}", local.strftime("%Y-%m-%d %H:%M"), self.time_zone))
    }

    /// Puts the window into a delivery's context.
    pub(super) fn put_into(&self, context: &mut Value) {
        context[IN_CONTEXT] = serde_json::to_value(self).unwrap_or_default();
    }

    /// Reads the window from a delivery's context.
    #[must_use]
    pub fn of(context: Option<&str>) -> Option<Self> {
        // Most contexts have no window. This check avoids parsing their JSON.
        let context = context.filter(|context| context.contains(IN_CONTEXT))?;
        serde_json::from_str::<Value>(context)
            .ok()?
            .get(IN_CONTEXT)
            .and_then(|own| serde_json::from_value(own.clone()).ok())
    }

    /// Removes the window from a context, because templates must not read it.
    pub fn remove_from(context: &mut serde_json::Map<String, Value>) {
        context.remove(IN_CONTEXT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
    }

    fn window(from: &str, until: &str, zone: &str) -> QuietWindow {
        QuietWindow::new(&QuietHours { from: from.into(), until: until.into() }, [Some(zone), None])
    }

    #[test]
    fn a_moment_in_quiet_hours_is_moved_to_their_end() {
        let (night, noon) = (("22:00", "07:00"), ("12:00", "13:30"));
        for (hours, zone, now, end) in [
            (night, "UTC", "2026-03-10T21:59:59Z", None),
            (night, "UTC", "2026-03-10T22:00:00Z", Some("2026-03-11T07:00:00Z")),
            (night, "UTC", "2026-03-11T00:00:00Z", Some("2026-03-11T07:00:00Z")),
            (night, "UTC", "2026-03-11T06:59:59.999999Z", Some("2026-03-11T07:00:00Z")),
            (night, "UTC", "2026-03-11T07:00:00Z", None),
            (night, "Asia/Kolkata", "2026-03-10T16:30:00Z", Some("2026-03-11T01:30:00Z")),
            (night, "Asia/Kolkata", "2026-03-10T16:29:59Z", None),
            (noon, "UTC", "2026-03-10T12:15:00Z", Some("2026-03-10T13:30:00Z")),
            (noon, "UTC", "2026-03-10T13:30:00Z", None),
            // The quiet hours include the end of a year, or the 29th of February.
            (night, "UTC", "2026-12-31T23:00:00Z", Some("2027-01-01T07:00:00Z")),
            (night, "UTC", "2028-02-28T23:00:00Z", Some("2028-02-29T07:00:00Z")),
        ] {
            assert_eq!(window(hours.0, hours.1, zone).end(at(now)), end.map(at), "{hours:?} in {zone} at {now}");
        }
    }

    #[test]
    fn quiet_hours_keep_their_times_when_the_clocks_change() {
        for (hours, now, end) in [
            // In Berlin, the clock went from 02:00 to 03:00 on 29 March 2026, so the night is one hour shorter.
            (("22:00", "07:00"), "2026-03-28T21:00:00Z", Some("2026-03-29T05:00:00Z")),
            // 02:30 did not exist that night: the hours end when the clock would have shown 02:30 without the change.
            (("22:00", "02:30"), "2026-03-28T23:00:00Z", Some("2026-03-29T01:30:00Z")),
            (("02:30", "07:00"), "2026-03-29T01:15:00Z", None),
            (("02:30", "07:00"), "2026-03-29T01:30:00Z", Some("2026-03-29T05:00:00Z")),
            // On 25 October, the clock went from 03:00 to 02:00. 02:30 came twice, and the first time ends the quiet
            // hours.
            (("22:00", "07:00"), "2026-10-24T20:00:00Z", Some("2026-10-25T06:00:00Z")),
            (("22:00", "02:30"), "2026-10-25T00:15:00Z", Some("2026-10-25T00:30:00Z")),
            (("22:00", "02:30"), "2026-10-25T01:15:00Z", None),
        ] {
            assert_eq!(window(hours.0, hours.1, "Europe/Berlin").end(at(now)), end.map(at), "{hours:?} at {now}");
        }
    }

    #[test]
    fn a_moment_is_told_as_the_users_clock_shows_it() {
        let local = |zone: &str| window("22:00", "07:00", zone).local(at("2026-03-11T01:30:00Z"));
        assert_eq!(local("Asia/Kolkata").as_deref(), Some("2026-03-11 07:00 in Asia/Kolkata"));
        assert_eq!(local("UTC"), None);
    }

    #[test]
    fn the_time_zone_is_the_users_or_else_the_tenants_or_else_utc() {
        let hours = QuietHours { from: "22:00".into(), until: "07:00".into() };
        for (zones, expected) in [
            ([Some("Asia/Kolkata"), Some("Europe/Berlin")], "Asia/Kolkata"),
            ([None, Some("Europe/Berlin")], "Europe/Berlin"),
            ([Some("Mars/Base"), Some("Europe/Berlin")], "Europe/Berlin"),
            ([Some("Mars/Base"), None], "UTC"),
        ] {
            assert_eq!(QuietWindow::new(&hours, zones).time_zone, expected);
        }
    }

    #[test]
    fn a_context_gives_the_window_back() {
        let mut context = serde_json::json!({"name": "Ada"});
        assert_eq!(QuietWindow::of(Some(&context.to_string())), None);
        let window = window("22:00", "07:00", "Asia/Kolkata");
        window.put_into(&mut context);
        assert_eq!(QuietWindow::of(Some(&context.to_string())), Some(window));
        assert_eq!(QuietWindow::of(None), None);
        QuietWindow::remove_from(context.as_object_mut().unwrap());
        assert_eq!(context, serde_json::json!({"name": "Ada"}));
    }

    #[test]
    fn times_of_day_are_checked() {
        assert_eq!(QuietHours::read("22:00-07:00").unwrap().written(), "22:00-07:00");
        for (wrong, said) in [
            ("22:00", "quiet_hours: \"22:00\" is not a range of hours; write one such as 22:00-07:00"),
            ("24:00-07:00", "quiet_hours.from: \"24:00\" is not a time of day; write one such as 22:00"),
            ("22:00-7:00", "quiet_hours.until: \"7:00\" is not a time of day; write one such as 22:00"),
            ("22:00-07:60", "quiet_hours.until: \"07:60\" is not a time of day; write one such as 22:00"),
            ("22:00-+7:00", "quiet_hours.until: \"+7:00\" is not a time of day; write one such as 22:00"),
            ("22:00-22:00", "quiet_hours.until: is the same as `from`; write another time such as 07:00"),
        ] {
            assert_eq!(QuietHours::read(wrong).unwrap_err(), said);
        }
        assert_eq!(QuietRule::named("later").unwrap_err(), "\"later\" is not known; allowed are delay, skip, ignore");
    }
}
