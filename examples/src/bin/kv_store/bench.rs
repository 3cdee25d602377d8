//! Many clients at once, which change and read the same values and check each they get.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use examples::{Context as _, Failure, Measured, Pattern, Progress, say};
use verbs_channel::verbs_core::Context;

use crate::Options;
use crate::client::Connection;

#[derive(Args, Clone, Debug)]
pub(crate) struct Bench {
    /// How many clients
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,

    /// How many operations each does: one in four changes a value, the others read one
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: u32,

    /// How many keys they share
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,

    /// How long a value is, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    value: u32,
}

/// What was done, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    puts: u64,
    putting: Duration,
    gets: u64,
    getting: Duration,
    torn: u64,
}

/// A value begins with the number that the rest of it is made from: a mixture of two is found out,
/// whatever the record's checksum says of it.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let rest = Pattern::new(seed).bytes(0, len.saturating_sub(size_of::<u64>()));
    [&seed.to_be_bytes()[..], &rest].concat()
}

fn check(value: &[u8], len: usize) -> Result<(), Failure> {
    let whole = value.split_first_chunk().filter(|_| value.len() == len);
    let (seed, rest) = whole
        .ok_or_else(|| Failure::new(format!("a value has {} bytes, not {len}", value.len())))?;
    Ok(Pattern::new(u64::from_be_bytes(*seed)).check(0, rest)?)
}

pub(crate) fn run(options: &Options, bench: &Bench, host: &str) -> Result<(), Failure> {
    let context = examples::open(options.common.ib_dev.as_deref())?;
    let first = Connection::new(&options.common, &context, host);
    let mut first = first.context(|| "the first client")?;
    let len = usize::try_from(bench.value)?;
    for key in 0..bench.keys {
        first.put(&name(key), &value(key.into(), len))?;
    }
    first.bye()?;
    let start = Instant::now();
    let all = thread::scope(|scope| {
        let start = |number| {
            let context = &context;
            scope.spawn(move || {
                let done = client(options, bench, host, context, number);
                done.context(|| format!("client {number}"))
            })
        };
        let all: Vec<_> = (1..=bench.clients).map(start).collect();
        let mut total = Done::default();
        for client in all {
            let ended = client.join();
            let done = ended.unwrap_or_else(|_| Err(Failure::new("a client's thread panicked")))?;
            total.puts += done.puts;
            total.putting += done.putting;
            total.gets += done.gets;
            total.getting += done.getting;
            total.torn += done.torn;
        }
        Ok::<_, Failure>(total)
    })?;
    let (clients, seconds) = (bench.clients, start.elapsed().as_secs_f64());
    let Done {
        puts, gets, torn, ..
    } = all;
    say(format_args!(
        "{clients} clients: {puts} puts and {gets} gets in {seconds:.2} seconds, each value checked; \
         {torn} were read again since they changed"
    ))?;
    // The clients do it at the same time, so each counts for its part.
    let (bytes, each) = (bench.value.into(), clients);
    Measured::new("kv_put", bytes, puts, all.putting / each, true).tell()?;
    Measured::new("kv_get", bytes, gets, all.getting / each, true).tell()
}

fn client(
    options: &Options,
    bench: &Bench,
    host: &str,
    context: &Context,
    number: u32,
) -> Result<Done, Failure> {
    let mut connection = Connection::new(&options.common, context, host)?;
    let mut progress = (number == 1).then(|| Progress::new("operations", bench.iters.into()));
    let len = usize::try_from(bench.value)?;
    let mut done = Done::default();
    for index in 0..bench.iters {
        let key = name(index.wrapping_mul(7).wrapping_add(number) % bench.keys);
        if index % 4 == 0 {
            let value = value(u64::from(number) << 32 | u64::from(index), len);
            let start = Instant::now();
            connection.put(&key, &value)?;
            done.putting += start.elapsed();
            done.puts += 1;
        } else {
            let start = Instant::now();
            let value = connection.get(&key)?;
            done.getting += start.elapsed();
            done.gets += 1;
            let value = value.ok_or_else(|| Failure::new("a value is gone"))?;
            check(value, len).context(|| "a value is wrong")?;
        }
        if let Some(progress) = &mut progress {
            progress.at(index.into());
        }
    }
    done.torn = connection.torn;
    connection.bye()?;
    Ok(done)
}

fn name(key: u32) -> Vec<u8> {
    format!("bench-{key}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_of_two_values_is_found_out() {
        for len in [8, 9, 1000] {
            check(&value(7, len), len).unwrap();
        }
        let (old, new) = (value(1, 100), value(2, 100));
        for at in 1..100 {
            assert!(check(&[&old[..at], &new[at..]].concat(), 100).is_err() || at < 8);
            assert!(check(&new[..at], 100).is_err());
        }
        // In the seed's own bytes two mixtures are values: of the other one.
        assert!(check(&[&old[..7], &new[7..]].concat(), 100).is_ok());
    }
}
