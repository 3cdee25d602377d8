//! The common methods of regions that do not own their memory.
#![expect(unsafe_code, reason = "reads the keys of an `ibv_mr`")]

use verbs_sys::ibv_mr;

use super::{DmabufRegion, RawRegion};
use crate::error::Result;
use crate::protection_domain::ProtectionDomain;

macro_rules! unowned {
    ($($region:ident)*) => {$(
        impl $region {
            /// The key by which this side's work requests name the region.
            #[must_use]
            pub fn lkey(&self) -> u32 {
                // SAFETY: the handle keeps the `ibv_mr`, which is not written to after registration.
                unsafe { (*self.mr.as_ptr()).lkey }
            }

            /// The key by which the peer's work requests name the region.
            #[must_use]
            pub fn rkey(&self) -> u32 {
                // SAFETY: as for `lkey`.
                unsafe { (*self.mr.as_ptr()).rkey }
            }

            /// The protection domain it belongs to.
            #[must_use]
            pub const fn pd(&self) -> &ProtectionDomain {
                &self.pd
            }

            /// The `ibv_mr`, for verbs this crate does not wrap. It lives as long as `self` does.
            #[must_use]
            pub const fn as_ptr(&self) -> *mut ibv_mr {
                self.mr.as_ptr()
            }

            /// Deregisters the memory. After `Ok` the device no longer reaches it.
            ///
            /// # Errors
            ///
            /// The errno. The device may reach the memory forever then.
            #[doc(alias = "ibv_dereg_mr")]
            pub fn dereg(self) -> Result<()> {
                let Self { mr, pd, .. } = self;
                let closed = mr.close();
                drop(pd);
                closed
            }
        }
    )*};
}

unowned! { RawRegion DmabufRegion }
