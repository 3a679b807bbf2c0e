//! Stacked bars over time, each a link.

use super::{CHART, Scale, plot, rule, text};
use crate::html::escape;

/// One bar: the sum of its parts.
pub struct Bar {
    /// The tooltip of the bar.
    pub title: String,
    /// The page that the bar opens.
    pub href: String,
    /// The sizes of the parts, from the bottom up. Part `i` has the class `part{i}`.
    pub parts: Vec<f64>,
    /// A label below the bar. Only a few bars have one.
    pub label: Option<String>,
}

/// A chart of stacked bars. `label` is a sentence that says what it shows.
pub fn bars(all: &[Bar], label: &str) -> String {
    let sum = |bar: &Bar| bar.parts.iter().filter(|part| part.is_finite()).sum::<f64>();
    let scale = Scale::from_zero(all.iter().map(sum));
    let height = |v: f64| scale.at(v).map_or(0.0, |p| CHART * p / 100.0);
    let grid: String = scale.ticks().iter().map(|(v, label)| rule(CHART - height(*v), label)).collect();
    let step = 100.0 / all.len().max(1) as f64;
    let drawn = all.iter().enumerate().map(|(i, bar)| {
        let (x, mut top) = (step * i as f64, 0.0);
        let mut parts = String::new();
        for (part, size) in bar.parts.iter().enumerate().filter(|(_, size)| size.is_finite() && **size > 0.0) {
            let (low, high) = (height(top), height(top + size));
            top += size;
            // A part above 0 stays visible, however small it is.
            let tall = (high - low).max(1.5);
            parts.push_str(&format!(
                r#"<rect class="part{part}" x="{:.3}%" y="{:.1}" width="{:.3}%" height="{tall:.1}"/>"#,
                x + step * 0.1,
                CHART - low - tall,
                step * 0.8
            ));
        }
        let label = bar.label.as_ref().map(|label| text(x + step / 2.0, CHART + 16.0, label)).unwrap_or_default();
        if parts.is_empty() {
            return label;
        }
        let (href, title) = (escape(&bar.href), escape(&bar.title));
        // The surface makes the whole height of the chart clickable, not only the bar.
        let surface = format!(r#"<rect class="surface" x="{x:.3}%" y="0" width="{step:.3}%" height="{CHART}"/>"#);
        format!(r#"<a href="{href}" aria-label="{title}"><title>{title}</title>{surface}{parts}</a>{label}"#)
    });
    plot("group", CHART + 22.0, label, &format!("{grid}{}", drawn.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_stacked_and_empty_ones_are_no_links() {
        let bar = |parts: &[f64]| Bar { title: "<b>".into(), href: "/x?a&b".into(), parts: parts.into(), label: None };
        let svg = bars(&[bar(&[2.0, 1.0]), bar(&[0.0, 0.0]), bar(&[f64::NAN, 1.0])], "label");
        assert_eq!((svg.matches("<a ").count(), svg.matches("class=\"part").count()), (2, 3));
        assert!(!svg.contains("NaN") && !svg.contains("<b>") && svg.contains("/x?a&amp;b"), "{svg}");
        assert_eq!(bars(&[], "label").matches("<a ").count(), 0);
    }
}
