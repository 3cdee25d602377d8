//! `cargo xtask demo`: two processes that move bytes and verify them in every layer, from a fresh checkout to a table.

mod table;

use std::process::ExitCode;
use std::time::Duration;

use soft_roce::{Options, Way};

use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::packages;
use crate::progress::{self, Progress};
use crate::workspace;
use table::{Measured, Row};

/// The main job: two processes move bytes over RDMA in every layer, and verify them
///
/// Installs what is missing, builds the example `perf`, and prints latency and bandwidth of each layer beside those of TCP.
/// The devices are cards in user space, unless this kernel has soft-RoCE and root needs no password.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: jobs::Place,
    #[command(flatten)]
    install: packages::Install,
}

/// The rows, each with the layer and the operation of `perf`; those of TCP are what the others are compared with.
static ROWS: [Row; 8] = [
    Row::new("TCP", "tcp", "send"),
    Row::new("verbs-core: send and receive", "core", "send"),
    Row::new("verbs-core: RDMA write", "core", "write"),
    Row::new("verbs-core: RDMA read", "core", "read"),
    Row::new("verbs-channel: send and receive", "channel", "send"),
    Row::new("verbs-channel: RDMA read", "channel", "read"),
    Row::new("verbs-async: send and receive", "async", "send"),
    Row::new("verbs-async: byte stream", "stream", "send"),
];

/// The options for a latency, and for a bandwidth.
const MODES: [&[&str]; 2] = [&["--size", "64"], &["--size", "65536", "--bandwidth"]];

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<ExitCode, Error> {
    let policy = args.install.policy();
    let options = args.place.options(policy);
    let mut needs = packages::BUILD.to_vec();
    needs.extend(soft_roce::needs(&options));
    packages::ensure(&needs, policy)?;

    println!("building `perf` of the examples (the first time takes a minute or two)");
    let examples = workspace::build(&[
        "build",
        "--package=programs",
        "--bin=perf",
        "--no-default-features",
        "--release",
        "--message-format=json-render-diagnostics",
    ])?;
    let perf = workspace::example(&examples, "perf")?;
    let measured = measure(&perf.display().to_string(), &options)?;
    println!("\n{}", table::table(&ROWS, &measured, table::has_colour()));
    println!("two processes, one reliable connection; every byte was verified at both ends");
    println!("next: examples/README.md has lessons to copy, README.md a quick start");
    Ok(ExitCode::SUCCESS)
}

/// The figures of all rows on these devices.
fn measure(perf: &str, options: &Options) -> Result<Vec<Measured>, Error> {
    let count = match options.way {
        Way::Guest => "200",
        _ => "2000",
    };
    let jobs: Vec<Job> = ROWS
        .iter()
        .flat_map(|row| MODES.map(|mode| row.job(perf, mode, count)))
        .collect();
    let mut measured: Vec<Measured> = Vec::new();
    let mut failures = Vec::new();
    let mut running: Option<Progress> = None;
    jobs::run(&jobs, options, &mut |_, event| match event {
        Event::Start(name) => running = Some(Progress::of(name)),
        Event::Line(line) => match Measured::read(line) {
            Some(figures) => measured.push(figures),
            None => progress::print(&format!("    {line}")),
        },
        Event::End(Ok(())) => running = None,
        Event::End(Err((code, why))) => {
            running = None;
            progress::print(&format!("    FAILED: {why}"));
            failures.push((why.to_owned(), code));
        }
    })?;
    drop(running);
    if let Some((first, code)) = failures.first() {
        let message = format!("{} of {} failed; {first}", failures.len(), jobs.len());
        return Err(Error::new(message).with_code(*code));
    }
    if measured.len() != jobs.len() {
        let message = format!("{} of {} printed figures", measured.len(), jobs.len());
        return Err(Error::new(message));
    }
    Ok(measured)
}

impl Row {
    fn job(&self, perf: &str, mode: &[&str], count: &str) -> Job {
        let (name, layer, op) = (self.title, self.layer, self.op);
        let server = ["-d", "{device}"];
        let client = ["-d", "{peer}", "--layer", layer, "--op", op, "--check"];
        let client = [&client, mode, &["-n", count, "--json", "127.0.0.1"]].concat();
        let words = |args: &[&str]| {
            let words = std::iter::once(perf).chain(args.iter().copied());
            words.map(str::to_owned).collect()
        };
        let name = format!("{name}, {}", mode.join(" "));
        Job::new(
            name,
            Duration::from_secs(300),
            vec![words(&server), words(&client)],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{MODES, ROWS};

    #[test]
    fn both_ends_are_on_different_devices_and_the_client_names_the_server() {
        for row in &ROWS {
            let job = row.job("p", MODES[1], "5");
            let [server, client] = &job.commands[..] else {
                panic!("{job:?}");
            };
            assert_eq!(server.join(" "), "p -d {device}");
            assert!(client.contains(&"{peer}".to_owned()), "{client:?}");
            assert_eq!(client.last().unwrap(), "127.0.0.1");
        }
    }
}
