//! The plan that the two ends share: the messages, their number and their contents.

use clap::ValueEnum;
use programs::{Context as _, Failure, Hello, Pattern};
use serde::{Deserialize, Serialize};

use crate::Options;

const DEFAULT_SIZES: [u32; 4] = [64, 4096, 65536, 1 << 20];
pub(crate) const MAX_SIZE: u32 = 64 << 20;
pub(crate) const MAX_COUNT: u32 = 1_000_000;
/// The most runs that fit a client's private data.
const MAX_RUNS: usize = 16;
/// The most bytes that a run moves each way, unless one message has more.
const BYTES_OF_A_RUN: u32 = 32 << 20;

/// The private data of each side; the server asks for no runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    hello: Hello,
    pub(crate) runs: Vec<Run>,
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) way: Way,
    pub(crate) size: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Way {
    Blocking,
    Scoped,
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "echo_blocking",
            Self::Scoped => "echo_scoped",
        }
    }
}

impl Run {
    /// The length of its messages.
    pub(crate) fn len(&self) -> Result<usize, Failure> {
        Ok(usize::try_from(self.size)?)
    }

    /// The contents of the message of this index.
    pub(crate) fn pattern(&self, index: u32) -> Pattern {
        let way = u64::from(self.way == Way::Scoped);
        Pattern::new(way << 63 | u64::from(self.size) << 32 | u64::from(index))
    }
}

impl Plan {
    pub(crate) fn new(runs: Vec<Run>) -> Self {
        let hello = Hello::new("channel_echo", 1);
        Self { hello, runs }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, Failure> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Parses the peer's private data, and checks that the runs are in range.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let plan: Self = serde_json::from_slice(bytes).context(|| "the peer is no channel_echo")?;
        Self::new(Vec::new()).hello.meet(&plan.hello)?;
        let is_possible =
            |run: &Run| (1..=MAX_SIZE).contains(&run.size) && (1..=MAX_COUNT).contains(&run.count);
        if plan.runs.len() > MAX_RUNS || !plan.runs.iter().all(is_possible) {
            return Err(Failure::new("the peer asks for more than is possible"));
        }
        Ok(plan)
    }

    /// The longest message in it.
    pub(crate) fn longest(&self) -> u32 {
        self.runs.iter().map(|run| run.size).max().unwrap_or(1)
    }
}

impl Options {
    /// The runs of these options.
    pub(crate) fn plan(&self) -> Result<Plan, Failure> {
        let sizes = if self.size.is_empty() {
            &DEFAULT_SIZES
        } else {
            &self.size[..]
        };
        let ways = Way::value_variants().iter();
        let ways = ways.filter(|way| self.way.is_none_or(|only| **way == only));
        let run = |&way, &size| Run {
            way,
            size,
            count: self.iters.min((BYTES_OF_A_RUN / size).max(1)),
        };
        let runs: Vec<_> = ways
            .flat_map(|way| sizes.iter().map(move |size| run(way, size)))
            .collect();
        if runs.len() > MAX_RUNS {
            return Err(Failure::new(format!(
                "these are {} runs; at most {MAX_RUNS} are possible",
                runs.len()
            )));
        }
        Ok(Plan::new(runs))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn plan(words: &[&str]) -> Result<Plan, Failure> {
        Options::try_parse_from([&["channel_echo"], words].concat())?.plan()
    }

    #[test]
    fn the_longest_plan_fits_the_private_data() {
        let sizes = ["-s", "67108864"].repeat(8);
        let plan = plan(&[&["-n", "1000000"], &sizes[..]].concat()).unwrap();
        assert_eq!(plan.runs.len(), MAX_RUNS);
        let bytes = plan.encode().unwrap();
        assert!(bytes.len() <= verbs_channel::exchange::MAX_PRIVATE_DATA);
        assert_eq!(Plan::decode(&bytes).unwrap().runs, plan.runs);
    }

    #[test]
    fn one_run_too_many_is_rejected_on_both_sides() {
        let sizes = ["-s", "1"].repeat(9);
        assert!(plan(&sizes).unwrap_err().to_string().contains("18 runs"));
        let run = plan(&["-s", "1"]).unwrap().runs[0];
        let bytes = Plan::new(vec![run; MAX_RUNS + 1]).encode().unwrap();
        assert!(Plan::decode(&bytes).is_err());
    }

    #[test]
    fn requests_out_of_range_are_rejected() {
        let good = plan(&["-s", "1"]).unwrap().runs[0];
        let refused = |run| Plan::decode(&Plan::new(vec![run]).encode().unwrap()).is_err();
        assert!(!refused(good));
        for size in [0, MAX_SIZE + 1, u32::MAX] {
            assert!(refused(Run { size, ..good }), "{size}");
        }
        for count in [0, MAX_COUNT + 1] {
            assert!(refused(Run { count, ..good }), "{count}");
        }
        for bytes in [&b""[..], b"{}", b"\xff\0", b"[1,2]", b"{\"runs\":[]}"] {
            assert!(Plan::decode(bytes).is_err());
        }
        let hello = Hello::new("channel_echo", 2);
        let runs = Vec::new();
        let other = serde_json::to_vec(&Plan { hello, runs }).unwrap();
        let error = Plan::decode(&other).unwrap_err().to_string();
        assert!(error.contains("this is channel_echo version 1"), "{error}");
    }

    #[test]
    fn large_messages_are_fewer() {
        let counts: Vec<_> = plan(&[]).unwrap().runs.iter().map(|r| r.count).collect();
        assert_eq!(counts, [1000, 1000, 512, 32, 1000, 1000, 512, 32]);
        let huge = plan(&["-s", "67108864"]).unwrap();
        assert!(huge.runs.iter().all(|run| run.count == 1));
    }
}
