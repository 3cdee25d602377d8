//! Tasks in virtual time: which of them wait for a descriptor, and an executor for one.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{Fabric, interpose};
use crate::lock::lock;

/// Reports to a task when a descriptor is readable, such as that of a completion channel: from
/// [`Fabric::notifier`](crate::Fabric::notifier).
///
/// A step of the fabric wakes the task. So time moves only when the program waits, and one seed gives one run.
#[derive(Debug)]
pub struct FabricNotifier(Arc<Watched>);

/// A descriptor, and the task that waits for it.
#[derive(Debug)]
struct Watched {
    descriptor: OwnedFd,
    waker: Mutex<Option<Waker>>,
}

/// The descriptors of a network that tasks may wait for, in the order in which they were added.
#[derive(Default)]
pub(super) struct Notifiers(Mutex<Vec<Weak<Watched>>>);

impl FabricNotifier {
    /// Ready if the descriptor is readable. If not, the waker of the last call is woken when it is, by
    /// [`Fabric::step`](crate::Fabric::step), [`run_for`](crate::Fabric::run_for) or
    /// [`block_on`](crate::Fabric::block_on).
    pub fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        let before = lock(&self.0.waker).replace(cx.waker().clone());
        drop(before);
        match self.0.is_readable() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Watched {
    fn is_readable(&self) -> bool {
        interpose::is_readable(self.descriptor.as_raw_fd())
    }
}

impl Notifiers {
    pub(super) fn add(&self, descriptor: OwnedFd) -> FabricNotifier {
        let watched = Arc::new(Watched {
            descriptor,
            waker: Mutex::default(),
        });
        lock(&self.0).push(Arc::downgrade(&watched));
        FabricNotifier(watched)
    }

    /// Wakes the tasks whose descriptors are readable. Nothing is locked: a waker is code of the program's.
    pub(super) fn wake(&self) {
        let mut all = lock(&self.0);
        all.retain(|watched| watched.strong_count() > 0);
        let left: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        for watched in left {
            let waker = lock(&watched.waker).take_if(|_| watched.is_readable());
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Fabric {
    /// A notifier of a descriptor, for async code in virtual time.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::time::Duration;
    /// use std::{io, task};
    ///
    /// use soft_verbs::{Fabric, FabricNotifier};
    /// use verbs_async::verbs_core::Context;
    /// use verbs_async::verbs_core::completion::CompletionChannel;
    /// use verbs_async::{AsyncCq, CqEvents, CqNotifier};
    ///
    /// struct Notifier(FabricNotifier, Fabric);
    ///
    /// impl CqNotifier for Notifier {
    ///     fn poll_readable(&self, cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
    ///         self.0.poll_readable(cx).map(Ok)
    ///     }
    ///
    ///     fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
    ///         Ok(Box::new(Self(self.1.notifier(descriptor), self.1.clone())))
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric = Fabric::seeded(7);
    /// let context = fabric.host("a").enter(Context::first_active)?;
    /// let channel = CompletionChannel::create(&context)?;
    /// let descriptor = channel.poll_fd()?.try_clone_to_owned()?;
    /// let events = CqEvents::new(channel, Notifier(fabric.notifier(descriptor), fabric.clone()))?;
    /// let cq = AsyncCq::create(&events, 16)?;
    /// // Nothing was posted.
    /// let polled = fabric.block_on(Duration::from_secs(60), cq.poll_wr_id(1));
    /// assert!(polled.is_none() && fabric.now().as_secs() == 60);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn notifier(&self, descriptor: impl Into<OwnedFd>) -> FabricNotifier {
        self.network.notifiers.add(descriptor.into())
    }

    /// Runs a future, and moves virtual time while it waits. `None` if it is not ready after this time, of the
    /// fabric's.
    ///
    /// Threads that wake it, such as those on which verbs-async destroys queue pairs, run in real time: how much virtual
    /// time passes meanwhile is not repeatable.
    pub fn block_on<T>(&self, within: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let end = self.now() + within;
        loop {
            if woken.0.swap(false, Ordering::Relaxed) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(output) = polled {
                    return Some(output);
                }
            } else if self.now() >= end {
                return None;
            } else if !self.network.step(Some(end)) {
                // Nothing is on its way here: other threads may have something to do.
                interpose::rest();
            }
            self.network.notifiers.wake();
        }
    }
}
