//! The thread that runs real timers, and takes packets of other processes, whatever the program does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Network, signals};
use crate::later;
use crate::lock::lock;

/// The thread of a network in real time, which lives as long as somebody may sleep.
#[derive(Default)]
pub(super) struct Service {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    attendances: usize,
    is_running: bool,
    /// When the thread will look at timers; nothing while it looks, or if there are none.
    until: Option<Duration>,
}

/// Timers of the network run until this is dropped.
pub(crate) struct Attendance(Arc<Network>);

impl Service {
    /// Starts the thread, unless it runs, or time is virtual.
    pub(super) fn attend(network: &Arc<Network>) -> Attendance {
        let mut state = lock(&network.service.state);
        state.attendances += 1;
        let mut failure = None;
        if !state.is_running && !network.clock.is_virtual() {
            let own = Arc::clone(network);
            let name = "soft-verbs".to_owned();
            let thread = thread::Builder::new().name(name);
            failure = signals::blocked(|| thread.spawn(move || serve(&own))).err();
            state.is_running = failure.is_none();
        }
        drop(state);
        // A logger is code of the program: without the lock.
        if let Some(error) = failure {
            log::error!("soft-verbs runs timers in calls only: no thread: {error}");
        }
        Attendance(Arc::clone(network))
    }

    /// Wakes the thread if it would sleep past `next`.
    pub(super) fn sleep_no_longer_than(&self, next: Option<Duration>, network: &Network) {
        let Some(next) = next else { return };
        if network.clock.is_virtual() {
            return;
        }
        let mut state = lock(&self.state);
        if state.is_running && state.until.is_none_or(|until| next < until) {
            state.until = Some(next);
            drop(state);
            self.wake(network);
        }
    }

    /// Has the thread look at its state again.
    fn wake(&self, network: &Network) {
        match &network.udp {
            Some(udp) => udp.wake(),
            None => self.changed.notify_one(),
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut state = lock(&self.0.service.state);
        state.attendances -= 1;
        if state.attendances == 0 {
            drop(state);
            self.0.service.wake(&self.0);
        }
    }
}

/// The thread looks for packets without a sleep for this long after the last: a peer that waits for each answer before it
/// asks again does not wait for this thread to be woken, too.
const SPIN: Duration = Duration::from_micros(50);

/// Runs timers until nobody attends.
fn serve(network: &Network) {
    let (service, clock) = (&network.service, &network.clock);
    let mut spins_until = Duration::ZERO;
    loop {
        let next = network.lock().run(clock.now());
        later::log();
        let mut state = lock(&service.state);
        // A call may have asked for an earlier time since.
        state.until = state.until.into_iter().chain(next).min();
        loop {
            if state.attendances == 0 {
                state.is_running = false;
                state.until = None;
                return;
            }
            let now = clock.now();
            let time = state.until.map(|until| until.saturating_sub(now));
            state = match (&network.udp, time) {
                (_, Some(Duration::ZERO)) => break,
                (Some(udp), _) => {
                    drop(state);
                    let spins = now < spins_until;
                    if udp.is_program_busy(spins) {
                        network.nap(|| udp.nap(time));
                    } else if spins {
                        thread::yield_now();
                    } else {
                        udp.wait(time);
                    }
                    if network.receive() {
                        spins_until = now + SPIN;
                    }
                    lock(&service.state)
                }
                (None, Some(time)) => {
                    let waited = service.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                (None, None) => {
                    let waited = service.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        state.until = None;
    }
}
