//! The rules for what people read: words, links, commands, and nothing of one machine only.

use std::path::{Component, Path, PathBuf};

use super::source::{Finding, Source};

/// Folders in which people keep their checkouts: a path in one of them exists on one machine only.
// tidy: allow(machine): the rule itself
const CHECKOUTS: [&str; 3] = ["/home/", "/root/", "/work/"];

const SUBJECT: &str = "begin the sentence with its subject";
const NUMBER: &str = "name the number";
const GUARANTEE: &str = "name what guarantees it";

/// Phrases that docs and comments avoid, and the remedy. `^` is the beginning of a sentence.
const PHRASES: [(&str, &str); 15] = [
    ("^What ", SUBJECT),
    ("^Of ", SUBJECT),
    ("^By ", SUBJECT),
    ("^Nor ", SUBJECT),
    ("^That of ", SUBJECT),
    (" so many", NUMBER),
    ("^So many", NUMBER),
    (" as many", NUMBER),
    ("^As many", NUMBER),
    ("none of both", "say `neither`"),
    ("SAFETY: ^as ", GUARANTEE),
    ("SAFETY: ^nor ", GUARANTEE),
    ("SAFETY: ^the same", GUARANTEE),
    ("SAFETY: ^it is one", GUARANTEE),
    ("SAFETY: ^the caller's promise", GUARANTEE),
];

/// The commands that the README has to offer.
const README_COMMANDS: [&str; 2] = ["cargo xtask demo", "cargo xtask test"];

/// Everything that is wrong with one text; `known` are the task runner's commands, and `exists`
/// looks for a file or folder of the project.
pub(super) fn check(
    source: &Source,
    known: &[String],
    exists: impl Fn(&Path) -> bool,
) -> Vec<Finding> {
    let mut findings = machine(source);
    findings.extend(words(source));
    if source.is("md") {
        findings.extend(links(source, exists));
        findings.extend(commands(source, known));
    }
    findings
}

/// No path of one machine, and no issue by its number: the text has to stand by itself.
fn machine(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let mut add = |message| findings.push(Finding::new(index + 1, "machine", message));
        if let Some(dir) = CHECKOUTS.iter().find(|dir| line.contains(*dir)) {
            add(format!("a path in `{dir}` exists on one machine only"));
        }
        if names_an_issue(&line.to_lowercase()) {
            add("an issue by its number: say what it says".into());
        }
    }
    findings
}

fn names_an_issue(line: &str) -> bool {
    let mut after = line.split("issue ").skip(1);
    after.any(|text| {
        text.trim_start_matches('#')
            .starts_with(|c: char| c.is_ascii_digit())
    })
}

/// No phrase of [`PHRASES`] in a page, a doc or a comment. Changelogs keep their words.
fn words(source: &Source) -> Vec<Finding> {
    let is_page = source.is("md") && !source.path.ends_with("CHANGELOG.md");
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        // An address has no space before its slashes.
        let comment = || format!(" {line}").find(" //").filter(|_| source.is("rs"));
        let Some(at) = is_page.then_some(0).or_else(comment) else {
            continue;
        };
        let text = line[at..].trim_start_matches(['/', '!', '-', '*', '_', ' ']);
        let mut text = format!("^{text}");
        for end in [". ", ": ", "? ", "! "] {
            text = text.replace(end, &format!("{end}^"));
        }
        for (phrase, remedy) in PHRASES.iter().filter(|(phrase, _)| text.contains(phrase)) {
            let phrase = phrase.replace('^', "");
            let message = format!("`{}`: {remedy}", phrase.trim());
            findings.push(Finding::new(index + 1, "words", message));
        }
    }
    findings
}

