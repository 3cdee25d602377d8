//! Memory regions that a peer may access.
#![expect(unsafe_code, reason = "reads and writes memory that a peer writes too")]

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use verbs_sys::ibv_mr;

use super::region::Registration;
use super::window::mw_bind_info;
use super::{AccessFlags, Buffer, RawRegion, RemoteMemoryRegion, SharedElement};
use crate::codes::macros::man;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Rejected, Result};

/// A memory region (MR) that a peer may read, write and use for atomics.
///
/// It owns its buffer. The peer may write at any moment, so there is no `&[u8]` to it: bytes are copied
/// in and out, or accessed as atomics. Leaking the region leaks the buffer too.
///
/// ```no_run
/// use verbs_core::AccessFlags;
///
/// # fn main() -> verbs_core::Result<()> {
/// # let pd = verbs_core::Context::first_active()?.alloc_pd()?;
/// let region = pd.reg_shared(vec![0_u8; 4096], AccessFlags::REMOTE_WRITE)?;
/// let for_the_peer = region.remote().to_bytes();
/// // The peer writes, and sends a message after that. Once the completion of the receive of that
/// // message has been polled, the bytes are here:
/// let mut bytes = [0; 16];
/// region.read(0, &mut bytes)?;
/// # Ok(())
/// # }
/// ```
///
/// # What threads and peers see of each other
///
/// - Any number of threads may [`read`](Self::read), [`write`](Self::write) and use
///   [`atomic_u64`](Self::atomic_u64) at once. A word is 8 bytes at an address divisible by 8. All of
///   these functions access a word as one atomic. Bytes of a word that is only partly in the region
///   are accessed one by one.
/// - A copy consists of such accesses, with relaxed ordering. So threads of this program never see a
///   part of a word's new value, but a copy of several words may mix old and new words.
/// - Bytes that a peer wrote can be read once a completion on the same queue pair has been polled:
///   that of a later message, or of this or a later write with immediate. This always holds, and it
///   is the only order that the verbs promise.
/// - A flag in memory, which a peer writes last and this side loads with
///   [`Acquire`](Ordering::Acquire), does not replace such a completion. It works with devices and
///   hosts that write to memory in order, as most do. It does not work for a region with
///   [`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING): there the flag may arrive before the data, and of two
///   writes to the same bytes that are in flight at once, the older one may win.
///
/// # Cost
///
/// A copy is one load or one store for each word. Where a copy begins or ends within a word,
/// [`write`](Self::write) uses a compare-and-swap of that word, and repeats it if the rest of the word
/// was written to meanwhile. Bytes of words that are only partly in the region, at most 14, are copied
/// one by one.
#[doc = man!("ibv_reg_mr")]
#[doc(alias = "ibv_mr")]
pub struct SharedRegion<B: Buffer + 'static> {
    registration: Registration<B>,
}

impl ProtectionDomain {
    /// Registers a buffer that peers may access as these flags permit.
    ///
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) is always added: remote writes and atomics require it.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr).
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_shared<B: Buffer + 'static>(
        &self,
        buffer: B,
        access: AccessFlags,
    ) -> Result<SharedRegion<B>, Rejected<B>> {
        let registration = Registration::new(self, buffer, access | AccessFlags::LOCAL_WRITE)?;
        Ok(SharedRegion { registration })
    }
}

