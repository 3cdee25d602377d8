//! The head of a program names what to read first.
#![cfg(test)]

use std::fs;
use std::path::Path;

#[test]
fn the_head_of_a_program_names_functions_that_exist() {
    let bins = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    for entry in fs::read_dir(bins).unwrap() {
        let path = entry.unwrap().path();
        let main = if path.is_dir() {
            path.join("main.rs")
        } else {
            path
        };
        let name = main.display();
        let text = fs::read_to_string(&main).unwrap();
        let head = text
            .lines()
            .find_map(|line| line.strip_prefix("//! Read first: "));
        let head = head.unwrap_or_else(|| panic!("{name} does not say what to read first"));
        // Names in backquotes: functions, each followed by its file if that is another one.
        let mut functions = Vec::new();
        let check = |functions: &mut Vec<&str>, text: &str| {
            for function in functions.drain(..) {
                assert!(
                    text.contains(&format!("fn {function}")),
                    "{name}: {function}"
                );
            }
        };
        for word in head.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                let text = fs::read_to_string(main.with_file_name(word)).unwrap();
                check(&mut functions, &text);
            } else {
                functions.push(word);
            }
        }
        check(&mut functions, &text);
    }
}
