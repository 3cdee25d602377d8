//! A librdmacm for tests: each thread has one of its own, and the test makes its events.
//!
//! As for `fake-libibverbs`, the linker prefers these functions to the real library's in a program that
//! uses this crate. Nothing happens by itself: [`arrive`] is what a peer, the kernel or a driver does.
//!
//! A test whose objects go to other threads [shares](share) its library with all threads.
#![expect(unsafe_code, reason = "stands in for a C library")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]
#![expect(
    missing_debug_implementations,
    clippy::exhaustive_structs,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "for tests, which a panic fails"
)]

mod calls;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use verbs_sys::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_PS_UDP, RDMA_UDP_QKEY,
    ibv_context, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space, rdma_ud_param,
};

/// The settings of a thread's library, and the records of its calls.
pub struct Manager {
    /// The device that every address is behind.
    pub context: *mut ibv_context,
    /// The functions whose next call fails, and the errno.
    pub refuse: Vec<(&'static str, c_int)>,
    /// How many reads and atomics `rdma_init_qp_attr` has a queue pair serve, and have in flight.
    pub depths: (u8, u8),
    /// Whether an address and a route are found as soon as that is asked for. Addresses are IPv4 then.
    pub resolves: bool,
    /// Whether a group is joined as soon as that is asked for.
    pub joins: bool,
    /// The functions that were called, in order; without those that only take events.
    pub calls: Vec<&'static str>,
    /// Parameters of each `rdma_connect` and `rdma_accept`, without the pointer.
    pub params: Vec<rdma_conn_param>,
    /// Private data of each `rdma_reject`.
    pub rejections: Vec<Vec<u8>>,
    /// The threads that destroyed identifiers.
    pub destroyers: Vec<ThreadId>,

    wrong: Vec<String>,
    channels: Vec<*mut Channel>,
    ids: Vec<*mut Id>,
}

/// An event that arrives.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// Its number.
    pub event: rdma_cm_event_type,
    /// Its status.
    pub status: c_int,
    /// Its private data.
    pub data: &'a [u8],
    /// How many reads and atomics the peer wants to have in flight, and serves.
    pub depths: (u8, u8),
}

/// `rdma_event_channel`, and its events that were not taken.
#[repr(C)]
struct Channel {
    channel: rdma_event_channel,
    events: VecDeque<*mut Event>,
}

/// `rdma_cm_id`, and how many of its events were taken and not acknowledged.
#[repr(C)]
struct Id {
    id: rdma_cm_id,
    unacked: usize,
}

/// `rdma_cm_event`, and its private data.
#[repr(C)]
struct Event {
    event: rdma_cm_event,
    data: Vec<u8>,
}

thread_local! {
    static MANAGER: RefCell<Manager> = const { RefCell::new(Manager::new()) };
}

/// The manager of all threads.
static SHARED: Mutex<Option<Manager>> = Mutex::new(None);

/// Held by a test that shares its library.
static SHARING: Mutex<()> = Mutex::new(());

// SAFETY: its pointers' objects are used under its lock only.
unsafe impl Send for Manager {}

/// All threads use one library, until this is dropped.
pub struct Sharing {
    _turn: MutexGuard<'static, ()>,
}

/// Lets all threads use one library, in one test at a time: for programs of which every test that uses this
/// library does so.
#[must_use]
pub fn share() -> Sharing {
    let turn = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    *shared() = Some(Manager::new());
    Sharing { _turn: turn }
}

impl Drop for Sharing {
    /// Another thread may be the last to drop an object, a moment after the test has ended.
    fn drop(&mut self) {
        let start = Instant::now();
        while alive() > 0 && start.elapsed() < A_MOMENT {
            thread::yield_now();
        }
        *shared() = None;
    }
}

/// How long to wait for objects that a test may have leaked.
const A_MOMENT: Duration = Duration::from_secs(1);

fn shared() -> MutexGuard<'static, Option<Manager>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accesses the library of this thread, or that of all threads.
pub fn with<T>(access: impl FnOnce(&mut Manager) -> T) -> T {
    let mut shared = shared();
    if let Some(manager) = shared.as_mut() {
        return access(manager);
    }
    drop(shared);
    MANAGER.with_borrow_mut(access)
}

impl Arrival<'_> {
    /// Without data.
    #[must_use]
    pub const fn of(event: rdma_cm_event_type, status: c_int) -> Self {
        Self {
            event,
            status,
            data: &[],
            depths: (0, 0),
        }
    }
}

/// An event arrives at the identifier that is alive and was made as the `nth`. A connect request brings a
/// new identifier.
pub fn arrive(nth: usize, arrival: Arrival<'_>) {
    with(|manager| manager.arrive(manager.ids[nth], arrival));
}

