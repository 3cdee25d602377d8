//! Durations in the texts of errors.

use std::fmt;
use std::time::Duration;

/// Formats a duration in microseconds, milliseconds or seconds, as it was most probably set.
pub(crate) struct Readable(pub(crate) Duration);

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(duration) = *self;
        if duration < Duration::from_millis(1) {
            write!(f, "{} µs", duration.as_micros())
        } else if duration < Duration::from_secs(1) {
            write!(f, "{} ms", duration.as_millis())
        } else if duration.subsec_millis() == 0 {
            write!(f, "{} s", duration.as_secs())
        } else {
            write!(f, "{:.1} s", duration.as_secs_f64())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_the_largest_that_is_not_a_fraction_of_one() {
        for (micros, text) in [
            (0, "0 µs"),
            (20, "20 µs"),
            (1_000, "1 ms"),
            (999_999, "999 ms"),
            (1_000_000, "1 s"),
            (1_500_000, "1.5 s"),
            (60_000_000, "60 s"),
        ] {
            assert_eq!(Readable(Duration::from_micros(micros)).to_string(), text);
        }
    }
}
