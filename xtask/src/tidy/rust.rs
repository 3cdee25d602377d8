//! The rules for Rust files.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

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
    (!has_text).then(|| Finding {
        line: 1,
        rule: "first-line",
        message: "the first line is no `//!` sentence that says what the file is".into(),
    })
}

/// No file is longer than [`MAX_LINES`].
fn length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    (lines > MAX_LINES).then(|| Finding {
        line: 0,
        rule: "length",
        message: format!("{lines} lines, more than {MAX_LINES}: is there a second concern in it?"),
    })
}

/// The name of a test says what is promised, of which subject.
fn test_names(source: &Source) -> impl Iterator<Item = Finding> {
    let lines = source.code.lines().enumerate();
    lines.filter_map(|(index, line)| {
        let (_, name) = line.split_once("fn ")?;
        let name = format!("_{name}");
        let riddles = ["_so_many_", "_as_many_"];
        let is_riddle =
            name.starts_with("_what_") || riddles.iter().any(|part| name.contains(part));
        is_riddle.then(|| Finding {
            line: index + 1,
            rule: "test-name",
            message: "name the subject, and its number".into(),
        })
    })
}

/// No two public types of the libraries have one name, but for their errors: a search finds the one that is meant.
pub(super) fn type_names(sources: &[Source]) -> Vec<(&Source, Finding)> {
    let mut first = BTreeMap::new();
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| is_library(&source.path)) {
        for (index, line) in source.code.lines().enumerate() {
            let types = ["pub struct ", "pub enum ", "pub union "];
            let Some(rest) = types.iter().find_map(|start| line.strip_prefix(start)) else {
                continue;
            };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next();
            let name = name.unwrap_or_default();
            let path = first.entry(name).or_insert(&source.path);
            if name != "Error" && *path != &source.path {
                let (line, rule) = (index + 1, "unique");
                let message = format!("`{name}` is also a type of {}", path.display());
                let finding = Finding {
                    line,
                    rule,
                    message,
                };
                found.push((source, finding));
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

/// Every C function that `verbs-core` calls is found by its name in the docs' search box.
pub(super) fn aliases(sources: &[Source]) -> Vec<(&Source, Finding)> {
    let core = || {
        sources
            .iter()
            .filter(|source| source.is_below("verbs-core/src"))
    };
    let mut calls = BTreeMap::new();
    for source in core() {
        let code = source.code.split("#[cfg(test)]\nmod tests").next();
        for (name, at) in calls_in(code.unwrap_or_default()) {
            calls.entry(name).or_insert((source, at));
        }
    }
    let has_alias = |name: &str| {
        let alias = format!("\"{name}\"");
        // `WcStatus(u32), "ibv_wc_status";` is how the enum macros get their names.
        let of_enum = format!("), {alias};");
        core().any(|source| {
            let attributes = source.text.match_indices("doc(alias");
            let mut lists = attributes.map(|(at, _)| &source.text[at..]);
            let in_list = |list: &str| {
                let list = list.split(")]").next();
                list.unwrap_or_default().contains(&alias)
            };
            lists.any(in_list) || source.text.contains(&of_enum)
        })
    };
    let missing = calls.into_iter().filter(|(name, _)| !has_alias(name));
    let finding = |(name, (source, at)): (&str, (_, _))| {
        let source: &Source = source;
        let message =
            format!("`{name}` is called here, but nothing has `#[doc(alias = \"{name}\")]`");
        let line = source.line_at(at);
        (
            source,
            Finding {
                line,
                rule: "alias",
                message,
            },
        )
    };
    missing.map(finding).collect()
}

/// No file is compiled into another package: what packages share is a package.
pub(super) fn borders(sources: &[Source]) -> Vec<(&Source, Finding)> {
    let manifests = sources
        .iter()
        .filter(|source| source.path.ends_with("Cargo.toml"));
    let packages: Vec<&Path> = manifests.filter_map(|found| found.path.parent()).collect();
    let package_of = |path: &Path| {
        let above = packages.iter().filter(|package| path.starts_with(package));
        above.max_by_key(|package| package.components().count())
    };
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        for at in source.words("path") {
            let Some(rest) = source.text[at..].strip_prefix("path = \"") else {
                continue;
            };
            let path = rest.split('"').next().unwrap_or_default();
            let target = resolved(&source.path.with_file_name(path));
            if package_of(&target) != package_of(&source.path) {
                findings.push((
                    source,
                    Finding {
                        line: source.line_at(at),
                        rule: "border",
                        message: format!("{path} is in another package"),
                    },
                ));
            }
        }
    }
    findings
}

/// A path without `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            other => resolved.push(other),
        }
    }
    resolved
}

