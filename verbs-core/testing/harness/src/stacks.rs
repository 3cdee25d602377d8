//! The kernel stacks of the test's process and of its descendants, for a test that hangs.

use std::fmt::Write as _;
use std::fs;
use std::process;

/// The kernel stacks of all threads of this process and of its descendants, as text.
///
/// Each follows the number of the process, that of the thread, and its name. Only root can read stacks: for others
/// they are empty. A process whose parent has ended is missing.
pub fn of_all_threads() -> String {
    let processes: Vec<(u32, u32)> = numbers("/proc")
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut family = vec![process::id()];
    let mut text = String::new();
    // Grows as children are found.
    let mut next = 0;
    while let Some(&pid) = family.get(next) {
        next += 1;
        let children = processes.iter().filter(|&&(_, parent)| parent == pid);
        family.extend(children.map(|&(child, _)| child));
        for thread in numbers(&format!("/proc/{pid}/task")) {
            let read = |file: &str| {
                let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}"));
                text.unwrap_or_default()
            };
            let (name, stack) = (read("comm"), read("stack"));
            let stack = stack.trim_end().replace('\n', "\n    ");
            let _infallible = writeln!(text, "{pid} {thread} {}\n    {stack}", name.trim_end());
        }
    }
    text
}

/// The entries of a directory that are numbers.
fn numbers(dir: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process.
fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
