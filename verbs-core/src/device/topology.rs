//! Topology: where a device is in the machine, and which devices are near a CPU, a NUMA node or a
//! PCI device.
//!
//! All of it is read from sysfs. The root is that of the device's path in libibverbs (so
//! `SYSFS_PATH` is honoured). If a file is missing or odd, its value is unknown.
#![expect(unsafe_code, reason = "reads an `ibv_device`")]

use std::cmp::Reverse;
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::Device;
use super::pci_address::PciAddress;
use crate::error::{Error, Result};

impl Device {
    /// The device's directory in sysfs, such as `/sys/class/infiniband/mlx5_0`.
    #[must_use]
    #[doc(alias = "ibdev_path")]
    pub fn sysfs_path(&self) -> PathBuf {
        // SAFETY: the list keeps the device.
        let path = unsafe { &raw const (*self.as_ptr()).ibdev_path };
        // SAFETY: the path is a C string inside the device, and is not changed.
        let path = unsafe { CStr::from_ptr(path.cast()) };
        if path.is_empty() {
            return Path::new("/sys/class/infiniband").join(self.name());
        }
        PathBuf::from(path.to_string_lossy().as_ref())
    }

    /// The address of the device's PCI function; `None` if the device is virtual, as soft-RoCE is.
    #[must_use]
    pub fn pci_address(&self) -> Option<PciAddress> {
        self.place().pci_address()
    }

    /// The NUMA node that the device is attached to.
    ///
    /// `None` if the device is virtual, or if the firmware does not report the node (the kernel's -1), as on
    /// many machines with one node.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.place().numa_node()
    }

    /// The CPUs nearest to the device, in ascending order.
    ///
    /// These are the CPUs of its NUMA node, or all of them if the node is unknown. The list is
    /// empty if the device is virtual.
    ///
    /// Threads that post and poll are best pinned to these.
    #[must_use]
    pub fn near_cpus(&self) -> Vec<u32> {
        self.place().near_cpus()
    }

    /// The speed of the link of a port, all lanes together, in Mbit/s: 100000 for 100 Gbit/s.
    ///
    /// `None` for a port that does not exist. It is read from sysfs, so the device need not be open;
    /// [`PortAttr::active_rate`](crate::device::PortAttr::active_rate) is the same for an open one.
    #[must_use]
    pub fn port_rate(&self, port: u8) -> Option<u32> {
        self.place().rate(&port.to_string())
    }

    /// All devices: first those that can be used, the nearest to a CPU first, then the others.
    ///
    /// A device can be used if it has an ACTIVE port (on Ethernet, one with a GID), and this process may open its
    /// [node](Self::node). Devices without such a port come last.
    ///
    /// Within each of these groups, first come devices that have the CPU among their
    /// [`near_cpus`](Self::near_cpus), then others by the distance between the CPU's NUMA node and
    /// theirs, then those whose node is unknown, such as virtual ones. Among equally near devices,
    /// the one whose ACTIVE port is faster comes first, then the one whose name sorts first.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::Device;
    ///
    /// // A rail for a thread that is pinned to CPU 12.
    /// if let Some(device) = Device::near_cpu(12)?.first() {
    ///     println!("{} on NUMA node {:?}", device.name(), device.numa_node());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list). [`Error::UnknownPlace`] if there is no such CPU.
    pub fn near_cpu(cpu: u32) -> Result<Vec<Self>> {
        let directory = format!("devices/system/cpu/cpu{cpu}");
        Self::sorted(&directory, |place| {
            if place.near_cpus().contains(&cpu) {
                return 0;
            }
            let distances = place.root.distances_from(place.root.node_of_cpu(cpu));
            place.distance_from(&distances)
        })
    }

    /// All devices: first those that can be used, as for [`near_cpu`](Self::near_cpu), the nearest to a NUMA node
    /// first, then the others.
    ///
    /// First come devices on the node, then others by the distance of their node, then those whose
    /// node is unknown. Among equally near devices, the one whose ACTIVE port is faster comes
    /// first, then the one whose name sorts first.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list). [`Error::UnknownPlace`] if there is no such node.
    pub fn near_node(node: u32) -> Result<Vec<Self>> {
        let directory = format!("devices/system/node/node{node}");
        Self::sorted(&directory, |place| {
            place.distance_from(&place.root.distances_from(Some(node)))
        })
    }

    /// All devices: first those that can be used, as for [`near_cpu`](Self::near_cpu), the nearest to a PCI device,
    /// such as a GPU or a drive, first, then the others.
    ///
    /// The more bridges and switches two devices share on the way from the CPU, the nearer they
    /// are. Where they share none, those on the same NUMA node come first, then others by the
    /// distance of their nodes, then those whose place is unknown. Among equally near devices, the
    /// one whose ACTIVE port is faster comes first, then the one whose name sorts first.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_core::Device;
    ///
    /// // As `nvidia-smi` and `lspci -D` print it.
    /// let gpu = "0000:3b:00.0".parse()?;
    /// let rails = Device::near_pci(gpu)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list). [`Error::UnknownPlace`] if there is no such PCI device.
    pub fn near_pci(address: PciAddress) -> Result<Vec<Self>> {
        let directory = format!("bus/pci/devices/{address}");
        Self::sorted(&directory, |place| {
            let target = place.root.0.join(&directory);
            let (ours, its) = (way(&place.path.join("device")), way(&target));
            let shared = ours.iter().zip(&its).take_while(|(a, b)| a == b).count();
            if shared > 0 {
                let not_shared = ours.len() - shared;
                return (BY_NODE - depth(shared)) * BY_NODE + depth(not_shared);
            }
            let node = number(&target.join("numa_node"));
            let by_node = place.distance_from(&place.root.distances_from(node));
            by_node.saturating_add(BY_NODE * BY_NODE)
        })
    }

    /// All devices, those that can be used first, in the order of a distance. `place` must exist in sysfs.
    fn sorted(place: &str, distance: impl Fn(&Place) -> u64) -> Result<Vec<Self>> {
        let mut devices = Self::list()?;
        if let Some(device) = devices.first() {
            let path = device.place().root.0.join(place);
            // A kernel without NUMA has no table of nodes.
            let no_table = path.ends_with("node/node0") && !path.with_file_name("").exists();
            if !path.exists() && !no_table {
                return Err(Error::UnknownPlace { path });
            }
        }
        devices.sort_by_cached_key(|device| {
            let place = device.place();
            let name = device.name();
            let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
            // `mlx5_2` before `mlx5_10`.
            let number: u64 = name[letters.len()..].parse().unwrap_or(0);
            let fastest = place.fastest();
            (
                fastest.is_none(),
                device.node_error().is_some(),
                distance(&place),
                Reverse(fastest),
                letters.to_owned(),
                number,
            )
        });
        Ok(devices)
    }

    fn place(&self) -> Place {
        let path = self.sysfs_path();
        // From `…/class/infiniband/NAME`.
        let root = path.ancestors().nth(3).unwrap_or_else(|| Path::new("/sys"));
        Place {
            root: Root(root.to_owned()),
            path,
        }
    }
}

