//! Events: of completion queues, and of the device.

use std::ffi::{c_int, c_uint, c_void};

use verbs_core::verbs_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type,
};
use verbs_core::{CompletionQueue, Context};

use super::queries::minus_one;
use super::{Library, with};

/// Makes a completion queue's next event arrive.
pub fn announce(cq: &CompletionQueue) {
    announce_raw(cq.as_ptr());
}

/// As [`announce`] for the [last queue](last_cq); whether there is one.
pub fn announce_last() -> bool {
    last_cq().inspect(|cq| announce_raw(*cq)).is_some()
}

/// The living completion queue that was made last.
pub fn last_cq() -> Option<*mut ibv_cq> {
    with(|library| library.counts.last().map(|(cq, ..)| *cq))
}

/// As [`announce`]; the queue is alive, and has a completion channel.
pub(super) fn announce_raw(cq: *mut ibv_cq) {
    // SAFETY: the queue is alive.
    let channel = unsafe { (*cq).channel };
    with(|library| library.cq_events.push_back((channel, cq)));
    // SAFETY: the channel is alive.
    signal(unsafe { (*channel).fd });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    minus_one(|library| {
        library.called("ibv_get_cq_event")?;
        // SAFETY: the caller has it from `ibv_create_comp_channel`.
        wait(unsafe { (*channel).fd })?;
        let found = library.cq_events.iter().position(|(on, _)| *on == channel);
        // The event of a queue that has been destroyed since.
        let index = found.ok_or(libc::EAGAIN)?;
        let (_, of) = library.cq_events.remove(index).ok_or(libc::EAGAIN)?;
        library.count(of, |(_, taken, _)| *taken += 1);
        // SAFETY: the queue is alive, as its events go with it; the caller has room for both.
        unsafe {
            *cq = of;
            *cq_context = (*of).cq_context;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    with(|library| library.count(cq, |(.., acked)| *acked += count));
}

impl Library {
    /// Whether all events that were taken of a queue have been acknowledged.
    pub(super) fn settles(&self, cq: *mut ibv_cq) -> bool {
        let mut counts = self.counts.iter();
        counts.all(|(of, taken, acked)| *of != cq || taken == acked)
    }

    fn count(&mut self, cq: *mut ibv_cq, add: impl FnOnce(&mut (*mut ibv_cq, u32, u32))) {
        match self.counts.iter_mut().find(|(of, ..)| *of == cq) {
            Some(counts) => add(counts),
            None => self
                .wrong
                .push("an event of a queue that is not alive".into()),
        }
    }
}

/// Makes a device event arrive.
pub fn report(context: &Context, event_type: ibv_event_type, mut event: ibv_async_event) {
    event.event_type = event_type;
    with(|library| library.async_events.push_back(event));
    // SAFETY: the context is alive.
    signal(unsafe { (*context.as_ptr()).async_fd });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|library| {
        library.called("ibv_get_async_event")?;
        // SAFETY: the caller has it from `ibv_open_device`.
        wait(unsafe { (*context).async_fd })?;
        let arrived = library.async_events.pop_front().ok_or(libc::EIO)?;
        // SAFETY: the caller has room for it.
        unsafe { *event = arrived };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {
    with(|library| library.async_acks += 1);
}

impl Library {
    /// Each event is taken by one read: it is a semaphore. Miri knows no such eventfds, nor does it
    /// let a descriptor's flags be read or changed.
    pub(super) fn eventfd(&mut self) -> c_int {
        let flags = match cfg!(miri) {
            true => libc::EFD_NONBLOCK,
            false => libc::EFD_SEMAPHORE,
        };
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        assert!(fd >= 0, "no more descriptors");
        self.descriptors.0.push(fd);
        fd
    }

    pub(super) fn close(&mut self, fd: c_int) {
        self.descriptors.0.retain(|open| *open != fd);
        // SAFETY: the descriptor was of an object that is gone.
        unsafe { libc::close(fd) };
    }
}

/// The descriptors of objects.
#[derive(Default)]
pub(super) struct Descriptors(Vec<c_int>);

impl Drop for Descriptors {
    /// Objects that were leaked leave no descriptors open: a process has few of them.
    fn drop(&mut self) {
        for fd in &self.0 {
            // SAFETY: the descriptor was of an object that is gone.
            unsafe { libc::close(*fd) };
        }
    }
}

fn signal(fd: c_int) {
    add(fd, 1);
}

fn add(fd: c_int, count: u64) {
    // SAFETY: an eventfd takes 8 bytes.
    let written = unsafe { libc::write(fd, (&raw const count).cast(), 8) };
    assert_eq!(written, 8);
}

/// Takes one event off the descriptor, or fails as `read(2)` does; it must not block.
fn wait(fd: c_int) -> Result<(), c_int> {
    if !cfg!(miri) {
        // SAFETY: no memory is involved.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags & libc::O_NONBLOCK == 0 {
            return Err(libc::EDEADLK);
        }
    }
    let mut taken = 0_u64;
    // SAFETY: an eventfd gives 8 bytes.
    match unsafe { libc::read(fd, (&raw mut taken).cast(), 8) } {
        8 if cfg!(miri) && taken > 1 => add(fd, taken - 1),
        8 => {}
        _ => return Err(libc::EAGAIN),
    }
    Ok(())
}
