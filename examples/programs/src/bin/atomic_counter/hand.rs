//! A client's requests on the server's memory: atomics, a read, a write.
#![expect(unsafe_code, reason = "posts work requests")]

use std::thread;
use std::time::{Duration, Instant};

use programs::{Failure, Waiter};
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{MemoryRegion, QueuePair, ReadWorkRequest, RemoteMemoryRegion, WriteWorkRequest};

/// Where the server's words are.
pub(crate) const COUNTER: u64 = 0;
pub(crate) const LOCK: u64 = 8;
pub(crate) const LOCKED: u64 = 16;
pub(crate) const WORDS: usize = 3;
const WORD: usize = size_of::<u64>();

/// The lock's value when it is free; else the number of the client that holds it.
pub(crate) const FREE: u64 = 0;

/// A client's access to the server's words.
pub(crate) struct Hand<'a> {
    // First, so that it is destroyed before `local`.
    pub(crate) qp: QueuePair,
    pub(crate) waiter: Waiter<'a>,
    /// A word for the results, and one to write from.
    pub(crate) local: MemoryRegion<Vec<u64>>,
    pub(crate) words: RemoteMemoryRegion,
    pub(crate) number: u64,
}

impl Hand<'_> {
    pub(crate) fn fetch_and_add(&mut self, at: u64, add: u64) -> Result<u64, Failure> {
        let word = self.word(at)?;
        let mut into = self.local.scatter_element(..1)?;
        let mut request = AtomicWorkRequest::fetch_and_add(&mut into, &word, add)?;
        // SAFETY: `into` borrows `local` until the completion has been polled.
        unsafe { self.qp.post_atomic(&mut request) }?;
        self.waiter.wait(1, |_success| Ok(()))?;
        Ok(self.local[0])
    }

    fn compare_and_swap(&mut self, at: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        let word = self.word(at)?;
        let mut into = self.local.scatter_element(..1)?;
        let mut request = AtomicWorkRequest::compare_and_swap(&mut into, &word, compare, swap)?;
        // SAFETY: `into` borrows `local` until the completion has been polled.
        unsafe { self.qp.post_atomic(&mut request) }?;
        self.waiter.wait(1, |_success| Ok(()))?;
        Ok(self.local[0])
    }

    pub(crate) fn read(&mut self, at: u64) -> Result<u64, Failure> {
        let word = self.word(at)?;
        let mut into = self.local.scatter_element(..1)?;
        let mut request = ReadWorkRequest::new(&mut into, &word)?;
        // SAFETY: `into` borrows `local` until the completion has been polled.
        unsafe { self.qp.post_read(&mut request) }?;
        self.waiter.wait(1, |_success| Ok(()))?;
        Ok(self.local[0])
    }

    /// Writes, and then releases the lock: the device does it in this order, with one doorbell.
    pub(crate) fn write_and_unlock(&mut self, at: u64, value: u64) -> Result<(), Failure> {
        let (word, lock) = (self.word(at)?, self.word(LOCK)?);
        self.local[1] = value;
        let (mut into, mut from) = self.local.scatter_element(..)?.split_at_mut(WORD)?;
        let write = WriteWorkRequest::new(&mut from, &word)?.unsignaled();
        let unlock = AtomicWorkRequest::compare_and_swap(&mut into, &lock, self.number, FREE)?;
        let mut chain: [WorkRequest<'_>; 2] = [write.into(), unlock.into()];
        // SAFETY: `from` and `into` borrow `local` until the completion of the chain's last request
        // has been polled.
        unsafe { self.qp.post(&mut chain) }?;
        self.waiter.wait(1, |_success| Ok(()))?;
        match self.local[0] {
            holder if holder == self.number => Ok(()),
            other => Err(Failure::new(format!(
                "the lock of client {} was taken by client {other}",
                self.number
            ))),
        }
    }

    fn word(&self, at: u64) -> Result<RemoteMemoryRegion, Failure> {
        Ok(self.words.slice(at..at + WORD as u64)?)
    }

    /// Takes the lock, and returns the number of attempts.
    pub(crate) fn lock(&mut self, limit: Duration) -> Result<u64, Failure> {
        let start = Instant::now();
        for tries in 1.. {
            let holder = self.compare_and_swap(LOCK, FREE, self.number)?;
            if holder == FREE {
                return Ok(tries);
            }
            if start.elapsed() > limit {
                let limit = limit.as_secs();
                return Err(Failure::new(format!(
                    "client {holder} has had the lock for {limit} s"
                )));
            }
            thread::yield_now();
        }
        Err(Failure::new("the lock cannot be had"))
    }
}
