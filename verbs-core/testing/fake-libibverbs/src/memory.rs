//! The device's side of memory: it reads what is sent, and writes what is received.
//!
//! A request's bytes are touched when it is posted and when its completion is polled, and whenever
//! [`touch_posted`] is called; through the addresses that were posted, as a device reaches them. A
//! buffer that is freed, moved or borrowed too early is found by Miri, `AddressSanitizer` and
//! valgrind. Bytes under keys that this library did not hand out are left alone.

use std::mem::MaybeUninit;
use std::ptr;

use verbs_core::verbs_sys::{ibv_mr, ibv_wc};

use super::data::Posted;
use super::{Library, with};

/// Memory that is registered.
pub(super) struct Region {
    mr: usize,
    lkey: u32,
    start: u64,
    length: u64,
}

/// A request that was posted, until its completion is polled or its queue goes.
pub(super) struct Operation {
    queue: usize,
    wr_id: u64,
    is_send: bool,
    is_signaled: bool,
    /// The address handle that it is sent with.
    ah: usize,
    /// Whether the device writes to the bytes; it reads them otherwise.
    writes: bool,
    /// Address and length of each part.
    parts: Vec<(u64, usize)>,
    /// The bytes read from the parts at the post.
    sent: Vec<u8>,
}

pub(super) const SIGNALED: u32 = 2;
const INLINE: u32 = 8;
/// RDMA read, compare and swap, fetch and add.
const WRITE_LOCALLY: [u32; 3] = [4, 5, 6];

/// Longer elements are touched only in this many bytes at either end.
const END: usize = 4096;

impl Library {
    pub(super) fn registered(&mut self, mr: *mut ibv_mr) {
        // SAFETY: the caller just made it.
        let mr_ref = unsafe { &*mr };
        self.regions.push(Region {
            mr: mr.addr(),
            lkey: mr_ref.lkey,
            start: mr_ref.addr.expose_provenance() as u64,
            length: mr_ref.length as u64,
        });
    }

    pub(super) fn deregistered(&mut self, mr: *mut ibv_mr) {
        self.regions.retain(|region| region.mr != mr.addr());
    }

    /// A request was accepted. Bytes that are sent are read now.
    pub(super) fn accepted(&mut self, queue: usize, is_send: bool, posted: &mut Posted) {
        let mut parts = Vec::new();
        for (addr, length, lkey) in &posted.list {
            let Some(region) = self.regions.iter().find(|region| region.lkey == *lkey) else {
                continue;
            };
            let offset = addr.wrapping_sub(region.start);
            let length = u64::from(*length);
            if offset
                .checked_add(length)
                .is_some_and(|end| end <= region.length)
            {
                parts.extend(ends(*addr, length));
            } else {
                let wrong = format!("{length} bytes at {addr:#x} are not in their region");
                self.wrong.push(wrong);
            }
        }
        let writes = !is_send || WRITE_LOCALLY.contains(&posted.opcode);
        if !writes {
            posted.sent = read(&parts);
        }
        if posted.send_flags & INLINE != 0 {
            // These were copied; the device reads them no more.
            parts.clear();
        }
        self.operations.push(Operation {
            queue,
            wr_id: posted.wr_id,
            is_send,
            is_signaled: posted.send_flags & SIGNALED != 0,
            ah: posted.ah,
            writes,
            sent: match parts[..] {
                [] => Vec::new(),
                _ => posted.sent.clone(),
            },
            parts,
        });
    }

    /// Whether a request in flight is sent with this address handle: a device may read it only when
    /// it sends.
    pub(super) fn is_needed(&self, ah: usize) -> bool {
        self.operations.iter().any(|operation| operation.ah == ah)
    }

    /// A completion is polled: received bytes are there, and the device touches them no more.
    pub(super) fn completed(&mut self, done: &ibv_wc) {
        let found = self
            .operations
            .iter()
            .position(|operation| operation.wr_id == done.wr_id);
        let Some(index) = found else {
            return;
        };
        let operation = self.operations.remove(index);
        if operation.is_send {
            // It stands for all before it that have no completion of their own.
            let silent: Vec<_> = self
                .operations
                .extract_if(..index, |earlier| {
                    earlier.queue == operation.queue && earlier.is_send && !earlier.is_signaled
                })
                .collect();
            let silent = silent.iter().filter_map(Operation::touch);
            self.wrong.extend(silent);
        }
        self.wrong.extend(operation.touch());
    }

