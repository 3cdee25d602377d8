//! A libibverbs for tests: each thread has devices of its own, which the test controls.
//!
//! A program that uses this crate has it in place of the real library: the `ibv_*` functions that
//! `verbs-core` calls are defined here, and the linker prefers a program's own functions to a shared
//! library's. So nothing that a test on a real device uses may be in this crate. A verb that is not
//! defined here is the real one, which does not know these objects: mostly, the program crashes.
//!
//! Devices in software (`soft-verbs`) run the device tests, the random programs, and tests of verbs that fail
//! (`verbs-core/tests/simulated`). This library has only what no device can show, or no network can be asked for:
//!
//! | part | what is left, and why |
//! |---|---|
//! | `data` | each request as the driver saw it; completions of any request at any moment, of nobody, or never; a post that fails and may have taken all of its chain |
//! | `memory` | the device reads and writes what is posted whenever a test asks for it, for Miri and the sanitizers |
//! | `limits` | requests beyond the granted limits, which many drivers take, are broken rules |
//! | `objects` | attributes as a verb was given them, the order of the verbs, a verb that blocks until the test lets it go ([`Library::before`]), queue pair numbers that are given again |
//! | `queries` | InfiniBand and iWARP, several ports, and tables of GIDs and P_Keys that change |
//! | `events` | events of every type, and of queues that have just ended |
//! | `datagrams` | paths by LID, and multicast groups that a driver does not leave |
//! | `thread_domains` | a device that gets them while a test runs |
//! | `threads` | one library for each thread, so that tests run beside one another |
//! | `miri` | functions of C's that Miri does not have |
//!
//! A test whose objects go to other threads has them [use its own](lend); or [shares](share) it with
//! threads that it does not start itself. A thread that modifies or destroys a queue pair uses the
//! library of that queue pair from then on.
#![expect(unsafe_code, reason = "stands in for a C library")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]
#![expect(
    missing_debug_implementations,
    clippy::exhaustive_structs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    reason = "for tests, which a panic fails"
)]

mod data;
mod datagrams;
mod events;
mod limits;
mod memory;
#[cfg(miri)]
mod miri;
mod objects;
mod queries;
mod thread_domains;
mod threads;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::codes::Gid;
use verbs_core::verbs_sys::{
    IBV_ATOMIC_HCA, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_MTU_1024, IBV_MTU_4096,
    IBV_PORT_ACTIVE, IBV_TRANSPORT_IWARP, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_cq,
    ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr, ibv_qp_attr, ibv_qp_state,
    ibv_transport_type, ibv_wc,
};
use verbs_core::{
    CompletionQueue, Context, Device, PreparedQueuePair, ProtectionDomain, QueuePair,
};

pub use data::Posted;
pub use events::{announce, announce_last, last_cq, report};
pub use memory::{deliver, forget_requests, in_flight, is_in_flight, is_posted, touch_posted};
pub use threads::{Sharing, lend, share, with};

