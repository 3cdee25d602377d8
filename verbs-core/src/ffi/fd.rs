//! Waiting on descriptors, with a bound.
#![expect(unsafe_code, reason = "calls fcntl(2), poll(2) and epoll(7)")]

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::ret;
use crate::error::Result;
use crate::error::errno::last_errno;

/// A descriptor to wait on in the place of one that users must not read: an `epoll(7)` set with
/// that one in it.
///
/// It is readable when the original is, `read(2)` of it fails, and it can be duplicated and watched
/// by `poll(2)` or by another `epoll` set. Its users can't remove the original from the set: that
/// requires the original's number.
#[derive(Debug, Default)]
pub(crate) struct PollFd {
    made: OnceLock<OwnedFd>,
}

impl PollFd {
    /// The descriptor for `fd`, always the same one; made by the first call.
    pub(crate) fn of(&self, fd: BorrowedFd<'_>) -> Result<BorrowedFd<'_>> {
        if let Some(made) = self.made.get() {
            return Ok(made.as_fd());
        }
        // If two threads come at once, one of the two sets is closed again.
        let made = epoll_of(fd)?;
        Ok(self.made.get_or_init(|| made).as_fd())
    }
}

fn epoll_of(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: the call has no memory arguments.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(ret::from_errno("epoll_create1", last_errno()));
    }
    // SAFETY: the descriptor is new, and has no other owner.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    // Level-triggered: an event stays there for all waiters, even if one of them calls
    // epoll_wait(2) on a duplicate of the set. Each new event wakes all watchers of the set, so
    // they may watch it for edges.
    let edges = if cfg!(miri) { libc::EPOLLET } else { 0 }; // Miri has edges only.
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | edges).cast_unsigned(),
        u64: 0,
    };
    let add = libc::EPOLL_CTL_ADD;
    // SAFETY: both descriptors are open, and `event` is a local that is only read.
    let ret = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd.as_raw_fd(), &raw mut event) };
    ret::minus_one("epoll_ctl", ret)?;
    Ok(epoll)
}

/// Makes reads return `EAGAIN` instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    if cfg!(miri) {
        // Miri has no flags for an eventfd, which the test library's descriptors are.
        return Ok(());
    }
    // SAFETY: the descriptor is open; the call has no memory arguments.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(ret::from_errno("fcntl", last_errno()));
    }
    // SAFETY: the descriptor is open; the call has no memory arguments.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    ret::minus_one("fcntl", ret)
}

/// Waits until the descriptor is readable; `false` when `deadline` passes first. Without a deadline
/// it waits forever.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // SAFETY: `entry` is one local `pollfd`.
        let ret = unsafe { libc::poll(&raw mut entry, 1, millis(left)) };
        match ret {
            1.. if entry.revents & libc::POLLIN != 0 => return Ok(true),
            // POLLERR, POLLHUP: the device is gone, and nothing will ever be read.
            1.. => return Err(ret::from_errno("poll", libc::EIO)),
            // A wait that is too long for poll's `int` is continued.
            0 if left.is_none_or(|left| millis(Some(left)) == i32::MAX) => {}
            0 => return Ok(false),
            _ => match last_errno() {
                libc::EINTR => {}
                errno => return Err(ret::from_errno("poll", errno)),
            },
        }
    }
}

/// A duration for poll(2): rounded up, so that it never returns just before the deadline.
fn millis(left: Option<Duration>) -> i32 {
    left.map_or(-1, |left| {
        i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

/// The moment that is `timeout` from now; `None`, forever, if there is no such moment.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn a_wait_ends_at_its_deadline() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let start = Instant::now();
        let deadline = deadline(Some(Duration::from_millis(20)));
        assert!(!wait_readable(reader.as_fd(), deadline).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        writer.write_all(b"x").unwrap();
        assert!(wait_readable(reader.as_fd(), None).unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn closed_descriptor_is_not_readable() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let error = wait_readable(reader.as_fd(), None).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no O_NONBLOCK")]
    fn nonblocking_reads_return() {
        use std::io::Read as _;
        let (mut reader, _writer) = std::io::pipe().unwrap();
        set_nonblocking(reader.as_fd()).unwrap();
        let error = reader.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn a_poll_descriptor_is_readable_and_cannot_be_read() {
        use std::io::Read as _;
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let poll_fd = PollFd::default();
        let soon = || deadline(Some(Duration::ZERO));
        let readable = |fd| wait_readable(fd, soon()).unwrap();
        let first = poll_fd.of(reader.as_fd()).unwrap();
        assert!(!readable(first));
        writer.write_all(b"x").unwrap();
        // The descriptor is always the same.
        let again = poll_fd.of(reader.as_fd()).unwrap();
        assert_eq!(first.as_raw_fd(), again.as_raw_fd());
        assert!(readable(again));
        let clone = first.try_clone_to_owned().unwrap();
        let error = std::fs::File::from(clone).read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(readable(first));
        reader.read_exact(&mut [0]).unwrap();
        assert!(!readable(first));
    }

    #[test]
    fn millis_round_up() {
        assert_eq!(millis(None), -1);
        assert_eq!(millis(Some(Duration::ZERO)), 0);
        assert_eq!(millis(Some(Duration::from_nanos(1))), 1);
        assert_eq!(millis(Some(Duration::MAX)), i32::MAX);
    }
}
