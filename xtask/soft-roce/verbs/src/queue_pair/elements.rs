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

/// Elements of a request that need no memory of their own.
const FEW: usize = 8;

/// Calls `call` with the card's form of C's elements.
pub(super) fn with_elements<T>(list: &[ibv_sge], call: impl FnOnce(&[Element]) -> T) -> T {
    if list.len() <= FEW {
        let mut few = [Element::default(); FEW];
        for (to, from) in few.iter_mut().zip(list) {
            *to = element(from);
        }
        call(&few[..list.len()])
    } else {
        let many: Vec<Element> = list.iter().map(element).collect();
        call(&many)
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

/// Calls `call` with the bytes that elements name.
///
/// # Safety
///
/// Each element names bytes that may be read.
pub(super) unsafe fn with_bytes<T>(list: &[ibv_sge], call: impl FnOnce(&[&[u8]]) -> T) -> T {
    let bytes = |sge: &ibv_sge| -> &[u8] {
        let address = ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
        match usize::try_from(sge.length) {
            // SAFETY: the caller has these bytes, which C reads during the post.
            Ok(length) => unsafe { list_of(address, length) },
            Err(_) => &[],
        }
    };
    if let [one] = list {
        return call(&[bytes(one)]);
    }
    let parts: Vec<&[u8]> = list.iter().map(bytes).collect();
    call(&parts)
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
