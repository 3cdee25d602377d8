//! Elements of memory that is never borrowed.
#![expect(unsafe_code, reason = "puts elements side by side for the driver")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use verbs_sys::ibv_sge;

use super::element::{Sge, element};
use super::subrange::{Chunks, Part, Sealed};
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};

/// A part of a region whose bytes cannot be borrowed, to send from or receive into.
///
/// It is of a [`SharedRegion`](crate::SharedRegion), a [`RawRegion`](crate::RawRegion) or a
/// [`DmabufRegion`](crate::DmabufRegion).
///
/// It names its [protection domain](Self::is_of), so that layers above can reject it on queue pairs of
/// another one. So it is longer than an `ibv_sge`, and must be converted to [`Sge`] for a work request of
/// this crate, as in `[first, second].map(Sge::from)`.
#[derive(Clone, Copy)]
#[repr(C)]
#[doc(alias = "ibv_sge")]
pub struct SharedElement<'a> {
    sge: ibv_sge,
    // The tag of the protection domain, which the region keeps. The element borrows the region.
    pd: usize,
    region: PhantomData<&'a ()>,
}

element!(SharedElement['a], "SharedElement", split_at, chunks, region + pd);

impl SharedElement<'_> {
    /// An element for registered bytes that are not borrowed. The caller gives it the lifetime of the
    /// region, which is of this protection domain.
    pub(super) fn new(addr: u64, length: u32, lkey: u32, pd: &ProtectionDomain) -> Self {
        Self {
            sge: ibv_sge { addr, length, lkey },
            pd: pd.tag(),
            region: PhantomData,
        }
    }

    /// Whether its region belongs to this protection domain, as [`ProtectionDomain::is`] defines
    /// it.
    #[must_use]
    #[inline]
    pub fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.pd == pd.tag()
    }

    /// The address, length and key of the elements of a list, side by side for the driver: they
    /// overwrite its start.
    ///
    /// # Safety
    ///
    /// - All elements are [of](Self::is_of) one protection domain.
    /// - Nothing uses the list but [`side_by_side`](Self::side_by_side), until it has been
    ///   [restored](Self::restore) for that domain. Until then it is not squeezed again.
    #[doc(hidden)]
    pub unsafe fn squeeze(list: &mut [Self]) {
        let len = list.len();
        let wide = list.as_mut_ptr();
        let narrow = wide.cast::<ibv_sge>();
        // Forwards: a narrow place ends before the wide ones that are still to be read. The first is
        // where it belongs.
        for index in 1..len {
            // SAFETY: the index is below the length.
            let from = unsafe { wide.add(index) };
            // SAFETY: the element at `index` has not been overwritten, and begins with its `ibv_sge`.
            let sge = unsafe { from.cast::<ibv_sge>().read() };
            // SAFETY: a narrow place is smaller than a wide one, so `index` of them fit into the
            // list.
            let to = unsafe { narrow.add(index) };
            // SAFETY: `to` is within the list, whose alignment suffices for an `ibv_sge`.
            unsafe { to.write(sge) };
        }
    }

    /// A list that has been [squeezed](Self::squeeze), to be posted.
    ///
    /// # Safety
    ///
    /// - It has been, or it has one element at most.
    /// - Only its own elements are written to it, in any order: layers above rely on each being of
    ///   memory that its region keeps.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn side_by_side(list: &mut [Self]) -> &mut [Sge] {
        let len = list.len();
        let first = ptr::from_mut(list).cast::<Sge>();
        // SAFETY: the list begins with `len` narrow elements, each laid out as an `ibv_sge`, and
        // stays borrowed.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(first, len) }
    }

    /// Makes a [squeezed](Self::squeeze) list one of shared elements again.
    ///
    /// # Safety
    ///
    /// - Its elements were of this protection domain.
    /// - It has been squeezed.
    #[doc(hidden)]
    pub unsafe fn restore(list: &mut [Self], pd: &ProtectionDomain) {
        let len = list.len();
        let wide = list.as_mut_ptr();
        let narrow = wide.cast::<ibv_sge>();
        // Backwards, for the same reason.
        for index in (0..len).rev() {
            // SAFETY: the index is below the length.
            let from = unsafe { narrow.add(index) };
            // SAFETY: `squeeze` wrote it, and only places behind it have been written to since.
            let sge = unsafe { from.read() };
            // SAFETY: the index is below the length.
            let to = unsafe { wide.add(index) };
            let element = Self {
                sge,
                pd: pd.tag(),
                region: PhantomData,
            };
            // SAFETY: `to` is within the list, and no narrow element behind it is read any more.
            unsafe { to.write(element) };
        }
    }
}

impl From<SharedElement<'_>> for Sge {
    fn from(element: SharedElement<'_>) -> Self {
        let ibv_sge { addr, length, lkey } = element.sge;
        Self::new(addr, length, lkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(addr: u64) -> SharedElement<'static> {
        let (length, lkey) = (8, 7);
        SharedElement {
            sge: ibv_sge { addr, length, lkey },
            pd: 1,
            region: PhantomData,
        }
    }

    #[test]
    fn squeezed_elements_are_side_by_side() {
        for count in 0..9 {
            let mut list: Vec<_> = (0..count).map(|at| element(0x1000 + at)).collect();
            // SAFETY: the list is not used after this.
            unsafe { SharedElement::squeeze(&mut list) };
            // SAFETY: the list was squeezed.
            let narrow = unsafe { SharedElement::side_by_side(&mut list) };
            let addrs: Vec<_> = narrow.iter().map(Sge::addr).collect();
            assert_eq!(addrs, (0x1000..0x1000 + count).collect::<Vec<_>>());
            assert!(
                narrow
                    .iter()
                    .all(|sge| (sge.length(), sge.lkey()) == (8, 7))
            );
        }
    }

    #[test]
    fn parts_know_their_protection_domain() {
        let (head, tail) = element(0x1000).split_at(3).unwrap();
        assert_eq!(
            (head.pd, tail.pd, tail.addr(), tail.length()),
            (1, 1, 0x1003, 5)
        );
        assert!(tail.chunks(2).unwrap().all(|part| part.pd == 1));
    }
}
