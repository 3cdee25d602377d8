//! The end of an endpoint: its queue pair, and the buffers that the device may access until then.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use verbs_core::Error;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::{AddressHandle, DatagramEndpoint};
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::MulticastGroup;

use super::handles::Handles;
use crate::buffer::{Leaked, OwnedBuffer};
use crate::engine::Leak;
use crate::panics::log_error;

/// The queue pair of an endpoint that is down, the buffers in flight, and the address handles, from
/// [`DatagramEngine::take_ending`](super::engine::DatagramEngine::take_ending).
///
/// [`destroy`](Self::destroy) ends all of them, and so does dropping it, which logs the error. Either may block
/// in the kernel for a while. No lock is to be held: releasing a block wakes those that wait for it.
#[derive(Debug)]
#[must_use = "its drop destroys the queue pair"]
pub struct DatagramEnding {
    // `None` once it is destroyed.
    held: Option<Held>,
    // Why it could not be destroyed, until that is returned or logged.
    leak: Option<Leak>,
    // No datagrams follow: these handles are dropped together with `self`.
    _handles: Handles,
}

/// A datagram on its way out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) buffer: OwnedBuffer,
    pub(super) handle: Arc<AddressHandle>,
    pub(super) peer: DatagramEndpoint,
}

/// A membership in the group that `endpoint` stands for.
#[cfg(feature = "rdmacm")]
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) number: u64,
    pub(super) endpoint: DatagramEndpoint,
    pub(super) group: MulticastGroup,
}

/// Resources released when the queue pair is destroyed, and not before.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) qp: Arc<DatagramQueuePair>,
    pub(super) sends: Vec<Outgoing>,
    pub(super) receives: Vec<OwnedBuffer>,
    /// To be left: that may block.
    #[cfg(feature = "rdmacm")]
    pub(super) memberships: Vec<Membership>,
}

impl DatagramEnding {
    pub(super) const fn new(held: Held, handles: Handles) -> Self {
        Self {
            held: Some(held),
            leak: None,
            _handles: handles,
        }
    }

    /// Whether somebody else has the queue pair, too.
    pub(super) fn is_in_use(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| Arc::strong_count(&held.qp) > 1)
    }

    /// Destroys the queue pair, and then releases the buffers: the device has no access to them any
    /// more.
    ///
    /// # Errors
    ///
    /// The driver refuses. The buffers are leaked then, and their address handles.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), Leak> {
        drop(self.end());
        self.leak.take().map_or(Ok(()), Err)
    }

    /// Destroys the queue pair, and returns what the device has no access to any more; `None` if that is
    /// leaked, which is to be returned or logged.
    pub(super) fn end(&mut self) -> Option<(Vec<Outgoing>, Vec<OwnedBuffer>)> {
        let Some(Held {
            qp,
            sends,
            receives,
            #[cfg(feature = "rdmacm")]
            memberships,
        }) = self.held.take()
        else {
            return Some((Vec::new(), Vec::new()));
        };
        // Not dropped if closing panics, either.
        let held = ManuallyDrop::new((sends, receives));
        let closed = match Arc::into_inner(qp) {
            Some(qp) => qp.close(),
            // The layer above has it, and this was dropped with the engine.
            None => Err(Error::InUse {
                object: "the queue pair",
            }),
        };
        #[cfg(feature = "rdmacm")]
        drop(memberships);
        match closed {
            Ok(()) => Some(ManuallyDrop::into_inner(held)),
            Err(error) => {
                let (sends, receives) = &*held;
                let buffers = sends.len() + receives.len();
                let kept = sends.iter().map(|sent| &sent.buffer).chain(receives);
                let mut leaked = Leaked::default();
                kept.for_each(|buffer| buffer.announce_leak(&mut leaked));
                leaked.wake();
                self.leak = Some(Leak { buffers, error });
                None
            }
        }
    }
}

impl Drop for DatagramEnding {
    fn drop(&mut self) {
        drop(self.end());
        // In the child of a fork, nothing was to be destroyed.
        let leak = self.leak.take();
        if let Some(leak) = leak.filter(|leak| !matches!(leak.error, Error::OtherProcess { .. })) {
            log_error(format_args!("{leak}"));
        }
    }
}
