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
pub(super) fn tests(
    report: &mut Report,
    options: &Options,
    filter: Option<&str>,
) -> Result<(), Error> {
    let wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    let all = || PROGRAMS.iter().flat_map(|program| jobs(program, "", ""));
    if !all().any(|job| wanted(&job.name)) {
        return Ok(());
    }
    let mut options = options.clone();
    if options.way == Way::Auto {
        options.way = Way::User;
    }
    let jobs = || {
        let examples = devices::built()?;
        let mut all = Vec::new();
        for program in &PROGRAMS {
            let ours = workspace::example(&examples, program.0)?;
            let c = format!("ibv_{}", program.0);
            all.extend(jobs(program, &c, &ours.display().to_string()));
        }
        all.retain(|job| wanted(&job.name));
        Ok(all)
    };
    step(report, "interop", &options, jobs);
    Ok(())
}

/// Runs jobs as one step, and counts each as a test.
pub(super) fn step(
    report: &mut Report,
    title: &str,
    options: &Options,
    jobs: impl FnOnce() -> Result<Vec<Job>, Error>,
) {
    let step = report.start(title);
    let before = report.failures();
    let ran = jobs().and_then(|jobs| {
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
    let is_well = report.failures() == before;
    step.end(report, if is_well { "ok" } else { "FAILED" });
}

/// The combinations of a program; `c` and `ours` are the two.
fn jobs((program, sizes): &Program, c: &str, ours: &str) -> Vec<Job> {
    let places = [("one device", "{device}"), ("two devices", "{peer}")];
    let both = places.into_iter().flat_map(|it| [(it, true), (it, false)]);
    let mut jobs = Vec::new();
    for ((place, peer), ours_serves) in both {
        for ((size, count), mode) in sizes.iter().zip(MODES) {
            let options = format!("-s {size} -n {count} {mode}");
            let command = |is_ours: bool, device: &str, host: &str| -> Vec<String> {
                let (name, gid) = match is_ours {
                    true if mode.is_empty() => (ours, ""),
                    true => (ours, GID),
                    false => (c, GID),
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
