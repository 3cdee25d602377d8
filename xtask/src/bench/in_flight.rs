//! Async operations with few and many in flight: latency, rate and system calls, beside the layers below.

use std::path::Path;

use super::chart::{Lines, Scale, Series};
use super::contest::{self, Contender, Contest, LIMIT, Outcome, script};
use super::perf::{Kind, Run, our_latency};
use super::plan::{Part, Plan};
use super::report::Section;
use super::table::{Table, cell, ratio};
use crate::error::Error;
use crate::numbers::{digits, thousands};

const ABOUT: &str = "\
Sends of 64 bytes by `perf`, whose ends sleep until completions are announced (`--events`): verbs-core and \
verbs-channel on one thread, verbs-async on tokio with one thread. Latencies are medians: of half a round trip, \
and of the time from the post of each operation to its completion, in which it waits for those before it \
(`--bandwidth --histogram`). System calls are those of the sending process: strace counts those of a short and of a \
long run, and the difference is of the operations. strace slows the process down, so that it may find more \
completions each time it wakes. Drivers of real devices post without a system call; that of soft-RoCE makes one for \
each post, or for each chain of posts.";

const BYTES: u64 = 64;
const DEPTHS: [u64; 3] = [1, 64, 1024];
/// The layers, so that they sleep.
const LAYERS: [(&str, &[&str]); 3] = [
    ("verbs-core", &["--layer", "core", "--events"]),
    ("verbs-channel", &["--layer", "channel", "--events"]),
    ("verbs-async", &["--layer", "async"]),
];

/// The same, each with a short and a long run.
const TRACED: [[&str; 2]; 3] = [
    ["verbs-core, short", "verbs-core, long"],
    ["verbs-channel, short", "verbs-channel, long"],
    ["verbs-async, short", "verbs-async, long"],
];

/// Measures all of it.
pub(super) fn measure(plan: &Plan, program: &Path) -> Result<Section, Error> {
    let processors = plan.processors();
    let run = |kind, depth, count| Run {
        kind,
        op: "send",
        size: BYTES,
        qps: 1,
        count,
        depth: Some(depth),
        processors: &processors,
        gid: plan.gid.as_deref(),
    };
    let layers = |run: &Run<'_>| {
        let ours = LAYERS.map(|(name, options)| run.ours(name, program, options));
        Vec::from(ours)
    };
    let contest = |name, contenders| Contest {
        name,
        limit: LIMIT,
        contenders,
    };
    let round_trip = contest(
        "half a round trip".to_owned(),
        layers(&run(Kind::Latency, 1, count(plan, 1))),
    );
    let latencies = DEPTHS.map(|depth| {
        let contenders = timed(layers(&run(Kind::Rate, depth, count(plan, depth))));
        contest(format!("latency, {depth} in flight"), contenders)
    });
    let rates = DEPTHS.map(|depth| {
        let contenders = layers(&run(Kind::Rate, depth, count(plan, depth)));
        contest(format!("rate, {depth} in flight"), contenders)
    });
    let calls = DEPTHS.map(|depth| {
        let [short, long] = lengths(plan, depth).map(|count| run(Kind::Rate, depth, count));
        let contenders = TRACED.iter().zip(LAYERS).flat_map(|(names, (_, options))| {
            let runs = [short, long].into_iter().zip(names);
            runs.map(|(run, name)| strace(run.ours(name, program, options)))
        });
        let name = format!("system calls, {depth} in flight");
        contest(name, contenders.collect())
    });
    let first = [round_trip].into_iter().chain(latencies);
    let contests: Vec<Contest> = first.chain(rates).chain(calls).collect();
    let rounds = plan.rounds(Part::Async);
    let outcomes = contest::hold(&contests, rounds, plan, "async in flight")?;
    let mut section = section(&outcomes.all, rounds, |depth| lengths(plan, depth));
    section.command = plan.command(Part::Async);
    section.about = ABOUT.to_owned();
    outcomes.note_in(&mut section);
    Ok(section)
}

/// How many operations, with `depth` of them in flight.
const fn count(plan: &Plan, depth: u64) -> u64 {
    plan.scaled(if depth == 1 { 500 } else { depth * 16 })
}

/// How many operations a short and a long run have.
const fn lengths(plan: &Plan, depth: u64) -> [u64; 2] {
    let short = count(plan, depth) / 4;
    [short, 3 * short]
}

/// The same, and each operation is timed: the figure is their median.
fn timed(contenders: Vec<Contender>) -> Vec<Contender> {
    let each = contenders.into_iter().map(|mut contender| {
        let host = contender.client.len().saturating_sub(1);
        contender.client.insert(host, "--histogram".to_owned());
        contender.read = our_latency;
        contender
    });
    each.collect()
}

/// The same with a client that strace runs: its figure is how many system calls it made.
fn strace(contender: Contender) -> Contender {
    const SCRIPT: &str = "strace -f -c \"$@\" 2>&1 >/dev/null | \
        awk '$1 ~ /^[0-9.]+$/ && $NF != \"total\" { calls += $4 } END { print \"RESULT\", calls }'";
    let mut client = script(SCRIPT, &["bash"]);
    client.extend(contender.client);
    Contender {
        client,
        read: |line| line.strip_prefix("RESULT ")?.trim().parse().ok(),
        ..contender
    }
}

