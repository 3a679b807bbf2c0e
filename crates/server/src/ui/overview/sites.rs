//! The sites of the overview: how many deliveries of each were sent or parked, with a small chart over the period.

use postcommit_engine::store::{KpiSeries, SeriesLine};
use serde::Serialize;

use crate::ui::chart;
use crate::ui::frame::Visitor;
use crate::ui::words::grouped;

/// The maximum number of sites that are shown.
const SITES: usize = 8;

/// A site whose notifications were sent in the period.
#[derive(Serialize)]
pub struct Site {
    name: String,
    href: String,
    finished: i64,
    spark: String,
}

/// The busiest sites of a series by site, and how many more there are. Each point of a line is the sum of `per_point`
/// slots.
pub fn sites(visitor: &Visitor, series: &KpiSeries, per_point: usize, words: &str) -> (Vec<Site>, usize) {
    let named = || series.lines.iter().filter(|line| !line.label.is_empty());
    let site = |line: &SeriesLine| {
        let points: Vec<f64> =
            line.counts.chunks(per_point.max(1)).map(|slots| slots.iter().sum::<i64>() as f64).collect();
        let finished: i64 = line.counts.iter().sum();
        let most = points.iter().copied().fold(0.0, f64::max) as i64;
        let label = format!("{}: {} sent or parked, at most {} {words}", line.label, grouped(finished), grouped(most));
        let name: String = form_urlencoded::byte_serialize(line.label.as_bytes()).collect();
        Site {
            name: line.label.clone(),
            href: visitor.link(&format!("/notifications?site={name}")),
            finished,
            spark: chart::spark(&points, &label),
        }
    };
    (named().take(SITES).map(site).collect(), named().count().saturating_sub(SITES))
}
