//! Runs programs, each on a thread of its own, and reports what has happened to them.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, process, thread};

use crate::world::{TROUBLES, World};

/// A program that takes longer hangs. It runs in virtual time, and slowly under Miri.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 3600 } else { 60 });

/// One of this number of programs runs twice, and has to be the same.
const AGAIN: u64 = 4;

/// Counts of the events in all programs, by name.
type Report = Vec<(&'static str, u64)>;

/// Runs programs: `count` of them, unless the environment asks for others.
pub(crate) fn programs(name: &'static str, count: u64, run: fn(&mut World)) {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let seed = number("FUZZ_SEED");
    let usual = match seed {
        Some(_) => 1,
        None if cfg!(miri) => 2,
        None => count,
    };
    let rounds = number("FUZZ_ROUNDS").unwrap_or(usual);
    let first = seed.unwrap_or(0);
    let mut report = Report::new();
    for seed in first..first + rounds {
        let (ended, hash) = program(name, seed, run);
        // Programs read the system's clock under Miri.
        if seed % AGAIN == 0 && !cfg!(miri) {
            let again = program(name, seed, run).1;
            assert_eq!(hash, again, "{seed} is not repeatable");
        }
        for (at, (name, times)) in ended.into_iter().enumerate() {
            match report.get_mut(at) {
                Some((_, all)) => *all += times,
                None => report.push((name, times)),
            }
        }
    }
    println!("{name}, {rounds} programs: {report:?}");
    let never = report.iter().filter(|(_, times)| *times == 0);
    let never: Vec<_> = never.map(|(name, _)| name).collect();
    assert!(rounds < count || never.is_empty(), "never: {never:?}");
}

/// Runs a program; returns what has happened, and the hash of its packets and completions if it is repeatable.
fn program(name: &'static str, seed: u64, run: fn(&mut World)) -> (Report, Option<u64>) {
    let file = format!("{name}-{seed}-{}.pcap", process::id());
    let packets = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let replay = format!(
        "FUZZ_SEED={seed} cargo test -p soft-verbs --test random {name} # packets: {}",
        packets.display()
    );
    let (ended, end) = mpsc::channel();
    let (path, named) = (packets.clone(), replay.clone());
    let thread = thread::Builder::new().name(format!("FUZZ_SEED={seed}"));
    let program = thread.spawn(move || {
        let mut world = World::new(seed, &path);
        let host = world.hosts[0].clone();
        host.enter(|| run(&mut world));
        let hash = world.is_repeatable.then(|| world.fabric.hash());
        ended.send((report(&world), hash)).expect("the test waits");
    });
    let program = program.expect("a thread starts");
    match end.recv_timeout(PATIENCE) {
        Ok(ended) => {
            fs::remove_file(packets).expect("the packets are in a file");
            program.join().expect("it has ended");
            ended
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            // Not by a macro, whose output is lost with a test that does not end.
            let _written = writeln!(io::stderr(), "hangs: {named}");
            process::abort();
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let _panicked = program.join();
            panic!("failed: {replay}");
        }
    }
}

fn report(world: &World) -> Report {
    let counts = world.fabric.counts();
    let mut report = vec![
        ("sent", counts.sent),
        ("lost", counts.lost),
        ("duplicated", counts.duplicated),
        ("reordered", counts.reordered),
        ("corrupted", counts.corrupted),
        ("lost in a cut", counts.cut),
        ("lost at a stopped host", counts.stopped),
        ("verbs refused", counts.refused),
        ("gentle programs", u64::from(world.is_gentle)),
    ];
    report.extend(TROUBLES.into_iter().zip(world.troubles));
    report
}
