//! The drawings. Across, everything is in percent and the text is in pixels, so that a drawing fills a phone or a
//! desk without its letters shrinking. The room left of the zero, for labels, is the padding of `.plot`.

use super::super::report::{Bar, Chart, Series};
use super::esc;
use super::scale::Scale;

/// Pixels of a chart from top to bottom.
const CHART: f64 = 200.0;

/// Lines with at most this many points show each of them.
const POINTS: usize = 40;

/// Tells lines apart without colour; the fifth begins again.
const MARKERS: [&str; 4] = ["M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M0,-5L5,0L0,5L-5,0z", "M-4,-4H4V4H-4z", "M0,-5L5,4H-5z"];

/// The figure as a bar, what it must reach as a line across, the side it should be on underlined.
pub fn bullet(figure: f64, bar: Bar, labels: (&str, &str), label: &str) -> String {
    let (Bar::AtLeast(goal) | Bar::AtMost(goal)) = bar;
    let scale = Scale::from_zero([figure * 1.05, goal * 1.25]);
    let length = scale.at(figure).map_or(String::new(), |p| format!(r#"<rect class="figure" y="4" width="{p:.2}%" height="12"/>"#));
    let goal = scale.at(goal).map_or(String::new(), |p| {
        let (from, to) = if matches!(bar, Bar::AtLeast(_)) { (p, 100.0) } else { (0.0, p) };
        let good = format!(r#"<rect class="good" x="{from:.2}%" y="20" width="{:.2}%" height="3"/>"#, to - from);
        let line = format!(r#"<line class="goal" x1="{p:.2}%" x2="{p:.2}%" y1="0" y2="23"/>"#);
        format!("{good}{line}{}", text(p, 36.0, labels.1))
    });
    let track = r#"<rect class="track" y="4" width="100%" height="12"/>"#;
    drawing(42.0, label, &format!("{}{track}{length}{goal}", side(14.0, labels.0)))
}

/// A row for each series on one scale: every value a mark, the median a line across, the spread a line along.
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
    let median =
        scale.at(series.median).map_or(String::new(), |p| segment((p, y - 9.0), (p, y + 9.0)).replace("<line", r#"<line class="median""#));
    let marks: String = places.iter().map(|p| mark(i, *p, y)).collect();
    format!(r#"<g class="line{i}">{}{spread}{marks}{median}</g>"#, side(y + 4.0, name))
}

/// Lines with points over common axes.
pub fn lines(chart: &Chart, label: &str) -> String {
    let points = || chart.lines.iter().flat_map(|(_, points)| points.iter());
    let (x, y) = (Scale::over(points().map(|p| p.0)), Scale::from_zero(points().map(|p| p.1)));
    let up = |v: f64| y.at(v).map(|p| CHART * (1.0 - p / 100.0));
    let grid: String = y.ticks().iter().filter_map(|(v, label)| Some(rule(up(*v)?, label))).collect();
    let curves = chart.lines.iter().enumerate().map(|(i, (_, points))| {
        let places: Vec<_> = points.iter().map(|p| Some((x.at(p.0)?, up(p.1)?))).collect();
        curve(i, &places)
    });
    drawing(CHART + 20.0, label, &format!("{grid}{}{}", ticks_across(&x, CHART), curves.collect::<String>()))
}

/// What is not a number is a gap in the line. A point between two gaps is marked however many there are.
fn curve(i: usize, places: &[Option<(f64, f64)>]) -> String {
    let pairs = places.iter().zip(places.iter().skip(1));
    let line: String = pairs.filter_map(|(a, b)| Some(segment((*a)?, (*b)?))).collect();
    let near = |n: usize| places.get(n).is_some_and(Option::is_some);
    let lonely = |n: usize| !near(n + 1) && (n == 0 || !near(n - 1));
    let shown = places.iter().enumerate().filter(|(n, _)| places.len() <= POINTS || lonely(*n) || n % places.len().div_ceil(POINTS) == 0);
    let marks: String = shown.filter_map(|(_, place)| place.map(|(p, y)| mark(i, p, y))).collect();
    format!(r#"<g class="line{}">{line}{marks}</g>"#, i % MARKERS.len())
}

/// A line's mark by itself, for legends.
pub fn key(i: usize) -> String {
    format!(r#"<svg class="key line{}" width="12" height="12" aria-hidden="true">{}</svg>"#, i % MARKERS.len(), mark(i, 50.0, 6.0))
}

fn drawing(height: f64, label: &str, inside: &str) -> String {
    format!(r#"<div class="plot"><svg width="100%" height="{height}" role="img" aria-label="{}">{inside}</svg></div>"#, esc(label))
}

/// A path cannot stand at a percentage; an `svg` of its own can.
fn mark(i: usize, p: f64, y: f64) -> String {
    format!(r#"<svg x="{p:.2}%" y="{y:.1}" overflow="visible"><path d="{}"/></svg>"#, MARKERS[i % MARKERS.len()])
}

fn segment(a: (f64, f64), b: (f64, f64)) -> String {
    format!(r#"<line x1="{:.2}%" y1="{:.1}" x2="{:.2}%" y2="{:.1}"/>"#, a.0, a.1, b.0, b.1)
}

fn rule(y: f64, label: &str) -> String {
    format!(r#"<line class="axis" x1="0" x2="100%" y1="{y:.1}" y2="{y:.1}"/>{}"#, side(y + 4.0, label))
}

fn ticks_across(scale: &Scale, bottom: f64) -> String {
    let tick = |p: f64, label: &str| {
        let line = format!(r#"<line class="axis" x1="{p:.2}%" x2="{p:.2}%" y1="{bottom}" y2="{}"/>"#, bottom + 4.0);
        format!("{line}{}", text(p, bottom + 16.0, label))
    };
    scale.ticks().iter().filter_map(|(v, label)| Some(tick(scale.at(*v)?, label))).collect()
}

/// Below a place; the padding has room for half a tick's label, and what is longer stays within the ends.
fn text(p: f64, y: f64, text: &str) -> String {
    let anchor = match p {
        _ if text.chars().count() < 8 => "middle",
        p if p < 10.0 => "start",
        p if p > 90.0 => "end",
        _ => "middle",
    };
    format!(r#"<text x="{p:.2}%" y="{y}" text-anchor="{anchor}">{}</text>"#, esc(text))
}

/// To the left of the drawing.
fn side(y: f64, text: &str) -> String {
    format!(r#"<text x="-8" y="{y:.1}" text-anchor="end">{}</text>"#, esc(text))
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
        for values in [&[][..], &[3.0], &[0.0], &[2.0, 2.0], &[f64::NAN], &[1.0, f64::INFINITY], &[f64::NEG_INFINITY, f64::MAX]] {
            sound(&strips(&[("ours", &series(values)), ("against", &series(&[1.0, 2.0]))], "label"));
            sound(&strips(&[("ours", &series(values))], "label"));
        }
        assert_eq!(strips(&[("ours", &series(&[1.0, 2.0, 3.0]))], "label").matches("<path").count(), 3);
    }

    #[test]
    fn bullets_take_any_figure() {
        for figure in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.83, f64::MAX] {
            for goal in [0.6, 0.0, f64::NAN, f64::INFINITY] {
                sound(&bullet(figure, Bar::AtLeast(goal), ("ratio", "bar"), "label"));
                sound(&bullet(figure, Bar::AtMost(goal), ("ratio", "bar"), "label"));
            }
        }
        assert!(!bullet(f64::NAN, Bar::AtLeast(1.0), ("ratio", "bar"), "label").contains("class=\"figure\""));
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let chart = |points: &[(f64, f64)]| Chart {
            title: "t".into(),
            x: "x".into(),
            y: "y".into(),
            lines: vec![("a".into(), points.to_vec()), ("b".into(), vec![])],
        };
        let drawn = |points: &[(f64, f64)]| {
            let svg = lines(&chart(points), "label");
            sound(&svg);
            (svg.matches("<line x1").count(), svg.matches("<path").count())
        };
        assert_eq!(drawn(&[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]), (2, 3));
        assert_eq!(drawn(&[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 4.0)]), (1, 3));
        assert_eq!(drawn(&[(0.0, f64::INFINITY)]), (0, 0));
        assert_eq!(drawn(&[(5.0, 5.0)]), (0, 1));
        assert_eq!(drawn(&[]), (0, 0));
        let many: Vec<_> = (0..100).map(|i| (f64::from(i), 1.0)).collect();
        assert_eq!(drawn(&many), (99, 34));
    }
}
