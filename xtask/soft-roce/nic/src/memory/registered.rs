//! Registered memory, through the pointers that were registered: the only unsafe code of the crate.
#![expect(
    unsafe_code,
    reason = "reads and writes memory that its owner registered"
)]

use std::ptr;

use super::Fault;

/// Memory that its owner lets the card read and write (the argument of `ibv_reg_mr`).
///
/// A card has the pages of registered memory pinned, so that they stay even if the process unmaps them. This
/// one cannot: it goes through the process's own addresses. Where they may be unmapped while registered, use
/// [`with_copy`](Self::with_copy) and a copy that notices, such as `process_vm_readv`: the operation
/// then fails with a protection error.
#[derive(Debug)]
pub struct Registered {
    base: *mut u8,
    pub(super) length: usize,
    copy: unsafe fn(*mut u8, *const u8, usize) -> bool,
}

impl Registered {
    /// The `length` bytes from `base` on, which stay mapped.
    ///
    /// # Safety
    ///
    /// Until the region that this is registered as has been deregistered, or whatever has this value is dropped:
    ///
    /// - `base` is valid for reads of `length` bytes, and for writes if the region's access allows any;
    /// - nothing holds a reference to bytes that a posted receive, read or atomic may write, or that a peer
    ///   with a key may write or change; nothing writes bytes that a posted request may read.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self {
            base,
            length,
            copy: copy_mapped,
        }
    }

    /// The `length` bytes from `base` on, moved by `copy(to, from, length)` out of them and into them, which returns false
    /// if they could not be, because the registered side is not mapped.
    ///
    /// It is called with the registered memory on one side and the card's own on the other; eight bytes at an
    /// aligned address have to be moved as one.
    ///
    /// # Safety
    ///
    /// The function is safe to call with any range within the `length` bytes on the registered side, and with
    /// memory of the card's on the other. No references are in its way: see [`new`](Self::new).
    #[must_use]
    pub const unsafe fn with_copy(
        base: *mut u8,
        length: usize,
        copy: unsafe fn(*mut u8, *const u8, usize) -> bool,
    ) -> Self {
        Self { base, length, copy }
    }

    /// Copies bytes out of the memory.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        let from = self.at(offset, to.len())?;
        // SAFETY: `at` has checked that the range is within the memory, which by the contract of `new` or
        // `with_copy` may be read by `copy`; `to` is the card's own, and a `&mut`, so nothing else has it.
        let is_mapped = unsafe { (self.copy)(to.as_mut_ptr(), from, to.len()) };
        is_mapped.then_some(()).ok_or(Fault::Unmapped)
    }

    /// Copies bytes into the memory.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let to = self.at(offset, from.len())?;
        // SAFETY: `at` has checked that the range is within the memory, which by the contract of `new` or
        // `with_copy` may be written by `copy`, as the callers write only where the region's access allows it.
        let is_mapped = unsafe { (self.copy)(to, from.as_ptr(), from.len()) };
        is_mapped.then_some(()).ok_or(Fault::Unmapped)
    }

    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, Fault> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.base.wrapping_add(offset)),
            _ => Err(Fault::Denied),
        }
    }
}

// SAFETY: The pointer is only used by the methods above. The contracts of `new` and `with_copy` promise that the
// memory stays valid until it is deregistered, for whichever thread the card is on, and the copy is a function, which
// any thread may call.
unsafe impl Send for Registered {}

// SAFETY: The methods take `&self` but are called by the card only, which is `&mut` for every call that moves
// bytes; the copy is a function, which any thread may call.
unsafe impl Sync for Registered {}

/// Copies bytes that are mapped on both sides. Eight aligned bytes are moved as one, so that a program that
/// polls them sees no half of them.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `length` bytes, and they don't overlap.
unsafe fn copy_mapped(to: *mut u8, from: *const u8, length: usize) -> bool {
    let (to_word, from_word) = (to.cast::<u64>(), from.cast::<u64>());
    if length == 8 && to_word.is_aligned() && from_word.is_aligned() {
        // SAFETY: `from` is valid for reads of eight bytes, as the caller promises, and aligned.
        let word = unsafe { from_word.read_volatile() };
        // SAFETY: `to` is valid for writes of eight bytes, as the caller promises, and aligned.
        unsafe { to_word.write_volatile(word) };
    } else {
        // SAFETY: Both are valid for `length` bytes and don't overlap, as the caller promises.
        unsafe { ptr::copy_nonoverlapping(from, to, length) };
    }
    true
}
