//! What an error and its sources print, one after the other.

use std::error::Error;

/// The error and its sources, each as it prints.
pub fn parts(error: &(dyn Error + 'static)) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| {
        (*error).source()
    });
    chain.map(ToString::to_string).collect()
}

/// Asserts the rule of all error types: each prints one clause that does not repeat its source, so
/// `a: b: c` repeats nothing.
pub fn assert_repeats_nothing(error: &(dyn Error + 'static)) {
    let parts = parts(error);
    for (index, part) in parts.iter().enumerate() {
        assert!(!part.is_empty() && !part.contains('\n'), "{parts:?}");
        assert!(!part.ends_with(['.', ':', ' ']), "{parts:?}");
        let others = parts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        for (_, other) in others {
            assert!(
                !other.contains(part.as_str()),
                "twice: {part:?} in {parts:?}"
            );
        }
    }
    // Nor half of it.
    let whole = parts.join(": ");
    let mut clauses: Vec<_> = whole.split(": ").collect();
    clauses.sort_unstable();
    let twice = clauses.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "twice: {twice:?} in {whole:?}");
}
