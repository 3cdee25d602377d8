//! Our ping-pongs against C's (`rc_pingpong` against `ibv_rc_pingpong`, and so on), both ways round.

use std::time::Duration;

use soft_roce::{Options, Way};

use super::devices;
use super::report::Report;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::progress;
use crate::workspace;

/// A program of ours, which C's is named after; message sizes, and how many of each are enough to show
/// that nothing is lost: an emulated kernel moves 40 MB/s.
///
/// Each size, mode, role and place meets each other in every program; one device and two take turns.
struct Program {
    name: &'static str,
    sizes: [(u32, u32); 3],
}

/// Messages lost on the two unreliable ones are not sent again: none is longer than soft-RoCE's
/// queue. A datagram is one packet.
const PROGRAMS: [Program; 4] = [
    Program {
        name: "rc_pingpong",
        sizes: [(1, 1000), (4096, 1000), (1024 * 1024, 8)],
    },
    Program {
        name: "srq_pingpong",
        sizes: [(1, 1000), (4096, 1000), (16384, 100)],
    },
    Program {
        name: "uc_pingpong",
        sizes: [(1, 300), (4096, 300), (16384, 100)],
    },
    Program {
        name: "ud_pingpong",
        sizes: [(1, 300), (1024, 300), (4096, 300)],
    },
];

/// Spinning, sleeping on events, checking every byte.
const MODES: [&[&str]; 3] = [&[], &["-e"], &["-c"]];

/// The GID index that C needs as an option. Ours gets the same, or none, and chooses by itself.
const GID: &[&str] = &["-g", "1"];

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
            let ours = workspace::example(&examples, program.name)?;
            let c = format!("ibv_{}", program.name);
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
fn jobs(program: &Program, c: &str, ours: &str) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (place, peer) in ["{device}", "{peer}"].into_iter().enumerate() {
        for (role, ours_serves) in [true, false].into_iter().enumerate() {
            for (row, (size, count)) in program.sizes.into_iter().enumerate() {
                let with = |gid, mode| Case {
                    program: program.name,
                    peer,
                    ours_serves,
                    gid,
                    size,
                    count,
                    mode,
                };
                let runs = |column| (place + role + row + column) % 2 == 0;
                let modes = MODES.into_iter().enumerate();
                let by_mode = modes
                    .filter(|(column, _)| runs(*column))
                    .map(|(_, mode)| with(GID, mode));
                // The choice of a GID has nothing to do with size and mode.
                let chosen = (row == 1 && runs(0)).then(|| with(&[], &[]));
                let cases = by_mode.chain(chosen);
                jobs.extend(cases.map(|case| case.job(c, ours)));
            }
        }
    }
    jobs
}

struct Case<'a> {
    program: &'a str,
    peer: &'a str,
    ours_serves: bool,
    gid: &'a [&'a str],
    size: u32,
    count: u32,
    mode: &'a [&'a str],
}

impl Case<'_> {
    fn job(&self, c: &str, ours: &str) -> Job {
        let (server, client) = if self.ours_serves {
            (ours, c)
        } else {
            (c, ours)
        };
        let our_gid = |ours: bool| if ours { self.gid } else { GID };
        let server = self.command(server, "{device}", our_gid(self.ours_serves));
        let mut client = self.command(client, self.peer, our_gid(!self.ours_serves));
        client.push("127.0.0.1".into());
        Job::new(self.name(), Duration::from_secs(180), vec![server, client])
    }

    fn command(&self, program: &str, device: &str, gid: &[&str]) -> Vec<String> {
        let (size, count) = (self.size.to_string(), self.count.to_string());
        let fixed = [program, "-d", device, "-s", &size, "-n", &count];
        let words = fixed.iter().chain(gid).chain(self.mode);
        words.map(|word| (*word).to_owned()).collect()
    }

    fn name(&self) -> String {
        let roles = if self.ours_serves {
            "C to ours"
        } else {
            "ours to C"
        };
        let place = if self.peer == "{device}" {
            "one device"
        } else {
            "two devices"
        };
        let gid = if self.gid.is_empty() {
            ", chosen GID"
        } else {
            ""
        };
        let mode = self.mode.join(" ");
        let space = if mode.is_empty() { "" } else { " " };
        format!(
            "{} {roles}, {place}{gid}, -s {} -n {}{space}{mode}",
            self.program, self.size, self.count
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, PROGRAMS};
    use std::collections::BTreeSet;

    fn jobs() -> Vec<Job> {
        let jobs = PROGRAMS.iter().map(|it| super::jobs(it, "c", "ours"));
        jobs.flatten().collect()
    }

    #[test]
    fn each_size_mode_role_and_place_meets_each_other() {
        let names: Vec<String> = jobs().into_iter().map(|job| job.name).collect();
        for program in &PROGRAMS {
            let sizes = program.sizes.map(|(size, _)| format!(" -s {size} "));
            let choices: [&[&str]; 4] = [
                &[" C to ours,", " ours to C,"],
                &[" one device,", " two devices,"],
                &sizes.each_ref().map(String::as_str),
                &[" -e", " -c", ""],
            ];
            for (index, first) in choices.iter().enumerate() {
                for second in &choices[index + 1..] {
                    for (a, b) in first
                        .iter()
                        .flat_map(|a| second.iter().map(move |b| (a, b)))
                    {
                        let meet = |name: &&String| {
                            let mode = |it: &str| {
                                it.is_empty() && !name.contains(" -e") && !name.contains(" -c")
                            };
                            let has = |it: &str| mode(it) || !it.is_empty() && name.contains(it);
                            name.starts_with(program.name) && has(a) && has(b)
                        };
                        assert!(
                            names.iter().any(|name| meet(&name)),
                            "{}: {a}{b}",
                            program.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn each_combination_is_there_once_and_has_one_program_of_each() {
        let jobs = jobs();
        assert_eq!(jobs.len(), 4 * 20);
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names.len(), jobs.len());
        for job in &jobs {
            let mut programs: Vec<&str> =
                job.commands.iter().map(|words| words[0].as_str()).collect();
            programs.sort_unstable();
            assert_eq!(programs, ["c", "ours"]);
        }
    }

    #[test]
    fn c_always_gets_its_gid_and_only_the_client_a_host() {
        for job in jobs() {
            let is_client =
                |words: &Vec<String>| words.last().is_some_and(|word| word == "127.0.0.1");
            assert!(!is_client(&job.commands[0]) && is_client(&job.commands[1]));
            let c = job.commands.iter().find(|words| words[0] == "c").unwrap();
            assert!(c.windows(2).any(|pair| pair == ["-g", "1"]), "{c:?}");
        }
    }
}
