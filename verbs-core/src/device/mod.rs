//! Devices of this machine, before they are opened.
#![expect(unsafe_code, reason = "owns the list of `ibv_device`")]

mod attr;
mod context;
mod event;
mod gid_table;
mod pci_address;
mod port;
mod providers;
mod removal;
mod topology;

use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;

use verbs_sys::{
    ibv_device, ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index,
    ibv_get_device_list, ibv_get_device_name,
};

pub use attr::{AtomicCap, DeviceAttr, DeviceAttrEx};
pub use context::{Context, fork_init};
pub use event::{AsyncEvent, EventElement, EventType};
pub use gid_table::GidEntry;
pub use pci_address::{ParsePciAddressError, PciAddress};
pub use port::PortAttr;

use crate::codes::macros::{man, open_enum, serde_by_name};
use crate::error::{Error, Result};
use crate::ffi::ret;
use providers::kernel_devices;

/// An RDMA device (HCA, RNIC), not yet opened.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// for device in verbs_core::Device::list()? {
///     println!("{} {}", device.name(), device.guid());
/// }
/// let context = verbs_core::Device::by_name("rxe0")?.open()?;
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_get_device_list")]
#[derive(Clone)]
#[doc(alias = "ibv_device")]
pub struct Device {
    list: Arc<List>,
    index: usize,
}

/// The array that libibverbs allocated, with a reference to each device in it.
struct List {
    first: NonNull<*mut ibv_device>,
}

impl Device {
    /// All devices that libibverbs can use; empty if there are none.
    ///
    /// # Errors
    ///
    /// The errno of `ibv_get_device_list`. A kernel without RDMA support is an empty list.
    #[doc(alias = "ibv_get_device_list")]
    #[doc(alias = "ibv_free_device_list")]
    pub fn list() -> Result<Vec<Self>> {
        let mut len = 0;
        // SAFETY: `len` is a local that the call fills in.
        let call = || unsafe { ibv_get_device_list(&raw mut len) };
        let first = match ret::non_null("ibv_get_device_list", call) {
            Ok(first) => first,
            Err(Error::Unsupported { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let list = Arc::new(List { first });
        let len = usize::try_from(len).unwrap_or(0);
        let device = |index| Self {
            list: Arc::clone(&list),
            index,
        };
        Ok((0..len).map(device).collect())
    }

    /// The device of this name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`], which lists the devices that exist, or [`Error::NoDevice`].
    pub fn by_name(name: &str) -> Result<Self> {
        Self::find(|device| device.name() == name, || format!("name {name:?}"))
    }

    /// The device with this node GUID.
    ///
    /// # Errors
    ///
    /// As [`by_name`](Self::by_name).
    pub fn by_guid(guid: Guid) -> Result<Self> {
        Self::find(|device| device.guid() == guid, || format!("GUID {guid}"))
    }

    /// The device with this kernel index: see [`index`](Self::index).
    ///
    /// # Errors
    ///
    /// As [`by_name`](Self::by_name).
    pub fn by_index(index: u32) -> Result<Self> {
        Self::find(
            |device| device.index() == Some(index),
            || format!("index {index}"),
        )
    }

    /// The entry of the list for a device of C's.
    ///
    /// # Safety
    ///
    /// `device` is alive during the call.
    pub(crate) unsafe fn listed(device: *mut ibv_device) -> Result<Self> {
        // SAFETY: the caller keeps it.
        let name = unsafe { ibv_get_device_name(device) };
        // SAFETY: the name is a C string inside the device.
        let name = unsafe { CStr::from_ptr(name) };
        // The library keeps one object for each device; a list may have a new one if it was
        // unplugged, and a device of the same name is there again.
        Self::find(
            |entry| entry.as_ptr() == device || entry.name().as_bytes() == name.to_bytes(),
            || format!("name {name:?}"),
        )
    }

    /// All devices; having none is an error here, with a way out.
    pub(crate) fn some() -> Result<Vec<Self>> {
        let devices = Self::list()?;
        if devices.is_empty() {
            return Err(Error::NoDevice {
                kernel: kernel_devices(),
            });
        }
        Ok(devices)
    }

    fn find(is_it: impl Fn(&Self) -> bool, wanted: impl Fn() -> String) -> Result<Self> {
        let mut devices = Self::some()?;
        match devices.iter().position(is_it) {
            Some(index) => Ok(devices.swap_remove(index)),
            None => Err(Error::UnknownDevice {
                wanted: wanted(),
                available: devices.iter().map(|device| device.name().into()).collect(),
            }),
        }
    }

    /// The device's name, such as `mlx5_0` or `rxe0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        // SAFETY: the list keeps the device.
        let name = unsafe { ibv_get_device_name(self.as_ptr()) };
        if name.is_null() {
            return "";
        }
        // SAFETY: the name is a C string inside the device, and is not changed.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("(a name that is not UTF-8)")
    }

    /// The device's node GUID, in the byte order in which sysfs prints it.
    #[must_use]
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        // SAFETY: the list keeps the device.
        Guid::from_be(unsafe { ibv_get_device_guid(self.as_ptr()) })
    }

    /// The kernel's index of the device, which stays the same when it is renamed.
    ///
    /// `None` if the kernel does not report it.
    #[must_use]
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        // SAFETY: the list keeps the device.
        u32::try_from(unsafe { ibv_get_device_index(self.as_ptr()) }).ok()
    }

