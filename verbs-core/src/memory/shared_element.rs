//! Elements of memory that is never borrowed.
#![expect(unsafe_code, reason = "makes parts of registered memory")]

use std::fmt;
use std::marker::PhantomData;

use verbs_sys::ibv_sge;

use super::element::{Sge, element};
use super::subrange::{Chunks, Part, Sealed};
use crate::domain::ProtectionDomain;
use crate::domain::protection_domain::tag;
use crate::error::{Error, Result};

/// A part of a region whose bytes cannot be borrowed, to send from or receive into.
///
/// It is of a [`SharedRegion`](crate::SharedRegion), a [`RawRegion`](crate::memory::RawRegion) or a
/// [`DmabufRegion`](crate::memory::DmabufRegion).
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
            pd: tag(pd),
            region: PhantomData,
        }
    }

    /// Whether its region belongs to this protection domain, as [`ProtectionDomain::is`] defines
    /// it.
    #[must_use]
    #[inline]
    pub fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.pd == tag(pd)
    }
}

impl From<SharedElement<'_>> for Sge {
    #[inline]
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
    fn parts_know_their_protection_domain() {
        let (head, tail) = element(0x1000).split_at(3).unwrap();
        assert_eq!(
            (head.pd, tail.pd, tail.addr(), tail.length()),
            (1, 1, 0x1003, 5)
        );
        assert!(tail.chunks(2).unwrap().all(|part| part.pd == 1));
    }
}