/// More than any number of bridges on a way.
const BY_NODE: u64 = 1 << 16;

fn depth(bridges: usize) -> u64 {
    u64::try_from(bridges).unwrap_or(BY_NODE).min(BY_NODE)
}

/// A device's directory in sysfs.
struct Place {
    root: Root,
    path: PathBuf,
}

impl Place {
    fn pci_address(&self) -> Option<PciAddress> {
        let path = fs::canonicalize(self.path.join("device")).ok()?;
        // A part of a function, such as mlx5's scalable functions, is the function's.
        let mut parts = path.components().rev();
        parts.find_map(|part| part.as_os_str().to_str()?.parse().ok())
    }

    fn numa_node(&self) -> Option<u32> {
        number(&self.path.join("device/numa_node"))
    }

    fn near_cpus(&self) -> Vec<u32> {
        list_of(&self.path.join("device/local_cpulist"))
    }

    fn rate(&self, port: &str) -> Option<u32> {
        let rate = fs::read_to_string(self.path.join("ports").join(port).join("rate")).ok()?;
        parse_rate(&rate)
    }

    /// The rate of its fastest port that can be used, 0 if it is unknown; `None` if there is no such port.
    fn fastest(&self) -> Option<u32> {
        let ports = fs::read_dir(self.path.join("ports")).into_iter().flatten();
        let usable = ports.flatten().filter(|port| is_usable(&port.path()));
        let rates = usable.map(|port| self.rate(port.file_name().to_str()?));
        rates.map(Option::unwrap_or_default).max()
    }