    /// The kind of node that the device is.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the list keeps the device, whose type is not changed.
        NodeType::from_raw(unsafe { (*self.as_ptr()).node_type }.0)
    }

    /// The device's transport protocol: InfiniBand's (RoCE included), or iWARP.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: the list keeps the device, whose type is not changed.
        TransportType::from_raw(unsafe { (*self.as_ptr()).transport_type }.0)
    }

    /// Whether its queue pairs connect only by the connection manager: it is an iWARP device, whose
    /// connections are those of TCP. Needs the feature `rdmacm` then.
    #[must_use]
    pub fn needs_rdma_cm(&self) -> bool {
        self.transport_type() == TransportType::IWARP
    }

    /// [`Error::NeedsRdmaCm`] if its queue pairs connect [only by the connection
    /// manager](Self::needs_rdma_cm): a check before endpoints are exchanged with a peer.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsRdmaCm`].
    pub fn check_handshake(&self) -> Result<()> {
        if self.needs_rdma_cm() {
            let device = self.name().to_owned();
            return Err(Error::NeedsRdmaCm { device });
        }
        Ok(())
    }

    /// The path of the device's character device, `/dev/infiniband/uverbsN`.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        // SAFETY: the list keeps the device.
        let name = unsafe { &raw const (*self.as_ptr()).dev_name };
        // SAFETY: the path is a C string inside the device, and is not changed.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        PathBuf::from("/dev/infiniband").join(name.to_string_lossy().as_ref())
    }

    /// The `ibv_device`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_device {
        // SAFETY: `list` made a device of each entry, and of no other.
        let entry = unsafe { self.list.first.add(self.index) };
        // SAFETY: the entry is initialised and is not changed.
        unsafe { entry.read() }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("guid", &format_args!("{}", self.guid()))
            .field("node_type", &self.node_type())
            .field("transport_type", &self.transport_type())
            .finish()
    }
}

