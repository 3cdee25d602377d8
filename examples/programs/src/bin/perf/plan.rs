//! The plan of a measurement: the client's options, which the server gets from it.

use std::fmt;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum, value_parser};
use programs::Failure;
use serde::{Deserialize, Serialize};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// A send into a receive of the peer
    Send,
    /// An RDMA write, which the peer finds by polling its memory
    Write,
    /// An RDMA write with immediate data, which completes a receive of the peer
    WriteImm,
    /// An RDMA read
    Read,
    /// An atomic compare-and-swap of 8 bytes
    Cas,
    /// An atomic fetch-and-add of 8 bytes
    Faa,
}

/// A layer of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layer {
    /// verbs-core
    Core,
    /// verbs-channel: a group of channels, owned buffers
    Channel,
    /// verbs-async: awaited operations on tokio
    Async,
    /// verbs-async: the byte stream
    Stream,
    /// TCP over the network link of the device, to compare
    Tcp,
}

/// The plan of a measurement.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Measure this operation
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(crate) op: Op,

    /// Use this layer
    #[arg(long, value_enum, default_value_t = Layer::Core)]
    pub(crate) layer: Layer,

    /// Measure bandwidth: many operations in flight
    #[arg(short, long)]
    pub(crate) bandwidth: bool,

    /// Bytes in an operation; 8 in an atomic
    #[arg(short, long, value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1 << 30))]
    pub(crate) size: u32,

    /// How many operations on each connection [default: 1000]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = value_parser!(u64).range(1..=1 << 40))]
    pub(crate) iters: Option<u64>,

    /// Measure for so long, instead of a number of operations
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=86_400), conflicts_with = "iters")]
    pub(crate) duration: Option<u64>,

    /// Operations before the first that is measured, on each connection [default: a tenth of --iters, 100 at most]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u64).range(0..=1 << 20))]
    pub(crate) warm_up: Option<u64>,

    /// With --bandwidth: operations in flight on each connection; on a stream only with --h2 [default: 128]
    #[arg(short = 't', long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=8192))]
    pub(crate) depth: Option<u32>,

    /// With --bandwidth: this many connections
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) qps: u32,

    /// With --layer core or channel: sleep until completions are announced, instead of polling; the other
    /// layers always sleep. Datagrams of --layer channel are polled
    #[arg(short, long)]
    pub(crate) events: bool,

    /// With --bandwidth: the server sends as the client does; not with --op cas or faa, nor --h2
    #[arg(long)]
    pub(crate) bidirectional: bool,

    /// Verify every byte at both ends; slow, and not with --h2. With --bandwidth, of --op write and
    /// write-imm only the last operations of each connection that can be in flight: they write over
    /// those before
    #[arg(short, long)]
    pub(crate) check: bool,

    /// With --check: a byte of each connection's operation with this number is wrong, which the check has to
    /// find; the first one is 0, with the warm-up
    #[arg(long, value_name = "NUMBER", requires = "check")]
    pub(crate) corrupt: Option<u64>,

    /// With --layer core, channel or async and --op send: send datagrams (UD)
    #[arg(long)]
    pub(crate) datagrams: bool,

    /// With --layer core, channel or async and --op send or write-imm: receive from a shared receive queue; not
    /// with --datagrams
    #[arg(long)]
    pub(crate) srq: bool,

    /// With --layer stream or tcp: each operation is a request of HTTP/2, with a body of --size
    /// bytes, and its response
    #[arg(long)]
    pub(crate) h2: bool,

    /// Not with --layer tcp, nor --datagrams: connect by `rdma_cm`; the server's host is then an address of its
    /// device
    #[arg(long)]
    pub(crate) cm: bool,

    /// Print how many operations took how long; with --bandwidth on --layer core, channel or async: from the
    /// post of each to its completion, which each then has; not of datagrams of --layer async
    #[arg(long)]
    pub(crate) histogram: bool,
}

