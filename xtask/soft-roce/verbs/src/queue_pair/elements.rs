//! Scatter/gather elements, and inline bytes.
#![expect(unsafe_code, reason = "C's lists")]

use std::ffi::c_int;
use std::{ptr, slice};

use soft_nic::Element;

use crate::abi::request::ibv_sge;
use crate::errno::Errno;

/// The card's form of C's element.
pub(super) const fn element(sge: &ibv_sge) -> Element {
    Element {
        address: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    }
}

/// The elements of a request.
///
/// # Safety
///
/// `list` has `count` elements, for as long as the answer is used.
pub(super) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'a [ibv_sge], Errno> {
    let count = usize::try_from(count).ok().ok_or(libc::EINVAL)?;
    match count > 0 && list.is_null() {
        true => Err(libc::EINVAL),
        // SAFETY: the caller has this many elements.
        false => Ok(unsafe { list_of(list, count) }),
    }
}

/// The bytes that elements name, if there are no more than `most`.
///
/// # Safety
///
/// Each element names bytes that may be read.
pub(super) unsafe fn inline(list: &[ibv_sge], most: u32) -> Result<Vec<u8>, Errno> {
    let length = list.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    if length > most.into() {
        return Err(libc::EINVAL);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    for sge in list {
        let address = ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
        // SAFETY: the caller has these bytes, which C reads during the post.
        bytes.extend_from_slice(unsafe { list_of::<u8>(address, sge.length as usize) });
    }
    Ok(bytes)
}

/// C's pair of a pointer and a count.
///
/// # Safety
///
/// The pointer has this many elements for as long as the answer is used, if the count is not 0.
pub(super) unsafe fn list_of<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "C's lists are no registered memory"
    )]
    // SAFETY: the caller has this many elements.
    unsafe {
        slice::from_raw_parts(list, count)
    }
}
