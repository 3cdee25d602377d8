//! Bandwidth of `kv_transfer` beside C's `ib_write_bw`.

use std::path::Path;

use super::contest::{self, Contender, Contest, words};
use super::perf::{Kind, Run};
use super::plan::{Part, Plan};
use super::report::Section;
use super::table::{Table, cell, ratio};
use crate::error::Error;
use crate::numbers::{digits, size};

const ABOUT: &str = "\
The example `kv_transfer` moves the pages of a KV cache by writes, in chains that are built once, on verbs-channel; \
the last page of each layer announces it. C's `ib_write_bw` writes messages of the same length, as many as there are \
pages.";

/// The length of a page, and of a message of C's.
const BYTES: u64 = 16 << 10;

/// Requests of `kv_transfer`, each with the pages of 8 layers.
const REQUESTS: u64 = 20;
const PAGES: u64 = 8 * 16;

/// Measures both, in turns.
pub(super) fn measure(plan: &Plan, program: &Path) -> Result<Section, Error> {
    let contests = [contest(plan, program)];
    let rounds = plan.rounds(Part::Transfer);
    let outcomes = contest::hold(&contests, rounds, plan, "pairs with ib_write_bw")?;
    let mut table = Table::new(&["MB/s", "ib_write_bw", "kv_transfer", "ratio"]);
    for outcome in &outcomes.all {
        table.row([
            contests[0].name.clone(),
            cell(outcome.of(0), digits),
            cell(outcome.of(1), digits),
            cell(outcome.ratio(1), ratio),
        ]);
    }
    let mut section = Section {
        title: "Pages of a KV cache",
        command: plan.command(Part::Transfer),
        about: ABOUT.to_owned(),
        rounds,
        tables: vec![(format!("Bandwidth, n = {rounds}"), table)],
        ..Section::default()
    };
    outcomes.note_in(&mut section);
    Ok(section)
}

fn contest(plan: &Plan, program: &Path) -> Contest {
    let requests = plan.scaled(REQUESTS);
    let processors = plan.processors();
    let c = Run {
        kind: Kind::Bandwidth,
        op: "write",
        size: BYTES,
        qps: 1,
        count: requests * PAGES,
        depth: Some(64),
        processors: &processors,
        gid: plan.gid.as_deref(),
    };
    Contest {
        name: format!("pages of {}", size(BYTES)),
        limit: contest::LIMIT,
        contenders: vec![c.perftest(), ours(plan, program, &processors, requests)],
    }
}

fn ours(plan: &Plan, program: &Path, processors: &[String; 2], requests: u64) -> Contender {
    let [program, page, requests] = [
        program.display().to_string(),
        (BYTES >> 10).to_string(),
        requests.to_string(),
    ];
    let command = |processor: &str, device: &str| {
        let start = ["env", "VERBS_RESULT_LINES=1", "taskset", "-c", processor];
        let mut all = words(&start);
        all.extend(words(&[&program, "-d", device, "--page", &page]));
        if let Some(gid) = &plan.gid {
            all.extend(words(&["-g", gid]));
        }
        all
    };
    let [first, second] = processors;
    let mut server = command(first, "{device}");
    server.extend(words(&["--count-rails", "-n", &requests]));
    let mut client = command(second, "{peer}");
    client.push("127.0.0.1".to_owned());
    Contender {
        name: "kv_transfer",
        server,
        client,
        read: rate,
    }
}

/// Reads `RESULT op=kv_transfer bytes=16384 iters=2560 usec=123.4 verified=yes`, in megabytes per second.
fn rate(line: &str) -> Option<f64> {
    let words = line.strip_prefix("RESULT ")?.split_whitespace();
    let number = |name: &str| {
        let mut values = words.clone().filter_map(|word| word.split_once('='));
        let (_, value) = values.find(|(key, _)| *key == name)?;
        value.parse::<f64>().ok()
    };
    let rate = number("bytes")? * number("iters")? / number("usec")?;
    rate.is_finite().then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::{Path, Plan, contest, rate};
    use crate::args::Args;
    use crate::packages::Policy;

    #[test]
    fn rate_is_read() {
        let line = "RESULT op=kv_transfer bytes=100 iters=10 usec=50.0 verified=yes";
        assert_eq!(rate(line), Some(20.0));
        assert_eq!(rate("RESULT op=x bytes=1 iters=1 usec=0"), None);
        assert_eq!(rate("bytes=1 iters=1 usec=1"), None);
    }

    #[test]
    fn both_contenders_move_the_same_number_of_bytes() {
        let mut args = Args::new("Usage: try", Vec::new()).unwrap();
        let plan = Plan::read(&mut args, Policy::No).unwrap();
        let [c, ours] = &contest(&plan, Path::new("x")).contenders[..] else {
            panic!("two contenders");
        };
        let (c, ours) = (c.server.join(" "), ours.server.join(" "));
        // 8 layers of 16 pages, in 20 requests.
        assert!(c.contains("-n 2560 ") && c.contains("-s 16384 "), "{c}");
        assert!(ours.contains("--page 16 "), "{ours}");
        assert!(ours.ends_with("--count-rails -n 20"), "{ours}");
    }
}
