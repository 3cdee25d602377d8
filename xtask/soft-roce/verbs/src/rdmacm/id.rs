//! Identifiers and channels as C has them.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::calls::rdma_destroy_event_channel;
use super::events::Arrived;
use super::manager::{Manager, Sink, Space};
use crate::abi::attributes::ibv_qp_init_attr;
use crate::abi::connection::{rdma_cm_id, rdma_event_channel};
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::device::{ibv_close_device, ibv_open_device};
use crate::errno::{Errno, last};
use crate::event::{EventQueue, Unacknowledged};
use crate::network::{Attendance, Card, Host};
use crate::protection_domain::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::sockaddr::Name;

/// C's channel, and its events.
#[repr(C)]
pub(super) struct Channel {
    channel: rdma_event_channel,
    pub(super) events: Arc<EventQueue<Arrived>>,
    pub(super) host: Host,
    /// Contexts of its identifiers: all of them have the same one, also one after another.
    opened: Mutex<Vec<Arc<Opened>>>,
    /// Messages are repeated, and peers answered, while the program sleeps.
    _attendance: Attendance,
}

impl Channel {
    /// # Errors
    ///
    /// `ENODEV` if there is no device, as if the kernel had no connection manager; the errno of a descriptor.
    pub(super) fn create(host: Host) -> Result<*mut rdma_event_channel, Errno> {
        let card = host.cards().first().ok_or(libc::ENODEV)?;
        card.verb("rdma_create_event_channel", |_| Ok(()))?;
        let events = EventQueue::new()?;
        let channel = rdma_event_channel {
            fd: events.descriptor(),
        };
        Ok(Box::into_raw(Box::new(Self {
            channel,
            events: Arc::new(events),
            opened: Mutex::default(),
            _attendance: card.attend(),
            host,
        }))
        .cast())
    }

    /// The channel that a program has as C's.
    ///
    /// # Safety
    ///
    /// It came from `create`, and is alive.
    pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Self {
        // SAFETY: the caller's channel is the beginning of a `Channel`.
        unsafe { &*channel.cast::<Self>() }
    }

    /// Some card of its host, which leads to the network.
    pub(super) fn card(&self) -> &Arc<Card> {
        &self.host.cards()[0]
    }
}

/// C's identifier, and what belongs to it.
#[repr(C)]
pub(super) struct Id {
    cm: UnsafeCell<rdma_cm_id>,
    pub(super) number: u32,
    pub(super) host: Host,
    pub(super) unacknowledged: Arc<Unacknowledged>,
    /// Made without a channel: calls wait for their event.
    pub(super) waits: bool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    opened: Option<Arc<Opened>>,
    /// Groups that were joined, and whether the identifier's queue pair was attached.
    pub(super) memberships: Vec<(IpAddr, bool)>,
    pub(super) announced: Option<UnixDatagram>,
    /// The domain and the queue pairs of the requests that a listener takes.
    pub(super) for_requests: Option<(usize, ibv_qp_init_attr)>,
}

impl Id {
    /// Makes C's form of an endpoint of the manager's, which `number` finds or makes. Without a channel it gets one of
    /// its own, and its calls wait.
    ///
    /// # Safety
    ///
    /// The channel is alive, or null.
    pub(super) unsafe fn create(
        host: Host,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        number: impl FnOnce(&mut Manager, Sink) -> Result<u32, Errno>,
    ) -> Result<*mut rdma_cm_id, Errno> {
        let waits = channel.is_null();
        let channel = match waits {
            true => Channel::create(host.clone())?,
            false => channel,
        };
        // SAFETY: the caller's channel is alive, and this one is new.
        let of = unsafe { Channel::of(channel) };
        let sink = Sink {
            queue: Arc::clone(&of.events),
            unacknowledged: Arc::default(),
        };
        let made = of.card().manage(|manager, _| {
            let number = number(manager, sink)?;
            let endpoint = manager.endpoint(number)?;
            // SAFETY: zeros are valid for numbers, pointers and addresses.
            let mut cm: rdma_cm_id = unsafe { zeroed() };
            (cm.channel, cm.context) = (channel, context);
            (cm.ps, cm.qp_type) = (endpoint.space as u32, endpoint.space.qp_type());
            let made = Box::into_raw(Box::new(Self {
                cm: UnsafeCell::new(cm),
                number,
                host,
                unacknowledged: Arc::clone(&endpoint.sink.unacknowledged),
                waits,
                state: Mutex::default(),
            }));
            endpoint.id = made.expose_provenance();
            Ok(made.cast())
        });
        if waits && made.is_err() {
            // SAFETY: it was made a moment ago, and nobody has it.
            unsafe { rdma_destroy_event_channel(channel) };
        }
        made
    }

