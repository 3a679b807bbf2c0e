//! The drawings of a report: a figure compared with its bar, and measured values on a scale.

use postcommit_server::ui::chart::{Scale, drawing, mark, segment, side, text, ticks_across};

use crate::report::{Series, Threshold};

/// Draws the figure as a rectangle, its bar as a line across, and underlines the allowed side.
pub fn bullet(figure: f64, bar: Threshold, labels: (&str, &str), label: &str) -> String {
    let (Threshold::AtLeast(goal) | Threshold::AtMost(goal)) = bar;
    let scale = Scale::from_zero([figure * 1.05, goal * 1.25]);
    let length = scale
        .at(figure)
        .map_or(String::new(), |p| format!(r#"<rect class="figure" y="4" width="{p:.2}%" height="12"/>"#));
    let goal = scale.at(goal).map_or(String::new(), |p| {
        let (from, to) = if matches!(bar, Threshold::AtLeast(_)) { (p, 100.0) } else { (0.0, p) };
        let good = format!(r#"<rect class="good" x="{from:.2}%" y="20" width="{:.2}%" height="3"/>"#, to - from);
        let line = format!(r#"<line class="goal" x1="{p:.2}%" x2="{p:.2}%" y1="0" y2="23"/>"#);
        format!("{good}{line}{}", text(p, 36.0, labels.1))
    });
    let track = r#"<rect class="track" y="4" width="100%" height="12"/>"#;
    drawing(42.0, label, &format!("{}{track}{length}{goal}", side(14.0, labels.0)))
}

/// Draws a row for each series on one scale: a mark for each value, a line across for the median, a line along for the
/// spread.
pub fn strips(rows: &[(&str, &Series)], label: &str) -> String {
    let scale = Scale::around(rows.iter().flat_map(|(_, s)| s.values.iter().copied().chain([s.median])));
    let bottom = rows.len() as f64 * 24.0;
    let axis = format!(r#"<line class="axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>"#);
    let strips: String = rows.iter().enumerate().map(|(i, row)| strip(i, *row, &scale)).collect();
    drawing(bottom + 20.0, label, &format!("{}{axis}{strips}", ticks_across(&scale, bottom)))
}

fn strip(i: usize, (name, series): (&str, &Series), scale: &Scale) -> String {
    let y = i as f64 * 24.0 + 12.0;
    let places: Vec<f64> = series.values.iter().filter_map(|v| scale.at(*v)).collect();
    let (from, to) = places.iter().fold((100.0_f64, 0.0_f64), |(from, to), p| (from.min(*p), to.max(*p)));
    let spread = if from < to { segment((from, y), (to, y)) } else { String::new() };
    let median = scale
        .at(series.median)
        .map_or(String::new(), |p| segment((p, y - 9.0), (p, y + 9.0)).replace("<line", r#"<line class="median""#));
    let marks: String = places.iter().map(|p| mark(i, *p, y)).collect();
    format!(r#"<g class="line{i}">{}{spread}{marks}{median}</g>"#, side(y + 4.0, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let median = values.first().copied().unwrap_or(f64::NAN);
        Series { name: "a".into(), unit: "ms".into(), values: values.to_vec(), median, spread: (median, median) }
    }

    fn sound(svg: &str) {
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn strips_take_any_values() {
        for values in
            [&[][..], &[3.0], &[0.0], &[2.0, 2.0], &[f64::NAN], &[1.0, f64::INFINITY], &[f64::NEG_INFINITY, f64::MAX]]
        {
            sound(&strips(&[("ours", &series(values)), ("against", &series(&[1.0, 2.0]))], "label"));
            sound(&strips(&[("ours", &series(values))], "label"));
        }
        assert_eq!(strips(&[("ours", &series(&[1.0, 2.0, 3.0]))], "label").matches("<path").count(), 3);
    }

    #[test]
    fn bullets_take_any_figure() {
        for figure in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.83, f64::MAX] {
            for goal in [0.6, 0.0, f64::NAN, f64::INFINITY] {
                sound(&bullet(figure, Threshold::AtLeast(goal), ("ratio", "bar"), "label"));
                sound(&bullet(figure, Threshold::AtMost(goal), ("ratio", "bar"), "label"));
            }
        }
        assert!(!bullet(f64::NAN, Threshold::AtLeast(1.0), ("ratio", "bar"), "label").contains("class=\"figure\""));
    }
}
