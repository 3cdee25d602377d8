//! The texts of this program in the guide of `verbs-channel` are in its source.

use std::fs;
use std::path::Path;

/// The blocks of the guide's section about this program, each as one line. None if this package is not in its
/// workspace.
fn quoted() -> Option<Vec<String>> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../verbs-channel/src/guide/troubleshooting/machine.md"
    );
    let page = fs::read_to_string(page).ok()?;
    let (_, section) = page
        .split_once("\n# With `cargo soft-roce`\n")
        .expect("the page has the section");
    let section = section.split("\n# ").next().unwrap_or_default();
    let blocks = section.split("```text\n").skip(1);
    let texts = blocks.map(|block| {
        let (text, _) = block.split_once("\n```").expect("the block has an end");
        text.replace('\n', " ")
    });
    Some(texts.collect())
}

/// All sources in a folder.
fn sources(dir: &Path) -> String {
    let entries = fs::read_dir(dir).expect("the sources are here");
    let entries = entries.map(|entry| entry.expect("they can be read").path());
    let texts = entries.map(|path| match path.is_dir() {
        true => sources(&path),
        false => fs::read_to_string(&path).expect("they can be read"),
    });
    texts.collect()
}

/// The texts in a source: each in one line, and with `…` for what is inserted.
fn texts(source: &str) -> String {
    let mut text = String::new();
    let lines = source.lines();
    for line in lines {
        let is_continued = line.ends_with('\\');
        text.push_str(line.trim_start().trim_end_matches('\\'));
        if !is_continued {
            text.push('\n');
        }
    }
    let mut rest = text.as_str();
    let mut shown = String::new();
    while let Some((before, after)) = rest.split_once('{') {
        shown.push_str(before);
        rest = match after.split_once('}') {
            Some((name, after)) if name.chars().all(|c| c == '_' || c.is_ascii_lowercase()) => {
                shown.push('…');
                after
            }
            _ => after,
        };
    }
    shown + rest
}

#[test]
fn guide_quotes_the_texts_of_this_program() {
    let Some(quoted) = quoted() else {
        println!("SKIPPED guide_quotes_the_texts_of_this_program: the guide is not here");
        return;
    };
    let texts = texts(&sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")));
    assert!(!quoted.is_empty());
    for text in quoted {
        assert!(texts.contains(&text), "no code prints {text:?}");
    }
}