// SAFETY: libibverbs counts references to a device atomically and changes nothing else in it.
unsafe impl Send for List {}
// SAFETY: libibverbs counts references to a device atomically and changes nothing else in it.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list`; each `Device` in it is gone, and an
        // open context has a reference of its own.
        unsafe { ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// A globally unique identifier (GUID) of a node or an adapter, 64 bits.
///
/// It prints as `0102:0304:0506:0708`, as in sysfs, and parses from 16 hexadecimal digits with or without
/// colons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "node_guid")]
pub struct Guid([u8; 8]);

impl Guid {
    /// A GUID from its bytes, most significant first.
    #[must_use]
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The GUID's bytes, most significant first.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        self.0
    }

    /// From C's field, which is in network byte order.
    pub(crate) const fn from_be(guid: verbs_sys::__be64) -> Self {
        Self(guid.0.to_ne_bytes())
    }

    /// As C's field, which is in network byte order.
    #[cfg(feature = "serde")]
    pub(crate) const fn to_be(self) -> verbs_sys::__be64 {
        verbs_sys::__be64(u64::from_ne_bytes(self.0))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0;
        write!(
            f,
            "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}"
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

serde_by_name!(Guid, [u8; 8], |guid| (true, guid.0), Self);

/// An error from parsing a [`Guid`]: the text does not have exactly 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a GUID is 16 hexadecimal digits, as in 5054:00ff:fe12:3456")]
#[non_exhaustive]
pub struct ParseGuidError;

crate::error_debug!(ParseGuidError);

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(text: &str) -> Result<Self, ParseGuidError> {
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        if digits.len() != 16 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(ParseGuidError);
        }
        let number = u64::from_str_radix(&digits, 16).map_err(|_unreachable| ParseGuidError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

open_enum! {
    /// The kind of node that a device is.
    #[doc(alias = "ibv_node_type_str")]
    NodeType(i32), "ibv_node_type";
    /// The kernel does not report it.
    UNKNOWN = IBV_NODE_UNKNOWN "IBV_NODE_UNKNOWN",
    /// A channel adapter: an InfiniBand or RoCE device.
    CA = IBV_NODE_CA "IBV_NODE_CA",
    /// A switch.
    SWITCH = IBV_NODE_SWITCH "IBV_NODE_SWITCH",
    /// A router.
    ROUTER = IBV_NODE_ROUTER "IBV_NODE_ROUTER",
    /// An RDMA NIC: an iWARP device.
    RNIC = IBV_NODE_RNIC "IBV_NODE_RNIC",
    /// Cisco's usNIC.
    USNIC = IBV_NODE_USNIC "IBV_NODE_USNIC",
    /// Cisco's usNIC over UDP.
    USNIC_UDP = IBV_NODE_USNIC_UDP "IBV_NODE_USNIC_UDP",
    /// Something else.
    UNSPECIFIED = IBV_NODE_UNSPECIFIED "IBV_NODE_UNSPECIFIED",
}

open_enum! {
    /// The transport protocol of a device.
    TransportType(i32), "ibv_transport_type";
    /// The kernel does not report it.
    UNKNOWN = IBV_TRANSPORT_UNKNOWN "IBV_TRANSPORT_UNKNOWN" "unknown",
    /// InfiniBand's transport: InfiniBand itself and RoCE.
    IB = IBV_TRANSPORT_IB "IBV_TRANSPORT_IB" "InfiniBand",
    /// iWARP, over TCP.
    IWARP = IBV_TRANSPORT_IWARP "IBV_TRANSPORT_IWARP" "iWARP",
    /// Cisco's usNIC.
    USNIC = IBV_TRANSPORT_USNIC "IBV_TRANSPORT_USNIC" "usNIC",
    /// Cisco's usNIC over UDP.
    USNIC_UDP = IBV_TRANSPORT_USNIC_UDP "IBV_TRANSPORT_USNIC_UDP" "usNIC UDP",
    /// Something else.
    UNSPECIFIED = IBV_TRANSPORT_UNSPECIFIED "IBV_TRANSPORT_UNSPECIFIED" "unspecified",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_prints_as_sysfs_does() {
        let guid = Guid::from_be(verbs_sys::__be64(0x5054_00ff_fe12_3456_u64.to_be()));
        assert_eq!(guid.to_string(), "5054:00ff:fe12:3456");
        assert_eq!("5054:00ff:fe12:3456".parse(), Ok(guid));
        assert_eq!("505400fffe123456".parse(), Ok(guid));
        for bad in ["", "5054", "5054:00ff:fe12:345g", "+054:00ff:fe12:3456"] {
            assert_eq!(bad.parse::<Guid>(), Err(ParseGuidError), "{bad}");
        }
    }

    #[test]
    fn unknown_numbers_survive() {
        assert_eq!(format!("{:?}", NodeType::CA), "IBV_NODE_CA");
        assert_eq!(format!("{:?}", NodeType::from_raw(99)), "ibv_node_type(99)");
        assert_eq!(TransportType::UNKNOWN.as_raw(), -1);
    }
}
