//! Runs a program under callgrind and adds up what it counted.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Context as _, Error};
use crate::process::quietly;

/// Callgrind runs a program fifty times slower; these take a second.
const LIMIT: Duration = Duration::from_secs(120);

/// The counts of one run of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Instructions outside the stand-in for libibverbs.
    pub(super) instructions: u64,
    /// Calls of malloc and its siblings.
    pub(super) allocations: u64,
}

/// Counts a run of `program OPERATION COUNT` against the libibverbs in the folder `provider`.
pub(super) fn count(
    program: &Path,
    provider: &Path,
    operation: &str,
    count: u64,
) -> Result<Counts, Error> {
    let file = provider.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([operation, &count.to_string()])
        .env("LD_LIBRARY_PATH", provider);
    let label = format!("counting {operation}");
    let quiet = quietly(&mut command, &label, LIMIT)?;
    if !quiet.success() {
        return Err(quiet.error(&command));
    }
    let profile = fs::read_to_string(&file);
    let profile = profile.context(|| format!("cannot read {}", file.display()))?;
    let library = provider.join("libibverbs.so.1").display().to_string();
    read(&profile, &library).map_err(Error::new)
}

/// Adds up a profile; what the object `library` did by itself is left out.
fn read(profile: &str, library: &str) -> Result<Counts, String> {
    let mut names = Names::default();
    let mut counts = Counts::default();
    let mut outside = true;
    let mut seen_library = false;
    let mut calls_allocator = false;
    let mut is_call = false;
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            let is_library = names.get("object", object) == library;
            outside = !is_library;
            seen_library |= is_library;
        } else if let Some(object) = line.strip_prefix("cob=") {
            // Only for its name, which may occur here first.
            names.get("object", object);
        } else if let Some(function) = line.strip_prefix("fn=") {
            names.get("function", function);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            calls_allocator = is_allocator(names.get("function", function));
        } else if let Some(calls) = line.strip_prefix("calls=") {
            is_call = true;
            let calls = calls
                .split(' ')
                .next()
                .and_then(|calls| calls.parse::<u64>().ok());
            let calls = calls.ok_or_else(|| format!("callgrind wrote an odd line: {line}"))?;
            if calls_allocator {
                counts.allocations += calls;
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // A position and a cost; after `calls=`, the cost of what was called, counted there.
            let cost = line
                .split(' ')
                .nth(1)
                .and_then(|cost| cost.parse::<u64>().ok());
            let cost = cost.ok_or_else(|| format!("callgrind wrote an odd line: {line}"))?;
            if outside && !is_call {
                counts.instructions += cost;
            }
            is_call = false;
        }
    }
    if !seen_library {
        return Err(format!("the program did not use {library}"));
    }
    Ok(counts)
}

fn is_allocator(function: &str) -> bool {
    // A recursive call has its depth behind the name.
    let name = function.split(['\'', '@']).next().unwrap_or_default();
    let all = [
        "malloc",
        "calloc",
        "realloc",
        "memalign",
        "posix_memalign",
        "aligned_alloc",
    ];
    all.contains(&name)
}

/// Callgrind's names: `(7) /lib/libc.so.6` the first time, `(7)` from then on.
#[derive(Default)]
struct Names<'a> {
    known: HashMap<(&'static str, &'a str), &'a str>,
}

impl<'a> Names<'a> {
    fn get(&mut self, kind: &'static str, text: &'a str) -> &'a str {
        let Some((id, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
            return text;
        };
        if name.is_empty() {
            return self.known.get(&(kind, id)).copied().unwrap_or_default();
        }
        let name = name.trim_start();
        self.known.insert((kind, id), name);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, read};

    const PROFILE: &str = "\
events: Ir

ob=(1) /bin/data_path
fl=(1) a.rs
fn=(1) main
16 10
+2 5
cob=(2) /tmp/libibverbs.so.1
cfn=(2) poll_cq
calls=3 20
+1 300
cob=(3) /lib/libc.so.6
cfn=(3) malloc
calls=4 0
* 70

ob=(2)
fn=(2)
20 300
cob=(3)
cfn=(3)
calls=1 0
20 20

ob=(3)
fn=(3)
0 90
cfn=(4) malloc_consolidate
calls=9 0
0 1
totals: 405
";

    #[test]
    fn the_library_s_own_instructions_are_left_out_and_nothing_is_counted_twice() {
        let counts = read(PROFILE, "/tmp/libibverbs.so.1").unwrap();
        let expected = Counts {
            instructions: 10 + 5 + 90,
            allocations: 4 + 1,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_program_that_used_another_library_is_an_error() {
        assert!(read(PROFILE, "/usr/lib/libibverbs.so.1").is_err());
    }

    #[test]
    fn odd_lines_are_errors() {
        assert!(read("ob=(1) x\n16 many\n", "x").is_err());
        assert!(read("ob=(1) x\ncalls=\n", "x").is_err());
    }
}
