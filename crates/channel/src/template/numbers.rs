//! Decimal numbers: calculated and compared without rounding, and formatted by the rules of the language.

use std::cmp::Ordering;

use icu_decimal::input::Decimal as Written;
use icu_decimal::{DecimalFormatter, DecimalFormatterPreferences};
use icu_locale_core::Locale;

/// The maximum number of digits of a number.
const DIGITS: usize = 30;

/// Currencies of ISO 4217 whose smallest unit is not a hundredth.
const MINOR_UNITS: [(&str, u32); 25] = [
    ("BHD", 3),
    ("BIF", 0),
    ("CLF", 4),
    ("CLP", 0),
    ("DJF", 0),
    ("GNF", 0),
    ("IQD", 3),
    ("ISK", 0),
    ("JOD", 3),
    ("JPY", 0),
    ("KMF", 0),
    ("KRW", 0),
    ("KWD", 3),
    ("LYD", 3),
    ("OMR", 3),
    ("PYG", 0),
    ("RWF", 0),
    ("TND", 3),
    ("UGX", 0),
    ("UYI", 0),
    ("UYW", 4),
    ("VND", 0),
    ("VUV", 0),
    ("XAF", 0),
    ("XOF", 0),
];

/// A decimal number: `units` divided by ten to the power of `scale`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decimal {
    units: i128,
    scale: u32,
}

impl Decimal {
    /// Reads a decimal number of at most [`DIGITS`] digits, also with an exponent, as JSON writes them.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = whole.strip_prefix('-').unwrap_or(whole);
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let shaped = !digits.is_empty() && plain(digits) && plain(fraction) && !mantissa.ends_with('.');
        if !shaped || digits.len() + fraction.len() > DIGITS {
            return None;
        }
        let units: i128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
        match u32::try_from(scale) {
            Ok(scale) => (scale <= DIGITS as u32).then_some(Self { units, scale }),
            Err(_) => Self { units, scale: 0 }.shifted(scale.unsigned_abs()),
        }
    }

    /// Multiplies `units` by ten to the power of `places`.
    fn shifted(self, places: u32) -> Option<Self> {
        let units = self.units.checked_mul(10_i128.checked_pow(places)?)?;
        Some(Self { units, scale: self.scale })
    }

    /// Returns the units of both numbers at a common scale, and that scale.
    fn aligned(self, other: Self) -> Option<(i128, i128, u32)> {
        let scale = self.scale.max(other.scale);
        Some((self.shifted(scale - self.scale)?.units, other.shifted(scale - other.scale)?.units, scale))
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let (a, b, scale) = self.aligned(other)?;
        Some(Self { units: a.checked_add(b)?, scale })
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        self.plus(Self { units: other.units.checked_neg()?, scale: other.scale })
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        let scale = self.scale + other.scale;
        let units = self.units.checked_mul(other.units)?;
        (scale <= DIGITS as u32).then_some(Self { units, scale })
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        match self.aligned(other) {
            Some((a, b, _)) => a.cmp(&b),
            // The scales differ too much for a common scale: compare approximately.
            None => self.rough().total_cmp(&other.rough()),
        }
    }

    fn rough(self) -> f64 {
        self.units as f64 / 10_f64.powi(self.scale as i32)
    }

    /// Rounds to `places` digits after the decimal point. A half is rounded away from zero.
    pub(super) fn rounded(self, places: u32) -> Option<Self> {
        if places >= self.scale {
            return Some(Self { scale: places, ..self.shifted(places - self.scale)? });
        }
        let unit = 10_i128.checked_pow(self.scale - places)?;
        let half = unit / 2 * self.units.signum();
        Some(Self { units: self.units.checked_add(half)? / unit, scale: places })
    }

    pub(super) fn is_zero(self) -> bool {
        self.units == 0
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, scale) = (if self.units < 0 { "-" } else { "" }, self.scale as usize);
        let digits = format!("{:0>width$}", self.units.unsigned_abs(), width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        write!(f, "{sign}{whole}{}{fraction}", if scale > 0 { "." } else { "" })
    }
}

