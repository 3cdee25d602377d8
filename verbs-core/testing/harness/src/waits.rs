//! What processes wait for, as the kernel tells it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process;

/// Every thread of this process and of those it has started, and so on: what it is called, and where in the kernel
/// it waits. Only root sees the latter. A process whose parent has ended is not found.
pub fn of_all() -> String {
    let processes: Vec<(u32, u32)> = numbers(Path::new("/proc"))
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
        for thread in numbers(&Path::new("/proc").join(pid.to_string()).join("task")) {
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
fn numbers(dir: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process that a process was started by.
fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
