//! Numbers as people read them.

/// Three digits, or all that are before the point.
pub(crate) fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Bytes, in the largest unit that divides them.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let power = bytes
        .checked_ilog2()
        .unwrap_or(0)
        .min(bytes.trailing_zeros())
        / 10;
    let power = usize::try_from(power).map_or(0, |power| power.min(units.len() - 1));
    format!("{} {}", bytes >> (10 * power), units[power])
}

#[cfg(test)]
mod tests {
    use super::{digits, size};

    #[test]
    fn units_are_those_that_people_read() {
        let sizes = [0, 64, 5000, 4096, 1 << 20, 2 << 30].map(size);
        let expected = ["0 B", "64 B", "5000 B", "4 KiB", "1 MiB", "2 GiB"];
        assert_eq!(sizes, expected);
        assert_eq!([9.996, 9.99].map(digits), ["10.0", "9.99"]);
    }
}
