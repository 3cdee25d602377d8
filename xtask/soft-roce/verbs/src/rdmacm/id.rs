//! Identifiers and channels as C has them.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::cell::Cell;
use std::ffi::c_void;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::calls::rdma_destroy_event_channel;
use super::events::Arrived;
use super::manager::{Manager, Sink, Space};
use crate::abi::attributes::ibv_qp_init_attr;
use crate::abi::connection::{rdma_cm_id, rdma_event_channel};
use crate::abi::context::Open;
use crate::device::{ibv_close_device, ibv_open_device};
use crate::errno::{Errno, last};
use crate::event::{EventQueue, Unacknowledged};
use crate::lock::lock;
use crate::network::{Attendance, Card, Host};
use crate::protection_domain::{ProtectionDomain, ibv_alloc_pd, ibv_dealloc_pd};
use crate::queue_pair::QueuePair;
use crate::sockaddr::Name;

/// C's channel, and its events.
#[repr(C)]
pub(super) struct Channel {
    channel: rdma_event_channel,
    pub(super) events: Arc<EventQueue<Arrived>>,
    pub(super) host: Host,
    /// Contexts for its identifiers: all of a card's have the same one, also one after another.
    opened: Vec<Arc<Opened>>,
    /// Messages are repeated, and peers answered, while the program sleeps.
    _attendance: Attendance,
}

impl Channel {
    /// # Errors
    ///
    /// `ENODEV` if there is no device, as if the kernel had no connection manager; the errno of a descriptor.
    pub(super) fn create(host: Host) -> Result<*mut Self, Errno> {
        let card = host.cards().first().ok_or(libc::ENODEV)?;
        card.verb("rdma_create_event_channel", |_| Ok(()))?;
        let opened = host.cards().iter().map(Opened::shared);
        let events = EventQueue::new()?;
        let fd = events.descriptor();
        Ok(Box::into_raw(Box::new(Self {
            channel: rdma_event_channel { fd },
            events: Arc::new(events),
            opened: opened.collect::<Result<_, _>>()?,
            _attendance: card.attend(),
            host,
        })))
    }

    /// Some card of its host, which leads to the network.
    pub(super) fn card(&self) -> &Arc<Card> {
        &self.host.cards()[0]
    }
}

/// C's identifier, and what belongs to it.
#[repr(C)]
pub(super) struct Id {
    pub(super) cm: rdma_cm_id,
    pub(super) number: u32,
    pub(super) space: Space,
    pub(super) host: Host,
    pub(super) unacknowledged: Arc<Unacknowledged>,
    /// Made without a channel: calls wait for their event.
    pub(super) waits: bool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Groups that were joined.
    pub(super) memberships: Vec<IpAddr>,
    pub(super) announced: Option<UnixDatagram>,
    /// The domain and the queue pairs of the requests that a listener takes.
    pub(super) for_requests: Option<(usize, ibv_qp_init_attr)>,
}

impl Id {
    /// Makes C's form of an endpoint of the manager's, which `number` finds or makes. Without a channel it gets one of
    /// its own, and its calls wait.
    pub(super) fn create(
        host: Host,
        channel: Option<&Channel>,
        context: *mut c_void,
        number: impl FnOnce(&mut Manager, Sink) -> Result<u32, Errno>,
    ) -> Result<*mut Self, Errno> {
        let waits = channel.is_none();
        let channel = match channel {
            None => Channel::create(host.clone())?,
            Some(channel) => ptr::from_ref(channel).cast_mut(),
        };
        // SAFETY: the caller's channel is alive, and this one is new.
        let of = unsafe { &*channel };
        let sink = Sink {
            queue: Arc::clone(&of.events),
            unacknowledged: Arc::default(),
        };
        let made = of.card().manage(|manager, _| {
            let number = number(manager, sink)?;
            let endpoint = manager.endpoint(number)?;
            let cm = rdma_cm_id {
                channel: Cell::new(channel.cast()),
                context,
                ps: endpoint.space as u32,
                qp_type: endpoint.space.qp_type(),
                ..rdma_cm_id::default()
            };
            let made = Box::into_raw(Box::new(Self {
                cm,
                number,
                space: endpoint.space,
                host,
                unacknowledged: Arc::clone(&endpoint.sink.unacknowledged),
                waits,
                state: Mutex::default(),
            }));
            endpoint.id = made.expose_provenance();
            Ok(made)
        });
        if waits && made.is_err() {
            // SAFETY: it was made a moment ago, and nobody has it.
            unsafe { rdma_destroy_event_channel(channel) };
        }
        made
    }

