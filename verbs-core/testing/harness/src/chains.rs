//! Texts of an error and its sources, one after the other.

use std::error::Error;

/// The error and its sources, each as it prints.
pub fn parts(error: &(dyn Error + 'static)) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| {
        (*error).source()
    });
    chain.map(ToString::to_string).collect()
}

/// The blocks of the language `text` in a page, each as one line: the texts of errors that it quotes.
pub fn quoted(page: &str) -> Vec<String> {
    let blocks = page.split("```text\n").skip(1);
    let texts = blocks.map(|block| {
        let (text, _) = block.split_once("\n```").expect("the block has an end");
        text.replace('\n', " ")
    });
    texts.collect()
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
    // Half of a text does not repeat either.
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

/// An error type: its name, the variants around it, as they are in brackets, and its source file.
pub type Explained<'a> = (&'a str, &'a [&'a str], &'a str);

/// Asserts that each variant of these types is among the errors with this `Debug`, or is one of `rare`, which has the
/// reasons.
pub fn assert_explained(types: &[Explained<'_>], debugs: &[String], rare: &[(&str, &str)]) {
    let mut found = Vec::new();
    for (error, around, source) in types {
        let list = format!("error_debug!({error} {{");
        let (_, list) = source.split_once(&list).expect("it lists its variants");
        let (list, _) = list.split_once("})").expect("the list ends");
        let variants = list.split(',').filter_map(|variant| {
            // After `#[cfg(…)]`, and without what is in it.
            let variant = variant.split_whitespace().last()?;
            variant.split('(').next()
        });
        for variant in variants {
            let is_it = |debug: &String| {
                let (_, names) = debug.rsplit_once(" [").unwrap_or_default();
                let names: Vec<_> = names.trim_end_matches([')', ']']).split('(').collect();
                let at = names.iter().position(|name| *name == variant);
                at.is_some_and(|at| {
                    let before = at.checked_sub(1).map_or("", |before| names[before]);
                    around.contains(&before)
                })
            };
            let name = format!("{error}::{variant}");
            let is_rare = rare.iter().any(|(rare, _)| *rare == name);
            assert_ne!(
                debugs.iter().any(is_it),
                is_rare,
                "{name}: is it explained, or rare?"
            );
            found.push(name);
        }
    }
    for (name, _) in rare {
        assert!(found.iter().any(|found| found == name), "{name} is unknown");
    }
}
