//! Repeated measurements of one thing: their median, and how far they spread.

/// The median of some measurements, with the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) most: f64,
}

impl Spread {
    /// Statistics of all `samples`; `None` if there are none, or one is not a finite number.
    pub(super) fn of(mut samples: Vec<f64>) -> Option<Self> {
        if samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        samples.sort_by(f64::total_cmp);
        let (least, most) = (*samples.first()?, *samples.last()?);
        let (low, high) = ((samples.len() - 1) / 2, samples.len() / 2);
        let median = f64::midpoint(samples[low], samples[high]);
        Some(Self {
            least,
            median,
            most,
        })
    }

    /// Statistics of the ratios of pairs measured one after the other: a slow phase of the machine
    /// affects both of a pair.
    pub(super) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs);
        Self::of(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }

    /// One exact value.
    pub(super) const fn exactly(value: f64) -> Self {
        Self {
            least: value,
            median: value,
            most: value,
        }
    }

    /// As text: the median, and the others in brackets, unless all are shown alike.
    pub(super) fn text(&self, number: impl Fn(f64) -> String) -> String {
        let [least, median, most] = [self.least, self.median, self.most].map(number);
        if least == most {
            return median;
        }
        format!("{median} ({least} to {most})")
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_is_between_the_middle_two() {
        let spread = |samples: &[f64]| Spread::of(samples.to_vec());
        let odd = spread(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.least, odd.median, odd.most), (1.0, 2.0, 9.0));
        assert_eq!(spread(&[4.0, 1.0, 3.0, 9.0]).unwrap().median, 3.5);
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[1.0, f64::INFINITY]), None);
        assert_eq!(spread(&[5.0]), Some(Spread::exactly(5.0)));
    }

    #[test]
    fn ratios_are_those_of_each_pair() {
        let ratios = Spread::of_ratios(&[2.0, 30.0, 1.0], &[1.0, 10.0, 4.0]);
        let ratios = ratios.unwrap();
        assert_eq!((ratios.least, ratios.median, ratios.most), (0.25, 2.0, 3.0));
    }

    #[test]
    fn a_spread_is_shown_if_there_is_one() {
        let spread = |most| Spread {
            least: 1.0,
            median: 1.5,
            most,
        };
        let shown = spread(2.25).text(|value| format!("{value:.2}"));
        assert_eq!(shown, "1.50 (1.00 to 2.25)");
        assert_eq!(spread(1.6).text(|_| "1".into()), "1");
    }
}
