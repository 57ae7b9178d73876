//! Where a value lies between the two ends of an axis, and which values are named there.
//!
//! Whatever the values are, a place is a finite share of the axis: nothing of a record makes a chart that cannot be
//! drawn. It must not know how an axis is drawn.

use super::number;

/// What a larger value counts as.
const LARGEST: f64 = 1e18;
/// What a smaller value counts as where the axis is logarithmic.
const SMALLEST: f64 = 1e-6;
/// From which ratio of the largest to the smallest value on the axis is logarithmic.
const WIDE: f64 = 30.0;

/// An axis. Linear ones begin at zero, but for those of time.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    step: f64,
    label: fn(f64) -> String,
}

/// A value that can be drawn.
fn tame(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, LARGEST) } else { 0.0 }
}

impl Axis {
    /// Of values that are compared with each other: logarithmic where they differ much.
    pub(super) fn over(values: impl IntoIterator<Item = f64>, label: fn(f64) -> String) -> Self {
        let values: Vec<f64> = values.into_iter().map(tame).collect();
        let smallest = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let largest = values.iter().copied().fold(0.0, f64::max);
        if largest > 0.0 && largest / smallest >= WIDE {
            Self::logarithmic(smallest, largest, label)
        } else {
            Self::from_zero(largest, label)
        }
    }

    /// Logarithmic from below the first to above the second.
    pub(super) fn logarithmic(smallest: f64, largest: f64, label: fn(f64) -> String) -> Self {
        let low = round_below(tame(smallest).max(SMALLEST));
        let high = round_above(tame(largest).max(SMALLEST));
        let high = if high > low { high } else { low * 10.0 };
        Self { low, high, log: true, step: 0.0, label }
    }

    /// Linear from zero.
    pub(super) fn from_zero(largest: f64, label: fn(f64) -> String) -> Self {
        let largest = if tame(largest) > 0.0 { tame(largest).max(f64::MIN_POSITIVE * 1e9) } else { 1.0 };
        let step = round_above(largest / 5.0);
        let high = (largest / step - 1e-9).ceil().max(1.0) * step;
        Self { low: 0.0, high, log: false, step, label }
    }

    /// Of sizes in bytes, from zero, with ends that are round in their unit.
    pub(super) fn bytes(largest: f64) -> Self {
        let mut unit = 1.0;
        while tame(largest) / unit >= 4096.0 {
            unit *= 1024.0;
        }
        let axis = Self::from_zero(largest / unit, number::size);
        Self { high: axis.high * unit, step: axis.step * unit, ..axis }
    }

    /// From one moment to another, the ends named.
    pub(super) fn between(first: f64, last: f64, label: fn(f64) -> String) -> Self {
        let (low, high) = (tame(first), tame(last));
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, log: false, step: high - low, label }
    }

    /// Where this value is, in percent of the axis: 0 to 100.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = tame(value).clamp(self.low, self.high);
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) * 100.0 } else { 0.0 }
    }

    /// Whether equal distances are equal ratios.
    pub(super) fn is_log(&self) -> bool {
        self.log
    }

    /// Where values are named and how, in rising order; at most eight.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.log { self.round_values() } else { self.steps() };
        let place = |value: f64| (self.place(value), (self.label)(value));
        values.into_iter().map(place).collect()
    }

    fn steps(&self) -> Vec<f64> {
        (0..=5u32)
            .map(|count| self.low + f64::from(count) * self.step)
            .filter(|value| *value <= self.high + self.step * 0.01)
            .collect()
    }

    #[allow(clippy::cast_possible_truncation, reason = "exponents between -6 and 18")]
    fn round_values(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let within = |value: &f64| *value >= self.low * 0.999 && *value <= self.high * 1.001;
        let decades = |each: usize| (first..=last).step_by(each).map(|power| 10f64.powi(power));
        let fine: Vec<f64> = decades(1).flat_map(|ten| [ten, ten * 2.0, ten * 5.0]).filter(within).collect();
        if fine.len() <= 7 {
            return fine;
        }
        let each = usize::try_from((last - first) / 7).unwrap_or(0) + 1;
        decades(each).filter(within).collect()
    }
}

/// The next of 1, 2, 5, 10, … that is not above it.
fn round_below(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    [5.0, 2.0].iter().map(|part| part * ten).find(|round| *round <= value * (1.0 + 1e-9)).unwrap_or(ten)
}

/// The next of 1, 2, 5, 10, … that is not below it.
fn round_above(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    let parts = [1.0, 2.0, 5.0];
    parts.iter().map(|part| part * ten).find(|round| *round >= value * (1.0 - 1e-9)).unwrap_or(ten * 10.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_that_differ_much_are_compared_by_their_ratios() {
        let axis = Axis::over([4.8, 882.0], number::ms);
        assert!(axis.is_log());
        let named: Vec<String> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(named, ["10.0 ms", "100 ms", "1000 ms"]);
        let axis = Axis::over([3.1, 4.8], number::ms);
        assert!(!axis.is_log());
        assert!((axis.place(2.5) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_are_named_by_round_numbers_of_their_unit() {
        let named: Vec<String> = Axis::bytes(900e6).ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(named, ["0 B", "200 MiB", "400 MiB", "600 MiB", "800 MiB", "1000 MiB"]);
    }

    proptest! {
        #[test]
        fn whatever_the_values_a_place_is_on_the_axis(
            values in proptest::collection::vec(any::<f64>(), 0..6), value in any::<f64>(),
        ) {
            let largest = values.iter().copied().fold(0.0, f64::max);
            let first = values.first().copied().unwrap_or_default();
            for axis in [
                Axis::over(values.clone(), number::ms),
                Axis::bytes(largest),
                Axis::from_zero(largest, number::count),
                Axis::logarithmic(first, largest, number::ms),
                Axis::between(first, largest, number::ms),
            ] {
                prop_assert!((0.0..=100.0).contains(&axis.place(value)));
                let ticks = axis.ticks();
                prop_assert!(ticks.len() <= 8 && !ticks.is_empty(), "{axis:?} {ticks:?}");
                prop_assert!(ticks.iter().all(|(place, _)| (0.0..=100.0).contains(place)));
            }
        }
    }
}
