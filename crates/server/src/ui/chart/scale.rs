//! Maps values to positions along an axis, and chooses its ticks.

use super::number::grouped;

/// A range of numbers that is mapped to 0–100 %.
#[derive(Debug, Clone)]
pub struct Scale {
    lo: f64,
    hi: f64,
    step: f64,
}

impl Scale {
    /// A scale for amounts: it includes zero and ends at a tick.
    pub fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        Self::over(values.into_iter().chain([0.0])).ending_at_ticks()
    }

    /// A scale that begins and ends at ticks near the values. It begins at zero if the smallest value is less than half
    /// of the largest.
    pub fn around(values: impl IntoIterator<Item = f64>) -> Self {
        let near = Self::over(values);
        let zero_is_near = near.lo > 0.0 && near.lo < near.hi / 2.0;
        if zero_is_near { Self::from_zero([near.hi]) } else { near.ending_at_ticks() }
    }

    /// A scale that begins and ends at the smallest and the largest value.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Self {
        let drawable = values.into_iter().filter(|v| drawable(*v));
        let (lo, hi) = drawable.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
        let (lo, hi) = if lo > hi { (0.0, 1.0) } else { widened(lo, hi) };
        Self { lo, hi, step: step(hi - lo) }
    }

    fn ending_at_ticks(self) -> Self {
        Self {
            lo: (self.lo / self.step).floor() * self.step,
            hi: (self.hi / self.step).ceil() * self.step,
            step: self.step,
        }
    }

    /// The position of a value in percent, or `None` if it is not a number.
    pub fn at(&self, v: f64) -> Option<f64> {
        drawable(v).then(|| ((v - self.lo) / (self.hi - self.lo) * 100.0).clamp(0.0, 100.0))
    }

    /// The round numbers within the scale, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let slack = self.step * 1e-6;
        let first = ((self.lo - slack) / self.step).ceil();
        let all = (0..20).map(|i| (first + f64::from(i)) * self.step).take_while(|v| *v <= self.hi + slack);
        all.map(|v| (v, self.label(v))).collect()
    }

    fn label(&self, v: f64) -> String {
        let (factor, suffix) = match self.lo.abs().max(self.hi.abs()) {
            a if a >= 1e15 => (1.0, ""),
            a if a >= 1e9 => (1e9, "G"),
            a if a >= 1e6 => (1e6, "M"),
            a if a >= 1e4 => (1e3, "k"),
            _ => (1.0, ""),
        };
        let decimals = (-(self.step / factor).log10() - 1e-9).ceil().max(0.0);
        match v {
            _ if v.abs() < self.step / 2.0 => "0".to_owned(),
            _ if decimals > 5.0 || v.abs() >= 1e15 => format!("{v:.1e}"),
            _ => format!("{}{suffix}", grouped(&format!("{:.*}", decimals as usize, v / factor))),
        }
    }
}

/// Whether the value is finite and small enough that differences of two values stay finite, too.
fn drawable(v: f64) -> bool {
    v.abs() < 1e300
}

/// Widens the range if all values are equal, so that the value has room on both sides.
fn widened(lo: f64, hi: f64) -> (f64, f64) {
    let size = lo.abs().max(hi.abs());
    match hi - lo {
        room if room > size * 1e-9 && room > 1e-250 => (lo, hi),
        _ if size > 1e-200 => (lo - size / 10.0, hi + size / 10.0),
        _ => (0.0, 1.0),
    }
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, so that about four fit.
fn step(room: f64) -> f64 {
    let raw = room / 4.5;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0].iter().map(|n| n * power).find(|s| *s >= raw * 0.999).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(&Scale::from_zero([41_230.0])), ["0", "10k", "20k", "30k", "40k", "50k"]);
        assert_eq!(labels(&Scale::from_zero([0.83])), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Scale::from_zero([3_900.0])), ["0", "1,000", "2,000", "3,000", "4,000"]);
        assert_eq!(labels(&Scale::from_zero([5e6])), ["0", "2M", "4M", "6M"]);
        assert_eq!(labels(&Scale::over([1.0, 4.0])), ["1", "2", "3", "4"]);
        assert_eq!(labels(&Scale::over([-3.0, 90.0])), ["0", "50"]);
    }

    #[test]
    fn zero_is_taken_in_where_it_is_near() {
        assert_eq!(Scale::around([90.0, 110.0]).at(85.0), Some(0.0));
        assert_eq!(Scale::around([10.0, 110.0]).at(0.0), Some(0.0));
        assert!(Scale::around([10.0, 110.0]).at(10.0) > Some(1.0));
    }

    #[test]
    fn whatever_comes_there_is_a_scale() {
        let odd = [
            0.0,
            -0.0,
            1.0,
            -5.0,
            1e-310,
            1e-20,
            1e20,
            1e299,
            f64::MAX,
            f64::MIN,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ];
        for a in odd {
            for b in odd {
                for scale in [Scale::over([a, b]), Scale::around([a, b]), Scale::from_zero([a, b])] {
                    let ticks = scale.ticks();
                    assert!((1..=20).contains(&ticks.len()), "{a} {b} {scale:?} {ticks:?}");
                    assert!(ticks.iter().all(|(v, label)| v.is_finite() && label.len() < 12), "{a} {b} {ticks:?}");
                    for p in [a, b].iter().filter_map(|v| scale.at(*v)) {
                        assert!((0.0..=100.0).contains(&p), "{a} {b} {p}");
                    }
                }
            }
        }
        assert_eq!(Scale::over([]).at(0.5), Some(50.0));
        assert_eq!(Scale::over([1.0]).at(f64::NAN), None);
    }
}
