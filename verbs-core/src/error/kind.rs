//! The kinds of errors.

use std::io;

use super::errno;

/// The kind of an [`Error`](crate::Error), for callers that match on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such device, port, GID or object, or none that is up.
    NotFound,
    /// The user lacks the permission.
    PermissionDenied,
    /// A number or a length is above a limit of the device or the system.
    Limit,
    /// A queue is full, or memory has run out (`ENOMEM`).
    OutOfMemory,
    /// The caller's arguments are wrong.
    InvalidInput,
    /// The peer's data is wrong.
    InvalidPeer,
    /// The device, its driver or the installed rdma-core cannot do this.
    Unsupported,
    /// The object is in use, so it cannot be closed (`EBUSY`).
    InUse,
    /// The call would have to wait (`EAGAIN`).
    WouldBlock,
    /// A step did not end within its timeout.
    TimedOut,
    /// The connection manager could not connect: the peer has rejected it, or cannot be reached.
    ConnectionManager,
    /// A completion reports a failure.
    Work,
    /// Any other error of the driver or the kernel; see [`errno`](crate::Error::errno).
    Other,
}

/// The kind of a bare errno.
pub(crate) fn kind_of(error: &io::Error) -> ErrorKind {
    match errno::number(error) {
        Some(libc::ENOMEM | libc::ENOSPC) => ErrorKind::OutOfMemory,
        Some(libc::EACCES | libc::EPERM) => ErrorKind::PermissionDenied,
        Some(libc::EINVAL) => ErrorKind::InvalidInput,
        Some(libc::EBUSY) => ErrorKind::InUse,
        Some(libc::EAGAIN) => ErrorKind::WouldBlock,
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ErrorKind::NotFound,
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => ErrorKind::Unsupported,
        None if error.kind() == io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Other,
    }
}

/// Whether the error means that the peer's address cannot be reached.
pub(crate) fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        errno::number(error),
        Some(
            libc::ETIMEDOUT
                | libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL
        )
    )
}
