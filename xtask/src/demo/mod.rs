//! `cargo xtask demo`: the main job, two processes that move bytes and verify them, from a fresh
//! checkout to a table.

mod table;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::Args;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::packages;
use crate::progress::{self, Progress};
use crate::stream::Limits;
use crate::workspace;
use table::{Row, Section};

const HELP: &str = "\
Shows the main job: two processes move bytes over soft-RoCE and verify them.

Usage: cargo xtask demo [OPTION…]

Installs what is missing, builds the examples, brings up two soft-RoCE devices with a wire
between them, runs the examples across it, and prints what was moved and how fast.

  --guest         soft-RoCE in a virtual machine, even if this kernel has it
  --native        soft-RoCE of this kernel, or fail
  --yes           install missing packages without asking
  --no-install    fail if packages are missing, and say how to install them";

/// One example with the options of its two ends.
struct Step {
    /// The description for the reader.
    title: &'static str,
    /// The contents of its rows.
    shows: &'static str,
    /// The example's name.
    program: &'static str,
    /// The options of both ends.
    common: &'static [&'static str],
    /// The options of the first end only.
    server: &'static [&'static str],
    /// The options of each client; none means that the example runs alone. The server's name comes
    /// last, or where `{host}` stands; `{program}` is the example's file.
    clients: &'static [&'static [&'static str]],
    /// The example that the clients are, if it is another.
    peer: Option<&'static str>,
    /// The TCP port that the first end listens on.
    port: u16,
}