    /// The distance of its node, given those of all nodes.
    fn distance_from(&self, distances: &[(u32, u32)]) -> u64 {
        let node = self.numa_node();
        let mut known = distances.iter();
        let of_node = known.find(|(other, _)| Some(*other) == node);
        of_node.map_or(u64::MAX, |(_, distance)| (*distance).into())
    }
}

/// Whether a port is ACTIVE and has an address. On Ethernet that is a GID, in a table with zeros in its holes.
fn is_usable(port: &Path) -> bool {
    let state = fs::read_to_string(port.join("state"));
    if !state.is_ok_and(|state| state.trim_end().ends_with(": ACTIVE")) {
        return false;
    }
    let link_layer = fs::read_to_string(port.join("link_layer"));
    let gids = fs::read_dir(port.join("gids"));
    let (Ok("Ethernet"), Ok(gids)) = (link_layer.as_deref().map(str::trim), gids) else {
        return true;
    };
    let mut gids = gids
        .flatten()
        .flat_map(|gid| fs::read_to_string(gid.path()));
    gids.any(|gid| gid.trim().contains(|digit| !matches!(digit, '0' | ':')))
}

/// Where sysfs is mounted.
struct Root(PathBuf);

impl Root {
    fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        let cpu = self.0.join(format!("devices/system/cpu/cpu{cpu}"));
        let entries = fs::read_dir(cpu).into_iter().flatten().flatten();
        let mut nodes = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("node")?.parse().ok()
        });
        nodes.next()
    }

    /// The distance of each node from this one, itself included.
    fn distances_from(&self, node: Option<u32>) -> Vec<(u32, u32)> {
        let Some(node) = node else {
            return Vec::new();
        };
        let nodes = self.0.join("devices/system/node");
        let online = list_of(&nodes.join("online"));
        let row = fs::read_to_string(nodes.join(format!("node{node}/distance")));
        let row = row.unwrap_or_default();
        let row: Vec<u32> = row.split_whitespace().flat_map(str::parse).collect();
        if row.len() == online.len() && online.contains(&node) {
            return online.into_iter().zip(row).collect();
        }
        // Without the table, only the distance to the node itself is certain.
        vec![(node, LOCAL_DISTANCE)]
    }
}

/// The kernel's distance of a node from itself.
const LOCAL_DISTANCE: u32 = 10;

/// The way from the CPU to a PCI device: its host bridge, the bridges and switches, itself.
fn way(device: &Path) -> Vec<OsString> {
    let path = fs::canonicalize(device).unwrap_or_default();
    let parts = path.iter().map(OsStr::to_owned);
    parts
        .skip_while(|part| !part.as_encoded_bytes().starts_with(b"pci"))
        .collect()
}

/// A file with one number; `None` for the kernel's -1.
fn number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A file with a list of CPUs or nodes: `0-3,8`.
fn list_of(path: &Path) -> Vec<u32> {
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

fn parse_list(text: &str) -> Vec<u32> {
    // No machine has more; a damaged file must not fill the memory.
    const MOST: u32 = 1 << 16;
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    let mut list: Vec<u32> = ranges
        .filter(|range| *range.end() < MOST)
        .flatten()
        .collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Mbit/s of `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<u32> {
    let number = text.split_whitespace().next()?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    if tenths.len() != 1 {
        return None;
    }
    let (whole, tenths): (u32, u32) = (whole.parse().ok()?, tenths.parse().ok()?);
    whole.checked_mul(1000)?.checked_add(tenths * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_lists_and_rates_are_unknown() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("5\n"), [5]);
        for odd in ["", "\n", "a-b", "3-1", "-1", "0-4294967295"] {
            assert_eq!(parse_list(odd), [0; 0], "{odd:?}");
        }
        assert_eq!(parse_rate("100 Gb/sec (4X EDR)\n"), Some(100_000));
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)\n"), Some(2_500));
        for odd in [
            "",
            "fast",
            "-1 Gb/sec",
            "2.55 Gb/sec",
            "99999999 Gb/sec",
            "1.",
        ] {
            assert_eq!(parse_rate(odd), None, "{odd:?}");
        }
    }
}
