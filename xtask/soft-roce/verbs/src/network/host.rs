//! Hosts, which threads enter.
#![expect(
    clippy::must_use_candidate,
    reason = "changes return what they were made on, for the next one"
)]

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::thread::{self, JoinHandle};

use soft_nic::Profile;

use super::card::Hook;
use super::state::{Side, State};
use super::{Card, Network, current, settings};
use crate::device::Device;

/// A host of a [`Fabric`](crate::Fabric): the devices that a thread sees.
///
/// A thread sees the devices of the host that it [entered](Self::enter). Threads that it starts do not; they enter by
/// themselves, or are [spawned](Self::spawn) on a host. A device that was opened stays that host's, whichever thread
/// uses it. Threads that have entered no host see the two devices of the default network.
///
/// Cloning is cheap, and gives the same host.
#[derive(Clone, Debug)]
pub struct Host {
    shared: Arc<Shared>,
    at_step: Option<u64>,
}

pub(super) struct Shared {
    name: String,
    number: usize,
    pub(super) network: Arc<Network>,
    cards: Vec<Arc<Card>>,
}

impl Host {
    /// Adds a host with cards that have these addresses and profiles.
    pub(super) fn add(
        network: &Arc<Network>,
        name: &str,
        number: usize,
        cards: impl IntoIterator<Item = (u64, Vec<Ipv6Addr>, Profile)>,
    ) -> Self {
        let mut state = network.lock();
        let cards = (0..).zip(cards).map(|(index, (device, gids, profile))| {
            let side = state.add(number, &gids, profile);
            Arc::new(Card {
                device: Device::new(&format!("soft{index}"), device),
                network: Arc::clone(network),
                side,
                hook: OnceLock::new(),
                opened: Mutex::default(),
            })
        });
        let shared = Shared {
            name: name.to_owned(),
            number,
            cards: cards.collect(),
            network: Arc::clone(network),
        };
        Self::from(Arc::new(shared))
    }

    /// The host that this thread entered, or else that of the default network.
    #[must_use]
    pub fn current() -> Self {
        static DEFAULT: LazyLock<Host> = LazyLock::new(settings::default_host);
        current::host().map_or_else(|| DEFAULT.clone(), Self::from)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Addresses of card *n* of a network in this process: `fe80::n` and `10.0.0.n`, counted from 1.
    pub(super) fn gids(place: usize) -> Vec<Ipv6Addr> {
        let number = u16::try_from(place + 1).unwrap_or(u16::MAX);
        let [high, low] = number.to_be_bytes();
        vec![
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number),
            Ipv4Addr::new(10, 0, high, low).to_ipv6_mapped(),
        ]
    }

    pub(crate) fn cards(&self) -> &[Arc<Card>] {
        &self.shared.cards
    }

    pub(crate) fn number(&self) -> usize {
        self.shared.number
    }

    /// Runs a function on this host: the devices that it sees are the host's.
    ///
    /// In virtual time, this thread's monotonic clock is the fabric's, and `getrandom` returns bytes from the fabric's
    /// seed; see the [crate's page](crate#time).
    pub fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        let _entered = current::enter(&self.shared);
        run()
    }

    /// Starts a thread on this host.
    pub fn spawn<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let host = self.clone();
        thread::spawn(move || host.enter(run))
    }

    /// The same host, whose changes are made when the fabric has done this number of
    /// [steps](crate::Fabric::steps).
    #[must_use]
    pub fn at_step(&self, step: u64) -> Self {
        Self {
            at_step: Some(step),
            ..self.clone()
        }
    }

    /// Stops the host: it neither takes packets nor sends any, and its timers stand still. Its memory and its
    /// objects stay as they are.
    pub fn stop(&self) -> &Self {
        self.each_card(|side| side.is_stopped = true)
    }

    /// Ends a [stop](Self::stop).
    pub fn resume(&self) -> &Self {
        self.each_card(|side| side.is_stopped = side.faults.is_dead)
    }

    /// Kills the host: peers find nobody there any more. On the host itself, devices are as if they were unplugged: an
    /// event `DEVICE_FATAL`, and from then on only the ends of objects go well; all else is `EIO`.
    ///
    /// [`Fabric::host`](crate::Fabric::host) makes a new host of this name, at the same address.
    pub fn die(&self) -> &Self {
        self.each_card(|side| {
            side.nic.break_device();
            side.faults.is_dead = true;
            side.is_stopped = true;
        })
    }

    /// Has the next call of a verb fail with an errno, such as `("ibv_create_qp", libc::ENOMEM)`. In posts, which are
    /// chains, each request counts as a call.
    pub fn refuse(&self, verb: &'static str, errno: i32) -> &Self {
        self.refuse_after(0, verb, errno)
    }

    /// The same after this number of calls, or requests of posts, that go well.
    pub fn refuse_after(&self, calls: u64, verb: &'static str, errno: i32) -> &Self {
        self.each_card(move |side| side.faults.plan(verb, calls, errno))
    }

    /// Runs a function before each call of a verb that is no post, with its name, on the caller's thread and with
    /// nothing locked: it may block, as drivers do. A host has one such function, the first.
    pub fn before(&self, hook: impl Fn(&'static str) + Send + Sync + 'static) -> &Self {
        let hook: Arc<Hook> = Arc::new(hook);
        for card in self.cards() {
            let _first = card.hook.set(Arc::clone(&hook));
        }
        self
    }

    /// The event `CQ_ERR` for each completion queue, as if a completion had been lost.
    pub fn cq_err(&self) -> &Self {
        self.each_card(|side| side.nic.break_completion_queues())
    }

    /// Moves a queue pair to ERR, with the event `QP_FATAL`.
    pub fn qp_fatal(&self, qp_num: u32) -> &Self {
        self.each_card(move |side| {
            // None of this number is left: its end has come before.
            let _gone = side.nic.break_queue_pair(qp_num);
        })
    }

    /// The event `DEVICE_FATAL`; the device goes on.
    pub fn device_fatal(&self) -> &Self {
        self.each_card(|side| side.nic.break_device())
    }

    /// Gives each identifier of the host's `rdma_cm` an event (`rdma_cm_event_type`) with this status and private data,
    /// in place of the events of its own that no program has taken: as a peer, a network or a kernel does that answers
    /// oddly.
    #[cfg(feature = "rdmacm")]
    pub fn cm_event(&self, event: u32, status: i32, data: &[u8]) -> &Self {
        let (number, data) = (self.shared.number, data.to_vec());
        let change = move |state: &mut State| state.manager.surprise(number, event, status, &data);
        self.shared.network.change(self.at_step, change);
        self
    }

    /// How many identifiers of its `rdma_cm` there are, with those of requests that no program has taken.
    #[cfg(feature = "rdmacm")]
    pub fn cm_ids(&self) -> usize {
        self.shared.network.lock().manager.count(self.number())
    }

    fn each_card(&self, change: impl Fn(&mut Side) + Send + 'static) -> &Self {
        let number = self.shared.number;
        let change = move |state: &mut State| state.cards_of(number).for_each(change);
        self.shared.network.change(self.at_step, change);
        self
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl From<Arc<Shared>> for Host {
    fn from(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            at_step: None,
        }
    }
}
