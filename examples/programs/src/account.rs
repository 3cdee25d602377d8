//! Accounts of the values that clients fetched.

/// Describes a value of 0, 1, 2, … that is missing from `fetched` or occurs twice. `None` if each
/// value below their count occurs once.
#[must_use]
pub fn missing_or_twice(mut fetched: Vec<u64>) -> Option<String> {
    fetched.sort_unstable();
    let mut values = (0..).zip(fetched);
    let (expected, is) = values.find(|(expected, is)| expected != is)?;
    Some(if is < expected {
        format!("the value {is} was fetched twice")
    } else {
        format!("the value {expected} was never fetched")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_and_a_duplicate_are_named() {
        assert_eq!(missing_or_twice(vec![2, 0, 1, 3]), None);
        assert_eq!(missing_or_twice(Vec::new()), None);
        let error = |fetched| missing_or_twice(fetched).unwrap();
        assert_eq!(error(vec![2, 0, 1, 1]), "the value 1 was fetched twice");
        assert_eq!(error(vec![0, 0]), "the value 0 was fetched twice");
        assert_eq!(error(vec![1, 0, 3]), "the value 2 was never fetched");
        assert_eq!(error(vec![1, 2]), "the value 0 was never fetched");
    }
}
