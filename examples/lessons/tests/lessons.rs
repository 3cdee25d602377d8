//! A lesson is short, of one file, without helpers, in the README and in the tests.
#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Crates that a lesson may depend on: these, and a runtime.
const CRATES: [&str; 5] = ["std", "verbs_core", "verbs_channel", "verbs_async", "tokio"];

/// The name and the text of each lesson.
fn lessons() -> Vec<(String, String)> {
    let files = fs::read_dir(Path::new(PACKAGE).join("src/bin")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let lesson = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        name.starts_with("hello_")
            .then(|| (name, fs::read_to_string(path).unwrap()))
    };
    let lessons: Vec<_> = paths.filter_map(lesson).collect();
    assert!(lessons.len() >= 12, "{} lessons", lessons.len());
    lessons
}

#[test]
fn a_lesson_has_at_most_eighty_lines() {
    for (name, text) in lessons() {
        let lines = text.lines().count();
        assert!(lines <= 80, "{name} has {lines} lines");
    }
}

#[test]
fn a_lesson_uses_nothing_but_the_crates() {
    for (name, text) in lessons() {
        assert!(!text.contains("examples::"), "{name} shares a helper");
        assert!(!text.contains("\nmod "), "{name} is more than one file");
        for used in text.lines().filter_map(|line| line.strip_prefix("use ")) {
            let from = used.split("::").next().unwrap();
            assert!(CRATES.contains(&from), "{name} uses {from}");
        }
    }
}

#[test]
fn each_lesson_is_in_the_readme_and_runs_in_the_device_tests() {
    let read = |path: &str| fs::read_to_string(Path::new(PACKAGE).join(path)).unwrap();
    let (readme, tests) = (read("../README.md"), read("tests/device/lessons.rs"));
    for (name, _) in lessons() {
        let row = format!("| [`{name}`](lessons/src/bin/{name}.rs) | ");
        assert!(readme.contains(&row), "{name} is not in the README");
        let program = format!("CARGO_BIN_EXE_{name}\"");
        assert!(tests.contains(&program), "{name} is not run");
    }
}

/// A reader who puts the steps of the chapter together has this lesson.
#[test]
fn the_server_of_the_guide_is_a_lesson() {
    let read = |path: &str| fs::read_to_string(Path::new(PACKAGE).join(path)).unwrap();
    let chapter = read("../../verbs-channel/src/guide/server.md");
    let (steps, _many_clients) = chapter.split_once("\n# Step 5").unwrap();
    let blocks = steps.split("```no_run\n").skip(1);
    let code = blocks.filter_map(|block| Some(block.split_once("\n```")?.0));
    // Rustdoc hides the other lines.
    let shown = |line: &&str| !line.starts_with("# ");
    let shown: Vec<&str> = code.flat_map(str::lines).filter(shown).collect();
    let lesson = read("src/bin/hello_server.rs");
    let lesson = lesson.lines().skip_while(|line| !line.starts_with("use "));
    let lesson: Vec<&str> = lesson.collect();
    let dense = |lines: &[&str]| lines.join("\n").replace("\n\n", "\n");
    assert_eq!(dense(&shown), dense(&lesson));
}

#[test]
fn lesson_with_wrong_arguments_prints_the_right_ones_in_one_line() {
    let two_hosts = env!("CARGO_BIN_EXE_hello_two_hosts");
    let rdma_cm = env!("CARGO_BIN_EXE_hello_rdma_cm");
    let server = env!("CARGO_BIN_EXE_hello_server");
    let async_server = env!("CARGO_BIN_EXE_hello_async_server");
    let lessons = [
        (two_hosts, "", "usage: hello_two_hosts"),
        (rdma_cm, "connect", "usage: hello_rdma_cm"),
        (server, "localhost:7471", "HOST:7471 QUESTION"),
        (server, "localhost:7471 who is there?", "HOST:7471 QUESTION"),
        (async_server, "localhost:7472", "HOST:7472 QUESTION"),
        (async_server, "localhost:7472 a b", "HOST:7472 QUESTION"),
    ];
    for (lesson, args, reason) in lessons {
        // A server would not end.
        let output = Command::new("timeout")
            .args(["30", lesson])
            .args(args.split_whitespace())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{lesson} {args}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(reason), "{text}");
    }
}