impl<B: Buffer + 'static> SharedRegion<B> {
    /// The address, length and key that the peer needs to access all of the region.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        let addr = self.as_ptr().expose_provenance() as u64;
        RemoteMemoryRegion::of_memory(addr, self.len() as u64, self.rkey())
    }

    /// Registers the same bytes in another protection domain, of the same device or another one.
    ///
    /// The new region keeps this one, and so the buffer. [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) is always
    /// added.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](ProtectionDomain::reg_mr).
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_on(
        self: &Arc<Self>,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<RawRegion<Arc<Self>>> {
        let (access, keepalive) = (access | AccessFlags::LOCAL_WRITE, Arc::clone(self));
        // SAFETY: `keepalive` keeps the buffer, which is valid for reads and writes, and whose bytes are
        // never borrowed: they are copied, or accessed as atomics, and any bytes are `Plain` items.
        unsafe { pd.register_raw(self.registration.as_ptr(), self.len(), access, keepalive) }
    }

    /// A part of the region for a work request of this side. The range counts bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range ends past the end of the region, [`Error::Limit`] if it
    /// has 4 GiB or more.
    #[doc(alias = "gather_element")]
    #[doc(alias = "scatter_element")]
    pub fn element(&self, range: impl RangeBounds<usize>) -> Result<SharedElement<'_>> {
        let (start, len) = self.registration.part(range)?;
        let addr = start.as_ptr().expose_provenance() as u64;
        Ok(SharedElement::new(addr, len, self.lkey(), self.pd()))
    }

    mw_bind_info!();

    /// Copies bytes out of the region, from `offset` on, until `into` is full.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if they reach past the end of the region; nothing is copied then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let mut at = self.at(offset, into.len())?;
        let mut left = into;
        while let Some(cell) = self.cell(at, left.len()) {
            let (to, rest) = left.split_at_mut(cell.len);
            match cell.memory {
                Memory::Byte(byte) => to.fill(byte.load(Ordering::Relaxed)),
                Memory::Word(word) => {
                    let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                    to.copy_from_slice(&bytes[cell.start..cell.start + cell.len]);
                }
            }
            at = at.wrapping_add(cell.len);
            left = rest;
        }
        Ok(())
    }

    /// Copies the bytes of `from` into the region, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if they reach past the end of the region; nothing is copied then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let mut at = self.at(offset, from.len())?;
        let mut left = from;
        while let Some(cell) = self.cell(at, left.len()) {
            let (from, rest) = left.split_at(cell.len);
            match (cell.memory, from.first_chunk::<WORD>()) {
                (Memory::Byte(byte), _) => byte.store(from[0], Ordering::Relaxed),
                (Memory::Word(word), Some(whole)) => {
                    word.store(u64::from_ne_bytes(*whole), Ordering::Relaxed);
                }
                (Memory::Word(word), None) => {
                    let changed = |word: u64| {
                        let mut bytes = word.to_ne_bytes();
                        bytes[cell.start..cell.start + cell.len].copy_from_slice(from);
                        u64::from_ne_bytes(bytes)
                    };
                    let relaxed = Ordering::Relaxed;
                    let mut before = word.load(relaxed);
                    while let Err(now) =
                        word.compare_exchange_weak(before, changed(before), relaxed, relaxed)
                    {
                        before = now;
                    }
                }
            }
            at = at.wrapping_add(cell.len);
            left = rest;
        }
        Ok(())
    }

    /// The 8 bytes at `offset` as an atomic number, in this machine's byte order.
    ///
    /// It can be the target of a peer's atomics, or a number that the threads of this program share.
    /// If a peer's write sets it as a flag, earlier writes of that peer may not be visible yet, unless
    /// the device writes in order: see [the type](Self#what-threads-and-peers-see-of-each-other).
    ///
    /// [`DeviceAttr::atomic_cap`](crate::device::DeviceAttr::atomic_cap) shows whether the device's atomics
    /// are atomic with respect to this processor's.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the 8 bytes extend past the end of the region, [`Error::Misaligned`]
    /// if their address is not divisible by 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.at(offset, WORD)?;
        if at.align_offset(WORD) != 0 {
            return Err(Error::Misaligned {
                addr: at.expose_provenance() as u64,
                len: WORD as u64,
            });
        }
        // SAFETY: `at` has 8 bytes and is aligned; they are not borrowed otherwise.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// The address of the first byte; the bytes live as long as `self` does.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.registration.as_ptr().as_ptr()
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub const fn len(&self) -> usize {
        self.registration.len()
    }

    /// The key with which this side's work requests name the region.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.registration.lkey()
    }

    /// The key with which the peer's work requests name the region.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.registration.rkey()
    }

    /// The access that it was registered with.
    #[must_use]
    pub const fn access(&self) -> AccessFlags {
        self.registration.access()
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        self.registration.pd()
    }

    /// The `ibv_mr`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_mr_ptr(&self) -> *mut ibv_mr {
        self.registration.mr_ptr()
    }

    /// Deregisters the memory, so that no peer can reach it, and returns the buffer.
    ///
    /// # Errors
    ///
    /// The errno. A peer may still access the buffer, so it is leaked.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(self) -> Result<B> {
        self.registration.dereg()
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        let end = offset.saturating_add(len);
        if end > self.len() {
            return Err(Error::OutOfBounds {
                start: offset as u64,
                end: end as u64,
                len: self.len() as u64,
            });
        }
        Ok(self.as_ptr().wrapping_add(offset))
    }

    /// The memory at `at`, and how many of the next `left` bytes are in it; `None` for none.
    #[inline]
    fn cell(&self, at: *mut u8, left: usize) -> Option<Cell<'_>> {
        if left == 0 {
            return None;
        }
        let Some(start) = place_in_word(self.as_ptr().addr(), self.len(), at.addr()) else {
            // SAFETY: `at` is within the region, which lives as long as this borrow, and its bytes
            // are not borrowed. Every access to this byte is of this size.
            let byte = unsafe { AtomicU8::from_ptr(at) };
            return Some(Cell {
                memory: Memory::Byte(byte),
                start: 0,
                len: 1,
            });
        };
        let word = at.wrapping_sub(start).cast();
        // SAFETY: the word is aligned and within the region; else as above.
        let memory = Memory::Word(unsafe { AtomicU64::from_ptr(word) });
        let len = left.min(WORD - start);
        Some(Cell { memory, start, len })
    }
}

/// A part of a word, or a byte.
struct Cell<'a> {
    memory: Memory<'a>,
    start: usize,
    len: usize,
}

enum Memory<'a> {
    Byte(&'a AtomicU8),
    Word(&'a AtomicU64),
}

/// Where in its aligned word the byte at address `at` is; `None` if that word is not all within the
/// `len` bytes from `first` on, of which the byte is one.
///
/// It depends on nothing else, so a byte is always reached in the same way: atomics of different
/// sizes that meet in the same bytes are undefined.
#[inline]
const fn place_in_word(first: usize, len: usize, at: usize) -> Option<usize> {
    let start = at % WORD;
    let word = at - start;
    // No overflow: memory ends before the last address.
    if word >= first && word + WORD <= first + len {
        Some(start)
    } else {
        None
    }
}

impl<B: Buffer + 'static> fmt::Debug for SharedRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.debug(f, "SharedRegion")
    }
}

const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_reached_through_its_word_where_that_is_within_the_region() {
        for first in 64..64 + WORD {
            for len in 1..4 * WORD {
                let within = first..first + len;
                for at in within.clone() {
                    let mut word = (at / WORD * WORD)..(at / WORD * WORD + WORD);
                    let whole = word.all(|byte| within.contains(&byte));
                    let place = whole.then_some(at % WORD);
                    let found = place_in_word(first, len, at);
                    assert_eq!(found, place, "byte {at} of {within:?}");
                }
            }
        }
    }
}