/// How many identifiers are alive.
#[must_use]
pub fn alive() -> usize {
    with(|manager| manager.ids.len())
}

/// Asserts that everything made was ended, in an order that C permits.
pub fn assert_all_is_well() {
    with(|manager| {
        assert_eq!(std::mem::take(&mut manager.wrong), [""; 0]);
        let left = (manager.ids.len(), manager.channels.len());
        assert_eq!(left, (0, 0), "identifiers and channels are left");
    });
}

impl Manager {
    const fn new() -> Self {
        Self {
            context: ptr::null_mut(),
            refuse: Vec::new(),
            depths: (4, 4),
            resolves: false,
            joins: false,
            calls: Vec::new(),
            params: Vec::new(),
            rejections: Vec::new(),
            destroyers: Vec::new(),
            wrong: Vec::new(),
            channels: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Records a call. Returns the errno if it has to fail.
    fn called(&mut self, function: &'static str) -> Result<(), c_int> {
        self.calls.push(function);
        self.refused(function)
    }

    fn refused(&mut self, function: &'static str) -> Result<(), c_int> {
        let found = self
            .refuse
            .iter()
            .position(|(refused, _)| *refused == function);
        found.map_or(Ok(()), |index| Err(self.refuse.remove(index).1))
    }

    /// An event arrives at this identifier.
    fn arrive(&mut self, at: *mut Id, arrival: Arrival<'_>) {
        // SAFETY: the identifier is alive, and so is its channel.
        let (channel, ps) = unsafe { ((*at).id.channel.cast::<Channel>(), (*at).id.ps) };
        let of = match arrival.event == RDMA_CM_EVENT_CONNECT_REQUEST {
            true => self.new_id(channel, ps),
            false => at,
        };
        let mut event = Box::new(Event {
            event: rdma_cm_event::default(),
            data: arrival.data.to_vec(),
        });
        event.event.id = of.cast();
        event.event.listen_id = if of == at { ptr::null_mut() } else { at.cast() };
        event.event.event = arrival.event;
        event.event.status = arrival.status;
        let conn = rdma_conn_param {
            private_data: match arrival.data {
                [] => ptr::null(),
                _ => event.data.as_ptr().cast(),
            },
            private_data_len: u8::try_from(arrival.data.len()).unwrap(),
            responder_resources: arrival.depths.0,
            initiator_depth: arrival.depths.1,
            ..Default::default()
        };
        if ps != RDMA_PS_UDP {
            event.event.param.conn = conn;
        } else if arrival.event == RDMA_CM_EVENT_MULTICAST_JOIN {
            event.event.param.ud = rdma_ud_param {
                qp_num: 0xff_ffff,
                qkey: RDMA_UDP_QKEY,
                ..Default::default()
            };
        }
        // SAFETY: the channel is alive.
        unsafe {
            (*channel).events.push_back(Box::into_raw(event));
            calls::signal((*channel).channel.fd);
        }
    }

    fn new_id(&mut self, channel: *mut Channel, ps: rdma_port_space) -> *mut Id {
        let id = Box::into_raw(Box::new(Id {
            id: rdma_cm_id::default(),
            unacked: 0,
        }));
        // SAFETY: the identifier is new.
        unsafe {
            (*id).id.channel = channel.cast();
            (*id).id.ps = ps;
        }
        self.ids.push(id);
        id
    }

    /// Ends an identifier, and its events that were not taken.
    fn end_id(&mut self, id: *mut Id) {
        let Some(index) = self.ids.iter().position(|alive| *alive == id) else {
            return self.wrong.push("destroyed an identifier twice".into());
        };
        self.ids.remove(index);
        // SAFETY: the identifier was alive, and so is its channel, or the test fails below.
        unsafe {
            if (*id).unacked > 0 {
                self.wrong
                    .push("destroyed an identifier with an event that is not acknowledged".into());
            }
            let channel = (*id).id.channel.cast::<Channel>();
            if !self.channels.contains(&channel) {
                return self
                    .wrong
                    .push("destroyed a channel before its identifier".into());
            }
            let is_of = |event: &*mut Event| {
                let rdma_cm_event {
                    id: own, listen_id, ..
                } = (**event).event;
                own == id.cast() || listen_id == id.cast()
            };
            let events = std::mem::take(&mut (*channel).events);
            let (of, others): (VecDeque<_>, VecDeque<_>) = events.into_iter().partition(is_of);
            (*channel).events = others;
            for event in of {
                let event = Box::from_raw(event);
                // A request that was not taken is rejected.
                if event.event.id != id.cast() {
                    self.end_id(event.event.id.cast());
                }
            }
            drop(Box::from_raw(id));
        }
    }
}
