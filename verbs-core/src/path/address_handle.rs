//! Address handles: prepared paths of datagrams.
#![expect(unsafe_code, reason = "owns an `ibv_ah`")]

use std::ptr::{self, NonNull};

use verbs_sys::{ibv_ah, ibv_create_ah, ibv_grh, ibv_init_ah_from_wc};

use super::AhAttr;
use crate::codes::macros::man;
use crate::completion::{Grh, WorkSuccess};
use crate::device::Context;
use crate::domain::ProtectionDomain;
use crate::error::causes::{self, Call};
use crate::error::{Error, GidPath, Result, is_unreachable};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

/// An address handle (AH): the path to a port, for the datagrams to any of its queue pairs.
///
/// Dropping it destroys it. It is needed until each send that was posted with it has completed: many
/// devices look it up when they send, not when the send is posted (see
/// [`DatagramQueuePair::post_send`](crate::datagram::DatagramQueuePair::post_send)).
#[doc = man!("ibv_create_ah")]
#[derive(Debug)]
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    ah: Handle<ibv_ah>,
    attr: AhAttr,
    pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Creates an address handle.
    ///
    /// On RoCE the kernel resolves the GID to a MAC address within this call. If no host answers it
    /// blocks for about a second, so do not call it on an executor's thread with an address that a
    /// peer has sent.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is no path to the GID. It names both ends. [`Error::EmptyGid`] if this side
    /// has no GID at `attr`'s index. [`Error::UnknownPort`] if the device has no such port. Otherwise the errno.
    #[doc = man!("ibv_create_ah")]
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle> {
        let mut raw = *attr.as_raw();
        // SAFETY: the PD is alive, and `raw` is a local.
        let call = || unsafe { ibv_create_ah(self.as_ptr(), &raw mut raw) };
        let ah = ret::non_null("ibv_create_ah", call);
        let ah = ah.map_err(|error| {
            let unknown = self.context().unknown_port(attr.as_raw().port_num);
            unknown.unwrap_or_else(|| explain(error, self.context(), attr))
        })?;
        // SAFETY: the object is new, and the PD is kept next to it.
        let ah = unsafe { Handle::new(ah) };
        Ok(AddressHandle {
            ah,
            attr: *attr,
            pd: self.clone(),
        })
    }
}

impl AddressHandle {
    /// Takes over an address handle that another library made.
    ///
    /// `attr` is the path that it was made from: [`attr`](Self::attr) returns it.
    ///
    /// # Safety
    ///
    /// - `ah` is alive, and belongs to `pd`.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so, it stays alive until
    ///   `destroy` has been called. `destroy` does not panic.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context. `destroy` is dropped then without
    /// having been called.
    pub unsafe fn from_raw(
        ah: NonNull<ibv_ah>,
        attr: &AhAttr,
        pd: &ProtectionDomain,
        destroy: Destroy<ibv_ah>,
    ) -> Result<Self> {
        // SAFETY: the caller has a living handle, whose context is not changed.
        let context = unsafe { (*ah.as_ptr()).context };
        pd.context().must_be(context, "the address handle")?;
        Ok(Self {
            // SAFETY: the caller hands it over, with what destroys it.
            ah: unsafe { Handle::foreign(ah, destroy) },
            attr: *attr,
            pd: pd.clone(),
        })
    }

    /// The path that it was made from: an address vector.
    #[must_use]
    pub const fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The `ibv_ah`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut ibv_ah {
        self.ah.as_ptr()
    }

    /// Destroys the handle and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<()> {
        let Self { ah, pd, .. } = self;
        let closed = ah.close();
        drop(pd);
        closed
    }
}

impl AhAttr {
    /// The path back to the sender of a datagram: from the datagram's completion, and from the
    /// [`Grh::LEN`] bytes before its payload. `port_num` is the port on which it arrived.
    ///
    /// The sender's queue pair is the completion's [`src_qp`](WorkSuccess::src_qp). A datagram does
    /// not carry its sender's key.
    ///
    /// # Errors
    ///
    /// The errno: the header cannot be read, or this side no longer has the GID that the datagram was sent
    /// to.
    #[doc = man!("ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn from_completion(
        context: &Context,
        port_num: u8,
        received: &WorkSuccess,
        header: &[u8; Grh::LEN],
    ) -> Result<Self> {
        const { assert!(size_of::<ibv_grh>() == Grh::LEN) };
        let (mut attr, mut wc) = (Self::default(), received.as_raw());
        let mut header = *header;
        if Grh::begins_late(&header, received.datagram_len()) {
            // libibverbs takes them for an IPv6 header if the device left the checksum of the IPv4 header 0.
            header[..20].fill(0);
        }
        // SAFETY: every bit pattern of the 40 bytes is an `ibv_grh`.
        let mut grh: ibv_grh = unsafe { ptr::read_unaligned(header.as_ptr().cast()) };
        let raw = attr.as_raw_mut();
        // SAFETY: the context is open, and the other three are locals.
        let ret = unsafe {
            ibv_init_ah_from_wc(context.as_ptr(), port_num, &raw mut wc, &raw mut grh, raw)
        };
        ret::minus_one("ibv_init_ah_from_wc", ret).map(|()| attr)
    }
}

/// Names both ends of the path, if that is what is wrong.
fn explain(error: Error, context: &Context, attr: &AhAttr) -> Error {
    let Error::Verb { verb, source } = error else {
        return error;
    };
    let known = |source| {
        let call = Call::Path(Box::new(context.path_facts(attr)));
        causes::explain(Error::Verb { verb, source }, &call)
    };
    match attr.gids() {
        Some((remote, sgid_index)) if is_unreachable(&source) => {
            let local = context.query_gid(attr.as_raw().port_num, sgid_index);
            let path = GidPath {
                local: local.ok().map(|entry| entry.gid()),
                sgid_index,
                remote,
            };
            Error::Unreachable { path, source }
        }
        Some((_, sgid_index)) => {
            match context.query_gid(attr.as_raw().port_num, sgid_index) {
                // Which the kernel calls ENODATA, or EINVAL.
                Err(empty @ Error::EmptyGid { .. }) => empty,
                _ => known(source),
            }
        }
        None => known(source),
    }
}