/// Room for operations in flight when latency is measured: one is, and completions of some before it may
/// not have been polled.
const LATENCY_DEPTH: u32 = 16;

impl Op {
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::Cas | Self::Faa)
    }

    /// Whether the peer takes no part in it.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self, Self::Read | Self::Cas | Self::Faa)
    }

    /// Whether it completes a receive of the peer.
    pub(crate) const fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

impl Layer {
    /// Whether it writes bytes to a stream, instead of posting operations.
    const fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::Tcp)
    }
}

impl Plan {
    /// Itself, if its options go together. No option that was given is without effect.
    pub(crate) fn checked(mut self) -> Result<Self, Failure> {
        let (op, layer) = (self.op, self.layer);
        let misuse = |why: String| Err(Failure::misuse(why));
        if op.is_atomic() && self.size != 8 {
            return misuse(format!(
                "--op {op} is of 8 bytes, not of --size {}",
                self.size
            ));
        }
        if !self.bandwidth {
            for (is_set, option) in [
                (self.qps > 1, "--qps"),
                (self.bidirectional, "--bidirectional"),
                (self.depth.is_some(), "--depth"),
            ] {
                if is_set {
                    return misuse(format!("{option} is for --bandwidth"));
                }
            }
        }
        if self.bandwidth && self.histogram && layer.is_stream() {
            return misuse(format!(
                "--histogram with --bandwidth is for --layer core, channel and async, not {layer}"
            ));
        }
        if self.bandwidth && self.histogram && self.datagrams && layer == Layer::Async {
            return misuse(
                "--histogram with --bandwidth is not for datagrams of --layer async, which reports no \
                 completion of each"
                    .to_owned(),
            );
        }
        if op == Op::Write && !self.bandwidth && matches!(layer, Layer::Async) {
            return misuse(
                "the latency of --op write is that of polled memory, which --layer async does not \
                 do; --op write-imm completes a receive"
                    .to_owned(),
            );
        }
        if layer.is_stream() && op != Op::Send {
            return misuse(format!("a stream has no --op {op}, only send"));
        }
        // Whether more than one operation can be in flight.
        let has_depth = self.bandwidth && (self.h2 || !layer.is_stream());
        if self.depth.is_some() && !has_depth {
            return misuse(format!(
                "--depth is for requests of --h2; a connection of --layer {layer} takes bytes as \
                 long as it has room"
            ));
        }
        if self.events && !matches!(layer, Layer::Core | Layer::Channel) {
            return misuse(format!(
                "--events is for --layer core and channel; {layer} always sleeps"
            ));
        }
        if self.events && self.datagrams && layer == Layer::Channel {
            return misuse(
                "datagrams of --layer channel have no --events: each endpoint sleeps alone"
                    .to_owned(),
            );
        }
        if self.h2 && cfg!(not(feature = "programs")) {
            return misuse(
                "--h2 is not in this perf: build it with the feature programs".to_owned(),
            );
        }
        if self.h2 && !layer.is_stream() {
            return misuse(format!("--h2 is for --layer stream and tcp, not {layer}"));
        }
        if self.h2 && (self.check || self.bidirectional) {
            return misuse("--h2 goes with neither --check nor --bidirectional".to_owned());
        }
        for (is_set, option) in [(self.datagrams, "--datagrams"), (self.srq, "--srq")] {
            if is_set && layer.is_stream() {
                return misuse(format!(
                    "{option} is for --layer core, channel and async, not {layer}"
                ));
            }
        }
        if self.cm && layer == Layer::Tcp {
            return misuse("TCP does not connect by rdma_cm: --layer tcp has no --cm".to_owned());
        }
        if self.datagrams && op != Op::Send {
            return misuse(format!("datagrams have no --op {op}, only send"));
        }
        if self.datagrams && self.check && self.size < 8 {
            return misuse(
                "--check of datagrams needs a --size of 8: shorter ones do not show which were lost"
                    .to_owned(),
            );
        }
        for (is_set, option) in [(self.srq, "--srq"), (self.cm, "--cm")] {
            if is_set && self.datagrams {
                return misuse(format!("--datagrams has no {option}"));
            }
        }
        if self.srq && !op.is_received() {
            return misuse(format!("--op {op} completes no receive, and has no --srq"));
        }
        if self.bidirectional && op.is_atomic() {
            return misuse(format!("--op {op} has no --bidirectional"));
        }
        if op == Op::Write && !self.bandwidth && self.events {
            return misuse(
                "the latency of --op write is that of polled memory, without --events".to_owned(),
            );
        }
        self.depth = has_depth.then(|| self.in_flight());
        Ok(self)
    }

