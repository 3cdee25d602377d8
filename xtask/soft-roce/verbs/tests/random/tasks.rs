//! Tasks of verbs-async in virtual time, on one thread.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use soft_verbs::{Fabric, FabricNotifier};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, CqNotifier};
use verbs_channel::BufferPool;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::completion::CompletionChannel;

use crate::messages::domains;
use crate::world::World;

/// Longer than anything takes.
pub(crate) const LONG: Duration = Duration::from_secs(100);

pub(crate) const BLOCK: usize = 48;
pub(crate) const BLOCKS: usize = 60;
pub(crate) const CHANNELS: u32 = 2;

/// A notifier of the fabric's.
struct Notifier(FabricNotifier, Fabric);

impl CqNotifier for Notifier {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx).map(Ok)
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        let fabric = self.1.clone();
        Ok(Box::new(Self(fabric.notifier(descriptor), fabric)))
    }
}

impl World {
    /// The events of a device.
    pub(crate) fn events(&self, pd: &ProtectionDomain) -> Option<CqEvents> {
        let events = || -> verbs_async::Result<_> {
            let channel = CompletionChannel::create(pd.context())?;
            let notifier = self
                .fabric
                .notifier(channel.poll_fd()?.try_clone_to_owned()?);
            CqEvents::new(channel, Notifier(notifier, self.fabric.clone()))
        };
        let events = events();
        assert!(events.is_ok() || !self.is_gentle, "{events:?}");
        events.ok()
    }
}

/// A task: it is polled at first, and then whenever it was woken.
pub(crate) struct Task(Arc<Woken>);

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Task {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Woken(AtomicBool::new(true))))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }

    /// Polls, whether or not it was woken. If it does not wait any more, it is polled again.
    pub(crate) fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.0.0.store(false, Ordering::Relaxed);
        let polled = poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.0))));
        if polled.is_ready() {
            self.0.0.store(true, Ordering::Relaxed);
        }
        polled
    }

    /// Polls a future if it was woken.
    pub(crate) fn poll_if_due<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        match self.is_due() {
            true => self.poll(|cx| Pin::new(future).poll(cx)),
            false => Poll::Pending,
        }
    }
}

/// A host's side of all channels.
pub(crate) struct Side {
    pub(crate) pd: ProtectionDomain,
    pub(crate) pool: BufferPool,
    pub(crate) group: AsyncGroup,
}

/// The two hosts; none if a verb fails.
pub(crate) fn sides(world: &mut World) -> Option<[Side; 2]> {
    let [a, b] = domains(world)?.map(|pd| side(world, pd));
    assert!(!world.is_gentle || a.is_some() && b.is_some());
    Some([a?, b?])
}

fn side(world: &mut World, pd: ProtectionDomain) -> Option<Side> {
    let events = world.events(&pd)?;
    let mut config = world.builder(&pd);
    config.drain_timeout = Duration::from_millis(50);
    // Room for eight of each queue of each channel, or less, which the channels share.
    config.in_flight = world.random.one_in(2).then_some(12);
    let group = AsyncGroup::new(config, CHANNELS, &events).ok()?;
    group.set_backlog(6);
    let pool = BufferPool::new(&pd, BLOCK, BLOCKS).ok()?;
    Some(Side { pd, pool, group })
}

/// Two connected channels, one on each host; none if a verb fails.
pub(crate) fn connected(world: &World, sides: &[Side; 2]) -> Option<[AsyncChannel; 2]> {
    let connect = || -> verbs_async::Result<[AsyncChannel; 2]> {
        let [left, right] = sides.each_ref().map(|side| side.group.prepare());
        let (left, right) = (left?, right?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        let join = |side: &Side, member| {
            let joined = side.group.join(member);
            joined.map_err(|rejected| rejected.into_parts().0)
        };
        Ok([join(&sides[0], left)?, join(&sides[1], right)?])
    };
    let channels = connect();
    assert!(channels.is_ok() || !world.is_gentle, "{channels:?}");
    channels.ok()
}
