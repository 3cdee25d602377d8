//! The memory of all connections: where messages are, and what is in them.

use std::cell::Cell;

use programs::{Context as _, Failure, Pattern};
use verbs_channel::SharedMemory;
use verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};

use crate::plan::{Op, Plan};

/// One region: of each connection, places to send from, and places to receive or write into.
///
/// If bytes are not verified, all messages of a connection share one place, as in perftest.
pub(crate) struct Memory {
    pub(crate) shared: SharedMemory,
    plan: Plan,
    size: usize,
    // Places of a connection in each direction, and the bytes of each place.
    out: usize,
    places_in: usize,
    stride: usize,
    header: usize,
    // How many datagrams of each connection were lost before one that has arrived.
    lost: Vec<Cell<u64>>,
}

/// Where a message of the peer has arrived.
pub(crate) enum Arrived<'b> {
    /// In a receive: the connection, its number, and the length.
    Receive(usize, u64, usize),
    /// In memory of the library: a block of its pool.
    Block(&'b [u8]),
}

/// A byte that is in no place before something arrives there.
const STALE: u8 = 0xff;

/// Number of datagrams in a row that may be lost.
const MOST_LOST: u64 = 1 << 20;

/// Each place is a multiple of this.
const LINE: usize = 64;

impl Memory {
    /// Its region.
    pub(crate) fn region(&self) -> &SharedRegion<Vec<u8>> {
        self.shared.region().expect("it was made of this region")
    }

