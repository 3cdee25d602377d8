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
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    if bytes < 1 << 20 {
        return format!("{} B", thousands(bytes));
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{} MiB", digits(mebibytes))
}

/// With commas between the thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{digits, size, thousands};

    #[test]
    fn units_are_those_that_people_read() {
        assert_eq!(
            [0, 64, 5000, 4096].map(size),
            ["0 B", "64 B", "5,000 B", "4 KiB"]
        );
        assert_eq!(
            [1 << 20, 4_500_000, 2 << 30].map(size),
            ["1 MiB", "4.29 MiB", "2 GiB"]
        );
        assert_eq!(
            [7, 1000, 1_234_567].map(thousands),
            ["7", "1,000", "1,234,567"]
        );
        assert_eq!([9.996, 9.99].map(digits), ["10.0", "9.99"]);
    }
}
