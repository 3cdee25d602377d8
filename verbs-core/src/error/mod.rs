//! The errors of this crate.

pub(crate) mod causes;
mod chain;
#[cfg(feature = "rdmacm")]
pub(crate) mod cm_failure;
pub(crate) mod debug;
mod endpoint;
pub(crate) mod errno;
pub(crate) mod examples;
mod gid_path;
mod groups;
mod kind;
mod mapping;
mod poll_error;
pub(crate) mod post_error;
mod rejected;
mod texts;
mod work_error;

use std::io;
use std::path::PathBuf;

use crate::codes::{Gid, PortState, QpAttrMask, QpState};
pub use chain::ErrorChain;
pub(crate) use debug::ErrorDebug;
pub use endpoint::{ENDPOINT_VERSION, EndpointError};
pub use gid_path::GidPath;
pub use kind::ErrorKind;
pub(crate) use kind::{is_unreachable, kind_of};
pub use poll_error::PollError;
pub use post_error::PostError;
pub use rejected::Rejected;
use texts::{Found, HugePages, Limit, NoDevice, Range, Why};
pub use work_error::WorkError;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a verb, or of a check before it.
///
/// Where the *Errors* section of a function says "the errno", it means [`Verb`](Self::Verb) with
/// that errno, or [`Unsupported`](Self::Unsupported) for `EOPNOTSUPP` and `ENOSYS`. [`errno`](Self::errno) returns
/// it. If the cause is known, the text of the error, or that of its source, has it.
/// [`kind`](Self::kind) sorts the errors for callers that match on them. An `Error` converts into an
/// [`io::Error`].
///
/// A failed completion is not an error of the verb that polled it. It is data: see
/// [`WorkError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library, the driver or the kernel returned an error. The source carries the errno.
    #[error("{verb} failed{}", Found(source))]
    Verb {
        /// The C function.
        verb: &'static str,
        /// Its errno.
        source: io::Error,
    },

    /// The device, its driver or the installed rdma-core cannot do this.
    #[error("{verb} is not supported by this device, its driver or the installed rdma-core")]
    Unsupported {
        /// The C function.
        verb: &'static str,
    },

    /// libibverbs is not installed, or librdmacm, which the connection manager needs. This happens
    /// only with the feature `dlopen`, which looks for them at run time.
    #[error(
        "libibverbs.so.1 was not found, or librdmacm.so.1, or cannot be loaded: install rdma-core (libibverbs1, librdmacm1 and ibverbs-providers on Debian and Ubuntu, libibverbs and librdmacm on Fedora and RHEL)"
    )]
    NoLibrary,

    /// There is no RDMA device at all.
    #[error("{}", NoDevice(kernel))]
    NoDevice {
        /// Devices that the kernel has but libibverbs cannot use, each with the reason in brackets if it is known.
        kernel: Vec<String>,
    },

    /// No device has this name, GUID or index.
    #[error("no RDMA device has the {wanted}; available: {}", available.join(", "))]
    UnknownDevice {
        /// Device asked for: `name "mlx5_0"`, `GUID …` or `index …`.
        wanted: String,
        /// The names of the devices that exist.
        available: Vec<String>,
    },

    /// This machine has no such CPU, NUMA node or PCI device.
    #[error("{} does not exist", path.display())]
    UnknownPlace {
        /// The path in sysfs that does not exist.
        path: PathBuf,
    },

    /// The device's node cannot be opened.
    #[error("cannot open {}: check that it exists and that this user may read and write it (udev rule, group, container --device)", path.display())]
    DeviceNode {
        /// The character device, `/dev/infiniband/uverbsN`.
        path: PathBuf,
        /// The error of `open(2)`.
        source: io::Error,
    },

    /// No port of the device, or of any device, is up.
    #[error(
        "no port of {device} is ACTIVE: check the cable, `rdma link`, and on InfiniBand the subnet manager"
    )]
    NoActivePort {
        /// The device's name, or `any device`.
        device: String,
    },

    /// The port that was chosen is not up.
    #[error("port {port} is in {state:?}, not in IBV_PORT_ACTIVE: check the cable and `rdma link`")]
    PortNotActive {
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },

    /// The device has no such port.
    #[error("port {port} does not exist: {device} has ports 1 to {ports}")]
    UnknownPort {
        /// The port asked for.
        port: u8,
        /// The device's name.
        device: String,
        /// How many ports there are; they count from 1.
        ports: u8,
    },

    /// The port's GID table has nothing at this index.
    #[error("GID index {index} of port {port} is empty; the filled ones are {filled:?}")]
    EmptyGid {
        /// The port.
        port: u8,
        /// The index asked for.
        index: u8,
        /// The indices that hold a GID.
        filled: Vec<u8>,
    },

    /// The port needs a GID, and its GID table is empty.
    #[error(
        "port {port} needs a GID and its table is empty: give the network interface behind it an address and bring it up"
    )]
    NoGid {
        /// The port.
        port: u8,
    },

    /// The GID that was chosen is not in the port's table any more.
    #[error(
        "GID {gid} is no longer in the table of port {port}: the address was removed from its network interface; add it again, or build anew to choose another"
    )]
    GidRemoved {
        /// The port.
        port: u8,
        /// The GID that was chosen.
        gid: Gid,
    },

    /// The P_Key that was chosen is not in the port's table any more.
    #[error(
        "P_Key {pkey:#06x} is no longer in the table of port {port}: the subnet manager removed the port from its partition"
    )]
    PkeyRemoved {
        /// The port.
        port: u8,
        /// The P_Key that was chosen.
        pkey: u16,
    },

    /// A capacity is above what the device offers.
    #[error("{what} {asked} exceeds {}", Limit(*max))]
    Limit {
        /// C's name of the capacity.
        what: &'static str,
        /// Number asked for.
        asked: u64,
        /// The device's limit, if it is known.
        max: Option<u64>,
    },

    /// A number is outside the range that the field can hold.
    #[error("{what} {value} is out of range: {}", Range { min: *min, max: *max })]
    OutOfRange {
        /// C's name of the field.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },

    /// A range reaches past the end of a region.
    #[error("bytes {start}..{end} are not within the region's {len} bytes")]
    OutOfBounds {
        /// The offset of the first byte.
        start: u64,
        /// The offset after the last byte.
        end: u64,
        /// The region's length in bytes.
        len: u64,
    },

    /// The local elements have more bytes than the remote region.
    #[error("{local} local bytes do not fit into the remote region's {remote} bytes")]
    RemoteTooShort {
        /// Bytes in the gather or scatter list.
        local: u64,
        /// Bytes in the remote region.
        remote: u64,
    },

    /// An atomic needs exactly 8 bytes, at addresses divisible by 8.
    #[error(
        "an atomic works on 8 bytes at an address divisible by 8, not on {len} bytes at {addr:#x}"
    )]
    Misaligned {
        /// The address.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },

    /// The locked-memory limit is too low to register this buffer.
    #[error(
        "registering {len} bytes failed, most likely because the limit on locked memory is {limit} bytes: raise it with `ulimit -l unlimited` or in limits.conf"
    )]
    Memlock {
        /// Bytes to register.
        len: u64,
        /// `RLIMIT_MEMLOCK`, in bytes.
        limit: u64,
        /// The kernel's error.
        source: io::Error,
    },

    /// Memory could not be registered.
    #[error("registering {len} bytes of memory failed{}", Found(source))]
    Registration {
        /// Bytes to register.
        len: u64,
        /// The provider's errno, such as `ENOMEM` if there is not enough memory to pin.
        source: io::Error,
    },

    /// There are not enough free huge pages.
    #[error("{}", HugePages { len: *len, page_size: *page_size, source })]
    HugePages {
        /// The bytes that were requested.
        len: u64,
        /// The size of the pages in bytes; `None` if the kernel has no huge pages.
        page_size: Option<u64>,
        /// The error of `mmap(2)`: `ENOMEM` if too few pages are free, `EINVAL` if the machine has no
        /// pages of this size.
        source: io::Error,
    },

    /// Access for peers was requested for a region whose bytes the program can borrow: use
    /// [`reg_shared`](crate::ProtectionDomain::reg_shared).
    #[error("a peer may only reach a SharedRegion: register it with reg_shared")]
    RemoteAccess,

    /// The endpoint that a peer sent cannot be used.
    #[error("the peer's endpoint is not usable")]
    Endpoint(#[from] EndpointError),

    /// The bytes that a peer sent as its remote region are too few or too many.
    #[error("a remote region is {expected} bytes long, not {len}")]
    RemoteLength {
        /// The length received, in bytes.
        len: usize,
        /// The length of a remote region's bytes.
        expected: usize,
    },

    /// A state change was rejected, for its attributes or because there is no path to the peer.
    #[error("{from:?} to {to:?} was refused: {}", Why { missing: *missing, extra: *extra, path, source })]
    Transition {
        /// The state before.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Attributes that this transition requires and that were not given.
        missing: QpAttrMask,
        /// Attributes that were given and that this transition does not allow.
        extra: QpAttrMask,
        /// The two GIDs of the path, if the attributes have a path with GIDs.
        path: Option<GidPath>,
        /// The errno: `EINVAL`, or one such as `ETIMEDOUT` if there is no path to the peer's GID.
        source: io::Error,
    },

    /// There is no path to a peer's GID.
    #[error("there is no path from {path}")]
    Unreachable {
        /// The two ends.
        path: GidPath,
        /// The errno.
        source: io::Error,
    },

    /// The device is an iWARP device, whose queue pairs cannot be connected by an exchange of
    /// endpoints.
    #[error(
        "{device} is an iWARP device, which connects by rdma_cm only: switch on the feature `rdmacm`, and connect over TCP or by rdma_cm in place of a handshake"
    )]
    NeedsRdmaCm {
        /// The name of the device.
        device: String,
    },

    /// An object belongs to another device context than the object it was to be used with.
    #[error("{child} belongs to another device context: create both from the same")]
    ForeignContext {
        /// The kind of object, such as `the completion channel`.
        child: &'static str,
    },

    /// An object that another library made does not belong to the parent that was named.
    #[error("{child} was made with another {parent}")]
    ForeignParent {
        /// The object that does not belong.
        child: &'static str,
        /// The kind of its parent.
        parent: &'static str,
    },

    /// The object cannot be closed: clones or children of it are alive.
    #[error("{object} is still in use: drop its clones, and what was created from it, first")]
    InUse {
        /// The kind of object.
        object: &'static str,
    },

    /// This is the child of a fork, and the object its parent's. Nothing was done: see [fork](crate#fork).
    #[error("{object} belongs to the process that made it, of which this one is a forked child")]
    OtherProcess {
        /// The kind of object.
        object: &'static str,
    },

    /// The value names an object that has been destroyed.
    #[error("{object} has been destroyed")]
    Destroyed {
        /// The kind of object.
        object: &'static str,
    },

    /// No network interface of this machine has an address for which the connection manager uses this
    /// device.
    #[cfg(feature = "rdmacm")]
    #[error(
        "no IP address of this machine belongs to {device}: give the network interface behind it one and bring it up"
    )]
    NoLocalAddr {
        /// The name of the device.
        device: String,
    },

    /// A step of the connection manager has failed: the peer has rejected it, there is no route, or no
    /// program listens.
    #[cfg(feature = "rdmacm")]
    #[error("{step} failed: {failure}")]
    ConnectionManager {
        /// The step, such as `resolving the address`.
        step: &'static str,
        /// The event, its status, and what the peer sent with it.
        failure: Box<cm_failure::CmFailure>,
    },

    /// A step did not end within its timeout.
    #[cfg(feature = "rdmacm")]
    #[error("{what} did not end within {after:?}")]
    TimedOut {
        /// The step, such as `connecting`.
        what: &'static str,
        /// The timeout.
        after: std::time::Duration,
    },

    /// A post was rejected.
    #[error(transparent)]
    Post(#[from] PostError),

    /// The driver cannot poll a completion queue.
    #[error(transparent)]
    Poll(#[from] PollError),

    /// A completion reports a failure.
    #[error(transparent)]
    Work(#[from] WorkError),
}

crate::error_debug!(Error {
    Verb, Unsupported, NoLibrary, NoDevice, UnknownDevice, UnknownPlace, DeviceNode, NoActivePort, PortNotActive, UnknownPort,
    EmptyGid, NoGid, GidRemoved, PkeyRemoved, Limit, OutOfRange, OutOfBounds, RemoteTooShort, Misaligned, Memlock, Registration, HugePages,
    RemoteAccess, Endpoint(error), RemoteLength, Transition, Unreachable, NeedsRdmaCm, ForeignContext, ForeignParent, InUse, OtherProcess, Destroyed, #[cfg(feature = "rdmacm")] ConnectionManager,
    #[cfg(feature = "rdmacm")] TimedOut, #[cfg(feature = "rdmacm")] NoLocalAddr, Post, Poll, Work,
});

impl Error {
    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Verb { source, .. }
            | Self::DeviceNode { source, .. }
            | Self::Registration { source, .. }
            | Self::Unreachable { source, .. }
            | Self::HugePages { source, .. }
            | Self::Transition { source, .. } => kind_of(source),
            Self::Unsupported { .. } | Self::NeedsRdmaCm { .. } => ErrorKind::Unsupported,
            Self::NoLibrary
            | Self::NoDevice { .. }
            | Self::UnknownDevice { .. }
            | Self::UnknownPlace { .. }
            | Self::NoActivePort { .. }
            | Self::PortNotActive { .. }
            | Self::UnknownPort { .. }
            | Self::EmptyGid { .. }
            | Self::NoGid { .. }
            | Self::GidRemoved { .. }
            | Self::PkeyRemoved { .. }
            | Self::Destroyed { .. } => ErrorKind::NotFound,
            Self::Limit { .. } | Self::Memlock { .. } => ErrorKind::Limit,
            Self::OutOfRange { .. }
            | Self::OutOfBounds { .. }
            | Self::RemoteTooShort { .. }
            | Self::Misaligned { .. }
            | Self::RemoteAccess
            | Self::ForeignContext { .. }
            | Self::OtherProcess { .. }
            | Self::ForeignParent { .. } => ErrorKind::InvalidInput,
            Self::Endpoint(_) | Self::RemoteLength { .. } => ErrorKind::InvalidPeer,
            Self::InUse { .. } => ErrorKind::InUse,
            #[cfg(feature = "rdmacm")]
            Self::ConnectionManager { .. } => ErrorKind::ConnectionManager,
            #[cfg(feature = "rdmacm")]
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            #[cfg(feature = "rdmacm")]
            Self::NoLocalAddr { .. } => ErrorKind::NotFound,
            Self::Post(error) => error.kind(),
            Self::Poll(_) => ErrorKind::Other,
            Self::Work(_) => ErrorKind::Work,
        }
    }

    /// The errno that caused this error, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verb { source, .. }
            | Self::DeviceNode { source, .. }
            | Self::Memlock { source, .. }
            | Self::Registration { source, .. }
            | Self::Unreachable { source, .. }
            | Self::HugePages { source, .. }
            | Self::Transition { source, .. } => errno::number(source),
            Self::Unsupported { .. } => Some(libc::EOPNOTSUPP),
            Self::NoLibrary => Some(libc::ELIBACC),
            Self::Post(error) => error.errno(),
            #[cfg(feature = "rdmacm")]
            Self::ConnectionManager { failure, .. } => failure.errno(),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::Limit | ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::InvalidPeer => io::ErrorKind::InvalidData,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::InUse => io::ErrorKind::ResourceBusy,
            ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::ConnectionManager => io::ErrorKind::ConnectionRefused,
            ErrorKind::Work | ErrorKind::Other => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests;
