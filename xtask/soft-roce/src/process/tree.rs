//! A process with all that it has started: ended together.

use std::fs;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context as _, Error};
use crate::progress;
use crate::signals::caught;

/// How often processes are looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long children have to end by themselves once they are asked to.
const GRACE: Duration = Duration::from_secs(3);

/// Kills a process and all that it has started, as far as they still are its descendants.
pub fn kill_tree(pid: u32) {
    signal_tree(pid, Signal::KILL);
}

/// Sends a signal to a process and all that it has started.
pub(crate) fn signal_tree(pid: u32, number: Signal) {
    for pid in descendants(pid).into_iter().rev() {
        signal(pid, number);
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may be gone already, which is all that was wanted.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// `pid` and the processes below it, parents first.
fn descendants(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pairs: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(pid)?))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = pairs.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: the state, then the parent.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Whether this process has been asked to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Goes no further once this process has been asked to end: a child that was ended with it is no
/// failure to report, and nothing new is to begin. It ends within seconds.
pub fn stop_here_if_ending() {
    while ENDING.load(Ordering::Relaxed) {
        thread::sleep(POLL);
    }
}

/// From now on, an interrupt or a request to end first ends all children, then this process.
///
/// # Errors
///
/// If signals cannot be listened for.
pub fn end_children_on_signals() -> Result<(), Error> {
    let signals = Signals::new(caught(&[SIGINT, SIGTERM, SIGHUP]));
    let mut signals = signals.context(|| "cannot listen for signals")?;
    thread::spawn(move || {
        let Some(number) = signals.forever().next() else {
            return;
        };
        ENDING.store(true, Ordering::Relaxed);
        let own = process::id();
        let children = || descendants(own).into_iter().skip(1).rev();
        for pid in children() {
            signal(pid, Signal::TERM);
        }
        let patience = Instant::now() + GRACE;
        while children().next().is_some() && Instant::now() < patience {
            thread::sleep(POLL);
        }
        for pid in children() {
            signal(pid, Signal::KILL);
        }
        progress::erase();
        process::exit(128 + number);
    });
    Ok(())
}
