//! Sends messages to and fro on a channel, in two ways, and checks each of them at both ends.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use examples::{
    Common, Context as _, Failure, Hello, Latencies, Listener, Measured, Pattern, Progress, run,
    say,
};
use serde::{Deserialize, Serialize};
use verbs_channel::verbs_core::{Context, MemoryRegion, MinRnrTimer};
use verbs_channel::{Channel, PollStrategy, PreparedChannel, ScopeError};

/// Send messages to and fro on a channel, and check every byte at both ends
///
/// The server sends back what comes. Each size is run in two ways: with blocking calls, one thing
/// at a time; and with scopes, where the receive for the answer is posted before the message goes
/// out, so that no message ever finds its receiver unprepared.
#[derive(Debug, Parser)]
#[command(name = "channel_echo", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Client: bytes in a message; may be given several times [default: 64 4096 65536 1048576]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    size: Vec<u32>,

    /// Client: how many messages of each size; fewer of large ones
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_COUNT)))]
    iters: u32,

    /// Sleep until something comes, instead of spinning
    #[arg(short, long)]
    events: bool,

    /// Client: only in this way
    #[arg(long)]
    way: Option<Way>,
}

const EXAMPLES: &str = "\
Examples:
  channel_echo                            be the server, on the first active device
  channel_echo 192.0.2.1                  be its client
  channel_echo -s 8 -n 100000 192.0.2.1   100,000 messages of 8 bytes, in both ways
  channel_echo --way scoped 192.0.2.1     only with scopes";

const DEFAULT_SIZES: [u32; 4] = [64, 4096, 65536, 1 << 20];
const MAX_SIZE: u32 = 64 << 20;
const MAX_COUNT: u32 = 1_000_000;
/// Runs that fit a client's private data.
const MAX_RUNS: usize = 16;
/// How many bytes a run moves at most each way, if a message has fewer.
const BYTES_OF_A_RUN: u32 = 32 << 20;

/// What each side says with its endpoint; the server asks for no runs.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    hello: Hello,
    runs: Vec<Run>,
}

/// So many messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    way: Way,
    size: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
enum Way {
    Blocking,
    Scoped,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "echo_blocking",
            Self::Scoped => "echo_scoped",
        }
    }
}

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => client(options, host),
        None => serve(options),
    })
}

impl Plan {
    fn new(runs: Vec<Run>) -> Self {
        let hello = Hello::new("channel_echo", 1);
        Self { hello, runs }
    }