    /// How many operations on each connection; `None` if the time decides.
    pub(crate) fn iters(&self) -> Option<u64> {
        self.duration.is_none().then(|| self.iters.unwrap_or(1000))
    }

    /// Whether `count` operations since `start` are enough.
    pub(crate) fn is_over(&self, count: u64, start: Instant) -> bool {
        match self.duration() {
            Some(duration) => start.elapsed() >= duration,
            None => Some(count) >= self.iters(),
        }
    }

    /// Whether each operation is timed although others are in flight.
    pub(crate) const fn times_each(&self) -> bool {
        self.bandwidth && self.histogram
    }

    pub(crate) const fn duration(&self) -> Option<Duration> {
        match self.duration {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => None,
        }
    }

    /// How many operations are not measured, on each connection.
    pub(crate) fn warm_up(&self) -> u64 {
        let tenth = self.iters().map_or(100, |iters| iters / 10);
        self.warm_up.unwrap_or_else(|| tenth.min(100))
    }

    pub(crate) fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }

    /// How many operations may be in flight on each connection.
    pub(crate) const fn in_flight(&self) -> u32 {
        match self.depth {
            _ if !self.bandwidth => LATENCY_DEPTH,
            Some(depth) => depth,
            None => 128,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        usize::try_from(self.in_flight()).unwrap_or(usize::MAX)
    }

    pub(crate) fn qps(&self) -> usize {
        usize::try_from(self.qps).unwrap_or(usize::MAX)
    }

    /// Receives that are posted on each connection: more than messages that can be in flight, so that one
    /// is there while others are posted again.
    pub(crate) const fn receives(&self) -> u32 {
        if self.op.is_received() {
            2 * self.in_flight() + 16
        } else {
            1
        }
    }

    /// Whether each connection posts receives of its own.
    pub(crate) fn posts_receives(&self) -> bool {
        self.op.is_received() && !self.srq
    }

    /// Fails if a message is longer than `max`, the most that a datagram can have.
    pub(crate) fn check_datagram(&self, max: u32) -> Result<(), Failure> {
        let size = self.size;
        if size <= max {
            return Ok(());
        }
        Err(Failure::misuse(format!(
            "--size {size} is too long: a datagram is one packet, with {max} bytes at most"
        )))
    }

    /// Whether a side posts operations: both do in a ping-pong.
    pub(crate) fn posts(&self, is_client: bool) -> bool {
        is_client || self.bidirectional || !self.bandwidth && !self.op.is_one_sided()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

fn name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let value = value.to_possible_value();
    f.write_str(value.as_ref().map_or("", |value| value.get_name()))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::Plan;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        plan: Plan,
    }

    fn checked(words: &str) -> Result<Plan, String> {
        let words = std::iter::once("perf").chain(words.split_whitespace());
        let options = Options::try_parse_from(words).unwrap();
        options.plan.checked().map_err(|why| why.to_string())
    }

    #[test]
    fn options_that_do_not_go_together_are_rejected() {
        for (words, why) in [
            ("--op cas --size 4", "--op cas is of 8 bytes"),
            ("--qps 2", "--qps is for --bandwidth"),
            ("--bidirectional", "--bidirectional is for --bandwidth"),
            ("--depth 16", "--depth is for --bandwidth"),
            ("--h2 --layer tcp --depth 8", "--depth is for --bandwidth"),
            (
                "--layer stream --bandwidth --depth 8",
                "--depth is for requests of --h2",
            ),
            (
                "--layer tcp --bandwidth --histogram",
                "--histogram with --bandwidth is for --layer core",
            ),
            (
                "--layer stream --h2 --bandwidth --histogram",
                "--histogram with --bandwidth is for --layer core",
            ),
            ("--layer async --events", "async always sleeps"),
            ("--layer stream --events", "stream always sleeps"),
            ("--layer tcp --events", "tcp always sleeps"),
            (
                "--layer async --op write",
                "--op write-imm completes a receive",
            ),
            ("--op write --events", "without --events"),
            ("--layer stream --op read", "a stream has no --op read"),
            ("--layer tcp --op write", "a stream has no --op write"),
            ("--h2", "--h2 is for --layer stream"),
            ("--layer tcp --h2 --check", "--h2 goes with neither"),
            ("--layer stream --srq", "--srq is for --layer core"),
            ("--datagrams --op write", "datagrams have no --op write"),
            ("--datagrams --srq", "datagrams has no --srq"),
            ("--op read --srq", "--op read completes no receive"),
            ("--op write --srq", "--op write completes no receive"),
            (
                "--bandwidth --bidirectional --op faa",
                "--op faa has no --bidirectional",
            ),
            (
                "--layer stream --datagrams",
                "--datagrams is for --layer core",
            ),
            ("--layer tcp --cm", "--layer tcp has no --cm"),
            ("--datagrams --cm", "datagrams has no --cm"),
            ("--datagrams --check --size 7", "needs a --size of 8"),
            (
                "--layer channel --datagrams --events",
                "each endpoint sleeps alone",
            ),
            (
                "--layer async --datagrams --bandwidth --histogram",
                "not for datagrams of --layer async",
            ),
        ] {
            let rejected = checked(words).unwrap_err();
            assert!(rejected.contains(why), "{words}: {rejected}");
            assert!(rejected.ends_with("--help shows the options"), "{rejected}");
        }
    }

    #[test]
    fn help_says_what_an_option_needs() {
        let command = Options::command();
        for (option, needed) in [
            ("depth", "--bandwidth"),
            ("depth", "--h2"),
            ("qps", "--bandwidth"),
            ("bidirectional", "--bandwidth"),
            ("events", "--layer core or channel"),
            ("datagrams", "--layer core, channel or async and --op send"),
            (
                "srq",
                "--layer core, channel or async and --op send or write-imm",
            ),
            ("check", "the last operations of each connection"),
            ("corrupt", "--check"),
            ("h2", "--layer stream or tcp"),
            ("cm", "Not with --layer tcp"),
            ("histogram", "--bandwidth on --layer core, channel or async"),
        ] {
            let mut options = command.get_arguments();
            let option = options.find(|it| it.get_id() == option).unwrap();
            let help = option.get_help().unwrap().to_string();
            assert!(help.contains(needed), "{option}: {help}");
        }
    }

    #[test]
    fn latency_has_one_operation_in_flight_and_the_chosen_number_of_warm_up_rounds() {
        let plan = checked("-n 50").unwrap();
        assert_eq!((plan.iters(), plan.warm_up()), (Some(50), 5));
        let plan = checked("--duration 2 --bandwidth").unwrap();
        assert_eq!((plan.iters(), plan.warm_up()), (None, 100));
        assert_eq!((plan.depth, plan.in_flight()), (Some(128), 128));
        // The server checks what the client has checked.
        assert_eq!(plan.clone().checked().unwrap().depth, Some(128));
        let latency = checked("--layer stream").unwrap().checked().unwrap();
        assert_eq!((latency.depth, latency.in_flight()), (None, 16));
        assert!(!plan.posts(false) && plan.posts(true));
        assert!(checked("--op send").unwrap().posts(false));
        assert!(!checked("--op read").unwrap().posts(false));
    }
}
