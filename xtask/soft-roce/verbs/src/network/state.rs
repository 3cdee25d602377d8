//! The state of a network under its lock: cards, packets on their way, and changes to come.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use log::Level;
use soft_nic::{Nic, Profile, Random, Route};

use super::clock::Clock;
use super::fabric::FaultCounts;
use super::faults::Faults;
use super::hash::Hash;
use super::link::Direction;
use super::pcap::Pcap;
use super::random::{below, happens};
use super::udp::{Incoming, Outbox};
use super::wire::Wire;
use crate::device::mtu;
use crate::event::Events;
use crate::later;
use crate::rdmacm::Manager;

/// The latency of a link in virtual time, unless it is set.
pub(super) const LATENCY: Duration = Duration::from_micros(1);

/// Virtual time moves by this, and twice as far each time, while there is neither a packet nor a timer.
const PAUSE: Duration = Duration::from_micros(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The memory of this number of packets is kept for others.
const SPARE: usize = 64;

/// A change that waits for its step.
pub(super) type Change = Box<dyn FnOnce(&mut State) + Send>;

/// It has no `HashMap`: the first of a thread decides the order of all, and that comes from the seed on a host only.
pub(super) struct State {
    pub(super) sides: Vec<Side>,
    /// The cards that have addresses, by GID.
    addresses: BTreeMap<Ipv6Addr, usize>,
    /// From one host to another; those that are as they were made are not here.
    pub(super) directions: BTreeMap<(usize, usize), Direction>,
    latency: Duration,
    /// The way to cards of other processes.
    pub(super) outbox: Option<Outbox>,
    /// Whether answers to other processes may wait for the program's next packet: the thread sends them soon.
    pub(super) answers_wait: bool,
    /// Packets on their way, by arrival and order of sending.
    wire: BTreeMap<(Duration, u64), Packet>,
    serial: u64,
    pub(super) random: Random,
    pub(super) steps: u64,
    changes: BTreeMap<u64, Vec<Change>>,
    pause: Duration,
    pub(super) hash: Option<Hash>,
    pub(super) pcap: Option<Pcap>,
    pub(super) counts: FaultCounts,
    packet: Vec<u8>,
    /// Memory of packets that have arrived.
    spare: Vec<Vec<u8>>,
    pub(super) manager: Manager,
}

/// A card, what C gets its events from, and the host that it is in.
pub(super) struct Side {
    pub(super) nic: Nic,
    pub(super) events: Events,
    pub(super) host: usize,
    pub(super) faults: Faults,
    /// Takes and sends nothing.
    pub(super) is_stopped: bool,
    /// Faults of its own wire, for packets that it sends to whomever.
    pub(super) wire: Wire,
}

struct Packet {
    from: usize,
    /// A card of this process, or none.
    to: Option<usize>,
    route: Route,
    bytes: Vec<u8>,
}

impl State {
    pub(super) fn new(seed: u64, is_virtual: bool) -> Self {
        Self {
            sides: Vec::new(),
            addresses: BTreeMap::new(),
            directions: BTreeMap::new(),
            latency: if is_virtual { LATENCY } else { Duration::ZERO },
            outbox: None,
            answers_wait: false,
            wire: BTreeMap::new(),
            serial: 0,
            random: Random::new(seed),
            steps: 0,
            changes: BTreeMap::new(),
            pause: PAUSE,
            hash: is_virtual.then(|| Hash::new(seed)),
            pcap: None,
            counts: FaultCounts::default(),
            packet: Vec::new(),
            spare: Vec::new(),
            manager: Manager::new(!seed),
        }
    }

    /// Adds a card with these addresses to a host.
    pub(super) fn add(&mut self, host: usize, gids: &[Ipv6Addr], profile: Profile) -> usize {
        let number = u8::try_from(mtu(profile.max_mtu));
        self.manager.add(host, gids, number.unwrap_or(u8::MAX));
        let mut nic = Nic::new(profile, self.random.number());
        let side = self.sides.len();
        for (index, gid) in (0..).zip(gids.iter().copied()) {
            nic.set_gid(index, Some(gid));
            self.addresses.insert(gid, side);
        }
        while nic.poll_event().is_some() {}
        self.sides.push(Side {
            nic,
            events: Events::default(),
            host,
            faults: Faults::default(),
            is_stopped: false,
            wire: Wire::default(),
        });
        side
    }

    pub(super) fn cards_of(&mut self, host: usize) -> impl Iterator<Item = &mut Side> {
        self.sides.iter_mut().filter(move |side| side.host == host)
    }

    /// Keeps a change until this many steps have been done.
    pub(super) fn later(&mut self, step: u64, change: Change) {
        self.changes.entry(step).or_default().push(change);
    }

    /// Carries packets, runs timers, and delivers events, until there is nothing to do at this moment. Returns when
    /// there will be.
    pub(super) fn run(&mut self, now: Duration) -> Option<Duration> {
        for side in self.sides.iter_mut().filter(|side| !side.is_stopped) {
            if side.nic.next_timer().is_some_and(|at| at <= now) {
                side.nic.expire(now);
            }
        }
        self.manager.expire(now);
        self.hand_over();
        let waiting = self.outbox.as_ref().map_or(0, Outbox::len);
        (0..self.sides.len()).for_each(|side| self.send(side, now));
        while let Some(to) = self.arrive(now) {
            // A card sends its answers before it takes the next packet.
            self.send(to, now);
        }
        if !self.answers_wait || self.outbox.as_ref().map_or(0, Outbox::len) != waiting {
            self.send_answers();
        }
        for side in &mut self.sides {
            while let Some(event) = side.nic.poll_event() {
                side.events.deliver(event);
            }
        }
        self.next()
    }

    /// Sends what waits for the program's next packet.
    pub(super) fn send_answers(&mut self) {
        if let Some(outbox) = &mut self.outbox {
            outbox.flush();
        }
    }

    /// Moves virtual time to the next packet or timer; if there is none before `limit`, by a pause, or to `limit`.
    pub(super) fn step(&mut self, clock: &Clock, limit: Option<Duration>) -> bool {
        self.steps += 1;
        while let Some(due) = self.changes.first_entry()
            && *due.key() <= self.steps
        {
            for change in due.remove() {
                change(self);
            }
        }
        let is_early = |at: &Duration| limit.is_none_or(|limit| *at <= limit);
        let next = self.next().filter(is_early);
        if let Some(at) = next {
            self.pause = PAUSE;
            clock.advance_to(at);
        } else {
            let later = clock.now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            clock.advance_to(limit.unwrap_or(later));
        }
        self.run(clock.now());
        next.is_some()
    }

    /// When there will be something to do.
    fn next(&self) -> Option<Duration> {
        let running = self.sides.iter().filter(|side| !side.is_stopped);
        let timers = running.filter_map(|side| side.nic.next_timer());
        let packet = self.wire.first_key_value().map(|((at, _), _)| *at);
        let manager = self.manager.earliest;
        timers.chain(packet).chain(manager).min()
    }

    /// Sends all packets that a card has.
    fn send(&mut self, from: usize, now: Duration) {
        let mut packet = std::mem::take(&mut self.packet);
        loop {
            while let Some(route) = self.sides[from].nic.transmit(now, &mut packet) {
                self.sent(from, now, &route, &mut packet);
            }
            let Some((route, datagram)) = self.sides[from].nic.poll_management() else {
                break;
            };
            self.manager.receive(from, now, &route, datagram);
            self.hand_over();
        }
        self.packet = packet;
    }

    /// Gives cards what the connection manager sends.
    fn hand_over(&mut self) {
        for (side, route, datagram) in self.manager.outgoing.drain(..) {
            self.sides[side].nic.send_management(route, datagram);
        }
    }

    fn sent(&mut self, from: usize, now: Duration, route: &Route, packet: &mut [u8]) {
        self.counts.sent += 1;
        let to = self.addresses.get(&route.destination).copied();
        if let Some(hash) = &mut self.hash {
            hash.packet(route, packet, to.map(|to| &self.sides[to].nic));
        }
        if let Some(pcap) = &mut self.pcap
            && let Err(error) = pcap.write(now, route, packet)
        {
            later::line(
                Level::Error,
                format_args!("no more packets are written to the file: {error}"),
            );
            self.pcap = None;
        }
        if self.sides[from].is_stopped {
            self.counts.stopped += 1;
            return;
        }
        let is_group = route.destination.to_canonical().is_multicast();
        if to.is_some() || self.outbox.is_some() && !is_group {
            self.carry(from, to, now, route, packet);
        } else {
            // A card drops what is for a group that it is not in.
            for to in (0..self.sides.len()).filter(|to| *to != from) {
                self.carry(from, Some(to), now, route, packet);
            }
        }
    }

    /// Gives a card packets that have come from another process.
    pub(super) fn take(&mut self, to: usize, now: Duration, message: &Incoming) {
        let Some(gid) = self.sides[to].nic.gid(0) else {
            return;
        };
        for packet in message.packets() {
            let route = message.route(gid);
            self.sides[to].nic.receive(now, &route, packet);
            // It sends its answers before it takes the next packet.
            self.send(to, now);
        }
    }

    /// Puts a packet on the link between two cards, or on the way to another process.
    fn carry(
        &mut self,
        from: usize,
        to: Option<usize>,
        now: Duration,
        route: &Route,
        packet: &mut [u8],
    ) {
        let side = &self.sides[from];
        let direction = match side.wire.direction {
            Some(direction) => direction,
            None => {
                let end = to.map(|to| (side.host, self.sides[to].host));
                let set = end.and_then(|ends| self.directions.get(&ends));
                match (set, &mut self.outbox, to) {
                    (Some(direction), ..) => *direction,
                    (None, Some(outbox), None) => {
                        return outbox.push(from, route.destination, packet);
                    }
                    _ => return self.put(now + self.latency, from, to, route, packet),
                }
            }
        };
        let latency = direction.delay.unwrap_or(self.latency);
        let before = self.counts;
        if direction.is_cut {
            self.counts.cut += 1;
        } else if happens(&mut self.random, direction.loss) {
            self.counts.lost += 1;
        } else {
            let mut at = self.sides[from].wire.after(now, packet.len()) + latency;
            if happens(&mut self.random, direction.duplication) {
                self.counts.duplicated += 1;
                self.put(at, from, to, route, packet);
                at += self.detour(latency);
            }
            if happens(&mut self.random, direction.reordering) {
                self.counts.reordered += 1;
                at += self.detour(latency);
            }
            let mut spoilt = None;
            if happens(&mut self.random, direction.corruption) {
                self.counts.corrupted += 1;
                let (at, bit) = (
                    below(&mut self.random, packet.len()),
                    below(&mut self.random, 8),
                );
                packet[at] ^= 1 << bit;
                spoilt = Some((at, bit));
            }
            self.put(at, from, to, route, packet);
            // Others may get it, too.
            if let Some((at, bit)) = spoilt {
                packet[at] ^= 1 << bit;
            }
        }
        self.sides[from].wire.disturbed += u64::from(self.counts != before);
    }

    /// Time for some other packets to overtake one.
    fn detour(&mut self, latency: Duration) -> Duration {
        let times = u32::try_from(1 + below(&mut self.random, 16)).unwrap_or(1);
        latency.max(LATENCY) * times
    }

    fn put(&mut self, at: Duration, from: usize, to: Option<usize>, route: &Route, packet: &[u8]) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        self.serial += 1;
        let packet = Packet {
            from,
            to,
            route: *route,
            bytes,
        };
        self.wire.insert((at, self.serial), packet);
    }

    /// Delivers the next packet whose time has come, and returns the card that may have to answer.
    fn arrive(&mut self, now: Duration) -> Option<usize> {
        let first = self
            .wire
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        let Packet {
            from,
            to,
            route,
            bytes,
        } = first.remove();
        match (to, &mut self.outbox) {
            (Some(to), _) if self.sides[to].is_stopped => self.counts.stopped += 1,
            (Some(to), _) => self.sides[to].nic.receive(now, &route, &bytes),
            (None, Some(outbox)) => outbox.push(from, route.destination, &bytes),
            (None, None) => {}
        }
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
        Some(to.unwrap_or(from))
    }
}