/// The steps of the demo. A later layer adds its own lines here.
static STEPS: [Step; 13] = [
    Step {
        title: "the device",
        shows: "the device that the others use, and its limits",
        program: "devinfo",
        common: &["-d", "{device}"],
        server: &[],
        clients: &[],
        peer: None,
        port: 0,
    },
    Step {
        title: "send and receive, small",
        shows: "each message arrives whole, in order; both ends spin on their completion queues",
        program: "rc_pingpong",
        common: &["-s", "64", "-n", "2000", "-c"],
        server: &[],
        clients: &[&[]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "send and receive, large",
        shows: "the same with many packets for a message",
        program: "rc_pingpong",
        common: &["-s", "1048576", "-n", "50", "-c"],
        server: &[],
        clients: &[&[]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "send and receive, sleeping on events",
        shows: "both ends sleep until a completion wakes them",
        program: "rc_pingpong",
        common: &["-s", "4096", "-n", "1000", "-c", "-e"],
        server: &[],
        clients: &[&[]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "RDMA write and read",
        shows: "one end reads and writes the memory of the other, which does nothing",
        program: "rdma_read_write",
        common: &["-s", "64", "-s", "4096", "-s", "1048576", "-n", "50"],
        server: &[],
        clients: &[&[]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "atomics: three clients, one counter",
        shows: "no addition is lost, whichever client comes first",
        program: "atomic_counter",
        common: &[],
        server: &[],
        clients: &[&[], &[], &[]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "channel: messages to and fro",
        shows: "the safe API of channels, with deadlines",
        program: "channel_echo",
        common: &[],
        server: &[],
        clients: &[&["-s", "64", "-s", "65536", "-n", "200"]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "channel: a file, in a window of loans",
        shows: "buffers are lent to the device and come back; a digest compares the file",
        program: "file_copy",
        common: &[],
        server: &["--discard"],
        clients: &[&["{host}", "{program}"]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "channel group: a store and its clients",
        shows: "one thread serves many clients on one completion queue",
        program: "kv_store",
        common: &[],
        // One that fills it, and those of the bench.
        server: &["--clients", "5"],
        clients: &[&["{host}", "bench", "--clients", "4", "-n", "200"]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "async channels: tokio to tokio, many connections",
        shows: "operations are futures, many at a time",
        program: "async_echo",
        common: &[],
        server: &["--clients", "4"],
        clients: &[&["-c", "4", "-w", "8", "-s", "4096", "-n", "200"]],
        peer: None,
        port: 18515,
    },
    Step {
        title: "async channels: smol to tokio",
        shows: "two runtimes, one protocol",
        program: "async_echo",
        common: &[],
        server: &["--clients", "1"],
        clients: &[&["-n", "500"]],
        peer: Some("smol_echo"),
        port: 18515,
    },
    Step {
        title: "async channels: a store, and tasks that read from its memory",
        shows: "tasks read values without the server's processor",
        program: "kv_store",
        common: &[],
        server: &["--clients", "2"],
        clients: &[&[
            "{host}",
            "bench",
            "--clients",
            "2",
            "--tasks",
            "8",
            "-n",
            "50",
        ]],
        peer: Some("async_kv"),
        port: 18515,
    },
    Step {
        title: "byte streams: HTTP by hyper",
        shows: "what was written for TCP, unchanged, over RDMA",
        program: "http_over_rdma",
        common: &[],
        server: &["--clients", "2"],
        clients: &[
            &[
                "{host}",
                "/README.md",
                "--check",
                "README.md",
                "-o",
                "/dev/null",
            ],
            &[
                "{host}",
                "/echo",
                "--upload",
                "{program}",
                "--check",
                "{program}",
                "-o",
                "/dev/null",
            ],
        ],
        peer: None,
        port: 18515,
    },
];

/// Makes the examples print what they measured in a line for programs.
const RESULT_LINES: &str = "VERBS_RESULT_LINES=1";

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    let policy = args.policy()?;
    let options = jobs::options(&mut args, policy)?;
    args.finish()?;
    let needs = [&packages::BUILD[..], &soft_roce::needs(&options)].concat();
    packages::ensure(&needs, policy)?;

    println!("building the examples (the first time takes some minutes)");
    let examples = workspace::examples("release")?;
    let mut jobs = Vec::new();
    for step in &STEPS {
        let server = workspace::example(&examples, step.program)?;
        let client = workspace::example(&examples, step.peer.unwrap_or(step.program))?;
        jobs.push(step.job(server, client));
    }

    let mut sections: Vec<Section<'_>> = Vec::new();
    let mut failures = Vec::new();
    let mut running: Option<Progress> = None;
    jobs::run(&jobs, &options, &mut |job, event| match event {
        Event::Start(name) => {
            progress::print(&format!("--> {name}"));
            running = Some(Progress::of(name));
            let step = STEPS.iter().find(|step| step.title == name);
            sections.extend(step.map(Step::section));
        }
        Event::Line(line) => match (Row::read(line), sections.last_mut()) {
            (Some(row), Some(section)) => section.rows.push(row),
            _ => progress::print(&format!("    {line}")),
        },
        // Two programs that connect print a result.
        Event::End(Ok(()))
            if job.commands.len() > 1
                && sections
                    .last()
                    .is_none_or(|section| section.rows.is_empty()) =>
        {
            running = None;
            progress::print("    FAILED: no result");
            failures.push((format!("{}: no result", job.name), 1));
        }
        Event::End(Ok(())) => running = None,
        Event::End(Err((code, why))) => {
            running = None;
            progress::print(&format!("    FAILED: {why}"));
            failures.push((format!("{}: {why}", job.name), code));
        }
    })?;
    drop(running);
    println!("\n{}", table::table(&sections, table::has_colour()));
    let rows: Vec<Row> = sections
        .into_iter()
        .flat_map(|section| section.rows)
        .collect();
    judge(&rows, &failures)?;
    println!("everything arrived as it was sent");
    Ok(ExitCode::SUCCESS)
}

impl Step {
    /// The section of this step, empty so far.
    const fn section(&self) -> Section<'static> {
        Section {
            title: self.title,
            shows: self.shows,
            rows: Vec::new(),
        }
    }

    fn job(&self, server: &Path, client: &Path) -> Job {
        let (server, program) = (server.display().to_string(), client.display().to_string());
        let words = |program: &str, more: &[&str]| -> Vec<String> {
            let words = [&[program], more, self.common].concat();
            words.into_iter().map(str::to_owned).collect()
        };
        let mut commands = Vec::new();
        if self.clients.is_empty() {
            commands.push(words(&server, &[]));
        } else {
            commands.push(words(&server, &[&["-d", "{device}"], self.server].concat()));
        }
        for client in self.clients {
            let mut client = words(&program, &[&["-d", "{peer}"], *client].concat());
            if !client.iter().any(|word| word == "{host}") {
                client.push("{host}".into());
            }
            for word in &mut client {
                match word.as_str() {
                    "{host}" => *word = "127.0.0.1".into(),
                    "{program}" => word.clone_from(&program),
                    _ => {}
                }
            }
            commands.push(client);
        }
        Job {
            name: self.title.into(),
            dir: workspace::root().display().to_string(),
            env: vec![RESULT_LINES.into()],
            limits: Limits {
                total: Duration::from_secs(300),
                silence: Duration::from_secs(300),
            },
            commands,
            port: self.port,
        }
    }
}

/// An error if any step failed, or if anything was not verified.
fn judge(rows: &[Row], failures: &[(String, u8)]) -> Result<(), Error> {
    if let Some((first, code)) = failures.first() {
        let count = failures.len();
        let steps = if count == 1 { "step" } else { "steps" };
        return Err(Error::new(format!("{count} {steps} failed; {first}")).with_code(*code));
    }
    if let Some(row) = rows.iter().find(|row| !row.verified) {
        return Err(Error::new(format!(
            "`{}` did not verify its bytes",
            row.operation
        )));
    }
    if rows.is_empty() {
        return Err(Error::new("no example printed a result"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Row, STEPS, judge};
    use std::path::Path;

    const LINE: &str = "RESULT op=write bytes=1000 iters=50 usec=2500.0 verified=yes";

    #[test]
    fn only_verified_results_without_failures_are_a_success() {
        let good = Row::read(LINE).unwrap();
        let bad = Row {
            verified: false,
            ..good.clone()
        };
        assert!(judge(std::slice::from_ref(&good), &[]).is_ok());
        assert!(judge(&[good.clone(), bad], &[]).is_err());
        assert!(judge(&[], &[]).is_err());
        let failed = judge(&[good], &[("write: gone".into(), 7)]).unwrap_err();
        assert_eq!(failed.code(), 7);
    }

    #[test]
    fn clients_name_the_server_once() {
        for step in STEPS.iter().filter(|step| !step.clients.is_empty()) {
            let job = step.job(Path::new("p"), Path::new("p"));
            for client in &job.commands[1..] {
                let hosts = client.iter().filter(|word| *word == "127.0.0.1");
                assert_eq!(hosts.count(), 1, "{}", step.title);
                let open = client.iter().filter(|word| word.starts_with('{'));
                assert_eq!(open.collect::<Vec<_>>(), ["{peer}"], "{}", step.title);
            }
        }
    }

    #[test]
    fn both_ends_are_on_different_devices() {
        for step in STEPS.iter().filter(|step| !step.clients.is_empty()) {
            let job = step.job(Path::new("p"), Path::new("p"));
            assert!(
                job.commands[0].contains(&"{device}".into()),
                "{}",
                step.title
            );
            let peers = &job.commands[1..];
            assert!(
                peers.iter().all(|words| words.contains(&"{peer}".into())),
                "{}",
                step.title
            );
        }
    }
}