    fn encode(&self) -> Result<Vec<u8>, Failure> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads what the peer says; a run that no client of ours asks for is an error.
    fn decode(bytes: &[u8]) -> Result<Self, Failure> {
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
    fn longest(&self) -> u32 {
        self.runs.iter().map(|run| run.size).max().unwrap_or(1)
    }
}

impl Options {
    fn plan(&self) -> Result<Plan, Failure> {
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

/// A channel with the options' device, not connected yet.
fn prepare(options: &Options, context: &Context) -> Result<PreparedChannel, Failure> {
    let Options { common, events, .. } = options;
    let strategy = if *events {
        PollStrategy::Notify { after: 0 }
    } else {
        PollStrategy::SpinThenYield
    };
    let pd = context.alloc_pd()?;
    let prepared = Channel::builder(&pd)
        .maybe_port_num(common.ib_port)
        .maybe_gid_index(common.gid_idx)
        // A message that comes before its receive is posted is tried again after so long: a
        // blocking receive is often late.
        .min_rnr_timer(MinRnrTimer::new(1)?)
        .timeout(common.limit())
        .strategy(strategy)
        .build()?;
    Ok(prepared)
}

/// A channel and two buffers, each as long as the longest message.
struct Echo {
    channel: Channel,
    one: MemoryRegion<Vec<u8>>,
    other: MemoryRegion<Vec<u8>>,
}

impl Echo {
    fn new(channel: Channel, longest: u32) -> Result<Self, Failure> {
        let longest = usize::try_from(longest)?;
        let one = channel.pd().reg_mr(vec![0_u8; longest])?;
        let other = channel.pd().reg_mr(vec![0_u8; longest])?;
        Ok(Self {
            channel,
            one,
            other,
        })
    }

    /// Receives a message with a blocking call: the server's first.
    fn receive(&mut self, run: &Run) -> Result<(), Failure> {
        let inbox = self.one.scatter_element(..usize::try_from(run.size)?)?;
        let received = self.channel.receive(inbox)?;
        whole(received.byte_len(), run)
    }

    /// Sends the message back with a blocking call.
    fn send_back(&mut self, run: &Run) -> Result<(), Failure> {
        let message = self.one.gather_element(..usize::try_from(run.size)?)?;
        Ok(self.channel.send(message)?)
    }

    /// Sends a message and waits for the next one: the receive is posted late, when the message
    /// has arrived.
    fn blocking(&mut self, run: &Run) -> Result<(), Failure> {
        let size = usize::try_from(run.size)?;
        self.channel.send(self.one.gather_element(..size)?)?;
        let inbox = self.other.scatter_element(..size)?;
        let received = self.channel.receive(inbox)?;
        whole(received.byte_len(), run)
    }

    /// The same in a scope: the receive is posted first. Both buffers are borrowed until the scope
    /// ends.
    fn scoped(&mut self, run: &Run) -> Result<(), Failure> {
        let size = usize::try_from(run.size)?;
        let Self {
            channel,
            one,
            other,
        } = self;
        let received = channel
            .scope(|scope| {
                let receive = scope.post_receive(other.scatter_element(..size)?)?;
                let send = scope.post_send(one.gather_element(..size)?)?;
                send.spin_poll()?;
                Ok(receive.spin_poll()?)
            })
            .map_err(ScopeError::<Failure>::flatten)?;
        whole(received.byte_len(), run)
    }

    /// Sends the message in `one`, and has the next one there after.
    fn swap(&mut self, run: &Run) -> Result<(), Failure> {
        match run.way {
            Way::Blocking => self.blocking(run)?,
            Way::Scoped => self.scoped(run)?,
        }
        std::mem::swap(&mut self.one, &mut self.other);
        Ok(())
    }

    /// Checks that `one` holds the message of this index.
    fn check(&self, run: &Run, index: u32) -> Result<(), Failure> {
        let message = self.one.get(..usize::try_from(run.size)?);
        Ok(pattern(run, index).check(0, message.unwrap_or_default())?)
    }
}

/// What the message of this index consists of.
fn pattern(run: &Run, index: u32) -> Pattern {
    let way = u64::from(run.way == Way::Scoped);
    Pattern::new(way << 63 | u64::from(run.size) << 32 | u64::from(index))
}

fn whole(received: u32, run: &Run) -> Result<(), Failure> {
    if received == run.size {
        return Ok(());
    }
    let size = run.size;
    Err(Failure::new(format!(
        "{received} bytes came where {size} were due"
    )))
}

fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = examples::open(common)?;
    let prepared = prepare(options, &context)?;
    let listener = Listener::bind(common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!("waiting on {device}, TCP port {port}"))?;
    let own = Plan::new(Vec::new()).encode()?;
    let client = listener.accept(common.wait(), common.limit())?;
    let (channel, theirs) = prepared.exchange(client.stream(), common.limit(), &own)?;
    let plan = Plan::decode(&theirs)?;
    let mut echo = Echo::new(channel, plan.longest())?;
    let mut echoed = 0_u64;
    for run in &plan.runs {
        for index in 0..run.count {
            let doing = || describe(run, index);
            // All but the first came while the one before was sent back.
            if index == 0 {
                echo.receive(run).context(doing)?;
            }
            echo.check(run, index).context(doing)?;
            if index + 1 == run.count {
                echo.send_back(run).context(doing)?;
            } else {
                echo.swap(run).context(doing)?;
            }
            echoed += 1;
        }
    }
    say(format_args!("{echoed} messages echoed, each byte checked"))
}

fn client(options: &Options, host: &str) -> Result<(), Failure> {
    let common = &options.common;
    let context = examples::open(common)?;
    let plan = options.plan()?;
    let prepared = prepare(options, &context)?;
    let port_num = prepared.endpoint().port_num();
    examples::check_size(&context, port_num, plan.longest().into())?;
    let server = (host, common.port);
    let connected = prepared.connect_with(server, common.limit(), &plan.encode()?);
    let (channel, theirs) = connected.context(|| common.cannot_connect(host))?;
    drop(Plan::decode(&theirs)?);
    let mut echo = Echo::new(channel, plan.longest())?;
    say(format_args!(
        "{:<14}{:>10}{:>10}{:>12}{:>12}{:>12}",
        "way", "bytes", "messages", "min us", "median us", "p99 us"
    ))?;
    for run in &plan.runs {
        measure(&mut echo, run)?;
    }
    Ok(())
}

/// One run: every message to and fro, and what it took.
fn measure(echo: &mut Echo, run: &Run) -> Result<(), Failure> {
    let size = usize::try_from(run.size)?;
    let mut progress = Progress::new("messages", run.count.into());
    let mut took = Vec::with_capacity(usize::try_from(run.count)?);
    for index in 0..run.count {
        let message = pattern(run, index).bytes(0, size);
        let outbox = echo.one.get_mut(..size).unwrap_or_default();
        outbox.copy_from_slice(&message);
        let start = Instant::now();
        echo.swap(run).context(|| describe(run, index))?;
        took.push(start.elapsed());
        echo.check(run, index).context(|| describe(run, index))?;
        progress.at(index.into());
    }
    drop(progress);
    let took = Latencies::new(took);
    let (name, count) = (run.way.name(), run.count);
    say(format_args!(
        "{name:<14}{size:>10}{count:>10}{:>12.1}{:>12.1}{:>12.1}",
        took.percentile(0),
        took.percentile(50),
        took.percentile(99)
    ))?;
    Measured::new(name, run.size.into(), count.into(), took.total(), true).tell()
}

fn describe(run: &Run, index: u32) -> String {
    let Run { way, size, count } = run;
    let (name, number) = (way.name(), index + 1);
    format!("{name}, message {number} of {count} with {size} bytes")
}

#[cfg(test)]
mod tests {
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
    fn one_more_run_is_refused_here_and_there() {
        let sizes = ["-s", "1"].repeat(9);
        assert!(plan(&sizes).unwrap_err().to_string().contains("18 runs"));
        let run = plan(&["-s", "1"]).unwrap().runs[0];
        let bytes = Plan::new(vec![run; MAX_RUNS + 1]).encode().unwrap();
        assert!(Plan::decode(&bytes).is_err());
    }

    #[test]
    fn what_no_client_asks_for_is_refused() {
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
