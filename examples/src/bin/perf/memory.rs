//! The memory of all connections: where messages are, and what is in them.

use std::sync::Arc;

use examples::{Context as _, Failure, Pattern};
use verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};

use crate::plan::{Op, Plan};

/// One region: of each connection, places to send from, and places to receive or write into.
///
/// If bytes are not verified, all messages of a connection share one place, as in perftest.
pub(crate) struct Memory {
    pub(crate) region: Arc<SharedRegion<Vec<u8>>>,
    size: usize,
    // Places of a connection in each direction, and the bytes of each place.
    out: usize,
    places_in: usize,
    stride: usize,
    header: usize,
    qps: usize,
    check: bool,
    bandwidth: bool,
    op: Op,
}

/// A byte that is in no place before something arrives there.
const STALE: u8 = 0xff;

/// What each place is a multiple of.
const LINE: usize = 64;

impl Memory {
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
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        // A device without atomics does not have the last.
        let bytes = || examples::memory(STALE, len);
        let region = pd.reg_shared(bytes()?, access).or_else(|_| {
            pd.reg_shared(
                bytes().unwrap_or_default(),
                access - AccessFlags::REMOTE_ATOMIC,
            )
        });
        let this = Self {
            region: Arc::new(region.context(|| format!("cannot register {len} bytes"))?),
            size: plan.size(),
            out,
            places_in: into,
            stride,
            header,
            qps: plan.qps(),
            check: plan.check,
            bandwidth: plan.bandwidth,
            op: plan.op,
        };
        for conn in 0..this.qps {
            for place in 0..out {
                let bytes = pattern(conn, place as u64).bytes(0, this.size);
                this.region.write(this.out(conn, place as u64), &bytes)?;
            }
            if plan.op.is_atomic() {
                this.region.write(this.arrives(conn, 0), &[0; 8])?;
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
        let start = match self.op {
            Op::Read => self.out(conn, number),
            Op::Cas | Op::Faa => self.arrives(conn, 0),
            // One for each operation in flight.
            _ if self.check => self.arrives(conn, number % self.out as u64),
            _ => self.arrives(conn, 0),
        } as u64;
        theirs.slice(start..start + self.size as u64)
    }

    /// Prepares the place of the operation with this number. The last byte of a write that the peer polls
    /// for is its mark.
    #[inline]
    pub(crate) fn fill(&self, conn: usize, number: u64) -> Result<(), Failure> {
        let start = self.out(conn, number);
        if self.check && !self.op.is_one_sided() {
            let bytes = pattern(conn, number).bytes(0, self.size);
            self.region.write(start, &bytes)?;
        }
        if self.op == Op::Write && !self.bandwidth {
            self.region
                .write(start + self.size - 1, &[mark_of(number)])?;
        }
        Ok(())
    }

    /// Verifies a connection's message with this number, which has arrived in this receive, and makes its
    /// bytes stale. What is written is verified where none can follow it.
    #[inline]
    pub(crate) fn verify_received(
        &self,
        conn: usize,
        number: u64,
        receive: (usize, u64),
    ) -> Result<(), Failure> {
        if !self.check {
            return Ok(());
        }
        match self.op {
            Op::Send => {
                let start = self.arrives(receive.0, receive.1) + self.header;
                let bytes = pattern(conn, number).bytes(0, self.size);
                self.verify(start, self.size, &bytes, conn, number)
            }
            Op::WriteImm if !self.bandwidth => self.verify_written(conn, number),
            _ => Ok(()),
        }
    }

    /// Verifies what the peer's last writes have left, of so many. What completes a receive in a
    /// ping-pong was verified when it came.
    pub(crate) fn verify_left(&self, conn: usize, posted: u64) -> Result<(), Failure> {
        if self.op != Op::Write && !(self.op == Op::WriteImm && self.bandwidth) {
            return Ok(());
        }
        let last = posted.saturating_sub(self.out as u64);
        (last..posted).try_for_each(|number| self.verify_written(conn, number))
    }

    /// Verifies what the write with this number has left.
    fn verify_written(&self, conn: usize, number: u64) -> Result<(), Failure> {
        if !self.check {
            return Ok(());
        }
        let start = self.arrives(conn, number % self.out as u64);
        // The last byte of a polled write is its mark.
        let len = self.size - usize::from(self.op == Op::Write);
        self.verify(
            start,
            len,
            &pattern(conn, number).bytes(0, len),
            conn,
            number,
        )
    }

    /// Verifies what an operation has fetched.
    pub(crate) fn verify_fetched(&self, conn: usize, number: u64) -> Result<(), Failure> {
        if !self.check {
            return Ok(());
        }
        let start = self.fetched(conn, number);
        match self.op {
            Op::Read => {
                let theirs = number % self.out as u64;
                let bytes = pattern(conn, theirs).bytes(0, self.size);
                self.verify(start, self.size, &bytes, conn, number)
            }
            Op::Cas | Op::Faa => self.verify(start, 8, &number.to_ne_bytes(), conn, number),
            _ => Ok(()),
        }
    }

    /// Where an operation puts what it fetches. The peer's counter of atomics is in the first place of
    /// the other part.
    pub(crate) fn fetched(&self, conn: usize, number: u64) -> usize {
        match self.op {
            Op::Read => self.arrives(conn, number % self.out as u64),
            _ => self.out(conn, number),
        }
    }

    fn verify(
        &self,
        start: usize,
        len: usize,
        right: &[u8],
        conn: usize,
        number: u64,
    ) -> Result<(), Failure> {
        let mut came = vec![STALE; len];
        self.region.read(start, &mut came)?;
        examples::check(0, &came, right)
            .context(|| format!("operation {number} of connection {conn} is wrong"))?;
        came.fill(STALE);
        Ok(self.region.write(start, &came)?)
    }

    /// The last byte of the place that the peer writes to.
    #[inline]
    pub(crate) fn last_byte(&self, number: u64) -> Result<u8, Failure> {
        let number = if self.check {
            number % self.out as u64
        } else {
            0
        };
        let mut last = [0];
        let at = self.arrives(0, number) + self.size - 1;
        self.region.read(at, &mut last)?;
        Ok(last[0])
    }
}

/// The last byte of a polled write: never that of the one before, nor a stale one.
pub(crate) const fn mark_of(number: u64) -> u8 {
    (number % 251) as u8
}

fn place(number: u64, places: usize) -> usize {
    usize::try_from(number % places as u64).unwrap_or(0)
}

/// The bytes of the operation with this number.
pub(crate) const fn pattern(conn: usize, number: u64) -> Pattern {
    Pattern::new(number.wrapping_mul(0x10001).wrapping_add(conn as u64))
}
