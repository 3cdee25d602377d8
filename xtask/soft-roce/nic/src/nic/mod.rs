//! The card: packets, the time and events; its verbs are in [objects](objects) and [queue_pairs](queue_pairs),
//! its management datagrams in [management](management).

mod management;
mod objects;
mod queue_pairs;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::address::GidTable;
use crate::card::{Card, Counters, Random};
use crate::completion::CompletionQueueId;
use crate::error::Result;
use crate::event::Event;
use crate::memory::Memory;
use crate::multicast::Groups;
use crate::packet::{Header, MULTICAST_QUEUE_PAIR, Route, Transport, icrc, is_intact};
use crate::pool::Pool;
use crate::profile::Profile;
use crate::queue_pair::QueuePair;

pub use management::ManagementDatagram;

/// The first number of a queue pair; those below are the specification's, and rxe's begin here, too.
const FIRST_QUEUE_PAIR: u32 = 16;

/// A protection domain, by its number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DomainId(pub u32);

/// A RoCE v2 network card with one port. See the [crate's page](crate).
pub struct Nic {
    card: Card,
    queue_pairs: Pool<Box<QueuePair>>,
    /// Management datagrams that have come, and those to be sent.
    management: VecDeque<(Route, ManagementDatagram)>,
    outgoing: VecDeque<(Route, ManagementDatagram)>,
    domains: Pool<()>,
    groups: Groups,
    /// Queue pairs that may have a packet to send.
    ready: VecDeque<u32>,
    /// When to look at which queue pair's timers.
    timers: BinaryHeap<Reverse<(Duration, u32)>>,
    random: Random,
    is_port_up: bool,
}

impl Nic {
    /// A card with limits and manners of `profile`, without GIDs. All that it chooses at random comes from
    /// `seed`: two cards with the same seed, and the same calls, do the same.
    #[must_use]
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self {
            card: Card {
                profile,
                now: Duration::ZERO,
                memory: Memory::new(),
                completion_queues: Pool::new(0),
                shared_receives: Pool::new(0),
                gids: GidTable::default(),
                events: VecDeque::new(),
                counters: Counters::default(),
                reserved_rd_atomic: 0,
            },
            queue_pairs: Pool::new(FIRST_QUEUE_PAIR),
            management: VecDeque::new(),
            outgoing: VecDeque::new(),
            domains: Pool::new(0),
            groups: Groups::default(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            random: Random::new(seed),
            is_port_up: true,
        }
    }