/// Formats a number by the rules of the language: `12,34,567.50` in `en-IN`. An unknown language counts as English.
pub(super) fn grouped(number: Decimal, language: Option<&str>) -> Result<String, String> {
    let locale: Locale = language.and_then(|tag| tag.parse().ok()).unwrap_or(Locale::UNKNOWN);
    let english = || DecimalFormatter::try_new(DecimalFormatterPreferences::default(), Default::default());
    let formatter = DecimalFormatter::try_new((&locale).into(), Default::default()).or_else(|_| english());
    let formatter = formatter.map_err(|problem| problem.to_string())?;
    let written: Written =
        number.to_string().parse().map_err(|_| "the number has too many digits; use a smaller number".to_owned())?;
    Ok(formatter.format(&written).to_string())
}

/// The digits after the decimal point of a currency, by its ISO 4217 code.
pub(super) fn minor_units(code: &str) -> Result<u32, String> {
    if code.len() != 3 || !code.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err(format!("{code:?} is not a currency; use an ISO 4217 code such as INR"));
    }
    Ok(MINOR_UNITS.iter().find(|(known, _)| *known == code).map_or(2, |(_, places)| *places))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::read(text).unwrap()
    }

    #[test]
    fn numbers_keep_their_digits() {
        for text in ["0", "-1", "1500.50", "0.001", "-0.5", "123456789012345678901234567890"] {
            assert_eq!(decimal(text).to_string(), text);
        }
        assert_eq!(decimal("1.5e3").to_string(), "1500");
        assert_eq!(decimal("15E-1").to_string(), "1.5");
        for text in
            ["", "-", ".5", "5.", "1,5", "x", "1e999999999", "+1", "1 ", "--1", &"9".repeat(31), "1e-40", "1e40"]
        {
            assert!(Decimal::read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn numbers_are_calculated_exactly() {
        assert_eq!(decimal("0.1").plus(decimal("0.2")).unwrap().to_string(), "0.3");
        assert_eq!(decimal("1").minus(decimal("1.05")).unwrap().to_string(), "-0.05");
        assert_eq!(decimal("19.99").times(decimal("3")).unwrap().to_string(), "59.97");
        let large = decimal(&"9".repeat(30));
        assert!(large.times(large).is_none());
        assert_eq!(decimal("1.0").compare(decimal("1")), Ordering::Equal);
        assert_eq!(decimal("-2").compare(decimal("1.5")), Ordering::Less);
        assert_eq!(large.compare(decimal("0.0000000000000000000000000001")), Ordering::Greater);
    }

    #[test]
    fn a_half_is_rounded_away_from_zero() {
        for (text, places, rounded) in [
            ("2.5", 0, "3"),
            ("-2.5", 0, "-3"),
            ("1.005", 2, "1.01"),
            ("1.004", 2, "1.00"),
            ("7", 2, "7.00"),
            ("-0.004", 2, "0.00"),
        ] {
            assert_eq!(decimal(text).rounded(places).unwrap().to_string(), rounded, "{text}");
        }
    }

    #[test]
    fn languages_group_digits_in_their_way() {
        let number = decimal("1234567.50");
        assert_eq!(grouped(number, None).unwrap(), "1,234,567.50");
        assert_eq!(grouped(number, Some("en-IN")).unwrap(), "12,34,567.50");
        assert_eq!(grouped(number, Some("de")).unwrap(), "1.234.567,50");
        assert_eq!(grouped(number, Some("no such language")).unwrap(), "1,234,567.50");
    }

    #[test]
    fn currencies_have_their_own_smallest_unit() {
        assert_eq!(minor_units("INR"), Ok(2));
        assert_eq!(minor_units("JPY"), Ok(0));
        assert_eq!(minor_units("KWD"), Ok(3));
        assert!(minor_units("rupees").is_err());
    }
}
