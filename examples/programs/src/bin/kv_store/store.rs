//! The server's table: which key is in which slot of the memory that clients read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{Ordering, fence};

use programs::Failure;
use programs::kv::{Reply, Request, record};
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};

/// Keys, and their values in memory that clients may read.
#[derive(Debug)]
pub(crate) struct Store {
    slots: BTreeMap<Vec<u8>, u32>,
    free: Vec<u32>,
    memory: SharedRegion<Vec<u64>>,
    max_value: usize,
}

impl Store {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        capacity: u32,
        max_value: usize,
    ) -> Result<Self, Failure> {
        let words = record::slot_len(max_value) / size_of::<u64>() * usize::try_from(capacity)?;
        let memory = pd.reg_shared(programs::memory(0_u64, words)?, AccessFlags::REMOTE_READ)?;
        Ok(Self {
            slots: BTreeMap::new(),
            free: (0..capacity).rev().collect(),
            memory,
            max_value,
        })
    }

    /// The memory that clients read.
    pub(crate) fn region(&self) -> RemoteMemoryRegion {
        self.memory.remote()
    }

    /// Executes a request; the reply fits `room` bytes.
    pub(crate) fn answer(&mut self, request: &Request<'_>, room: usize) -> Result<Reply, Failure> {
        Ok(match *request {
            Request::Put { key, value } => self.put(key, value)?,
            Request::Get { key } => {
                let slot = self.slots.get(key);
                slot.map_or(Reply::NotFound, |slot| Reply::At(*slot))
            }
            Request::Delete { key } => match self.slots.remove(key) {
                Some(slot) => {
                    self.write(slot, b"", b"")?;
                    self.free.push(slot);
                    Reply::Done
                }
                None => Reply::NotFound,
            },
            Request::List { after } => self.list(after, room),
            Request::Bye => Reply::Done,
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Reply, Failure> {
        if value.len() > self.max_value {
            let max = self.max_value;
            let why = format!("a value has at most {max} bytes here");
            return Ok(Reply::Refused(why));
        }
        let slot = match self.slots.get(key) {
            Some(slot) => *slot,
            None => match self.free.pop() {
                Some(slot) => slot,
                None => return Ok(Reply::Refused("the store is full".to_owned())),
            },
        };
        self.write(slot, key, value)?;
        self.slots.entry(key.to_vec()).or_insert(slot);
        Ok(Reply::Done)
    }

    fn list(&self, after: &[u8], room: usize) -> Reply {
        let mut left = Reply::room_in(room);
        let (mut keys, mut more) = (Vec::new(), false);
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        for (key, _) in self.slots.range::<[u8], _>(behind) {
            let Some(rest) = left.checked_sub(Reply::room_for(key)) else {
                more = true;
                break;
            };
            left = rest;
            keys.push(key.clone());
        }
        Reply::Keys { keys, more }
    }

    /// Changes a record while clients may read it.
    fn write(&self, slot: u32, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let at = usize::try_from(slot)? * record::slot_len(self.max_value);
        let version = self.memory.atomic_u64(at)?;
        let before = u64::from_le(version.load(Ordering::Relaxed));
        version.store((before + 1).to_le(), Ordering::Relaxed);
        // A reader that reads a byte of the new record also reads an odd or a newer version.
        fence(Ordering::Release);
        let after = before + 2;
        let guarded = record::guarded(after, key, value);
        self.memory.write(at + record::CHECKSUM, &guarded)?;
        version.store(after.to_le(), Ordering::Release);
        Ok(())
    }
}
