//! Horizontal bars, one for each class of values.

use super::{drawing, side, text_from};

/// The height of a row in pixels.
const ROW: f64 = 24.0;
/// The width of the longest bar in percent. Its number stands beside it.
const WIDEST: f64 = 86.0;

/// A chart with one row for each class: its label, its bar and its number. `label` is a sentence that says what it shows.
pub fn histogram(rows: &[(String, u64)], label: &str) -> String {
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
    let drawn = rows.iter().enumerate().map(|(place, (class, count))| {
        let (top, width) = (ROW * place as f64, WIDEST * *count as f64 / most as f64);
        let bar = match count {
            0 => String::new(),
            // A bar of a count above 0 stays visible, however short it is.
            _ => format!(
                r#"<rect class="part0" x="0" y="{:.1}" width="{:.2}%" height="{:.1}"/>"#,
                top + 4.0,
                width.max(0.4),
                ROW - 8.0
            ),
        };
        let number = super::grouped(&count.to_string());
        format!("{}{bar}{}", side(top + 16.0, class), text_from(width.max(0.4), top + 16.0, &number))
    });
    drawing(ROW * rows.len() as f64, label, &drawn.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_leaves_room_for_its_number_and_nothing_divides_by_zero() {
        let svg = histogram(&[("<b>".into(), 1200), ("2 s".into(), 3), ("more".into(), 0)], "label");
        assert_eq!((svg.matches("<rect").count(), svg.matches("<text").count()), (2, 6));
        assert!(svg.contains("width=\"86.00%\"") && svg.contains("1,200") && !svg.contains("<b>"), "{svg}");
        let empty = histogram(&[("2 s".into(), 0)], "label");
        assert!(!empty.contains("NaN") && !empty.contains("<rect"), "{empty}");
    }
}
