//! Latency and bandwidth of verbs-core beside C's perftest, in turns.

use std::time::Duration;

use tinyjson::JsonValue;

use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::numbers::{digits, size};
use crate::progress::{self, Progress};
use crate::workspace::{self, at};

/// Where the programs run.
pub(super) enum Place {
    /// The two devices of soft-RoCE.
    SoftRoce(Box<soft_roce::Options>),
    /// Devices of this machine; they may be the same.
    Devices {
        device: String,
        peer: String,
        gid: Option<String>,
    },
}

/// The programs that take turns: the last shows how far two runs of one program differ.
const PROGRAMS: [&str; 3] = ["perftest", "verbs-core", "perftest again"];

/// A measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    is_bandwidth: bool,
    op: &'static str,
    size: u64,
}

/// Runs all programs in turns, and prints their figures with the ratios of pairs of runs.
pub(super) fn measure(place: &Place, rounds: usize) -> Result<(), Error> {
    println!("building the example perf (the first time takes some minutes)");
    let json = "--message-format=json-render-diagnostics";
    let built = workspace::build(&[
        "build",
        "--release",
        "--package=programs",
        "--bin=perf",
        json,
    ])?;
    let perf = workspace::example(&built, "perf")?.display().to_string();
    let mut cases = Vec::new();
    for is_bandwidth in [false, true] {
        for op in ["send", "write", "read"] {
            let sizes = [2, 4096, 65_536, 1 << 20].into_iter();
            cases.extend(sizes.map(|size| Case {
                is_bandwidth,
                op,
                size,
            }));
        }
    }
    let mut jobs = vec![job(
        "machine",
        vec![words(
            "sh -c",
            &[
                "echo RESULT $(uname -r) $(uname -m), ${SOFT_ROCE:-native} ${SOFT_ROCE_DRIVER:-$0}, $(nproc) processors",
                "{device}",
            ],
        )],
    )];
    for (at, case) in cases.iter().enumerate() {
        for round in 0..rounds {
            let mut order = [0, 1, 2];
            // The other way each time: what slows the machine down for a while is no program's.
            if round % 2 == 1 {
                order.reverse();
            }
            jobs.extend(order.map(|program| {
                let name = format!("{at} {program} {round}");
                job(&name, case.commands(program, &perf, place))
            }));
        }
    }
    let shown = Progress::of("beside perftest");
    let mut figures = vec![[const { Vec::new() }; 3]; cases.len()];
    let (mut done, mut failed) = (0, None);
    let mut sink = |job: &Job, event: Event<'_>| {
        let turn: Vec<usize> = job
            .name
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        match (event, &turn[..]) {
            (Event::Start(_), [case, program, round]) => {
                done += 1;
                let (name, program) = (cases[*case].name(), PROGRAMS[*program]);
                shown.doing(&format!(
                    "{done} of {}: {name}, {program}, round {round}",
                    jobs.len()
                ));
            }
            (Event::Line(line), [case, program, round]) => {
                if let Some(figure) = cases[*case].read(*program, line) {
                    figures[*case][*program].push((*round, figure));
                }
            }
            (Event::Line(line), _) => progress::print(line.trim_start_matches("RESULT ")),
            (Event::End(Err((_, why))), _) => {
                progress::print(&format!("FAILED: {why}"));
                failed.get_or_insert_with(|| why.to_owned());
            }
            _ => {}
        }
    };
    match place {
        Place::SoftRoce(options) => jobs::run(&jobs, options, &mut sink)?,
        Place::Devices { device, peer, .. } => jobs::run_on(&jobs, device, peer, &mut sink)?,
    }
    println!(
        "\n| µs, MB/s | {} | ratio | perftest to itself |\n|---|---:|---:|---:|---:|",
        PROGRAMS[..2].join(" | ")
    );
    for (case, [c, ours, again]) in cases.iter().zip(&figures) {
        let one = |runs: &[(usize, f64)]| spread(runs.iter().map(|run| run.1).collect(), digits);
        let ratio = |runs: &[(usize, f64)]| {
            let pair = |(round, figure): &(usize, f64)| {
                let (_, first) = c.iter().find(|(other, _)| other == round)?;
                Some(figure / first)
            };
            spread(runs.iter().filter_map(pair).collect(), |ratio| {
                format!("{ratio:.2}")
            })
        };
        let name = case.name();
        println!(
            "| {name} | {} | {} | {} | {} |",
            one(c),
            one(ours),
            ratio(ours),
            ratio(again)
        );
    }
    failed.map_or(Ok(()), |why| {
        Err(Error::new(format!("not all was measured: {why}")))
    })
}