    /// A queue pair is gone or starts anew: the device forgets what was posted to it. Earlier
    /// completions are polled later, but their bytes are there. Receives posted to a shared receive
    /// queue go with that queue.
    pub(super) fn forgotten<Q>(&mut self, queue: *mut Q) {
        let queue = queue.addr();
        for at in 0..self.done.len() {
            let done = self.done[at];
            let mut operations = self.operations.iter();
            if operations.any(|op| (op.queue, op.wr_id) == (queue, done.wr_id)) {
                self.completed(&done);
            }
        }
        self.operations.retain(|operation| operation.queue != queue);
    }

    /// How many requests are posted to a queue.
    pub(super) fn in_queue(&self, queue: usize) -> usize {
        let operations = self.operations.iter();
        operations.filter(|op| op.queue == queue).count()
    }
}

/// The device touches all that is posted now, as it may at any moment.
pub fn touch_posted() {
    with(|library| {
        let wrong: Vec<_> = library
            .operations
            .iter()
            .filter_map(Operation::touch)
            .collect();
        library.wrong.extend(wrong);
    });
}

/// The device writes a message to the elements of this receive. Returns whether it has the receive:
/// not if the queue pair was destroyed, which another thread may do at any moment.
#[must_use]
pub fn deliver(wr_id: u64, message: &[u8]) -> bool {
    with(|library| {
        let mut operations = library.operations.iter();
        let Some(receive) = operations.find(|op| op.wr_id == wr_id && op.writes) else {
            return false;
        };
        let room: usize = receive.parts.iter().map(|(_, length)| length).sum();
        assert!(message.len() <= room, "a message is too long");
        write(&receive.parts, message.iter().copied());
        true
    })
}

/// The device forgets all requests: for a test that begins anew, after another whose queue pairs could
/// not be destroyed. A `wr_id` of theirs may be given again.
pub fn forget_requests() {
    with(|library| library.operations.clear());
}

/// Whether the device has a request of this `wr_id`.
pub fn is_in_flight(wr_id: u64) -> bool {
    with(|library| library.operations.iter().any(|op| op.wr_id == wr_id))
}

/// How many requests the device has.
pub fn in_flight() -> usize {
    with(|library| library.operations.len())
}

/// Whether the device may touch one of these bytes.
pub fn is_posted(bytes: &[u8]) -> bool {
    let ours = bytes.as_ptr_range();
    let ours = ours.start.addr() as u64..ours.end.addr() as u64;
    with(|library| {
        let mut parts = library.operations.iter().flat_map(|op| &op.parts);
        parts.any(|(addr, length)| *addr < ours.end && ours.start < addr + *length as u64)
    })
}

impl Operation {
    /// Reads or writes the bytes; what is written is what was there. Returns what is wrong.
    fn touch(&self) -> Option<String> {
        if self.writes {
            for byte in bytes(&self.parts) {
                let byte = byte.cast::<MaybeUninit<u8>>();
                // SAFETY: posted memory can be written to until its completion was polled, as the
                // tests that post it check.
                unsafe { byte.write_volatile(byte.read_volatile()) };
            }
            return None;
        }
        let changed = read(&self.parts) != self.sent;
        changed.then(|| format!("the bytes of {:#x} changed while it was posted", self.wr_id))
    }
}

/// The parts of an element that are touched: all of it, or both ends.
fn ends(addr: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = END as u64;
    let parts = if length <= 2 * end {
        [(addr, length), (addr, 0)]
    } else {
        [(addr, end), (addr + length - end, end)]
    };
    let parts = parts.into_iter().filter(|(_, length)| *length > 0);
    parts.map(|(addr, length)| (addr, usize::try_from(length).unwrap()))
}

fn bytes(parts: &[(u64, usize)]) -> impl Iterator<Item = *mut u8> {
    let bytes = |(addr, length): &(u64, usize)| {
        let first = address(*addr);
        (0..*length).map(move |at| first.wrapping_add(at))
    };
    parts.iter().flat_map(bytes)
}

fn read(parts: &[(u64, usize)]) -> Vec<u8> {
    // SAFETY: posted memory can be read until its completion was polled, as the tests that post it
    // check.
    let read = |byte: *mut u8| unsafe { byte.read_volatile() };
    bytes(parts).map(read).collect()
}

fn write(parts: &[(u64, usize)], from: impl Iterator<Item = u8>) {
    for (to, byte) in bytes(parts).zip(from) {
        // SAFETY: posted memory can be written to until its completion was polled, as the tests
        // that post it check.
        unsafe { to.write_volatile(byte) };
    }
}

fn address(addr: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap())
}
