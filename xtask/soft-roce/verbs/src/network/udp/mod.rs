//! A network over UDP: cards of other processes, of this host and of others.
//!
//! Each card of this process has an address of its own, and a socket that is bound to UDP port 4791 there. Packets to
//! an address that no card of this process has go through it. Those that come are taken by calls that find
//! nothing to do, and by the thread that runs timers, so that peers are served whatever the program does.
//!
//! ```text
//!   calls, timers ──▶ cards ──▶ Outbox ──▶ sendmmsg ─┐
//!                       ▲                            ▼
//!                       └─── Inbox ◀── recvmmsg ── socket ◀──▶ peers
//! ```

mod address;
mod outbox;
mod system;

use std::array;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

pub(super) use address::{Place, VARIABLE};
pub(super) use outbox::Outbox;
use soft_nic::{Profile, Route};

use crate::sockaddr::gid;
pub(super) use system::Incoming;
use system::{BATCH, has_segments, interface_mtu, prepare, receive, wait};

/// While a program polls this often between two looks of the thread, the thread leaves packets to it.
const BUSY: u32 = 16;

/// How long the thread does so before it looks again: as long as a peer's request, or an answer, may wait if the program has
/// just stopped to poll.
const NAP: Duration = Duration::from_micros(200);

/// The kernel's memory for a packet of 4096 bytes that waits in a socket.
const PACKET_MEMORY: usize = 9000;

/// IP's and UDP's headers, and RoCE's with its checksum, beside the payload of a packet.
const HEADERS: u32 = 40 + 8 + 48;

/// The sockets of this process's cards.
pub(super) struct Udp {
    sockets: Arc<[UdpSocket]>,
    /// Whoever has it takes packets.
    inbox: Mutex<Box<[Incoming; BATCH]>>,
    /// Whether there were some the last time, and may be more.
    had_some: AtomicBool,
    /// A byte that goes in at the one wakes the thread, which waits at the other.
    wake: [UnixDatagram; 2],
    /// How often calls of the program have looked for packets since the thread did.
    pub(super) looks: AtomicU32,
}

/// A card's address, and what its interface and socket can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    address: IpAddr,
    mtu: u32,
    /// Bytes that its socket can hold.
    room: usize,
}

impl Udp {
    /// Binds a socket for each card; nothing if the cards are on a network of this process.
    ///
    /// # Errors
    ///
    /// A complaint that says what to do.
    pub(super) fn bind(place: &Place, seed: u64) -> Result<Option<(Self, Vec<Address>)>, String> {
        let bound = place.bind(seed)?;
        if bound.is_empty() {
            return Ok(None);
        }
        let addresses = bound.iter().map(|(address, socket)| Address {
            address: *address,
            mtu: interface_mtu(*address).unwrap_or(u32::MAX),
            room: prepare(socket, address.is_ipv4()),
        });
        let addresses = addresses.collect();
        let wake = wake().map_err(|error| format!("no pair of sockets: {error}"))?;
        let udp = Self {
            sockets: bound.into_iter().map(|(_, socket)| socket).collect(),
            inbox: Mutex::new(Box::new(array::from_fn(|_| Incoming::empty()))),
            had_some: AtomicBool::new(false),
            wake,
            looks: AtomicU32::new(0),
        };
        Ok(Some((udp, addresses)))
    }

    pub(super) fn outbox(&self) -> Outbox {
        let has_segments = self.sockets.iter().all(has_segments);
        Outbox::new(Arc::clone(&self.sockets), has_segments)
    }

    /// Takes messages that have come, at most a batch for each card, and has them delivered: the card, by its place, and
    /// its messages. Returns false if there were none, or if another thread takes them.
    pub(super) fn receive(&self, mut deliver: impl FnMut(usize, &[Incoming])) -> bool {
        let mut inbox = match self.inbox.try_lock() {
            Ok(inbox) => inbox,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut has_some = false;
        let receive = match self.had_some.load(Ordering::Relaxed) {
            true => receive::<BATCH>,
            // Less work where there are most often none.
            false => receive::<1>,
        };
        for (side, socket) in self.sockets.iter().enumerate() {
            let count = receive(socket, &mut inbox[..]);
            if count > 0 {
                has_some = true;
                deliver(side, &inbox[..count]);
            }
        }
        self.had_some.store(has_some, Ordering::Relaxed);
        has_some
    }

    /// Whether the program has looked for packets so often that the thread leaves them to it for now. Looks count on to the
    /// next call if the thread goes on.
    pub(super) fn is_program_busy(&self, goes_on: bool) -> bool {
        let is_busy = self.looks.load(Ordering::Relaxed) >= BUSY;
        if is_busy || !goes_on {
            self.looks.store(0, Ordering::Relaxed);
        }
        is_busy
    }

    /// Waits until a packet has come, the time is over, or somebody [wakes](Self::wake) it.
    pub(super) fn wait(&self, time: Option<Duration>) {
        self.wait_for(self.sockets.iter().map(AsRawFd::as_raw_fd), time);
    }

    /// Waits for a nap, at most for the time, or until somebody [wakes](Self::wake) it.
    pub(super) fn nap(&self, time: Option<Duration>) {
        let time = time.map_or(NAP, |time| time.min(NAP));
        self.wait_for([].into_iter(), Some(time));
    }

    fn wait_for(&self, sockets: impl Iterator<Item = RawFd>, time: Option<Duration>) {
        let [_, wake] = &self.wake;
        wait(sockets.chain([wake.as_raw_fd()]), time);
        while wake.recv(&mut [0]).is_ok() {}
    }

    pub(super) fn wake(&self) {
        // If there is no room, enough are there to wake it.
        let _sent = self.wake[0].send(&[0]);
    }
}

fn wake() -> io::Result<[UnixDatagram; 2]> {
    let (one, other) = UnixDatagram::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok([one, other])
}

impl Address {
    pub(super) fn gid(&self) -> Ipv6Addr {
        gid(self.address)
    }

    /// A number by which devices' GUIDs differ: the last 24 bits.
    pub(super) fn number(&self) -> u64 {
        let [.., a, b, c] = self.gid().octets();
        u32::from_be_bytes([0, a, b, c]).into()
    }

    /// The profile of a card here: packets as the interface takes them, and no more of them unacknowledged than a
    /// socket like this one can hold while its process sleeps.
    pub(super) fn limit(&self, profile: &Profile) -> Profile {
        let payload = self.mtu.saturating_sub(HEADERS).clamp(256, 4096);
        let mtu = 1 << payload.ilog2();
        let packets = u16::try_from(self.room / PACKET_MEMORY / 2).unwrap_or(u16::MAX);
        let packets = packets.clamp(8, profile.max_unacknowledged.max(8));
        Profile {
            max_mtu: profile.max_mtu.min(mtu),
            max_unacknowledged: packets,
            packets_per_ack: profile.packets_per_ack.min(packets / 4),
            ..profile.clone()
        }
    }
}

impl Incoming {
    /// The headers that it came with, as far as a socket shows them.
    pub(super) fn route(&self, to: Ipv6Addr) -> Route {
        Route {
            source_port: self.source_port,
            identification: None,
            ..Route::new(self.source, to)
        }
    }
}
