//! A load: clients that change and read the same values at once, and check each that they get.

use std::time::{Duration, Instant};

use clap::Args;

use crate::{Context as _, Failure, Measured, Pattern, say};

/// The amount of work.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct Load {
    /// How many clients
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,

    /// How many operations each does: one in four changes a value, the others read one
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub iters: u32,

    /// How many keys they share
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,

    /// How long a value is, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    value: u32,
}

/// One thing that a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a client can do each")]
pub enum Step {
    /// Store a value.
    Put {
        /// Under this key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Get the value.
    Get {
        /// The key to get.
        key: Vec<u8>,
    },
}

/// The operation that was done, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    puts: u64,
    putting: Duration,
    gets: u64,
    getting: Duration,
    torn: u64,
}

impl Load {
    /// The preparation: each key with its first value.
    pub fn first(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        (0..self.keys).map(|key| (name(key), value(key.into(), self.len())))
    }

    /// The operation of this index of the client of this number.
    #[must_use]
    pub fn step(&self, number: u32, index: u32) -> Step {
        let key = name(index.wrapping_mul(7).wrapping_add(number) % self.keys);
        if index.is_multiple_of(4) {
            let value = value(u64::from(number) << 32 | u64::from(index), self.len());
            Step::Put { key, value }
        } else {
            Step::Get { key }
        }
    }

    /// Checks a value that a client got.
    ///
    /// # Errors
    ///
    /// There is no value, or it is a mixture of others.
    pub fn check(&self, value: Option<&[u8]>) -> Result<(), Failure> {
        let value = value.ok_or_else(|| Failure::new("a value is gone"))?;
        check(value, self.len()).context(|| "a value is wrong")
    }

    /// Prints what all clients did since `start`, `at_once` operations at a time.
    ///
    /// # Errors
    ///
    /// As [`say`].
    pub fn print(&self, done: Done, start: Instant, at_once: u32) -> Result<(), Failure> {
        let (clients, seconds) = (self.clients, start.elapsed().as_secs_f64());
        let Done {
            puts, gets, torn, ..
        } = done;
        say(format_args!(
            "{clients} clients: {puts} puts and {gets} gets in {seconds:.2} seconds, each value \
             checked; {torn} were read again since they changed"
        ))?;
        // They do it at the same time, so each counts for its part.
        let bytes = self.value.into();
        Measured::new("kv_put", bytes, puts, done.putting / at_once, true).print()?;
        Measured::new("kv_get", bytes, gets, done.getting / at_once, true).print()
    }

    fn len(&self) -> usize {
        usize::try_from(self.value).unwrap_or(usize::MAX)
    }
}

impl Done {
    /// A value was stored.
    pub fn put(&mut self, since: Instant) {
        self.puts += 1;
        self.putting += since.elapsed();
    }

    /// A value was read.
    pub fn get(&mut self, since: Instant) {
        self.gets += 1;
        self.getting += since.elapsed();
    }

    /// This many values were read again because they changed meanwhile.
    pub const fn torn(&mut self, torn: u64) {
        self.torn += torn;
    }

    /// Adds what another client did.
    pub fn add(&mut self, other: &Self) {
        self.puts += other.puts;
        self.putting += other.putting;
        self.gets += other.gets;
        self.getting += other.getting;
        self.torn += other.torn;
    }
}

/// A value begins with the number from which the rest is computed. So a mixture of two is detected
/// without the record's checksum.
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

fn name(key: u32) -> Vec<u8> {
    format!("bench-{key}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixture_of_two_values_is_detected() {
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
