//! A small line without axes, for a row of a list.

use super::{Scale, segment};
use crate::html::escape;

/// The height of the line in pixels.
const HEIGHT: f64 = 22.0;

/// A line through values at equal distances. `label` says in words what it shows.
pub fn spark(values: &[f64], label: &str) -> String {
    let scale = Scale::from_zero(values.iter().copied());
    let last = values.len().saturating_sub(1).max(1) as f64;
    let up = |value: f64| scale.at(value).map(|p| HEIGHT - 1.0 - (HEIGHT - 2.0) * p / 100.0);
    let place = |(i, value): (usize, &f64)| Some((100.0 * i as f64 / last, up(*value)?));
    let places: Vec<_> = values.iter().enumerate().map(place).collect();
    let pairs = places.iter().zip(places.iter().skip(1));
    let line: String = pairs.filter_map(|(a, b)| Some(segment((*a)?, (*b)?))).collect();
    format!(
        r#"<svg class="spark" width="100%" height="{HEIGHT}" role="img" aria-label="{}">{line}</svg>"#,
        escape(label)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spark_has_a_segment_between_neighbours_and_escapes_its_label() {
        let svg = spark(&[0.0, 4.0, 2.0], "<b>");
        assert_eq!(svg.matches("<line ").count(), 2);
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("NaN"), "{svg}");
        for few in [&[][..], &[1.0], &[f64::NAN, 1.0]] {
            assert_eq!(spark(few, "few").matches("<line ").count(), 0);
        }
    }
}
