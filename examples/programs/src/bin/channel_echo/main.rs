//! Sends messages to and fro on a channel, in two ways, and checks each of them at both ends.
//!
//! Read first: `blocking` and `scoped` in `echo.rs`, the same exchange in two ways.

mod echo;
mod plan;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use programs::{
    Common, Context as _, Failure, Latencies, Listener, Measured, Meter, Progress, run, say,
};
use verbs_channel::verbs_core::{Context, MinRnrTimer, WorkSuccess};
use verbs_channel::{Channel, Connect, PollStrategy, PreparedChannel};
use verbs_harness::allocations::Counting;

use crate::echo::Echo;
use crate::plan::{MAX_COUNT, MAX_SIZE, Plan, Run, Way};

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

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const EXAMPLES: &str = "\
Examples:
  channel_echo                            be the server, on the first active device
  channel_echo 192.0.2.1                  be its client
  channel_echo -s 8 -n 100000 192.0.2.1   100,000 messages of 8 bytes, in both ways
  channel_echo --way scoped 192.0.2.1     only with scopes";

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => client(options, host),
        None => serve(options),
    })
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
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        // A message that arrives before its receive is posted is retried after this time: a
        // blocking receive is often late.
        .min_rnr_timer(MinRnrTimer::new(1)?)
        .timeout(common.limit())
        .strategy(strategy)
        .build()?;
    Ok(prepared)
}

/// Sends the current message, and receives the next one.
fn swap(echo: &mut Echo, run: &Run) -> Result<(), Failure> {
    let len = run.len()?;
    whole(
        match run.way {
            Way::Blocking => echo.blocking(len)?,
            Way::Scoped => echo.scoped(len)?,
        },
        run,
    )
}

fn whole(received: WorkSuccess, run: &Run) -> Result<(), Failure> {
    let (len, size) = (received.byte_len(), run.size);
    if len == size {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{len} bytes came where {size} were due"
    )))
}

/// Checks that the current message is the one of this index.
fn check(echo: &mut Echo, run: &Run, index: u32) -> Result<(), Failure> {
    let message = echo.bytes().get(..run.len()?).unwrap_or_default();
    Ok(run.pattern(index).check(0, message)?)
}

fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let prepared = prepare(options, &context)?;
    let listener = Listener::bind(common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!("waiting on {device}, TCP port {port}"))?;
    let own = Plan::new(Vec::new()).encode()?;
    let client = listener.accept(common.wait(), common.limit())?;
    let options = Connect::within(common.limit()).private_data(&own);
    let met = prepared.exchange(client.stream(), options)?;
    let plan = Plan::decode(&met.private_data)?;
    let mut echo = Echo::new(met.channel, usize::try_from(plan.longest())?)?;
    let mut echoed = 0_u64;
    for run in &plan.runs {
        for index in 0..run.count {
            let doing = || describe(run, index);
            // All but the first arrived while the one before was sent back.
            if index == 0 {
                let first = echo.receive(run.len()?).context(doing)?;
                whole(first, run).context(doing)?;
            }
            check(&mut echo, run, index).context(doing)?;
            if index + 1 == run.count {
                echo.send_back(run.len()?).context(doing)?;
            } else {
                swap(&mut echo, run).context(doing)?;
            }
            echoed += 1;
        }
    }
    say(format_args!("{echoed} messages echoed, each byte checked"))
}

fn client(options: &Options, host: &str) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let plan = options.plan()?;
    let prepared = prepare(options, &context)?;
    let port_num = prepared.endpoint().port_num();
    programs::check_size(&context, port_num, plan.longest().into())?;
    let server = (host, common.port);
    let options = Connect::within(common.limit()).private_data(&plan.encode()?);
    let met = prepared.connect(server, options);
    let met = met.context(|| common.cannot_connect(host))?;
    drop(Plan::decode(&met.private_data)?);
    let mut echo = Echo::new(met.channel, usize::try_from(plan.longest())?)?;
    say(format_args!(
        "{:<14}{:>10}{:>10}{:>12}{:>12}{:>12}   costs of a message",
        "way", "bytes", "messages", "min us", "median us", "p99 us"
    ))?;
    for run in &plan.runs {
        measure(&mut echo, run)?;
    }
    Ok(())
}

/// One run: sends every message to and fro, and prints how long each took, and what it cost this thread.
fn measure(echo: &mut Echo, run: &Run) -> Result<(), Failure> {
    let size = run.len()?;
    let mut progress = Progress::new("messages", run.count.into());
    let (mut took, mut meter) = (
        Vec::with_capacity(usize::try_from(run.count)?),
        Meter::new(),
    );
    for index in 0..run.count {
        let message = run.pattern(index).bytes(0, size);
        let outbox = echo.bytes().get_mut(..size).unwrap_or_default();
        outbox.copy_from_slice(&message);
        let swapped = meter.measure(|| {
            let start = Instant::now();
            let swapped = swap(echo, run);
            took.push(start.elapsed());
            swapped
        });
        swapped.context(|| describe(run, index))?;
        check(echo, run, index).context(|| describe(run, index))?;
        progress.at(index.into());
    }
    drop(progress);
    let took = Latencies::new(took);
    let (name, count) = (run.way.name(), run.count);
    let costs = meter.costs(count.into());
    say(format_args!(
        "{name:<14}{size:>10}{count:>10}{:>12.1}{:>12.1}{:>12.1}   {costs}",
        took.percentile(0),
        took.percentile(50),
        took.percentile(99)
    ))?;
    Measured::new(name, run.size.into(), count.into(), took.total(), true).print()
}

fn describe(run: &Run, index: u32) -> String {
    let Run { way, size, count } = run;
    let (name, number) = (way.name(), index + 1);
    format!("{name}, message {number} of {count} with {size} bytes")
}