/// The names `ibv_…` that are called in `code`, and where.
fn calls_in(code: &str) -> impl Iterator<Item = (&str, usize)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("ibv_").filter_map(move |(at, _)| {
        let (before, rest) = code.split_at(at);
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(length);
        let starts = !before.ends_with(is_part);
        let defined = before.trim_end().ends_with("fn");
        (starts && !defined && after.starts_with('(')).then_some((name, at))
    })
}

#[cfg(test)]
mod tests {
    use super::{aliases, borders, check, type_names};
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

    #[test]
    fn a_path_stays_in_its_package() {
        let found = |path: &str| {
            let text = format!("//! A.\n#[path = \"{path}\"]\nmod c;\n");
            let sources =
                ["Cargo.toml", "a/Cargo.toml", "a/b/Cargo.toml"].map(|path| Source::new(path, ""));
            let sources: Vec<_> = sources
                .into_iter()
                .chain([Source::new("a/tests/d/main.rs", text)])
                .collect();
            borders(&sources)
                .into_iter()
                .map(|(_, finding)| finding.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("../../src/c.rs"), []);
        assert_eq!(found("../../../b/src/c.rs"), [2]);
        assert_eq!(found("../../b/src/c.rs"), [2]);
    }

    #[test]
    fn every_called_verb_needs_an_alias() {
        let call = "//! A.\nuse verbs_sys::ibv_alloc_pd;\nfn f() { ibv_alloc_pd(c) }\n";
        let core = |text: &str| Source::new("verbs-core/src/a.rs", text);
        let found = aliases(&[core(call)]).len();
        assert_eq!(found, 1);
        let aliased = "//! B.\n#[doc(alias = \"ibv_alloc_pd\")]\nfn g() {}\n";
        assert!(aliases(&[core(call), core(aliased)]).is_empty());
        let listed = "//! B.\n#[doc(alias(\"ibv_x\", \"ibv_alloc_pd\"))]\nfn g() {}\n";
        assert!(aliases(&[core(call), core(listed)]).is_empty());
        let of_enum = "//! B.\nopen_enum! { A(u32), \"ibv_alloc_pd\"; }\n";
        assert!(aliases(&[core(call), core(of_enum)]).is_empty());
        let in_message = "//! B.\nfn g() { errno(\"ibv_alloc_pd\", ret) }\n";
        assert_eq!(aliases(&[core(call), core(in_message)]).len(), 1);
    }

    #[test]
    fn types_tests_and_other_crates_need_no_alias() {
        let types = "//! A.\nuse verbs_sys::ibv_pd;\nfn f(pd: ibv_pd, x: my_ibv_y) { my_ibv_y(x) }\n\
                     fn ibv_own() {}\n#[cfg(test)]\nmod tests { fn f() { ibv_alloc_pd(c) } }\n";
        assert!(aliases(&[Source::new("verbs-core/src/a.rs", types)]).is_empty());
        let call = "//! A.\nfn f() { ibv_alloc_pd(c) }\n";
        assert!(aliases(&[Source::new("verbs-sys/src/a.rs", call)]).is_empty());
    }
}