/// Links to files of the project lead to one.
fn links(source: &Source, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let dir = source.path.parent().unwrap_or_else(|| Path::new(""));
    let mut findings = Vec::new();
    for (line, text) in text_lines(&source.text) {
        for link in text.split("](").skip(1) {
            let target = link.split([')', ' ']).next().unwrap_or_default();
            let path = target.split('#').next().unwrap_or_default();
            // Rustdoc checks the links to items of pages that it includes.
            let is_item = path.starts_with("crate::") && source.path.iter().any(|dir| dir == "src");
            let is_elsewhere = path.contains("://") || path.starts_with("mailto:");
            let is_ours = !path.is_empty() && !is_elsewhere && !is_item;
            if is_ours && !exists(&normal(&dir.join(path))) {
                let message = format!("the link to `{target}` leads nowhere");
                findings.push(Finding::new(line, "links", message));
            }
        }
    }
    findings
}

/// The lines outside code fences, with their numbers.
fn text_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// `a/../b` as `b`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// Commands that a text names exist, and the README names the two that matter most.
fn commands(source: &Source, known: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for rest in line.split("cargo xtask ").skip(1) {
            let word = rest
                .split(|c: char| !c.is_ascii_lowercase() && c != '-')
                .next();
            let word = word.unwrap_or_default();
            if !word.is_empty()
                && !word.starts_with('-')
                && !known.iter().any(|known| known == word)
            {
                let message = format!("there is no command `cargo xtask {word}`");
                findings.push(Finding::new(index + 1, "commands", message));
            }
        }
    }
    if source.path == Path::new("README.md") {
        let missing = README_COMMANDS
            .iter()
            .filter(|command| !source.text.contains(*command));
        findings.extend(missing.map(|command| {
            let message = format!("the README does not say `{command}`");
            Finding::new(0, "commands", message)
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::source::Source;
    use std::path::Path;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let exists = |path: &Path| path == Path::new("docs/there.md");
        let findings = check(
            &Source::new(path, text),
            &["demo", "test", "soft-roce"].map(str::to_owned),
            exists,
        );
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_good_text_passes() {
        let text = "`cargo xtask soft-roce up`, `cargo xtask --help`, [a](there.md#x), [b](#c),\n\
                    [c](https://example.com)\n```\n[d](nowhere)\n```\n[e](../docs/there.md)\n";
        assert_eq!(rules("docs/a.md", text), [""; 0]);
        assert_eq!(
            rules("README.md", "cargo xtask demo\ncargo xtask test\n"),
            [""; 0]
        );
    }

    #[test]
    fn each_rule_can_fail() {
        assert_eq!(rules("docs/a.md", "[a](gone.md)\n"), ["links"]);
        assert_eq!(rules("docs/a.md", "[a](crate::A)\n"), ["links"]);
        assert!(rules("core/src/a.md", "[a](crate::A)\n").is_empty());
        assert_eq!(rules("docs/a.md", "cargo xtask dmeo\n"), ["commands"]);
        assert_eq!(rules("README.md", "cargo xtask demo\n"), ["commands"]);
        // tidy: allow(machine): a bad sample
        assert_eq!(rules("a.rs", "see /home/me/notes\n"), ["machine"]);
        // tidy: allow(machine): a bad sample
        assert_eq!(rules("a.rs", "as Issue #7 says\n"), ["machine"]);
        assert_eq!(rules("a.rs", "an issue of 7 kinds\n"), [""; 0]);
    }

    #[test]
    fn phrases_are_found_in_pages_docs_and_comments_only() {
        for bad in [
            "/// What was sent.",
            "//! A sum. Nor is it long.",
            "// - Of the queue.",
            // tidy: allow(words): a bad sample
            "let a = b; // As many as fit.",
            "/// A queue for so many requests.",
            "// SAFETY: as above.",
            "// SAFETY: the caller's promise.",
        ] {
            assert_eq!(rules("a.rs", bad), ["words"], "{bad}");
            assert!(rules("a.toml", bad).is_empty());
        }
        assert_eq!(
            rules("a.md", "By that.\nIt fails: That of a. What\n"),
            ["words"; 2]
        );
        for good in [
            "let a = \"// What\";",
            "/// Whatever it has, as it has many.",
            "// SAFETY: `a` is as long as `b`.",
        ] {
            assert!(rules("a.rs", good).is_empty(), "{good}");
        }
        assert!(rules("a.md", "# What it is\n").is_empty());
        assert!(rules("CHANGELOG.md", "What\nSo many\n").is_empty());
    }
}
