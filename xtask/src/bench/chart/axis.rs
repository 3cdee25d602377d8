//! An axis: which value is where, and which values are named.

/// How values become lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) enum Scale {
    /// Each step adds the same, and 0 is shown.
    Linear,
    /// Each step multiplies by this.
    Log(f64),
}

/// The range of an axis, with whole steps at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// The axis of these values. A logarithmic one shows those above 0 only.
    pub(super) fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Self> {
        let shown = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let range = values.filter(shown).fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((value.min(low), value.max(high)))
        });
        let (low, high) = range?;
        Some(match scale {
            Scale::Linear => {
                let (low, high) = (low.min(0.0), high.max(0.0));
                let step = step(high - low);
                Self {
                    scale,
                    low: (low / step).floor() * step,
                    high: (high / step).ceil().max(1.0) * step,
                    step,
                }
            }
            Scale::Log(base) => {
                let low = low.log(base).floor();
                let high = high.log(base).ceil().max(low + 1.0);
                // At most ten names.
                let step = ((high - low) / 10.0).ceil();
                Self {
                    scale,
                    low,
                    high,
                    step,
                }
            }
        })
    }

    /// Where a value is, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log(base) => value.max(f64::MIN_POSITIVE).log(base),
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The values that are named.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        let (mut at, enough) = (self.low, 50);
        // A short logarithmic axis has more marks than the powers of ten.
        let is_short = self.scale == Scale::Log(10.0) && self.high - self.low < 3.0;
        while at <= self.high + self.step * 1e-6 && ticks.len() < enough {
            match self.scale {
                Scale::Linear => ticks.push(at),
                Scale::Log(base) => ticks.push(base.powf(at)),
            }
            if is_short && at + 0.5 < self.high {
                ticks.extend([2.0, 5.0].map(|times| times * 10_f64.powf(at)));
            }
            at += self.step;
        }
        ticks
    }
}

/// 1, 2 or 5 times a power of ten, of which at most ten fit into the range.
fn step(range: f64) -> f64 {
    if range <= 0.0 {
        return 1.0;
    }
    let unit = 10_f64.powf((range / 10.0).log10().floor());
    let enough = |times: &&f64| range / (unit * **times) <= 10.0;
    let times = [1.0, 2.0, 5.0].iter().find(enough);
    unit * times.unwrap_or(&10.0)
}

#[cfg(test)]
mod tests {
    use super::{Axis, Scale};

    #[test]
    fn linear_steps_are_round_and_begin_at_zero() {
        let axis = Axis::of(Scale::Linear, [0.3, 1.7].into_iter()).unwrap();
        let shown: Vec<String> = axis.ticks().iter().map(|at| format!("{at:.1}")).collect();
        assert_eq!(
            shown,
            [
                "0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2", "1.4", "1.6", "1.8"
            ]
        );
        assert!((axis.place(0.9) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn logarithmic_steps_are_powers() {
        let axis = Axis::of(Scale::Log(2.0), [2.0, 8.0, 0.0].into_iter()).unwrap();
        assert_eq!(axis.ticks(), [2.0, 4.0, 8.0]);
        assert_eq!(
            (axis.place(2.0), axis.place(4.0), axis.place(8.0)),
            (0.0, 0.5, 1.0)
        );
        let short = Axis::of(Scale::Log(10.0), [15.0, 800.0].into_iter()).unwrap();
        let named = [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
        assert_eq!(short.ticks(), named);
        let wide = Axis::of(Scale::Log(2.0), [1.0, f64::from(1 << 20)].into_iter());
        assert_eq!(wide.unwrap().ticks().len(), 11);
    }

    #[test]
    fn an_axis_of_one_value_or_none_does_not_divide_by_zero() {
        for scale in [Scale::Linear, Scale::Log(10.0)] {
            let axis = Axis::of(scale, [1.0].into_iter()).unwrap();
            assert!(axis.place(1.0).is_finite() && axis.ticks().len() > 1);
            assert_eq!(Axis::of(scale, [f64::NAN].into_iter()), None);
        }
        let zero = Axis::of(Scale::Linear, [0.0].into_iter()).unwrap();
        assert_eq!((zero.place(0.0), zero.ticks().len()), (0.0, 2));
    }
}
