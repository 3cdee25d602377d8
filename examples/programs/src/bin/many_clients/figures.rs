//! The server's measurements: memory, requests, and the time to join and to leave.

use std::fs;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Latencies, Measured, say};

/// How many lost clients are printed one by one.
const PRINTED: u64 = 3;

#[derive(Debug)]
pub(crate) struct Figures {
    // Before the first client.
    empty: Memory,
    // The next number of connections to print.
    next: usize,
    // With the most connections at once.
    full: (usize, Memory),
    first: Option<Instant>,
    last: Instant,
    pub(crate) came: u64,
    pub(crate) left: u64,
    lost: u64,
    pub(crate) bad: u64,
    pub(crate) requests: u64,
    joins: Vec<Duration>,
    pub(crate) leaves: Vec<Duration>,
}

/// Bytes in use.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Memory of this process.
    process: u64,
    /// Memory of the whole machine, kernel included.
    machine: u64,
}

impl Figures {
    pub(crate) fn start() -> Result<Self, Failure> {
        let empty = Memory::now()?;
        Ok(Self {
            empty,
            next: 1,
            full: (0, empty),
            first: None,
            last: Instant::now(),
            came: 0,
            left: 0,
            lost: 0,
            bad: 0,
            requests: 0,
            joins: Vec::new(),
            leaves: Vec::new(),
        })
    }

    /// Records that a client has joined, so that there are `count` clients.
    pub(crate) fn joined(&mut self, took: Duration, count: usize) -> Result<(), Failure> {
        self.joins.push(took);
        if count < self.next {
            return Ok(());
        }
        self.next *= 2;
        say(format_args!("connections: {count}"))
    }

    /// Records how many connections there are now.
    pub(crate) fn connections(&mut self, count: usize) -> Result<(), Failure> {
        if count > self.full.0 {
            self.full = (count, Memory::now()?);
        }
        if self.requests > 0 {
            self.first.get_or_insert_with(Instant::now);
        }
        if count > 0 {
            self.last = Instant::now();
        }
        Ok(())
    }

    /// Records a client that ended without leaving.
    pub(crate) fn lost(&mut self, why: &str) -> Result<(), Failure> {
        self.lost += 1;
        if self.lost <= PRINTED {
            say(format_args!("a client was lost: {why}"))?;
        } else if self.lost == PRINTED + 1 {
            say("more clients were lost")?;
        }
        Ok(())
    }

    pub(crate) fn print(self) -> Result<(), Failure> {
        let Self {
            empty,
            full: (connections, full),
            came,
            left,
            lost,
            bad,
            requests,
            ..
        } = self;
        let each = |with: u64, without: u64| {
            let more = with.saturating_sub(without);
            #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
            let each = more as f64 / 1024.0 / connections.max(1) as f64;
            each
        };
        say(format_args!(
            "{connections} connections at once: {:.1} KiB of this process each, {:.1} KiB of this machine",
            each(full.process, empty.process),
            each(full.machine, empty.machine)
        ))?;
        for (what, times) in [("join", self.joins), ("leave", self.leaves)] {
            say(format_args!("to {what}: {}", Latencies::new(times)))?;
        }
        let took = self.first.map_or(Duration::ZERO, |first| self.last - first);
        #[expect(clippy::cast_precision_loss, reason = "shown without digits")]
        let rate = requests as f64 / took.as_secs_f64().max(1e-3);
        say(format_args!(
            "{requests} requests, {rate:.0} requests/s, each byte checked"
        ))?;
        say(format_args!(
            "{came} clients came: {left} left, {lost} were lost, {bad} of them for bad requests"
        ))?;
        Measured::new("many_clients", 0, requests, took, true).print()
    }
}

impl Memory {
    fn now() -> Result<Self, Failure> {
        let status = read("/proc/self/status")?;
        let machine = read("/proc/meminfo")?;
        let [total, available] = ["MemTotal", "MemAvailable"].map(|name| kib(&machine, name));
        Ok(Self {
            process: kib(&status, "VmRSS")? * 1024,
            machine: total?.saturating_sub(available?) * 1024,
        })
    }
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(path).context(|| format!("cannot read {path}"))
}

/// A line `NAME:   123 kB`.
fn kib(text: &str, name: &str) -> Result<u64, Failure> {
    let of = |line: &str| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        value.trim().strip_suffix(" kB")?.parse().ok()
    };
    let found = text.lines().find_map(of);
    found.ok_or_else(|| Failure::new(format!("the system reports no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_this_process_and_machine() {
        let before = Memory::now().unwrap();
        let held = vec![1_u8; 32 << 20];
        let after = Memory::now().unwrap();
        assert!(
            after.process >= before.process + (30 << 20),
            "{}",
            held.len()
        );
        assert!(after.machine > after.process);
        let text = "Mem:  7 kB\nMemory:     12 kB\n";
        assert_eq!(kib(text, "Mem").unwrap(), 7);
        assert!(
            kib(text, "Memo")
                .unwrap_err()
                .to_string()
                .contains("no Memo")
        );
    }
}
