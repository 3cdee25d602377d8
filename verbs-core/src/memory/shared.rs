//! Memory regions that a peer may touch.
#![expect(unsafe_code, reason = "reads and writes memory that a peer writes too")]

use std::fmt;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use verbs_sys::ibv_mr;

use super::region::Registration;
use super::{AccessFlags, Buffer, RemoteMemoryRegion, SharedElement};
use crate::macros::man;
use crate::{Error, ProtectionDomain, Refused, Result};

/// A memory region (MR) that a peer may read, write or run atomics on.
///
/// It owns its buffer. Since the peer may write at any moment, no `&[u8]` to it exists: bytes are
/// copied in and out, or reached through atomics. Leaking the region leaks the buffer too.
///
/// What one [`read`](Self::read) or [`write`](Self::write) copies is not one moment of a buffer
/// that the peer writes to meanwhile: agree on a flag or a message first.
#[doc = man!("ibv_reg_mr")]
#[doc(alias = "ibv_mr")]
pub struct SharedRegion<B: Buffer + 'static> {
    registration: Registration<B>,
}

impl ProtectionDomain {
    /// Registers a buffer that peers may reach as `access` says.
    ///
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), which remote writes and atomics require, is
    /// added.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr).
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_shared<B: Buffer + 'static>(
        &self,
        buffer: B,
        access: AccessFlags,
    ) -> Result<SharedRegion<B>, Refused<B>> {
        let registration = Registration::new(self, buffer, access | AccessFlags::LOCAL_WRITE)?;
        Ok(SharedRegion { registration })
    }
}

impl<B: Buffer + 'static> SharedRegion<B> {
    /// What the peer needs to know to reach all of it.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        let addr = self.as_ptr().expose_provenance() as u64;
        RemoteMemoryRegion::of_memory(addr, self.len() as u64, self.rkey())
    }

    /// A part of it for a work request of this side.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] past the end, [`Error::Limit`] from 4 GiB on.
    pub fn element(&self, range: impl RangeBounds<usize>) -> Result<SharedElement<'_>> {
        let (start, len) = self.registration.part(range)?;
        Ok(SharedElement::new(start, len, self.lkey()))
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] past the end; nothing is copied then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let mut at = self.at(offset, into.len())?;
        let (head, rest) = into.split_at_mut(at.align_offset(WORD).min(into.len()));
        let mut words = rest.chunks_exact_mut(WORD);
        for to in head {
            // SAFETY: `at` is within the buffer: as many bytes as `into` has are.
            *to = unsafe { byte(&mut at) }.load(Ordering::Relaxed);
        }
        for to in &mut words {
            // SAFETY: as above, and `head` took what is not aligned.
            let word = unsafe { word(&mut at) }.load(Ordering::Relaxed);
            to.copy_from_slice(&word.to_ne_bytes());
        }
        for to in words.into_remainder() {
            // SAFETY: as for the head.
            *to = unsafe { byte(&mut at) }.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] past the end; nothing is copied then.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let mut at = self.at(offset, from.len())?;
        let (head, rest) = from.split_at(at.align_offset(WORD).min(from.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        for from in head {
            // SAFETY: `at` is within the buffer: as many bytes as `from` has are.
            unsafe { byte(&mut at) }.store(*from, Ordering::Relaxed);
        }
        for from in words {
            // SAFETY: as above, and `head` took what is not aligned.
            unsafe { word(&mut at) }.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        for from in tail {
            // SAFETY: as for the head.
            unsafe { byte(&mut at) }.store(*from, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The 8 bytes at `offset` as an atomic number, in this machine's byte order.
    ///
    /// The target of a peer's atomics, or a flag that its write sets: load it with
    /// [`Acquire`](Ordering::Acquire) and what the peer wrote before is visible after.
    ///
    /// Whether a *local* atomic is atomic towards the card too is told by
    /// [`DeviceAttr::atomic_cap`](crate::DeviceAttr::atomic_cap).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] past the end, [`Error::Misaligned`] if the address is not divisible
    /// by 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.at(offset, WORD)?;
        if at.align_offset(WORD) != 0 {
            return Err(Error::Misaligned {
                addr: at.expose_provenance() as u64,
                len: WORD as u64,
            });
        }
        // SAFETY: `at` has 8 bytes and is aligned; nobody borrows them otherwise.
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

    /// The key that this side's work requests name it by.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.registration.lkey()
    }

    /// The key that the peer's work requests name it by.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.registration.rkey()
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

    /// Takes the right to reach it back from all peers, and gives the buffer back.
    ///
    /// # Errors
    ///
    /// The provider's errno. A peer may still reach the buffer then, so it is leaked.
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
}

impl<B: Buffer + 'static> fmt::Debug for SharedRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.debug(f, "SharedRegion")
    }
}

const WORD: usize = size_of::<u64>();

/// The byte at `at`, which moves on.
///
/// # Safety
///
/// It is within a registered buffer that nobody borrows.
unsafe fn byte<'a>(at: &mut *mut u8) -> &'a AtomicU8 {
    let here = *at;
    *at = here.wrapping_add(1);
    // SAFETY: the caller says so.
    unsafe { AtomicU8::from_ptr(here) }
}

/// The 8 bytes at `at`, which moves on.
///
/// # Safety
///
/// They are within a registered buffer that nobody borrows, and aligned.
unsafe fn word<'a>(at: &mut *mut u8) -> &'a AtomicU64 {
    let here = *at;
    *at = here.wrapping_add(WORD);
    // SAFETY: the caller says so.
    unsafe { AtomicU64::from_ptr(here.cast()) }
}