    pub(super) fn card(&self) -> &Arc<Card> {
        &self.host.cards()[0]
    }

    pub(super) fn channel(&self) -> &Channel {
        // SAFETY: the channel of an identifier is alive as long as it has it.
        unsafe { &*self.cm.channel.get().cast() }
    }

    /// The identifier's queue pair, if it has one.
    ///
    /// # Safety
    ///
    /// Nobody destroys it while the answer is used.
    pub(super) unsafe fn qp(&self) -> Option<&QueuePair> {
        // SAFETY: the queue pair of an identifier is alive, and the caller promises that it stays so.
        unsafe { self.cm.qp.get().cast::<QueuePair>().as_ref() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Calls the connection manager, unless a test wants this function of librdmacm to fail.
    pub(super) fn call<T>(
        &self,
        function: &'static str,
        call: impl FnOnce(&mut Manager, Duration) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let card = self.card();
        card.verb(function, |locked| call(locked.manager, card.now()))
    }

    /// Shows a program the addresses and the device that its endpoint has.
    pub(super) fn refresh(&self) -> Result<(), Errno> {
        let (side, local, remote) = self.card().manage(|manager, _| {
            let endpoint = manager.endpoint(self.number);
            endpoint.map(|it| (it.side, it.local, it.remote))
        })?;
        let mut route = self.cm.route.get();
        if let Some(local) = local {
            route.source = Name::of(local).0;
        }
        if let Some(remote) = remote {
            route.destination = Name::of(remote).0;
        }
        self.cm.route.set(route);
        let Some(side) = side else { return Ok(()) };
        let mut opened = self.channel().opened.iter();
        let opened = opened.find(|it| it.context.card.side == side);
        let opened = opened.ok_or(libc::ENODEV)?;
        self.cm.verbs.set(opened.context.0);
        if self.cm.pd.get().is_null() {
            self.cm.pd.set(opened.pd.cast());
        }
        self.cm.port_num.set(1);
        Ok(())
    }
}

/// The context of a card that all identifiers of the process have, and its domain.
pub(crate) struct Opened {
    pub(super) context: Open,
    pd: *mut ProtectionDomain,
}

// SAFETY: contexts and domains can be used by any thread.
unsafe impl Send for Opened {}
// SAFETY: contexts and domains can be used by any thread.
unsafe impl Sync for Opened {}

impl Opened {
    pub(super) fn shared(card: &Arc<Card>) -> Result<Arc<Self>, Errno> {
        let known = lock(&card.opened).upgrade();
        if let Some(opened) = known {
            return Ok(opened);
        }
        // SAFETY: the device is alive, as its card is.
        let context = unsafe { ibv_open_device(Arc::as_ptr(card)) };
        if context.0.is_null() {
            return Err(last());
        }
        let pd = ibv_alloc_pd(context);
        let opened = Arc::new(Self { context, pd });
        if pd.is_null() {
            return Err(last());
        }
        let mut known = lock(&card.opened);
        // Another thread may have been first. Then this one closes its own without the lock, as hooks of the program run.
        let first = known.upgrade().unwrap_or_else(|| Arc::clone(&opened));
        *known = Arc::downgrade(&first);
        drop(known);
        Ok(first)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.pd.is_null() {
            // Objects that a program has left on it go with the context.
            // SAFETY: no identifier has it any more.
            let _left = unsafe { ibv_dealloc_pd(self.pd) };
        }
        // SAFETY: no identifier has it any more.
        let _closed = unsafe { ibv_close_device(self.context) };
    }
}

/// Bytes of the caller's.
///
/// # Safety
///
/// There are this many, unless the pointer is null.
pub(super) unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    let mut bytes = vec![0; usize::from(len)];
    // SAFETY: the caller has this many bytes, and the vector is new.
    unsafe { ptr::copy_nonoverlapping(data.cast(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}