    /// The identifier that a program has as C's.
    ///
    /// # Safety
    ///
    /// It came from `create`, and is alive.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a Self {
        // SAFETY: the caller's identifier is the beginning of an `Id`.
        unsafe { &*id.cast::<Self>() }
    }

    pub(super) fn space(&self) -> Space {
        // SAFETY: the field does not change.
        let ps = unsafe { (*self.as_ptr()).ps };
        Space::from_number(ps).unwrap_or(Space::Connections)
    }

    /// C's part of it.
    pub(super) const fn as_ptr(&self) -> *mut rdma_cm_id {
        self.cm.get()
    }

    pub(super) fn card(&self) -> &Arc<Card> {
        &self.host.cards()[0]
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the connection manager, unless a test wants this function of librdmacm to fail.
    pub(super) fn call<T>(
        &self,
        function: &'static str,
        call: impl FnOnce(&mut Manager, Duration) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.card().manage_verb(function, call)
    }

    /// Shows a program the addresses and the device that its endpoint has.
    pub(super) fn refresh(&self) -> Result<(), Errno> {
        let (side, local, remote) = self.card().manage(|manager, _| {
            let endpoint = manager.endpoint(self.number);
            endpoint.map(|it| (it.side, it.local, it.remote))
        })?;
        let id = self.as_ptr();
        if let Some(local) = local {
            // SAFETY: the identifier is alive, and its events are taken by one thread.
            unsafe { (*id).route.source = Name::of(local).0 };
        }
        if let Some(remote) = remote {
            // SAFETY: the identifier is alive, and its events are taken by one thread.
            unsafe { (*id).route.destination = Name::of(remote).0 };
        }
        let Some(side) = side else { return Ok(()) };
        let mut state = self.lock();
        if state.opened.is_some() {
            return Ok(());
        }
        let mut cards = self.host.cards().iter();
        let card = cards.find(|card| card.side == side).ok_or(libc::ENODEV)?;
        let opened = Opened::shared(card)?;
        let (context, pd) = (opened.context, opened.pd);
        // SAFETY: the identifier is alive.
        let channel = unsafe { (*id).channel };
        // SAFETY: the channel of an identifier is alive.
        let channel = unsafe { Channel::of(channel) };
        let kept = channel.opened.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|kept| Arc::ptr_eq(kept, &opened)) {
            kept.push(Arc::clone(&opened));
        }
        drop(kept);
        state.opened = Some(opened);
        drop(state);
        // SAFETY: the identifier is alive, and has had no device.
        unsafe { (*id).verbs = context };
        // SAFETY: the identifier is alive, and has had no device.
        unsafe { (*id).pd = pd };
        // SAFETY: the identifier is alive, and has had no device.
        unsafe { (*id).port_num = 1 };
        Ok(())
    }
}

/// The context of a card that all identifiers of the process have, and its domain.
pub(super) struct Opened {
    pub(super) context: *mut ibv_context,
    pd: *mut ibv_pd,
}

// SAFETY: contexts and domains can be used by any thread.
unsafe impl Send for Opened {}
// SAFETY: contexts and domains can be used by any thread.
unsafe impl Sync for Opened {}

impl Opened {
    pub(super) fn shared(card: &Arc<Card>) -> Result<Arc<Self>, Errno> {
        static ALL: Mutex<Vec<(usize, Weak<Opened>)>> = Mutex::new(Vec::new());
        let all = || ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Arc::as_ptr(card).addr();
        let find = |all: &[(usize, Weak<Self>)]| {
            let mut all = all.iter();
            all.find_map(|(of, opened)| (*of == key).then(|| opened.upgrade())?)
        };
        let found = find(&all());
        if let Some(found) = found {
            return Ok(found);
        }
        // SAFETY: the device is alive, as its card is.
        let context = unsafe { ibv_open_device(Arc::as_ptr(card).cast_mut().cast()) };
        if context.is_null() {
            return Err(last());
        }
        // SAFETY: it was opened a moment ago.
        let pd = unsafe { ibv_alloc_pd(context) };
        let opened = Arc::new(Self { context, pd });
        if pd.is_null() {
            return Err(last());
        }
        let mut all = all();
        // Another thread may have been first.
        if let Some(found) = find(&all) {
            return Ok(found);
        }
        all.retain(|(_, opened)| opened.strong_count() > 0);
        all.push((key, Arc::downgrade(&opened)));
        Ok(opened)
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