    pub(crate) fn new(pd: &ProtectionDomain, plan: &Plan, header: usize) -> Result<Self, Failure> {
        let (out, into) = match plan.check {
            true => (
                plan.depth(),
                usize::try_from(plan.receives())?.max(plan.depth()),
            ),
            false => (1, 1),
        };
        let stride = (plan.size() + header).next_multiple_of(LINE);
        let len = plan.qps().saturating_mul(out + into).saturating_mul(stride);
        let what = || format!("cannot register {len} bytes");
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let register = |access| {
            pd.reg_shared(programs::memory(STALE, len)?, access)
                .context(what)
        };
        // A device without atomics does not have the last.
        let region = register(access).or_else(|_| register(access - AccessFlags::REMOTE_ATOMIC));
        let this = Self {
            shared: SharedMemory::new([region?]),
            plan: plan.clone(),
            size: plan.size(),
            out,
            places_in: into,
            stride,
            header,
            lost: vec![Cell::new(0); plan.qps()],
        };
        // A read fetches the same places again and again.
        let corrupt = plan.corrupt.map(|number| number % out as u64);
        let places = Plan {
            corrupt,
            ..plan.clone()
        };
        for conn in 0..plan.qps() {
            for place in 0..out {
                let bytes = contents(&places, conn, place as u64);
                this.region().write(this.out(conn, place as u64), &bytes)?;
            }
            if plan.op.is_atomic() {
                // The value that the first operation finds, unless it is to be wrong.
                let start = u64::from(plan.corrupt.is_some());
                let counter = this.arrives(conn, 0);
                this.region().write(counter, &start.to_ne_bytes())?;
            }
        }
        Ok(this)
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Bytes before a received message: the header of a datagram.
    pub(crate) const fn header(&self) -> usize {
        self.header
    }

    /// Where the operation with this number starts that a connection posts.
    pub(crate) fn out(&self, conn: usize, number: u64) -> usize {
        (conn * (self.out + self.places_in) + place(number, self.out)) * self.stride
    }

    /// Where the message with this number goes; its header is before it.
    pub(crate) fn arrives(&self, conn: usize, number: u64) -> usize {
        let start = conn * (self.out + self.places_in) + self.out + place(number, self.places_in);
        start * self.stride
    }

    /// Which receive of a connection has its place at this offset: the inverse of
    /// [`arrives`](Self::arrives).
    pub(crate) fn number(&self, conn: usize, offset: usize) -> u64 {
        (offset.saturating_sub(self.arrives(conn, 0)) / self.stride) as u64
    }

    /// The place of the peer that the operation with this number reads or writes.
    pub(crate) fn remote(
        &self,
        theirs: &RemoteMemoryRegion,
        conn: usize,
        number: u64,
    ) -> verbs_core::Result<RemoteMemoryRegion> {
        let start = match self.plan.op {
            Op::Read => self.out(conn, number),
            Op::Cas | Op::Faa => self.arrives(conn, 0),
            // One for each operation in flight.
            _ if self.plan.check => self.arrives(conn, number % self.out as u64),
            _ => self.arrives(conn, 0),
        } as u64;
        theirs.slice(start..start + self.size as u64)
    }

    /// Prepares the place of the operation with this number. The last byte of a write that the peer polls
    /// for is its mark.
    #[inline]
    pub(crate) fn fill(&self, conn: usize, number: u64) -> Result<(), Failure> {
        let start = self.out(conn, number);
        if self.plan.check && !self.plan.op.is_one_sided() {
            let bytes = contents(&self.plan, conn, number);
            self.region().write(start, &bytes)?;
        }
        if self.has_mark() {
            self.region()
                .write(start + self.size - 1, &[mark_of(number)])?;
        }
        Ok(())
    }

    /// Whether the peer polls for the last byte of each operation.
    #[inline]
    fn has_mark(&self) -> bool {
        self.plan.op == Op::Write && !self.plan.bandwidth
    }

    /// Verifies the length of a connection's message with this number, and its bytes if that is
    /// wanted. Written bytes are verified where no other write can follow.
    #[inline]
    pub(crate) fn verify_received(
        &self,
        conn: usize,
        number: u64,
        message: &Arrived<'_>,
    ) -> Result<(), Failure> {
        let Plan {
            op,
            check,
            bandwidth,
            ..
        } = self.plan;
        let len = match message {
            Arrived::Receive(_, _, len) => *len,
            Arrived::Block(bytes) => bytes.len(),
        };
        if op == Op::Send && len != self.size {
            return Err(Failure::new("a message of another length has arrived"));
        }
        match (op, message) {
            _ if !check => Ok(()),
            (Op::Send, Arrived::Block(bytes)) => self.verify_send(conn, number, bytes),
            (Op::Send, Arrived::Receive(of, receive, len)) => {
                let start = self.arrives(*of, *receive) + self.header;
                self.verify(start, *len, |bytes| self.verify_send(conn, number, bytes))
            }
            (Op::WriteImm, _) if !bandwidth => self.verify_written(conn, number),
            _ => Ok(()),
        }
    }

    /// Verifies a sent message, after `arrived` others. Some datagrams are lost, and some are late:
    /// others have overtaken them, and they seemed lost.
    fn verify_send(&self, conn: usize, arrived: u64, bytes: &[u8]) -> Result<(), Failure> {
        if !self.plan.datagrams {
            return is_right(conn, arrived, bytes);
        }
        let start = bytes.first_chunk().copied().map(u64::from_le_bytes);
        let is_it = |number| start == Some(pattern(conn, number).word(0));
        let lost = &self.lost[conn];
        let (number, after) = arrived_as(arrived, lost.get(), is_it);
        lost.set(after);
        is_right(conn, number, bytes)
    }

    /// The mark of the write with this number has arrived: verifies the one before. Other bytes of
    /// this one may be on their way.
    pub(crate) fn verify_before(&self, number: u64) -> Result<(), Failure> {
        let before = number.checked_sub(1);
        before.map_or(Ok(()), |before| self.verify_written(0, before))
    }

    /// Verifies the bytes left by the peer's `posted` writes: the last of those that it polled for,
    /// as the others were verified when the next one arrived; else those that could be in flight.
    pub(crate) fn verify_left(&self, conn: usize, posted: u64) -> Result<(), Failure> {
        let left = match self.plan.op {
            Op::Write | Op::WriteImm if self.plan.bandwidth => self.out as u64,
            Op::Write => 1,
            _ => 0,
        };
        let last = posted.saturating_sub(left);
        (last..posted).try_for_each(|number| self.verify_written(conn, number))
    }

    /// Verifies what the write with this number has left.
    fn verify_written(&self, conn: usize, number: u64) -> Result<(), Failure> {
        if !self.plan.check {
            return Ok(());
        }
        let start = self.arrives(conn, number % self.out as u64);
        let len = self.size - usize::from(self.has_mark());
        self.verify(start, len, |bytes| is_right(conn, number, bytes))
    }

    /// Verifies what an operation has fetched.
    pub(crate) fn verify_fetched(&self, conn: usize, number: u64) -> Result<(), Failure> {
        if !self.plan.check {
            return Ok(());
        }
        let start = self.fetched(conn, number);
        match self.plan.op {
            Op::Read => {
                let theirs = number % self.out as u64;
                self.verify(start, self.size, |bytes| is_right(conn, theirs, bytes))
            }
            Op::Cas | Op::Faa => self.verify(start, 8, |bytes| {
                is_equal(conn, number, bytes, &number.to_ne_bytes())
            }),
            _ => Ok(()),
        }
    }

    /// Where an operation puts what it fetches. The peer's counter of atomics is in the first place of
    /// the other part.
    pub(crate) fn fetched(&self, conn: usize, number: u64) -> usize {
        match self.plan.op {
            Op::Read => self.arrives(conn, number % self.out as u64),
            _ => self.out(conn, number),
        }
    }

    /// Checks these bytes, and makes them stale: they are found only once.
    fn verify(
        &self,
        start: usize,
        len: usize,
        check: impl FnOnce(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut came = vec![STALE; len];
        self.region().read(start, &mut came)?;
        check(&came)?;
        came.fill(STALE);
        Ok(self.region().write(start, &came)?)
    }

    /// The last byte of the place that the peer writes to.
    #[inline]
    pub(crate) fn last_byte(&self, number: u64) -> Result<u8, Failure> {
        let number = if self.plan.check {
            number % self.out as u64
        } else {
            0
        };
        let mut last = [0];
        let at = self.arrives(0, number) + self.size - 1;
        self.region().read(at, &mut last)?;
        Ok(last[0])
    }
}

/// The number of a datagram, after `arrived` arrived and `lost` were lost; and how many are lost
/// then. If it is none of those that may come now, it should be the next one. While some are lost,
/// one that comes twice passes for a late one.
fn arrived_as(arrived: u64, lost: u64, is_it: impl Fn(u64) -> bool) -> (u64, u64) {
    let next = arrived + lost;
    if let Some(number) = (next..next + MOST_LOST).find(|number| is_it(*number)) {
        return (number, number - arrived);
    }
    let mut late = (next.saturating_sub(MOST_LOST)..next).rev();
    if lost > 0
        && let Some(number) = late.find(|number| is_it(*number))
    {
        return (number, lost - 1);
    }
    (next, lost)
}

/// The last byte of a polled write: never that of the one before, nor a stale one.
pub(crate) const fn mark_of(number: u64) -> u8 {
    (number % 251) as u8
}

fn place(number: u64, places: usize) -> usize {
    usize::try_from(number % places as u64).unwrap_or(0)
}

/// The bytes that this operation sends. With `--corrupt`, the first byte of one operation is wrong.
pub(crate) fn contents(plan: &Plan, conn: usize, number: u64) -> Vec<u8> {
    let mut bytes = pattern(conn, number).bytes(0, plan.size());
    if plan.corrupt == Some(number)
        && let Some(first) = bytes.first_mut()
    {
        *first = !*first;
    }
    bytes
}

/// Checks that these are the bytes, or the first bytes, of the operation with this number.
pub(crate) fn is_right(conn: usize, number: u64, bytes: &[u8]) -> Result<(), Failure> {
    let right = pattern(conn, number).bytes(0, bytes.len());
    is_equal(conn, number, bytes, &right)
}

fn is_equal(conn: usize, number: u64, bytes: &[u8], right: &[u8]) -> Result<(), Failure> {
    let what = || format!("operation {number} of connection {conn} is wrong");
    programs::check(0, bytes, right).context(what)
}

const fn pattern(conn: usize, number: u64) -> Pattern {
    Pattern::new(number.wrapping_mul(0x10001).wrapping_add(conn as u64))
}

#[cfg(test)]
mod tests {
    use super::arrived_as;

    #[test]
    fn datagrams_may_be_lost_and_late_but_not_come_twice_if_none_are_lost() {
        let (mut arrived, mut lost) = (0, 0);
        let mut arrives = |number| {
            let (found, after) = arrived_as(arrived, lost, |each| each == number);
            (arrived, lost) = (arrived + 1, after);
            (found, lost)
        };
        assert_eq!(arrives(0), (0, 0));
        assert_eq!(arrives(3), (3, 2), "1 and 2 seem lost");
        assert_eq!(arrives(2), (2, 1), "it was late");
        assert_eq!(arrives(4), (4, 1));
        assert_eq!(arrives(1), (1, 0));
        assert_eq!(arrives(5), (5, 0));
        let (next, twice) = (6, 5);
        assert_eq!(arrives(twice), (next, 0), "so its bytes are wrong");
    }
}