    /// The profile that the card was made with.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.card.profile
    }

    /// Counts of packets so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.card.counters
    }

    /// Entry `index` of the GID table.
    #[must_use]
    pub fn gid(&self, index: u8) -> Option<Ipv6Addr> {
        self.card.gids.get(index)
    }

    /// Sets or clears an entry of the GID table: an address of IPv6, or `::ffff:a.b.c.d` for one of IPv4.
    pub fn set_gid(&mut self, index: u8, gid: Option<Ipv6Addr>) {
        if self.card.gids.get(index) != gid {
            self.card.gids.set(index, gid);
            self.card.events.push_back(Event::GidChange);
        }
    }

    /// Whether the link is up.
    #[must_use]
    pub const fn is_port_up(&self) -> bool {
        self.is_port_up
    }

    /// Sets the link up or down. While it is down, packets in both directions are lost, as on a card; those of
    /// rxe fail at once with `LOC_QP_OP_ERR`.
    pub fn set_port_up(&mut self, is_up: bool) {
        if self.is_port_up != is_up {
            self.is_port_up = is_up;
            self.card.events.push_back(match is_up {
                true => Event::PortActive,
                false => Event::PortError,
            });
        }
    }

    /// Makes the event of a broken device, `DEVICE_FATAL`, as a fault to be tested; all else goes on.
    pub fn break_device(&mut self) {
        self.card.events.push_back(Event::DeviceFatal);
    }

    /// Breaks a queue pair, as a fault to be tested: it goes to ERR with the event `QP_FATAL`.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none with this number.
    pub fn break_queue_pair(&mut self, number: u32) -> Result<()> {
        let found = self.queue_pairs.find_mut(number)?;
        found.break_down(&mut self.card);
        self.wake(number);
        Ok(())
    }

    /// Makes the event of a lost completion, `CQ_ERR`, for each completion queue, as a fault to be tested; none is lost.
    pub fn break_completion_queues(&mut self) {
        let queues = self.card.completion_queues.numbers();
        let events = queues.map(|number| Event::CompletionQueueOverrun(CompletionQueueId(number)));
        events.for_each(|event| self.card.events.push_back(event));
    }

    /// The place of a remote address within the memory that a key is for, so that records of packets do not depend on
    /// where a process has its memory.
    #[must_use]
    pub fn offset(&self, rkey: u32, address: u64) -> Option<u64> {
        self.card.memory.offset(rkey, address)
    }

    /// Takes a packet from the network: the headers that it came with, and all that UDP carried, from the
    /// base transport header to the invariant CRC. Packets that are none, or not for this card, are dropped
    /// and [counted](Counters).
    pub fn receive(&mut self, now: Duration, route: &Route, packet: &[u8]) {
        self.advance_to(now);
        if !self.is_port_up {
            return;
        }
        if !is_intact(route, packet) {
            self.card.counters.damaged += 1;
            return;
        }
        self.deliver(route, packet);
    }

    /// Makes the next packet in `buffer`, from the base transport header to the invariant CRC, and returns
    /// the headers that it travels with; nothing if there is none to be sent now.
    ///
    /// Packets to the card itself are delivered at once, and not returned. Call this until it returns
    /// nothing, after each of the other calls that take an instant, and after posts and changes of queue
    /// pairs.
    pub fn transmit(&mut self, now: Duration, buffer: &mut Vec<u8>) -> Option<Route> {
        self.advance_to(now);
        loop {
            buffer.clear();
            let route = match self.outgoing.pop_front() {
                Some((route, datagram)) => {
                    management::header(&mut self.random).write(datagram.len(), buffer);
                    buffer.extend(datagram);
                    route
                }
                None => {
                    let number = *self.ready.front()?;
                    let found = self.queue_pairs.get_mut(number);
                    let route = found.and_then(|queue_pair| {
                        let route = queue_pair.transmit(&mut self.card, buffer);
                        queue_pair.is_ready = route.is_some();
                        route
                    });
                    match route {
                        // Each queue pair in its turn.
                        Some(_) => self.ready.rotate_left(1),
                        None => drop(self.ready.pop_front()),
                    }
                    self.schedule(number);
                    let Some(route) = route else { continue };
                    route
                }
            };
            let is_own = self.card.gids.contains(route.destination);
            // One to the card itself leaves it for nowhere: its CRC would be seen by nobody.
            let crc = if is_own { 0 } else { icrc(&route, buffer) };
            buffer.extend_from_slice(&crc.to_le_bytes());
            if is_own || route.destination.to_canonical().is_multicast() {
                self.deliver(&route, buffer);
            }
            if !is_own && self.is_port_up {
                return Some(route);
            }
        }
    }

    /// When [`expire`](Self::expire) has to be called, at the latest. It may turn out that nothing was due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Does what is due at this instant: timeouts, the end of waits, flushes that come late.
    pub fn expire(&mut self, now: Duration) {
        self.advance_to(now);
        while let Some(Reverse((at, number))) = self.timers.peek().copied()
            && at <= self.card.now
        {
            self.timers.pop();
            if let Some(queue_pair) = self.queue_pairs.get_mut(number)
                && queue_pair.scheduled == Some(at)
            {
                queue_pair.scheduled = None;
                queue_pair.expire(&mut self.card);
                self.wake(number);
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.card.events.pop_front();
        if let Some(Event::CompletionQueueOverrun(id)) = event
            && let Some(queue) = self.card.completion_queues.get_mut(id.0)
        {
            queue.has_overrun_event = false;
        }
        event
    }

    /// Time does not go back.
    fn advance_to(&mut self, now: Duration) {
        self.card.now = self.card.now.max(now);
    }

    /// Gives a packet that is intact to the queue pairs that it is for.
    fn deliver(&mut self, route: &Route, packet: &[u8]) {
        let parsed = Header::parse(packet).filter(|(header, _)| {
            // 10.9: partitions match in 15 bits.
            header.partition & 0x7fff == 0x7fff
        });
        let Some((header, payload)) = parsed else {
            self.card.counters.malformed += 1;
            return;
        };
        if header.queue_pair == MULTICAST_QUEUE_PAIR && header.transport == Transport::Ud {
            for index in 0.. {
                let Some(number) = self.groups.members(route.destination).get(index).copied()
                else {
                    return;
                };
                self.hand_over(number, route, &header, payload);
            }
        } else if !self.card.gids.contains(route.destination) {
            self.card.counters.malformed += 1;
        } else if header.queue_pair == management::QUEUE_PAIR {
            self.manage(route, &header, payload);
        } else {
            self.hand_over(header.queue_pair, route, &header, payload);
        }
    }

    fn hand_over(&mut self, number: u32, route: &Route, header: &Header, payload: &[u8]) {
        let found = self.queue_pairs.get_mut(number);
        match found.filter(|queue_pair| queue_pair.takes(route, header)) {
            Some(queue_pair) => {
                self.card.counters.received += 1;
                queue_pair.receive(&mut self.card, route, header, payload);
                self.wake(number);
            }
            None => self.card.counters.strange += 1,
        }
    }

    /// Notes that a queue pair may have something to send, and its timers.
    fn wake(&mut self, number: u32) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(number)
            && !std::mem::replace(&mut queue_pair.is_ready, true)
        {
            self.ready.push_back(number);
        }
        self.schedule(number);
    }

    fn schedule(&mut self, number: u32) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(number)
            && let Some(deadline) = queue_pair.deadline()
            && queue_pair
                .scheduled
                .is_none_or(|scheduled| deadline < scheduled)
        {
            queue_pair.scheduled = Some(deadline);
            self.timers.push(Reverse((deadline, number)));
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").finish_non_exhaustive()
    }
}