/// The median, with the least and the most in parentheses.
fn spread(mut figures: Vec<f64>, text: impl Fn(f64) -> String) -> String {
    figures.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
        return "-".to_owned();
    };
    let median = f64::midpoint(figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
    let [least, median, most] = [*least, median, *most].map(text);
    format!("{median} ({least} to {most})")
}

impl Case {
    fn name(&self) -> String {
        let kind = if self.is_bandwidth {
            "bandwidth"
        } else {
            "latency"
        };
        format!("{kind}, {}, {}", self.op, size(self.size))
    }

    /// The server and the client, pinned to a processor each.
    fn commands(&self, program: usize, perf: &str, place: &Place) -> Vec<Vec<String>> {
        let Self {
            is_bandwidth,
            op,
            size,
        } = *self;
        let (gid, most, fewest) = match place {
            // Its GID that is an IPv4 address.
            Place::SoftRoce(_) => (Some("1"), 16 << 20, 300),
            Place::Devices { gid, .. } => (gid.as_deref(), 1 << 30, 10_000),
        };
        // C's programs require 5.
        let count = (most / size).clamp(5, fewest);
        let depth = count.min(128);
        let ends = [("0", "{device}"), ("1", "{peer}")];
        let ends = if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
            ends
        } else {
            ends.map(|(_, device)| ("0", device))
        };
        let command = |(processor, device): (&str, &str), is_client: bool| {
            if program == 1 {
                let gid = gid.map_or_else(String::new, |gid| format!(" -g {gid}"));
                let mut all = words(
                    &format!("taskset -c {processor} {perf} -d {device}{gid}"),
                    &[],
                );
                if is_client {
                    let bandwidth = if is_bandwidth {
                        format!(" --bandwidth --depth {depth}")
                    } else {
                        String::new()
                    };
                    all.extend(words(
                        &format!("--json --op {op} -s {size} -n {count}{bandwidth} 127.0.0.1"),
                        &[],
                    ));
                }
                return all;
            }
            let gid = gid.map_or_else(String::new, |gid| format!(" -x {gid}"));
            let (kind, depth) = if is_bandwidth {
                ("bw", format!(" -t {depth}"))
            } else {
                ("lat", String::new())
            };
            // A filter makes a line of ours of the client's table; the server prints the same table.
            let rest = if is_client {
                format!("127.0.0.1 | awk '$1 == {size} {{ print \"RESULT\", $0 }}'")
            } else {
                ">/dev/null".to_owned()
            };
            let script = format!(
                "taskset -c {processor} ib_{op}_{kind} -d \"$0\" -n {count} -F{gid} -s {size}{depth} {rest}"
            );
            words("bash -o pipefail -c", &[&script, device])
        };
        vec![command(ends[0], false), command(ends[1], true)]
    }

    /// The figure in a line: microseconds, the median, or megabytes a second.
    fn read(&self, program: usize, line: &str) -> Option<f64> {
        if program == 1 {
            let json: JsonValue = line.parse().ok()?;
            let keys: &[&str] = if self.is_bandwidth {
                &["megabytes_per_second"]
            } else {
                &["latency_microseconds", "median"]
            };
            return at(&json, keys)?.get().copied();
        }
        // Bytes, iterations, then the least, the most and the typical microseconds; or the peak and the average in 2^20 bytes a
        // second, to two digits after the point, and millions of messages a second, to six.
        let mut columns = line.strip_prefix("RESULT ")?.split_whitespace();
        let third: f64 = columns.nth(3)?.parse().ok()?;
        let fourth: f64 = columns.next()?.parse().ok()?;
        Some(match self.is_bandwidth {
            false => fourth,
            // The one with more digits.
            true if third * 1e2 > fourth * 1e6 => third * f64::from(1 << 20) / 1e6,
            #[expect(clippy::cast_precision_loss, reason = "at most 2^20")]
            true => self.size as f64 * fourth,
        })
    }
}

