//! Our ping-pongs against C's (`rc_pingpong` against `ibv_rc_pingpong`, and so on), both ways round.

use std::time::Duration;

use soft_roce::{Options, Way};

use super::devices;
use super::report::Report;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::progress;
use crate::workspace;

/// A program of ours, which C's is named after, with message sizes, and how many of each are enough to show that nothing is
/// lost: an emulated kernel moves 40 MB/s.
type Program = (&'static str, [(u32, u32); 3]);

/// Messages lost on the two unreliable ones are not sent again: none is longer than soft-RoCE's
/// queue. A datagram is one packet.
const PROGRAMS: [Program; 4] = [
    ("rc_pingpong", [(1, 1000), (4096, 1000), (1024 * 1024, 8)]),
    ("srq_pingpong", [(1, 1000), (4096, 1000), (16384, 100)]),
    ("uc_pingpong", [(1, 300), (4096, 300), (16384, 100)]),
    ("ud_pingpong", [(1, 300), (1024, 300), (4096, 300)]),
];

/// For each size: sleeping on events, spinning, checking every byte.
const MODES: [&str; 3] = ["-e", "", "-c"];

/// The GID index that C needs as an option. Ours gets the same, or none when it spins, and chooses by itself.
const GID: &str = "-g 1";

/// Runs every combination whose name contains `filter`, in user space unless a kernel is asked for.
pub(super) fn tests(report: &mut Report, options: &Options, filter: Option<&str>) {
    let mut jobs: Vec<Job> = PROGRAMS.iter().flat_map(jobs).collect();
    jobs.retain(|job| filter.is_none_or(|filter| job.name.contains(filter)));
    if jobs.is_empty() {
        return;
    }
    let mut options = options.clone();
    if options.way == Way::Auto {
        options.way = Way::User;
    }
    step(report, "interop", &options, Ok(jobs));
}

/// Runs jobs as one step, and counts each as a test. The word `{NAME}` stands for a program of ours.
pub(super) fn step(
    report: &mut Report,
    title: &str,
    options: &Options,
    jobs: Result<Vec<Job>, Error>,
) {
    let step = report.start(title);
    let ran = jobs.and_then(|mut jobs| {
        let examples = devices::built()?;
        let commands = jobs.iter_mut().flat_map(|job| &mut job.commands);
        for word in commands.flatten() {
            let ours = word
                .strip_prefix('{')
                .and_then(|word| word.strip_suffix('}'));
            if let Some(program) = ours.filter(|ours| !matches!(*ours, "device" | "peer")) {
                *word = workspace::example(&examples, program)?
                    .display()
                    .to_string();
            }
        }
        jobs::run(&jobs, options, &mut |job, event| match event {
            Event::Start(name) => progress::doing(name),
            Event::Line(line) => report.line(line),
            Event::End(Ok(())) => {
                report.pass(1);
                report.line(&format!("{} ... ok", job.name));
            }
            Event::End(Err((code, why))) => {
                report.fail(format!("{}: {why}", job.name), code);
                report.line(&format!("{} ... FAILED: {why}", job.name));
            }
        })
    });
    if let Err(error) = ran {
        report.fail(format!("{title}: {error}"), error.code());
    }
    step.end(report);
}

/// The combinations of a program.
fn jobs((program, sizes): &Program) -> Vec<Job> {
    let (c, ours) = (format!("ibv_{program}"), format!("{{{program}}}"));
    let places = [("one device", "{device}"), ("two devices", "{peer}")];
    let both = places.into_iter().flat_map(|it| [(it, true), (it, false)]);
    let mut jobs = Vec::new();
    for ((place, peer), ours_serves) in both {
        for ((size, count), mode) in sizes.iter().zip(MODES) {
            let options = format!("-s {size} -n {count} {mode}");
            let command = |is_ours: bool, device: &str, host: &str| -> Vec<String> {
                let (name, gid) = match is_ours {
                    true if mode.is_empty() => (&ours, ""),
                    true => (&ours, GID),
                    false => (&c, GID),
                };
                let words = format!("-d {device} {options} {gid} {host}");
                let words = words.split_whitespace().map(str::to_owned);
                std::iter::once(name.to_owned()).chain(words).collect()
            };
            let roles = match ours_serves {
                true => "C to ours",
                false => "ours to C",
            };
            let name = format!("{program} {roles}, {place}, {options}");
            let server = command(ours_serves, "{device}", "");
            let client = command(!ours_serves, peer, "127.0.0.1");
            let limit = Duration::from_secs(180);
            jobs.push(Job::new(
                name.trim_end().to_owned(),
                limit,
                vec![server, client],
            ));
        }
    }
    jobs
}
