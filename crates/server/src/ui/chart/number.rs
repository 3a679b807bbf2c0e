//! Formats numbers for people: `12,345/s`, `1.27 ms`, `0.83`.

/// A measured value with its unit, or a dash if it is not a number.
pub fn value(v: f64, unit: &str) -> String {
    with_unit(plain(v), v, unit)
}

/// The range from the smallest to the largest value on one line, without the unit.
pub fn spread((low, high): (f64, f64)) -> String {
    format!("{}\u{a0}–\u{a0}{}", plain(low), plain(high))
}

/// A ratio with two decimals, or fewer for large values.
pub fn ratio(v: f64) -> String {
    match v.abs() {
        a if (0.1..10.0).contains(&a) => format!("{v:.2}"),
        a if (10.0..100.0).contains(&a) => format!("{v:.1}"),
        _ => plain(v),
    }
}

/// The value of a target exactly as it was written, without rounding.
pub fn exact(v: f64, unit: &str) -> String {
    let text = if v.is_finite() && (v == 0.0 || (1e-6..1e15).contains(&v.abs())) {
        grouped(&format!("{v}"))
    } else {
        plain(v)
    };
    with_unit(text, v, unit)
}

/// Adds digits to `text`, which is `v` rounded, if it reads like `bar` although `v` differs: 0.798 must not be shown as
/// 0.8 if the target is 0.8.
pub fn told_apart(text: String, v: f64, bar: f64) -> String {
    let reads_like_bar = |t: &str| t.replace(',', "").parse::<f64>() == Ok(bar);
    if v == bar || !v.is_finite() || !reads_like_bar(&text) {
        return text;
    }
    (1..=6).map(|d| grouped(&format!("{v:.d$}"))).find(|t| !reads_like_bar(t)).unwrap_or(text)
}

/// A duration in seconds, or in minutes and seconds.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 60.0 {
        return value(seconds, "s");
    }
    let whole = seconds.round();
    format!("{} min {} s", plain((whole / 60.0).floor()), whole % 60.0)
}

/// A number with about three significant digits and grouped thousands.
pub fn plain(v: f64) -> String {
    let a = v.abs();
    match a {
        _ if v.is_nan() => "–".to_owned(),
        _ if v.is_infinite() => if v > 0.0 { "∞" } else { "-∞" }.to_owned(),
        0.0 => "0".to_owned(),
        _ if !(1e-3..1e15).contains(&a) => format!("{v:.1e}"),
        _ if a >= 100.0 || v.fract() == 0.0 => grouped(&format!("{v:.0}")),
        _ if a >= 10.0 => format!("{v:.1}"),
        _ if a >= 0.1 => format!("{v:.2}"),
        _ if a >= 0.01 => format!("{v:.3}"),
        _ => format!("{v:.4}"),
    }
}

/// Inserts commas between the thousands of a decimal number.
pub fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{sign}{}{rest}", groups.join(","))
}

/// Appends the unit to a number.
pub fn with_unit(text: String, v: f64, unit: &str) -> String {
    match unit {
        _ if !v.is_finite() => text,
        "" => text,
        _ if unit.starts_with(['/', '%']) => format!("{text}{unit}"),
        // A no-break space keeps the number and its unit on one line.
        _ => format!("{text}\u{a0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_well() {
        let nbsp = |text: String| text.replace('\u{a0}', " ");
        assert_eq!(value(12_345.4, "/s"), "12,345/s");
        assert_eq!(nbsp(value(1.2718, "ms")), "1.27 ms");
        assert_eq!(nbsp(value(64.0, "MiB")), "64 MiB");
        assert_eq!(nbsp(value(36.44, "MiB")), "36.4 MiB");
        assert_eq!(nbsp(value(1_234_567.0, "bytes")), "1,234,567 bytes");
        assert_eq!(value(0.0831, ""), "0.083");
        assert_eq!(value(f64::NAN, "ms"), "–");
        assert_eq!(value(f64::INFINITY, "ms"), "∞");
        assert_eq!(value(-1_234.0, ""), "-1,234");
        assert_eq!(nbsp(spread((900.0, 1_100.0))), "900 – 1,100");
    }

    #[test]
    fn ratios_keep_two_decimals() {
        assert_eq!(ratio(0.8312), "0.83");
        assert_eq!(ratio(2.0), "2.00");
        assert_eq!(ratio(15.27), "15.3");
        assert_eq!(ratio(1_270.0), "1,270");
        assert_eq!(ratio(f64::NAN), "–");
    }

    #[test]
    fn a_bar_is_shown_as_it_was_set() {
        assert_eq!(exact(0.6, ""), "0.6");
        assert_eq!(exact(2.0, ""), "2");
        assert_eq!(exact(40_000_000.0, "/s"), "40,000,000/s");
        assert_eq!(exact(f64::NAN, ""), "–");
    }

    #[test]
    fn a_near_miss_does_not_read_like_the_bar() {
        assert_eq!(told_apart(ratio(0.798), 0.798, 0.8), "0.798");
        assert_eq!(told_apart(ratio(0.79996), 0.79996, 0.8), "0.79996");
        assert_eq!(told_apart(ratio(0.8), 0.8, 0.8), "0.80");
        assert_eq!(told_apart(ratio(0.7), 0.7, 0.8), "0.70");
        assert_eq!(told_apart(plain(40_000.2), 40_000.2, 40_000.0), "40,000.2");
    }

    #[test]
    fn long_times_are_minutes() {
        assert_eq!(duration(200.4), "3 min 20 s");
        assert_eq!(duration(12.34), "12.3\u{a0}s");
        assert_eq!(duration(f64::NAN), "–");
    }
}
