//! Cards as the C layer has them: each call locks the network, and carries packets before it unlocks it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use soft_nic::{Completion, CompletionQueueId, Nic};

use super::faults::Faults;
use super::hash::Hash;
use super::{Attendance, Network, Service};
use crate::device::Device;
use crate::errno::Errno;
use crate::event::Events;
use crate::rdmacm::{Manager, Opened};

/// A card of a host. C's `ibv_device` is at its beginning.
#[repr(C)]
pub(crate) struct Card {
    pub(crate) device: Device,
    pub(super) network: Arc<Network>,
    /// Its place among the cards of its network.
    pub(crate) side: usize,
    pub(super) hook: OnceLock<Arc<Hook>>,
    /// The context and domain that identifiers of librdmacm share.
    pub(crate) opened: Mutex<Weak<Opened>>,
}

/// A function of a test's that runs before each call of a verb.
pub(super) type Hook = dyn Fn(&'static str) + Send + Sync;

/// A card with its network locked.
pub(crate) struct Locked<'a> {
    pub(crate) nic: &'a mut Nic,
    pub(crate) events: &'a mut Events,
    pub(crate) manager: &'a mut Manager,
    faults: &'a mut Faults,
    hash: Option<&'a mut Hash>,
    side: usize,
}

impl Card {
    /// Calls the card with the network locked, then carries packets, runs timers, and delivers events.
    /// No code of the program's may run in `call`.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        let mut state = self.network.lock();
        let locked = &mut *state;
        let side = &mut locked.sides[self.side];
        let result = call(&mut Locked {
            nic: &mut side.nic,
            events: &mut side.events,
            manager: &mut locked.manager,
            faults: &mut side.faults,
            hash: locked.hash.as_mut(),
            side: self.side,
        });
        self.network.run(state);
        result
    }

    /// The same for a verb, which may have to fail with an errno.
    pub(crate) fn verb<T>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut Locked<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.begin(verb);
        self.call(|locked| {
            locked.fault(verb)?;
            call(locked)
        })
    }

    /// A verb begins, with nothing locked.
    pub(crate) fn begin(&self, verb: &'static str) {
        if let Some(hook) = self.hook.get() {
            hook(verb);
        }
    }

    /// The same for the network's connection manager.
    pub(crate) fn manage<T>(&self, call: impl FnOnce(&mut Manager, Duration) -> T) -> T {
        self.call(|locked| call(locked.manager, self.now()))
    }

    /// The card's time, which completions are stamped with.
    pub(crate) fn now(&self) -> Duration {
        self.network.clock.now()
    }

    /// The time of a wall clock at an instant of the card's.
    pub(crate) fn wall(&self, at: Duration) -> Duration {
        self.network.clock.wall(at)
    }

    /// Whether cards of other processes can be reached.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.network.udp.is_some()
    }

    /// The program has nothing to do: virtual time moves to the next packet or timer, and packets that have come from
    /// other processes are taken. False if there was none.
    pub(crate) fn idle(&self) -> bool {
        match &self.network.udp {
            None => self.network.step(None),
            Some(udp) => {
                udp.looks.fetch_add(1, Ordering::Relaxed);
                let has_come = self.network.receive();
                if !has_come {
                    self.network.lock().send_answers();
                    // The peer may be waiting for this processor.
                    thread::yield_now();
                }
                has_come
            }
        }
    }

    /// Whether its host has died: no event comes any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.call(|locked| locked.faults.is_dead)
    }

    /// While somebody may sleep on a descriptor: timers run without a call of the program's, if time is real.
    pub(crate) fn attend(&self) -> Attendance {
        Service::attend(&self.network)
    }
}

impl Locked<'_> {
    /// The errno that this call of a verb shall fail with, as a fault to be tested; a post asks before each
    /// request of its chain.
    pub(crate) fn fault(&mut self, verb: &'static str) -> Result<(), Errno> {
        self.faults.meet(verb)
    }

    /// Polls, and adds the completion to the run's hash.
    pub(crate) fn poll_cq(&mut self, queue: CompletionQueueId) -> Option<Completion> {
        let completion = self.nic.poll_cq(queue)?;
        if let Some(hash) = &mut self.hash {
            hash.completion(self.side, &completion);
        }
        Some(completion)
    }
}
