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

/// Asserts that `Debug`, which a `main` that returns an error prints, is the error's text and that of
/// its sources, with a name in brackets at the end.
pub fn assert_debug_is_text(error: &(dyn Error + 'static)) {
    let debug = format!("{error:?}");
    let text = parts(error).join(": ");
    let name = debug.strip_prefix(&text);
    let name = name.and_then(|rest| rest.strip_prefix(" [")?.strip_suffix(']'));
    assert!(name.is_some_and(|name| !name.is_empty()), "{debug}");
}