fn section(outcomes: &[Outcome], rounds: usize, lengths: impl Fn(u64) -> [u64; 2]) -> Section {
    let mut section = Section {
        title: "Async operations in flight",
        rounds,
        ..Section::default()
    };
    let (round_trip, others) = outcomes.split_at(1);
    let (latencies, others) = others.split_at(DEPTHS.len().min(others.len()));
    let (rates, calls) = others.split_at(DEPTHS.len().min(others.len()));
    let heads = [
        "",
        "verbs-core",
        "verbs-channel",
        "verbs-async",
        "ratio of async to core",
    ];
    let row = |name: String, outcome: &Outcome| {
        [
            name,
            cell(outcome.of(0), digits),
            cell(outcome.of(1), digits),
            cell(outcome.of(2), digits),
            cell(outcome.ratio(2), ratio),
        ]
    };
    let mut table = Table::new(&heads);
    for outcome in round_trip {
        table.row(row("half a round trip, µs".to_owned(), outcome));
    }
    for (depth, outcome) in DEPTHS.iter().zip(latencies) {
        let name = format!(
            "from post to completion, µs, {} in flight",
            thousands(*depth)
        );
        table.row(row(name, outcome));
    }
    for (depth, outcome) in DEPTHS.iter().zip(rates) {
        let name = format!("operations per second, {} in flight", thousands(*depth));
        table.row(row(name, outcome));
    }
    let caption = format!("Layers that sleep, n = {rounds}");
    section.tables.push((caption, table));

    let mut table = Table::new(&heads[..4]);
    for (depth, outcome) in DEPTHS.iter().zip(calls) {
        let [short, long] = lengths(*depth);
        let each = |first| outcome.difference(first, first + 1, long - short);
        let name = format!("{} in flight", thousands(*depth));
        let calls = [0, 2, 4].map(|at| cell(each(at), |calls| format!("{calls:.3}")));
        let [core, channel, ours] = calls;
        table.row([name, core, channel, ours]);
    }
    let caption = format!("System calls of the sender, per operation, n = {rounds}");
    section.tables.push((caption, table));

    #[expect(clippy::cast_precision_loss, reason = "at most 1,024")]
    let series = LAYERS.iter().enumerate().map(|(at, (name, _))| Series {
        name: (*name).to_owned(),
        points: DEPTHS
            .iter()
            .zip(rates)
            .filter_map(|(depth, outcome)| Some((*depth as f64, outcome.of(at)?)))
            .collect(),
    });
    let lines = Lines {
        title: "Sends of 64 bytes per second",
        x: ("in flight", Scale::Log(2.0)),
        y: ("operations per second", Scale::Log(10.0)),
        name: |depth| format!("{depth:.0}"),
        level: None,
        series: series.collect(),
    };
    section.chart("in-flight.svg", lines.svg());
    section
}

#[cfg(test)]
mod tests {
    use super::{Contender, DEPTHS, Kind, Outcome, Run, section, strace, timed};
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn calls_are_those_that_a_longer_run_makes_more() {
        let three = Outcome::of_rounds(vec![vec![Some(10.0)], vec![Some(20.0)], vec![Some(15.0)]]);
        let numbers = [500.0, 900.0, 300.0, 500.0, 600.0, 1100.0];
        let six = numbers.map(|number| vec![Some(number)]);
        let six = Outcome::of_rounds(six.into());
        let mut all = vec![three; 1 + 2 * DEPTHS.len()];
        all.extend(vec![six; DEPTHS.len()]);
        let section = section(&all, 1, |_| [100, 500]);
        let [(_, layers), (_, calls)] = &section.tables[..] else {
            panic!("two tables");
        };
        for name in [
            "half a round trip, µs",
            "from post to completion, µs, 1 in flight",
            "from post to completion, µs, 1,024 in flight",
            "operations per second, 64 in flight",
        ] {
            let row = format!("| {name} | 10.0 | 20.0 | 15.0 | 1.50 |");
            assert!(layers.markdown().contains(&row), "{}", layers.markdown());
        }
        assert!(
            calls
                .markdown()
                .contains("| 1,024 in flight | 1.000 | 0.500 | 1.250 |")
        );
        assert_eq!(section.charts.len(), 1);
    }

    #[test]
    fn each_of_many_in_flight_is_timed() {
        let processors = ["0", "1"].map(str::to_owned);
        let run = Run {
            kind: Kind::Rate,
            op: "send",
            size: 64,
            qps: 1,
            count: 100,
            depth: Some(64),
            processors: &processors,
            gid: None,
        };
        let [one] = &timed(vec![run.ours(
            "async",
            Path::new("perf"),
            &["--layer", "async"],
        )])[..] else {
            panic!("one contender");
        };
        let client = one.client.join(" ");
        let options = "--bandwidth --qps 1 --depth 64 --layer async --histogram 127.0.0.1";
        assert!(client.ends_with(options), "{client}");
        let line = r#"{"operations_per_second":3,"latency_microseconds":{"median":7.25}}"#;
        assert_eq!((one.read)(line), Some(7.25));
    }

    #[test]
    fn output_of_strace_is_added_up() {
        let client = vec!["program".to_owned(), "-x".to_owned()];
        let contender = Contender {
            name: "try",
            server: Vec::new(),
            client,
            read: |_| None,
        };
        let traced = strace(contender);
        assert_eq!(traced.client[..4], ["bash", "-o", "pipefail", "-c"]);
        assert_eq!(traced.client[6..], ["program", "-x"]);
        // The filter alone, on what strace prints.
        let (_, filter) = traced.client[4].split_once("| ").unwrap();
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ------\n \
                     60.00    0.000600           6       100           epoll_wait\n \
                     40.00    0.000400           4       101         1 read\n\
                     ------ ----------- ----------- --------- --------- ------\n\
                     100.00    0.001000           4       201         1 total\n";
        let script = format!("printf '%s' \"$1\" | {filter}");
        let output = Command::new("sh")
            .args(["-c", &script, "sh", table])
            .output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!((traced.read)(output.trim()), Some(201.0));
    }
}