/// The words of `line`, and more that may have spaces.
fn words(line: &str, more: &[&str]) -> Vec<String> {
    line.split(' ')
        .chain(more.iter().copied())
        .map(str::to_owned)
        .collect()
}

fn job(name: &str, commands: Vec<Vec<String>>) -> Job {
    Job::new(name.to_owned(), Duration::from_secs(120), commands)
}

#[cfg(test)]
mod tests {
    use super::{Case, Place, spread};

    const LATENCY: Case = Case {
        is_bandwidth: false,
        op: "send",
        size: 2,
    };
    const BANDWIDTH: Case = Case {
        is_bandwidth: true,
        op: "read",
        size: 1 << 20,
    };

    #[test]
    fn both_programs_do_the_same() {
        let place = Place::Devices {
            device: "a".into(),
            peer: "b".into(),
            gid: Some("3".into()),
        };
        let lines = |program| {
            let commands = BANDWIDTH.commands(program, "perf", &place);
            [commands[0].join(" "), commands[1].join(" ")]
        };
        let [server, client] = lines(0);
        assert!(
            server.contains("ib_read_bw -d \"$0\" -n 1024 -F -x 3 -s 1048576 -t 128 >"),
            "{server}"
        );
        assert!(client.ends_with(" {peer}"), "{client}");
        let [server, client] = lines(1);
        assert!(server.ends_with("perf -d {device} -g 3"), "{server}");
        let rest = "--op read -s 1048576 -n 1024 --bandwidth --depth 128 127.0.0.1";
        assert!(client.ends_with(rest), "{client}");
    }

    #[test]
    fn output_of_both_is_read() {
        let latency = "RESULT  2       1000          5.61           19.53        5.72     \t       5.80       \t0.48   \t\t6.11    \t\t19.53";
        assert_eq!(LATENCY.read(0, latency), Some(5.72));
        // 60 MB/s: the rate would be wrong by 2 %.
        let long = "RESULT  1048576    100              57.30              57.22  \t\t   0.000057";
        let rate = BANDWIDTH.read(2, long).unwrap();
        assert!((rate - 59.999_5).abs() < 1e-3, "{rate}");
        // 50 kB/s: the bandwidth would be wrong by 10 %.
        let short = "RESULT  2          5000             0.05               0.05   \t\t   0.026101";
        let rate = Case {
            size: 2,
            ..BANDWIDTH
        }
        .read(0, short)
        .unwrap();
        assert!((rate - 0.052_202).abs() < 1e-9, "{rate}");
        let ours = r#"{"megabytes_per_second":1.5,"latency_microseconds":{"median":7.25}}"#;
        assert_eq!(
            (LATENCY.read(1, ours), BANDWIDTH.read(1, ours)),
            (Some(7.25), Some(1.5))
        );
        assert_eq!(LATENCY.read(0, "RESULT 2 1000"), None);
    }

    #[test]
    fn a_spread_is_the_median_with_the_least_and_the_most() {
        let text = |figures: &[f64]| spread(figures.to_vec(), |figure| figure.to_string());
        assert_eq!(text(&[9.0, 1.0, 2.0]), "2 (1 to 9)");
        assert_eq!(text(&[4.0, 1.0, 3.0, 9.0]), "3.5 (1 to 9)");
        assert_eq!(text(&[]), "-");
    }
}
