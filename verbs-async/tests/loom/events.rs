//! Many queues on one completion channel with an edge-triggered notifier: no event stays in it
//! unread.

use std::collections::VecDeque;
use std::io;

use loom::thread;

use crate::explore;
use crate::queues::{Queues, take_events};
use crate::task::sync::{Arc, Mutex};

/// A completion channel, its edge-triggered notifier, and the listeners of its queues.
struct Hub {
    queues: Mutex<Queues<usize>>,
    channel: Mutex<Channel>,
    listeners: Vec<Mutex<Listener>>,
}

#[derive(Default)]
struct Channel {
    events: VecDeque<usize>,
    // An event has arrived since the notifier was last ready.
    readable: bool,
    // The notifier has the hub's waker.
    waits: bool,
    // How often the hub requested an event.
    polls: usize,
    // For each queue: the unpolled completions, and whether it is armed.
    done: Vec<usize>,
    armed: Vec<bool>,
}

/// A task that waits for a queue's completions, as the driver does.
struct Listener {
    expects: usize,
    armed: bool,
}

impl Hub {
    /// Queues that expect this many completions each.
    fn new(expected: &[usize]) -> Arc<Self> {
        let mut queues = Queues::new();
        for key in 0..expected.len() {
            assert!(queues.add(key));
            queues.listen(key, key);
        }
        let listener = |expects: &usize| Listener {
            expects: *expects,
            armed: false,
        };
        let hub = Arc::new(Self {
            queues: Mutex::new(queues),
            channel: Mutex::new(Channel {
                done: vec![0; expected.len()],
                armed: vec![false; expected.len()],
                ..Channel::default()
            }),
            listeners: expected.iter().map(listener).map(Mutex::new).collect(),
        });
        hub.on_readable();
        hub
    }

    /// The device completes a request; the notifier's thread wakes the hub if it waits.
    fn complete(&self, key: usize) {
        let wakes = {
            let mut channel = self.channel.lock();
            channel.done[key] += 1;
            if !std::mem::take(&mut channel.armed[key]) {
                return;
            }
            channel.events.push_back(key);
            channel.readable = true;
            std::mem::take(&mut channel.waits)
        };
        if wakes {
            self.on_readable();
        }
    }

    /// As the crate does: takes events until the notifier has the waker.
    fn on_readable(&self) {
        while self.is_readable() {
            let next = || {
                let mut channel = self.channel.lock();
                channel.polls += 1;
                Ok::<_, io::Error>(channel.events.pop_front())
            };
            take_events(&self.queues, next, |key| *key, |key| self.announced(key)).unwrap();
        }
    }

    fn is_readable(&self) -> bool {
        let mut channel = self.channel.lock();
        channel.waits = !channel.readable;
        std::mem::take(&mut channel.readable)
    }

    fn announced(&self, key: usize) {
        let mut listener = self.listeners[key].lock();
        listener.armed = false;
        self.drive(key, &mut listener);
    }

    /// A task waits: it polls, arms, and polls once more.
    fn wait(&self, key: usize) {
        self.drive(key, &mut self.listeners[key].lock());
    }

    fn drive(&self, key: usize, listener: &mut Listener) {
        listener.expects -= self.poll(key);
        if listener.armed || listener.expects == 0 {
            return;
        }
        listener.armed = true;
        {
            let mut queues = self.queues.lock();
            queues.arm(key).unwrap();
            self.channel.lock().armed[key] = true;
        }
        listener.expects -= self.poll(key);
    }

    fn poll(&self, key: usize) -> usize {
        std::mem::take(&mut self.channel.lock().done[key])
    }

    /// Asserts that all completions were polled in the end.
    fn assert_nothing_is_left(&self) {
        for (key, listener) in self.listeners.iter().enumerate() {
            assert_eq!(listener.lock().expects, 0, "queue {key} was not notified");
        }
        assert_eq!(self.channel.lock().events, [], "an event was left");
    }
}

fn completes(hub: &Arc<Hub>, key: usize, times: usize) -> thread::JoinHandle<()> {
    let hub = Arc::clone(hub);
    thread::spawn(move || (0..times).for_each(|_| hub.complete(key)))
}

#[test]
fn every_event_of_two_queues_is_taken() {
    explore(|| {
        let hub = Hub::new(&[1, 2]);
        hub.wait(0);
        hub.wait(1);
        let second = completes(&hub, 1, 2);
        hub.complete(0);
        second.join().unwrap();
        hub.assert_nothing_is_left();
    });
}

#[test]
fn queue_armed_while_events_are_taken_gets_its_event() {
    explore(|| {
        let hub = Hub::new(&[1, 1]);
        hub.wait(0);
        let first = completes(&hub, 0, 1);
        let second = completes(&hub, 1, 1);
        hub.wait(1);
        first.join().unwrap();
        second.join().unwrap();
        hub.assert_nothing_is_left();
    });
}

#[test]
fn removed_queue_takes_no_event_of_the_others() {
    explore(|| {
        let hub = Hub::new(&[1, 1]);
        hub.wait(0);
        hub.wait(1);
        let first = completes(&hub, 0, 1);
        let gone = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                hub.queues.lock().remove(0);
                // Destroying a queue removes its events.
                let mut channel = hub.channel.lock();
                channel.events.retain(|key| *key != 0);
                channel.armed[0] = false;
            })
        };
        hub.complete(1);
        first.join().unwrap();
        gone.join().unwrap();
        assert_eq!(hub.listeners[1].lock().expects, 0);
    });
}

#[test]
fn removed_queue_costs_no_extra_read() {
    explore(|| {
        let hub = Hub::new(&[1, 1]);
        hub.wait(0);
        // A removed queue has no waiter.
        hub.wait(1);
        hub.queues.lock().remove(1);
        hub.complete(0);
        assert_eq!(hub.channel.lock().polls, 1);
    });
}

#[test]
fn arming_during_a_failure_fails_or_is_notified() {
    explore(|| {
        let hub = Hub::new(&[1]);
        let failed = || std::sync::Arc::new(io::ErrorKind::BrokenPipe.into());
        let loses = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.queues.lock().fail(failed()))
        };
        let armed = hub.queues.lock().arm(0);
        let removed = loses.join().unwrap();
        assert!(armed.is_err() || removed == [0]);
        assert!(hub.queues.lock().arm(0).is_err(), "nothing comes any more");
    });
}