/// The settings of a thread's library, and the records of its calls.
#[derive(Default)]
pub struct Library {
    /// How many devices there are.
    pub devices: usize,
    /// Whether the devices have thread and parent domains.
    pub thread_domains: bool,
    /// The transport protocol of the devices, if it is not InfiniBand's.
    pub transport: Option<ibv_transport_type>,
    /// Where sysfs is, of which the devices' paths are part.
    pub sysfs: PathBuf,
    /// The node of one of the devices, as an absolute path; the others have nodes that do not exist.
    pub node: Option<(usize, &'static str)>,
    /// The ports that each device has, from 1 on.
    pub ports: Vec<Port>,
    /// The attributes of each device.
    pub attr: ibv_device_attr,
    /// The verbs whose next call fails, and the errno.
    pub refuse: Vec<(&'static str, c_int)>,
    /// The state to which no queue pair can be moved, and the errno of the attempt.
    pub closed_state: Option<(u32, c_int)>,
    /// Where the next post ends: the request's place, what is returned, and whether C names it.
    pub refuse_post: Option<(usize, c_int, bool)>,
    /// The value that the next poll returns instead of a count.
    pub poll_answer: Option<c_int>,
    /// Completions for polls to find.
    pub done: VecDeque<ibv_wc>,
    /// A completion, and the number of polls before the one that finds it.
    pub done_later: Option<(usize, ibv_wc)>,
    /// How long each post takes.
    pub slow_posts: Duration,
    /// Whether the completions of a queue pair that were not polled go with it when it is destroyed, as with mlx5.
    pub cleans_queues: bool,
    /// Whether each signalled request of a send queue has succeeded when it is posted.
    pub completes_sends: bool,
    /// The `wr_id` of a completion that each poll finds.
    pub endless: Option<u64>,
    /// Completions of which each arming of a queue brings one, and its event.
    pub when_armed: VecDeque<ibv_wc>,
    /// The state of every queue pair in the result of a query, whatever it was moved to.
    pub qp_state: Option<ibv_qp_state>,
    /// Called with nothing locked before a queue pair is modified, with the state asked for, or
    /// destroyed, or attached to a multicast group or detached, before memory is registered, before a
    /// device is opened, and before an address handle is made or destroyed: such a call takes as long as this does.
    pub before: Option<Hook>,

    /// Each doorbell's requests.
    pub posted: Vec<Vec<Posted>>,
    /// How many completions each poll had room for.
    pub rooms: Vec<c_int>,
    /// Each arming's `solicited_only`.
    pub armed: Vec<c_int>,
    /// The path of each address handle that was made.
    pub paths: Vec<ibv_ah_attr>,
    /// Each change of a queue pair that was asked for.
    pub modified: Vec<(ibv_qp_attr, u32)>,
    /// The verbs that make or end something, in the order of their calls.
    pub calls: Vec<&'static str>,
    /// Each advice about memory.
    pub advised: Vec<Advice>,
    /// The answer to a query of the order of data, for its flags.
    pub data_in_order: Option<fn(flags: u32) -> c_int>,
    /// Device events that were acknowledged.
    pub async_acks: usize,
    /// The completion queues in the order they were made; events that were taken, and acknowledged.
    counts: Vec<(*mut ibv_cq, u32, u32)>,
    /// Rules of C's that were broken.
    pub wrong: Vec<String>,

    live: Vec<Live>,
    /// The address handles that are alive.
    handles: Vec<usize>,
    /// Each multicast group that a queue pair is attached to.
    pub attached: Vec<(u32, [u8; 16], u16)>,
    regions: Vec<memory::Region>,
    operations: Vec<memory::Operation>,
    limits: Vec<limits::Limits>,
    cq_events: VecDeque<(*mut ibv_comp_channel, *mut ibv_cq)>,
    async_events: VecDeque<ibv_async_event>,
    /// Those of contexts and completion channels.
    descriptors: events::Descriptors,
    numbers: u32,
    /// The numbers that the next queue pairs get.
    pub qp_nums: VecDeque<u32>,
}

/// A port, its GIDs, and its P_Keys.
#[derive(Clone)]
pub struct Port {
    /// The answer to a query of the port.
    pub attr: ibv_port_attr,
    /// Its GID table without the holes.
    pub gids: Vec<ibv_gid_entry>,
    /// Its P_Key table.
    pub pkeys: Vec<u16>,
}

/// An advice about memory, in C's numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    /// The advice and its flags.
    pub advice: (u32, u32),
    /// The elements' addresses, lengths and keys.
    pub list: Vec<(u64, u32, u32)>,
}

/// A function that runs when a verb is called.
pub type Hook = Arc<dyn Fn(&'static str, Option<ibv_qp_state>) + Send + Sync>;

struct Live {
    address: usize,
    verb: &'static str,
    parents: Vec<usize>,
}

// SAFETY: the library uses its pointers as numbers only; the callers access the objects.
unsafe impl Send for Library {}

/// Makes a device one of iWARP, after its queue pairs have been connected as those of other devices.
pub fn make_iwarp(device: &Device) {
    // SAFETY: the device is alive, and this test alone has it.
    unsafe { (*device.as_ptr()).transport_type = IBV_TRANSPORT_IWARP };
}

/// Calls [`Library::before`].
fn before(verb: &'static str, state: Option<ibv_qp_state>) {
    if let Some(hook) = with(|library| library.before.clone()) {
        hook(verb, state);
    }
}

/// The `wr_id`s that were posted, in order.
pub fn posted() -> Vec<u64> {
    with(|library| {
        library
            .posted
            .iter()
            .flatten()
            .map(|posted| posted.wr_id)
            .collect()
    })
}

/// The verbs that this calls, but for the one that frees memory of this process.
pub fn calls_of(run: impl FnOnce()) -> Vec<&'static str> {
    with(|library| library.calls.clear());
    run();
    let mut calls = with(|library| library.calls.clone());
    calls.retain(|verb| *verb != "ibv_free_device_list");
    calls
}

/// Asserts that this calls no verb, polls and arms no queue, and changes no queue pair.
pub fn assert_unused(run: impl FnOnce()) {
    let count = || {
        with(|library| {
            let (polls, changes) = (library.rooms.len(), library.modified.len());
            (polls, changes, library.armed.len())
        })
    };
    let before = count();
    assert_eq!(calls_of(run), [""; 0]);
    assert_eq!(count(), before, "polls, changes and armings");
}

/// Whether there is something that this verb made.
pub fn is_alive(verb: &str) -> bool {
    with(|library| library.live.iter().any(|live| live.verb == verb))
}

/// Whether everything made was ended.
pub fn is_all_ended() -> bool {
    with(|library| library.live.is_empty())
}

/// Asserts that everything made is ended, some of it perhaps by other threads a moment later, in an
/// order that C permits.
pub fn assert_all_is_well() {
    let start = Instant::now();
    while !is_all_ended() && start.elapsed() < LONG {
        thread::yield_now();
    }
    with(|library| {
        let wrong = std::mem::take(&mut library.wrong);
        assert_eq!(wrong, [""; 0]);
        let left: Vec<_> = library.live.iter().map(|live| live.verb).collect();
        assert_eq!(left, [""; 0], "these were made and never ended");
    });
}

/// Only what is never ended takes so long.
const LONG: Duration = Duration::from_secs(20);

impl Library {
    fn new() -> Self {
        Self {
            devices: 2,
            sysfs: "/sys".into(),
            ports: vec![Port::roce(&["fe80::1", "::ffff:10.0.0.1"])],
            attr: ibv_device_attr {
                max_qp_wr: 1000,
                max_sge: 8,
                max_cqe: 4096,
                max_srq: 16,
                max_srq_wr: 1000,
                max_srq_sge: 4,
                max_qp_rd_atom: 16,
                max_qp_init_rd_atom: 8,
                atomic_cap: IBV_ATOMIC_HCA,
                ..Default::default()
            },
            numbers: 0x10,
            ..Self::default()
        }
    }

