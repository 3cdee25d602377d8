//! Networks that a program makes.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use soft_nic::Profile;

use super::pcap::Pcap;
use super::{Clock, Host, Link, Network, settings};
use crate::lock::lock;

/// A simulated network: hosts, and links between them, in one process.
///
/// Cloning is cheap, and gives the same network.
///
/// # Examples
///
/// A link that is cut ends a send after its retries, which takes half a second of virtual time, and no other:
///
/// ```
/// use soft_verbs::Fabric;
/// use verbs_channel::{Channel, verbs_core::Context};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::seeded(7);
/// let [a, b] = ["a", "b"].map(|name| fabric.host(name));
/// let prepare = || Channel::builder(&Context::first_active()?.alloc_pd()?).build();
/// let (left, right) = (a.enter(prepare)?, b.enter(prepare)?);
/// let (to_left, to_right) = (left.endpoint(), right.endpoint());
/// let (mut left, _right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
/// let hello = left.pd().reg_mr(b"hello".to_vec())?;
/// fabric.link(&a, &b).cut();
/// let message = hello.gather_element(..)?;
/// let sent = a.enter(|| left.send(message));
/// assert!(sent.is_err());
/// assert!(fabric.now().as_millis() > 400);
/// # Ok(())
/// # }
/// ```
///
/// A failure that a seed has found is repeated by it. [`pcap`](Self::pcap) writes its packets to a file; the
/// [`hash`](Self::hash) shows whether two runs were the same.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(super) network: Arc<Network>,
    hosts: Arc<Mutex<Vec<Host>>>,
}

impl Fabric {
    /// A network in virtual time. The same program on one thread, with the same seed, has the same packets and
    /// completions, and the same [hash](Self::hash).
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::new(Clock::virtual_time(), seed)
    }

    /// A network in real time, whose faults come from a seed: for programs of many threads, and for those that measure
    /// time.
    #[must_use]
    pub fn real_time(seed: u64) -> Self {
        Self::new(Clock::real(), seed)
    }

    fn new(clock: Clock, seed: u64) -> Self {
        Self {
            network: Network::new(None, clock, seed),
            hosts: Arc::default(),
        }
    }

    /// The host of this name; it is added if there is none. Its one device is `soft0`, with the limits and manners of
    /// soft-RoCE; the *n*-th host has the GIDs `fe80::n` and `10.0.0.n`.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        self.host_with(name, Profile::default())
    }

    /// The same with the limits and manners of another device; those of a host that there is already stay.
    #[must_use]
    pub fn host_with(&self, name: &str, profile: Profile) -> Host {
        let mut hosts = lock(&self.hosts);
        let place = hosts.iter().position(|host| host.name() == name);
        if let Some(place) = place
            && !hosts[place].cards()[0].is_dead()
        {
            return hosts[place].clone();
        }
        // One that died has the address no more.
        let place = place.unwrap_or(hosts.len());
        let card = (settings::next_device(), Host::gids(place), profile);
        let host = Host::add(&self.network, name, place, [card]);
        match hosts.get_mut(place) {
            Some(old) => *old = host.clone(),
            None => hosts.push(host.clone()),
        }
        host
    }

    /// The link between two hosts, in both directions.
    #[must_use]
    pub fn link(&self, a: &Host, b: &Host) -> Link {
        let (a, b) = (a.number(), b.number());
        Link::new(&self.network, &[(a, b), (b, a)])
    }

    /// The link from one host to another.
    #[must_use]
    pub fn one_way(&self, from: &Host, to: &Host) -> Link {
        Link::new(&self.network, &[(from.number(), to.number())])
    }

    /// Moves virtual time to the next packet that arrives or timer that is due, or by a pause that doubles. Returns
    /// false if there was neither, or if time is real.
    ///
    /// All `ibv_*` calls that find nothing, such as a poll of an empty queue, do a step, too.
    #[expect(
        clippy::must_use_candidate,
        reason = "time has moved, whatever it returns"
    )]
    pub fn step(&self) -> bool {
        let has_moved = self.network.step(None);
        self.network.notifiers.wake();
        has_moved
    }

    /// Lets virtual time pass, with all that happens meanwhile. Real time passes by itself.
    pub fn run_for(&self, time: Duration) {
        let end = self.now() + time;
        while self.network.clock.is_virtual() && self.now() < end {
            self.network.step(Some(end));
            self.network.notifiers.wake();
        }
    }

    /// Steps that have been done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.network.lock().steps
    }

    /// The time since the fabric was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.network.clock.now()
    }

    /// The hash of all packets that were sent, and of all completions that were polled. In place of addresses it has
    /// their distance from the beginning of the region, and neither `wr_id`s nor times; bytes that the program sends
    /// are hashed as they are. It is 0 if time is real.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let state = self.network.lock();
        state.hash.as_ref().map_or(0, |hash| hash.0)
    }

    /// Writes all packets that are sent from now on to a file for Wireshark; those that get lost are in it, too.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub fn pcap(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let pcap = Pcap::create(path.as_ref())?;
        self.network.lock().pcap = Some(pcap);
        Ok(())
    }

    /// How often each fault has happened.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        let state = self.network.lock();
        let refused = state.sides.iter().map(|side| side.faults.fired).sum();
        FaultCounts {
            refused,
            ..state.counts
        }
    }
}

/// How often something has happened on a [`Fabric`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets that cards have sent.
    pub sent: u64,
    /// Packets that a link lost by chance.
    pub lost: u64,
    /// Packets that a link delivered twice.
    pub duplicated: u64,
    /// Packets that a link held back, so that later ones could overtake them.
    pub reordered: u64,
    /// Packets in which a link changed a bit.
    pub corrupted: u64,
    /// Packets lost on a link that was cut.
    pub cut: u64,
    /// Packets lost because a host was stopped or dead.
    pub stopped: u64,
    /// Calls of verbs, and requests of posts, that were refused as asked for.
    pub refused: u64,
}
