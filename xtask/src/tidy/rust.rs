//! The rules for Rust files.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::{Finding, Source};

/// Past this many lines, a file needs a reason why it is one concern.
const MAX_LINES: usize = 500;

/// Everything that is wrong with one Rust file.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    first_line(source)
        .into_iter()
        .chain(length(source))
        .chain(test_names(source))
        .collect()
}

/// The first line is a `//!` sentence.
fn first_line(source: &Source) -> Option<Finding> {
    let first = source.text.lines().next().unwrap_or_default();
    let has_text = first
        .strip_prefix("//! ")
        .is_some_and(|text| !text.trim().is_empty());
    let message = "the first line is no `//!` sentence that says what the file is";
    (!has_text).then(|| Finding::new(1, "first-line", message))
}

/// No file is longer than [`MAX_LINES`].
fn length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let message =
        || format!("{lines} lines, more than {MAX_LINES}: is there a second concern in it?");
    (lines > MAX_LINES).then(|| Finding::new(0, "length", message()))
}

/// The name of a test says what is promised, of which subject.
fn test_names(source: &Source) -> impl Iterator<Item = Finding> {
    let lines = source.text.lines().enumerate();
    lines.filter_map(|(index, line)| {
        let (_, name) = line.split_once("fn ")?;
        let name = format!("_{name}");
        let riddles = ["_so_many_", "_as_many_"];
        let is_riddle =
            name.starts_with("_what_") || riddles.iter().any(|part| name.contains(part));
        let message = "name the subject, and its number";
        is_riddle.then(|| Finding::new(index + 1, "test-name", message))
    })
}

/// No two public types of the libraries have one name, but for their errors: a search finds the one that is meant.
pub(super) fn type_names(sources: &[Source]) -> Vec<(&Source, Finding)> {
    let mut first = BTreeMap::new();
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| is_library(&source.path)) {
        for (index, line) in source.text.lines().enumerate() {
            let types = ["pub struct ", "pub enum ", "pub union "];
            let Some(rest) = types.iter().find_map(|start| line.strip_prefix(start)) else {
                continue;
            };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next();
            let name = name.unwrap_or_default();
            let path = first.entry(name).or_insert(&source.path);
            if name != "Error" && *path != &source.path {
                let message = format!("`{name}` is also a type of {}", path.display());
                found.push((source, Finding::new(index + 1, "unique", message)));
            }
        }
    }
    found
}

/// Whether a file is of one of the libraries above verbs-sys, whose types are C's.
fn is_library(path: &Path) -> bool {
    let libraries = ["verbs-core/src", "verbs-channel/src", "verbs-async/src"];
    path.extension().is_some_and(|extension| extension == "rs")
        && libraries.iter().any(|library| path.starts_with(library))
}

#[cfg(test)]
mod tests {
    use super::{check, type_names};
    use crate::tidy::source::Source;

    fn rules(text: &str) -> Vec<&'static str> {
        let findings = check(&Source::new("a/src/b.rs", text));
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_good_file_passes() {
        assert_eq!(rules("//! What it is.\nuse a::{b, c};\n"), [""; 0]);
    }

    #[test]
    fn each_rule_can_fail() {
        assert_eq!(rules("use a::b;\n"), ["first-line"]);
        assert_eq!(rules("//!\n"), ["first-line"]);
        assert_eq!(rules(&format!("//! A.\n{}", "\n".repeat(500))), ["length"]);
        for name in [
            "what_is_lost_comes_back",
            "one_in_so_many_is_lost",
            "as_many_are_sent",
        ] {
            assert_eq!(rules(&format!("//! A.\nfn {name}() {{}}\n")), ["test-name"]);
        }
        assert_eq!(
            rules("//! A.\nfn what() {}\nfn has_many_parts() {}\n"),
            [""; 0]
        );
    }

    #[test]
    fn public_types_of_the_libraries_have_names_of_their_own() {
        let text = "//! A.\npub struct Link;\npub enum Error {}\nstruct Own;\n";
        let found = |paths: [&str; 2]| {
            let sources = paths.map(|path| Source::new(path, text));
            let found = type_names(&sources).into_iter();
            let lines: Vec<usize> = found.map(|(_, finding)| finding.line).collect();
            lines
        };
        assert_eq!(found(["verbs-core/src/a.rs", "verbs-async/src/b.rs"]), [2]);
        assert_eq!(found(["verbs-core/src/a.rs", "verbs-sys/src/b.rs"]), []);
    }
}