    /// Records the call of a verb. Returns the errno if the call has to fail.
    fn called(&mut self, verb: &'static str) -> Result<(), c_int> {
        self.calls.push(verb);
        match self.refuse.iter().position(|(refused, _)| *refused == verb) {
            Some(index) => Err(self.refuse.remove(index).1),
            None => Ok(()),
        }
    }

    fn born<T>(&mut self, verb: &'static str, object: *mut T, parents: &[usize]) {
        self.live.push(Live {
            address: object.addr(),
            verb,
            parents: parents.to_vec(),
        });
    }

    /// Ends an object, unless something made from it is alive: that is against C's rules.
    fn ends<T>(&mut self, verb: &'static str, object: *mut T) -> Result<(), c_int> {
        self.called(verb)?;
        let address = object.addr();
        if let Some(child) = self
            .live
            .iter()
            .find(|live| live.parents.contains(&address))
        {
            self.wrong
                .push(format!("{verb} before its child's end, {}", child.verb));
            return Err(libc::EBUSY);
        }
        match self.live.iter().position(|live| live.address == address) {
            Some(index) => {
                self.live.swap_remove(index);
                Ok(())
            }
            None => {
                self.wrong
                    .push(format!("{verb} of something that is not alive"));
                Err(libc::EINVAL)
            }
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }
}

impl Port {
    /// An ACTIVE Ethernet port, with a RoCE v2 GID at each index; `""` is a hole.
    pub fn roce(gids: &[&str]) -> Self {
        let filled = gids.iter().zip(0_u32..).filter(|(gid, _)| !gid.is_empty());
        let gids = filled.map(|(gid, index)| entry(gid, index, 2)).collect();
        Self {
            attr: ibv_port_attr {
                state: IBV_PORT_ACTIVE,
                max_mtu: IBV_MTU_4096,
                active_mtu: IBV_MTU_1024,
                max_msg_sz: 1 << 30,
                gid_tbl_len: 16,
                pkey_tbl_len: 2,
                link_layer: u8::try_from(IBV_LINK_LAYER_ETHERNET).unwrap(),
                ..Default::default()
            },
            gids,
            pkeys: vec![0xffff, 0x8001],
        }
    }

    /// An ACTIVE InfiniBand port.
    pub fn infiniband(lid: u16) -> Self {
        let mut port = Self::roce(&[]);
        port.attr.link_layer = u8::try_from(IBV_LINK_LAYER_INFINIBAND).unwrap();
        port.attr.lid = lid;
        port.attr.active_mtu = IBV_MTU_4096;
        port.gids = vec![entry("fe80::2", 0, 0)];
        port
    }
}

/// An entry of a GID table; `gid_type` is C's number.
pub fn entry(gid: &str, gid_index: u32, gid_type: u32) -> ibv_gid_entry {
    let gid: std::net::Ipv6Addr = gid.parse().unwrap();
    ibv_gid_entry {
        gid: ibv_gid {
            raw: Gid::from(gid).raw(),
        },
        gid_index,
        gid_type,
        ..Default::default()
    }
}

/// A context, its PD, and a completion queue.
pub fn ladder() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = Device::by_name("fake0").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = CompletionQueue::create(&context, 64).unwrap();
    (context, pd, cq)
}

/// A queue pair that is not connected.
pub fn prepared() -> PreparedQueuePair {
    let (_, pd, cq) = ladder();
    QueuePair::builder(&pd, &cq, &cq)
        .max_inline_data(64)
        .max_send_sge(2)
        .max_recv_sge(2)
        .build()
        .unwrap()
}

/// A queue pair that is connected to itself.
pub fn connected() -> QueuePair {
    let prepared = prepared();
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint).unwrap()
}
