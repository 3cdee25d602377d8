//! Regions over memory that Rust does not manage, and what keeps that memory alive.
#![expect(unsafe_code, reason = "owns an `ibv_mr` and what keeps its memory")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;

use verbs_sys::ibv_mr;

use super::debug_regions::Known;
use super::range::part;
use super::window::mw_bind_info;
use super::{AccessFlags, RemoteMemoryRegion, Sge, SharedElement};
use crate::domain::ProtectionDomain;
use crate::error::{Error, ErrorChain, Result};
use crate::ffi::handle::Handle;
use crate::ffi::log;

/// A registration, which ends before its keepalive is dropped.
pub(super) struct Unowned<K> {
    mr: ManuallyDrop<Handle<ibv_mr>>,
    keepalive: ManuallyDrop<K>,
    // The address of the first byte in work requests.
    pub(super) addr: u64,
    len: usize,
    // Copies, so that making an element reads no memory of the driver's.
    lkey: u32,
    rkey: u32,
    access: AccessFlags,
    known: Known,
    pd: ProtectionDomain,
}

impl<K> Unowned<K> {
    /// The registration of `len` bytes, whose addresses do not wrap.
    pub(super) fn new(
        mr: Handle<ibv_mr>,
        addr: u64,
        len: usize,
        access: AccessFlags,
        pd: &ProtectionDomain,
        keepalive: K,
    ) -> Self {
        // SAFETY: the handle keeps the `ibv_mr`.
        let ibv_mr { lkey, rkey, .. } = unsafe { &*mr.as_ptr() };
        Self {
            lkey: *lkey,
            rkey: *rkey,
            access,
            known: Known::new(pd, *lkey, addr, len),
            mr: ManuallyDrop::new(mr),
            keepalive: ManuallyDrop::new(keepalive),
            addr,
            len,
            pd: pd.clone(),
        }
    }

    fn part(&self, range: impl RangeBounds<usize>) -> Result<(u64, u32)> {
        let (start, len) = part(self.len, range)?;
        Ok((self.addr + start as u64, len))
    }

    fn dereg(self) -> Result<K> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so neither is its `mr`.
        let mr = unsafe { ManuallyDrop::take(&mut this.mr) };
        // SAFETY: `this` is `ManuallyDrop`: its `pd` is neither used nor dropped after this read.
        let pd = unsafe { std::ptr::read(&raw const this.pd) };
        // SAFETY: `this` is `ManuallyDrop`: its `known` is neither used nor dropped after this
        // read.
        let known = unsafe { std::ptr::read(&raw const this.known) };
        let closed = pd.context().unless_removed(mr.close());
        drop((known, pd));
        closed?;
        // SAFETY: `this` is neither used nor dropped after this.
        Ok(unsafe { ManuallyDrop::take(&mut this.keepalive) })
    }
}

impl<K> Drop for Unowned<K> {
    fn drop(&mut self) {
        // SAFETY: `self.mr` is not used again; `dereg` does not come here.
        let mr = unsafe { ManuallyDrop::take(&mut self.mr) };
        match self.pd.context().unless_removed(mr.close()) {
            // SAFETY: the keepalive is not used again, and nothing reaches the bytes any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.keepalive) },
            // The keepalive is the parent's, too.
            Err(Error::OtherProcess { .. }) => {}
            Err(error) => {
                let len = self.len;
                let error = ErrorChain::new(&error);
                log::error(format_args!(
                    "leaked a memory region and what keeps its {len} bytes, which the device may still reach: {error}"
                ));
            }
        }
    }
}

macro_rules! unowned {
    ($($region:ident $name:literal)*) => {$(
        impl<K> super::$region<K> {
            /// A part of the region for a work request. The range counts bytes.
            ///
            /// It is like an element of a [`SharedRegion`](crate::SharedRegion): its bytes cannot be
            /// borrowed, and safe layers do not send them inline.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the range ends after the region,
            /// [`Error::Limit`](crate::Error::Limit) if it has 4 GiB or more.
            pub fn element(&self, range: impl RangeBounds<usize>) -> Result<SharedElement<'_>> {
                let (addr, len) = self.registration.part(range)?;
                let Unowned { lkey, pd, .. } = &self.registration;
                Ok(SharedElement::new(addr, len, *lkey, pd))
            }

            mw_bind_info!();

            /// [`element`](Self::element) without a borrow: nothing checks that the region still
            /// exists when it is posted.
            ///
            /// # Errors
            ///
            /// As [`element`](Self::element).
            pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
                self.element(range).map(Sge::from)
            }

            /// The address, length and key that a peer needs to access all of the region.
            #[must_use]
            pub const fn remote(&self) -> RemoteMemoryRegion {
                let Unowned { addr, len, rkey, .. } = self.registration;
                RemoteMemoryRegion::of_memory(addr, len as u64, rkey)
            }

            /// The length in bytes.
            #[must_use]
            #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
            pub const fn len(&self) -> usize {
                self.registration.len
            }

            /// The keepalive, which keeps the memory.
            #[must_use]
            pub fn keepalive(&self) -> &K {
                &self.registration.keepalive
            }

            /// The key by which this side's work requests name the region.
            #[must_use]
            pub const fn lkey(&self) -> u32 {
                self.registration.lkey
            }

            /// The key by which the peer's work requests name the region.
            #[must_use]
            pub const fn rkey(&self) -> u32 {
                self.registration.rkey
            }

            /// The access that it was registered with; empty if another library registered it.
            #[must_use]
            pub const fn access(&self) -> AccessFlags {
                self.registration.access
            }

            /// The protection domain it belongs to.
            #[must_use]
            pub const fn pd(&self) -> &ProtectionDomain {
                &self.registration.pd
            }

            /// The `ibv_mr`, for verbs this crate does not wrap. It lives as long as `self` does.
            #[must_use]
            pub fn as_mr_ptr(&self) -> *mut ibv_mr {
                self.registration.mr.as_ptr()
            }

            /// Deregisters the memory, and returns the keepalive: the device no longer reaches it.
            ///
            /// # Errors
            ///
            /// The errno. The device may reach the memory forever then, so the keepalive is
            /// leaked.
            #[doc(alias = "ibv_dereg_mr")]
            pub fn dereg(self) -> Result<K> {
                self.registration.dereg()
            }
        }

        impl<K> fmt::Debug for super::$region<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Unowned { addr, len, lkey, rkey, .. } = &self.registration;
                f.debug_struct($name)
                    .field("addr", &format_args!("{addr:#x}"))
                    .field("length", len)
                    .field("lkey", &format_args!("{lkey:#x}"))
                    .field("rkey", &format_args!("{rkey:#x}"))
                    .finish()
            }
        }
    )*};
}

unowned! { RawRegion "RawRegion" DmabufRegion "DmabufRegion" }
