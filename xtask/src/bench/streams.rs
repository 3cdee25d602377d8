//! The byte stream beside TCP, on the same network links.

use std::path::Path;

use super::contest::{self, Contest};
use super::perf::{Kind, Run};
use super::plan::{Part, Plan};
use super::report::Section;
use super::table::{Table, cell, ratio};
use crate::error::Error;
use crate::numbers::{digits, size};

const ABOUT: &str = "\
The same program, `perf`, writes and reads by tokio: `--layer stream` is the byte stream of verbs-async, \
`--layer tcp` a TCP connection over the network links of the devices. Where both ends are on \
one device, TCP's packets do not leave the machine. On soft-RoCE, the kernel copies and checks each packet of RDMA, \
while those of TCP pass in long segments. Both sleep while nothing comes. In \
bulk, each connection is written as fast as it takes the bytes, and the time ends when the peer has confirmed that \
it has read the last of them; a round trip is a message and its answer. \
HTTP/2 is by the crate h2: each request has a body of so many bytes, and its response the same.";

/// A comparison.
#[derive(Clone, Copy, Debug)]
struct Case {
    what: &'static str,
    kind: Kind,
    size: u64,
    qps: u64,
    /// Requests in flight.
    depth: Option<u64>,
}

const H2: &str = "HTTP/2 request";

const fn case(what: &'static str, kind: Kind, size: u64, qps: u64, depth: Option<u64>) -> Case {
    Case {
        what,
        kind,
        size,
        qps,
        depth,
    }
}

const CASES: [Case; 8] = [
    case("round trip", Kind::Latency, 64, 1, None),
    case("round trip", Kind::Latency, 4096, 1, None),
    case("bulk", Kind::Bandwidth, 1 << 16, 1, None),
    case("bulk", Kind::Bandwidth, 1 << 20, 1, None),
    case("bulk", Kind::Bandwidth, 1 << 16, 16, None),
    case(H2, Kind::Latency, 64, 1, None),
    case(H2, Kind::Rate, 64, 1, Some(64)),
    case(H2, Kind::Bandwidth, 1 << 16, 1, Some(8)),
];

impl Case {
    fn name(&self) -> String {
        let Self {
            what, qps, depth, ..
        } = self;
        let size = size(self.size);
        let (s, unit) = (
            if *qps == 1 { "" } else { "s" },
            match self.kind {
                Kind::Latency if *what == H2 => "µs",
                Kind::Latency => "µs, half of it",
                Kind::Bandwidth => "MB/s",
                Kind::Rate => "per second",
            },
        );
        let flight = depth.map_or_else(String::new, |depth| format!(", {depth} in flight"));
        format!("{what}, {size}, {qps} connection{s}{flight}: {unit}")
    }

    /// How many operations on each connection.
    fn count(&self, plan: &Plan) -> u64 {
        match self.kind {
            Kind::Latency => plan.scaled(500),
            Kind::Rate => plan.scaled(4000),
            // Each of many connections has a quarter of a single one's load, which is enough to be
            // in full swing.
            Kind::Bandwidth => {
                let bytes = plan.scaled(32 << 20) / self.qps.min(4);
                (bytes / self.size).max(8)
            }
        }
    }
}

/// Measures all of them.
pub(super) fn measure(plan: &Plan, program: &Path) -> Result<Section, Error> {
    let processors = plan.processors();
    let contest = |case: Case| {
        let run = Run {
            kind: case.kind,
            op: "send",
            size: case.size,
            qps: case.qps,
            count: case.count(plan),
            depth: case.depth,
            processors: &processors,
            gid: plan.gid.as_deref(),
        };
        let layer = |name, layer| {
            let options = ["--layer", layer, "--h2"];
            let options = if case.what == H2 {
                &options[..]
            } else {
                &options[..2]
            };
            run.ours(name, program, options)
        };
        Contest {
            name: case.name(),
            limit: contest::LIMIT,
            contenders: vec![layer("TCP", "tcp"), layer("byte stream", "stream")],
        }
    };
    let contests: Vec<Contest> = CASES.map(contest).into();
    let rounds = plan.rounds(Part::Streams);
    let outcomes = contest::hold(&contests, rounds, plan, "byte stream and TCP")?;
    let mut table = Table::new(&["what", "TCP", "byte stream", "ratio"]);
    for (contest, outcome) in contests.iter().zip(&outcomes.all) {
        table.row([
            contest.name.clone(),
            cell(outcome.of(0), digits),
            cell(outcome.of(1), digits),
            cell(outcome.ratio(1), ratio),
        ]);
    }
    let mut section = Section {
        title: "The byte stream beside TCP",
        command: plan.command(Part::Streams),
        about: ABOUT.to_owned(),
        rounds,
        tables: vec![(format!("The byte stream and TCP, n = {rounds}"), table)],
        ..Section::default()
    };
    outcomes.note_in(&mut section);
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::{CASES, Case};

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let mut names = CASES.map(|case| Case::name(&case));
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
