//! A queue of events with a descriptor that is readable while there are any.
#![expect(unsafe_code, reason = "system calls")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::errno::{Errno, last};
use crate::lock::lock;
use crate::network::{Card, descriptors};

/// Events that wait to be got. Its eventfd is written to for each, and emptied with the last, so that poll and epoll see
/// whether there are any.
pub(crate) struct EventQueue<T = Announced> {
    descriptor: OwnedFd,
    /// Events, and where those that a program has got are counted.
    waiting: Mutex<VecDeque<Waiting<T>>>,
}

type Waiting<T> = (Arc<Unacknowledged>, T);

/// An event of a verb's object.
pub(crate) struct Announced {
    /// C's number.
    pub(crate) event: u32,
    pub(crate) object: usize,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: no pointers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(last());
        }
        descriptors::opened(descriptor);
        Ok(Self {
            // SAFETY: the system has just opened it, for this call.
            descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) },
            waiting: Mutex::default(),
        })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn push(&self, unacknowledged: Arc<Unacknowledged>, event: T) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((unacknowledged, event));
        let one = 1_u64;
        // SAFETY: eight bytes of this frame.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
        drop(waiting);
    }

    /// Takes the oldest event. Waits for one, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if there is none, `EINTR` after a signal, `EIO` if none can come.
    pub(crate) fn get(&self, card: &Card) -> Result<Waiting<T>, Errno> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            let has_moved = card.idle();
            if let Some(event) = self.take() {
                return Ok(event);
            }
            if card.is_dead() {
                return Err(libc::EIO);
            }
            // Miri has no flags of such a descriptor, and no call blocks there.
            // SAFETY: no pointers.
            let flags = || unsafe { libc::fcntl(self.descriptor(), libc::F_GETFL) };
            if cfg!(miri) || flags() & libc::O_NONBLOCK != 0 {
                return Err(libc::EAGAIN);
            }
            if !has_moved {
                self.wait(-1)?;
            }
        }
    }

    fn take(&self) -> Option<Waiting<T>> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front()?;
        self.settle(&waiting);
        event.0.add();
        drop(waiting);
        Some(event)
    }

    /// Takes the events that are these, without their being got.
    pub(crate) fn split_off(&self, is_one: impl Fn(&T) -> bool) -> Vec<Waiting<T>> {
        let mut waiting = lock(&self.waiting);
        let (split, left) = waiting.drain(..).partition(|(_, event)| is_one(event));
        *waiting = left;
        self.settle(&waiting);
        VecDeque::into(split)
    }

    /// Empties the descriptor if no event waits. A program may have done so before.
    fn settle(&self, waiting: &VecDeque<Waiting<T>>) {
        if waiting.is_empty() && self.wait(0) == Ok(true) {
            let mut count = 0_u64;
            // SAFETY: room for eight bytes.
            unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
        }
    }

    /// Waits until there is an event, at most this number of milliseconds, if it is not negative.
    fn wait(&self, milliseconds: i32) -> Result<bool, Errno> {
        let mut polled = libc::pollfd {
            fd: self.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure.
        match unsafe { libc::poll(&raw mut polled, 1, milliseconds) } {
            ready if ready < 0 => Err(last()),
            ready => Ok(ready > 0),
        }
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        descriptors::closed(self.descriptor.as_raw_fd());
    }
}

/// The events of an object that a program has got and not acknowledged: its end waits for them.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    pub(crate) fn add(&self) {
        *lock(&self.count) += 1;
    }

    /// More than were got is a mistake of the program's, which C does not notice either.
    pub(crate) fn acknowledge(&self, count: u32) {
        let mut left = lock(&self.count);
        *left = left.saturating_sub(count);
        self.changed.notify_all();
        drop(left);
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let left = self.changed.wait_while(lock(&self.count), |left| *left > 0);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }
}
