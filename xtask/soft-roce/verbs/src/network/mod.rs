//! The network: hosts with cards, the links between them, time, and faults; all of it from one seed.
//!
//! ```text
//!   Fabric ── Host ── Card ◀── ibv_* calls
//!     │                │
//!   Link            State: cards (soft_nic), packets on their way, changes to come, one lock
//!                      │
//!                   Clock: real, or virtual          udp: sockets, for the default network alone
//! ```

mod card;
mod clock;
mod current;
pub(crate) mod descriptors;
mod fabric;
mod faults;
mod hash;
mod host;
mod interpose;
mod leaving;
mod link;
mod notifier;
mod pcap;
pub(crate) mod random;
mod service;
mod settings;
mod signals;
mod state;
#[cfg(test)]
mod tests;
mod udp;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use card::{Card, Locked};
use clock::Clock;
pub use fabric::{Fabric, FaultCounts};
pub use host::Host;
pub use link::Link;
pub use notifier::FabricNotifier;
use notifier::Notifiers;
pub(crate) use service::Attendance;
use service::Service;
use state::State;
use udp::Udp;

use soft_nic::Random;

use crate::later;
use crate::lock::lock;

/// A network, which its hosts and cards share.
struct Network {
    clock: Clock,
    service: Service,
    notifiers: Notifiers,
    /// How many numbers programs have asked the system for.
    numbers: AtomicU64,
    seed: u64,
    udp: Option<Udp>,
    state: Mutex<State>,
}

impl Network {
    /// A network that has other processes' cards, too, if there is UDP.
    fn new(udp: Option<Udp>, clock: Clock, seed: u64) -> Arc<Self> {
        interpose::find_clock();
        let mut state = State::new(seed, clock.is_virtual());
        state.outbox = udp.as_ref().map(Udp::outbox);
        Arc::new(Self {
            clock,
            service: Service::default(),
            notifiers: Notifiers::default(),
            numbers: AtomicU64::new(0),
            seed,
            udp,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Carries packets, runs timers, and delivers events, then unlocks the network.
    fn run(&self, mut state: MutexGuard<'_, State>) {
        let next = state.run(self.clock.now());
        drop(state);
        later::log();
        self.service.sleep_no_longer_than(next, self);
    }

    /// Makes a change now, or when the network has done this number of steps.
    fn change(&self, at_step: Option<u64>, change: impl FnOnce(&mut State) + Send + 'static) {
        let mut state = self.lock();
        match at_step {
            Some(step) if step > state.steps => state.later(step, Box::new(change)),
            _ => {
                change(&mut state);
                self.run(state);
            }
        }
    }

    /// The next number for programs that ask the system for random bytes; nothing if time is real.
    fn random(&self) -> Option<u64> {
        let is_virtual = self.clock.is_virtual();
        let count = || self.numbers.fetch_add(1, Ordering::Relaxed);
        is_virtual.then(|| Random::new(self.seed ^ count().rotate_left(32)).number())
    }

    /// Takes packets of other processes, and returns whether there were any.
    fn receive(&self) -> bool {
        let Some(udp) = &self.udp else { return false };
        udp.receive(|side, packets| {
            let now = self.clock.now();
            let mut state = self.lock();
            // No more than those to one batch wait.
            state.send_answers();
            for packet in packets {
                state.take(side, now, packet);
            }
            self.run(state);
        })
    }

    /// Answers wait for the program's next packet, while this thread naps.
    fn nap(&self, nap: impl FnOnce()) {
        self.lock().answers_wait = true;
        nap();
        let mut state = self.lock();
        state.answers_wait = false;
        state.send_answers();
    }

    /// Moves virtual time, but not beyond `limit`; false if somebody has the network locked.
    fn try_step(&self, limit: Option<Duration>) -> bool {
        let state = self.state.try_lock();
        state.is_ok_and(|mut state| {
            state.step(&self.clock, limit);
            true
        })
    }

    /// Moves virtual time to the next packet or timer, but not beyond `limit`. False if there was none, or if time is
    /// real.
    fn step(&self, limit: Option<Duration>) -> bool {
        let moved = self.clock.is_virtual() && self.lock().step(&self.clock, limit);
        later::log();
        moved
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}
