//! Elements as slices.
#![expect(unsafe_code, reason = "turns addresses into slices")]
#![expect(
    clippy::disallowed_methods,
    reason = "where an element becomes a slice"
)]

use std::slice::{from_raw_parts, from_raw_parts_mut};

/// An element's bytes.
///
/// # Safety
///
/// The bytes are initialised, and nothing writes to them, while the slice lives.
pub(super) unsafe fn slice<'a>(start: *const u8, length: u32) -> &'a [u8] {
    // SAFETY: the caller guarantees it; `u32` fits `usize` on 64 bits.
    unsafe { from_raw_parts(start, length as usize) }
}

/// An element's bytes, to write to.
///
/// # Safety
///
/// The bytes are initialised, and nothing else accesses them, while the slice lives.
pub(super) unsafe fn slice_mut<'a>(start: *mut u8, length: u32) -> &'a mut [u8] {
    // SAFETY: the caller guarantees it; `u32` fits `usize` on 64 bits.
    unsafe { from_raw_parts_mut(start, length as usize) }
}
