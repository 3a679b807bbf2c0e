//! Charts as SVG, for the pages and for the report of the benchmark. Horizontal positions are in percent and text is in
//! pixels, so that a chart fills any screen and its text keeps its size. The labels of the vertical axis are in the
//! padding of `.plot`.

mod bars;
mod histogram;
mod number;
mod scale;
mod spark;

pub use bars::{Bar, bars};
pub use histogram::histogram;
pub use number::{duration, exact, grouped, plain, ratio, spread, told_apart, value, with_unit};
pub use scale::Scale;
pub use spark::spark;

use crate::html::escape;

/// The height of a chart in pixels.
const CHART: f64 = 200.0;

/// The maximum number of points of a line for which each point gets a marker.
const POINTS: usize = 40;

/// Markers that distinguish lines without colour. The fifth line uses the first marker again.
const MARKERS: [&str; 4] =
    ["M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M0,-5L5,0L0,5L-5,0z", "M-4,-4H4V4H-4z", "M0,-5L5,4H-5z"];

/// A named line and its points.
pub type Line = (String, Vec<(f64, f64)>);

/// A chart of several lines on the same axes.
pub fn lines(all: &[Line], label: &str) -> String {
    let points = || all.iter().flat_map(|(_, points)| points.iter());
    let (x, y) = (Scale::over(points().map(|p| p.0)), Scale::from_zero(points().map(|p| p.1)));
    let up = |v: f64| y.at(v).map(|p| CHART * (1.0 - p / 100.0));
    let grid: String = y.ticks().iter().filter_map(|(v, label)| Some(rule(up(*v)?, label))).collect();
    let curves = all.iter().enumerate().map(|(i, (_, points))| {
        let places: Vec<_> = points.iter().map(|p| Some((x.at(p.0)?, up(p.1)?))).collect();
        curve(i, &places)
    });
    drawing(CHART + 20.0, label, &format!("{grid}{}{}", ticks_across(&x, CHART), curves.collect::<String>()))
}

/// Draws one line. A value that is not a number leaves a gap. A point between two gaps always gets a marker.
fn curve(i: usize, places: &[Option<(f64, f64)>]) -> String {
    let pairs = places.iter().zip(places.iter().skip(1));
    let line: String = pairs.filter_map(|(a, b)| Some(segment((*a)?, (*b)?))).collect();
    let near = |n: usize| places.get(n).is_some_and(Option::is_some);
    let lonely = |n: usize| !near(n + 1) && (n == 0 || !near(n - 1));
    let shown = places
        .iter()
        .enumerate()
        .filter(|(n, _)| places.len() <= POINTS || lonely(*n) || n % places.len().div_ceil(POINTS) == 0);
    let marks: String = shown.filter_map(|(_, place)| place.map(|(p, y)| mark(i, p, y))).collect();
    format!(r#"<g class="line{}">{line}{marks}</g>"#, i % MARKERS.len())
}

/// The marker of a line, for legends.
pub fn key(i: usize) -> String {
    format!(
        r#"<svg class="key line{}" width="12" height="12" aria-hidden="true">{}</svg>"#,
        i % MARKERS.len(),
        mark(i, 50.0, 6.0)
    )
}

pub fn drawing(height: f64, label: &str, inside: &str) -> String {
    plot("img", height, label, inside)
}

/// A drawing with a role: `img`, or `group` if there are links in it.
fn plot(role: &str, height: f64, label: &str, inside: &str) -> String {
    format!(
        r#"<div class="plot"><svg width="100%" height="{height}" role="{role}" aria-label="{}">{inside}</svg></div>"#,
        escape(label)
    )
}

/// Draws a marker. A path cannot be placed at a percentage, so it is inside of an `svg` element, which can.
pub fn mark(i: usize, p: f64, y: f64) -> String {
    format!(r#"<svg x="{p:.2}%" y="{y:.1}" overflow="visible"><path d="{}"/></svg>"#, MARKERS[i % MARKERS.len()])
}

pub fn segment(a: (f64, f64), b: (f64, f64)) -> String {
    format!(r#"<line x1="{:.2}%" y1="{:.1}" x2="{:.2}%" y2="{:.1}"/>"#, a.0, a.1, b.0, b.1)
}

fn rule(y: f64, label: &str) -> String {
    format!(r#"<line class="axis" x1="0" x2="100%" y1="{y:.1}" y2="{y:.1}"/>{}"#, side(y + 4.0, label))
}

pub fn ticks_across(scale: &Scale, bottom: f64) -> String {
    let tick = |p: f64, label: &str| {
        let line = format!(r#"<line class="axis" x1="{p:.2}%" x2="{p:.2}%" y1="{bottom}" y2="{}"/>"#, bottom + 4.0);
        format!("{line}{}", text(p, bottom + 16.0, label))
    };
    scale.ticks().iter().filter_map(|(v, label)| Some(tick(scale.at(*v)?, label))).collect()
}

/// A text centred at a position. A long text near the left or right edge is aligned to stay within the chart. A short
/// one may extend into the padding.
pub fn text(p: f64, y: f64, text: &str) -> String {
    let anchor = match p {
        _ if text.chars().count() < 8 => "middle",
        p if p < 10.0 => "start",
        p if p > 90.0 => "end",
        _ => "middle",
    };
    format!(r#"<text x="{p:.2}%" y="{y}" text-anchor="{anchor}">{}</text>"#, escape(text))
}

/// A text that begins a little to the right of a position.
fn text_from(p: f64, y: f64, text: &str) -> String {
    format!(r#"<text x="{p:.2}%" y="{y:.1}" dx="6">{}</text>"#, escape(text))
}

/// A text to the left of the chart.
pub fn side(y: f64, text: &str) -> String {
    format!(r#"<text x="-8" y="{y:.1}" text-anchor="end">{}</text>"#, escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(svg: &str) {
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let drawn = |points: &[(f64, f64)]| {
            let svg = lines(&[("a".into(), points.to_vec()), ("b".into(), vec![])], "label");
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
