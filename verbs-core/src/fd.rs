//! Waiting on descriptors, with a bound.
#![expect(unsafe_code, reason = "calls fcntl(2) and poll(2)")]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use crate::{Result, ret};

/// Makes reads return `EAGAIN` instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the descriptor is open; the call has no memory arguments.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(ret::from_errno("fcntl", ret::last_errno()));
    }
    // SAFETY: as above.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    ret::minus_one("fcntl", ret)
}

/// Waits until the descriptor is readable; `false` when `deadline` passes first. Without a deadline
/// it waits for ever.
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
            // A wait that was too long for poll's `int` goes on.
            0 if left.is_none_or(|left| millis(Some(left)) == i32::MAX) => {}
            0 => return Ok(false),
            _ => match ret::last_errno() {
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

/// The moment that is `timeout` from now; `None`, for ever, if there is no such moment.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
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
    fn a_descriptor_that_is_gone_is_not_readable() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let error = wait_readable(reader.as_fd(), None).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
    }

    #[test]
    fn nonblocking_reads_return() {
        use std::io::Read as _;
        let (mut reader, _writer) = std::io::pipe().unwrap();
        set_nonblocking(reader.as_fd()).unwrap();
        let error = reader.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn millis_round_up() {
        assert_eq!(millis(None), -1);
        assert_eq!(millis(Some(Duration::ZERO)), 0);
        assert_eq!(millis(Some(Duration::from_nanos(1))), 1);
        assert_eq!(millis(Some(Duration::MAX)), i32::MAX);
    }
}
