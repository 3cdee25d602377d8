//! The wire: two network links that are each other's other end, and an RDMA device on each.
//!
//! Packets between the two devices really cross it, so that a test can lose, delay or cut them.
//! Nothing else is on it, and no packet leaves the machine.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::Error;

use crate::driver::Driver;
use crate::netlink::{self, Veth};

/// The one link of a guest that has a second host as its peer.
pub(crate) const HOSTS_NETDEV: &str = "eth0";

/// Room for RDMA's largest MTU, 4096 bytes, with its headers.
pub(crate) const MTU: u32 = 4200;

/// The addresses in a guest, of its two devices or of the two hosts.
pub(crate) const GUEST_ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 10, 0, 1), Ipv4Addr::new(10, 10, 0, 2)];

/// `/30`: the two addresses and no more.
const PREFIX: u8 = 30;

/// A device is active, and has its GIDs, a moment after it was made.
const GIDS: Duration = Duration::from_secs(10);

/// Makes the whole wire, or what is missing of it.
pub(crate) fn make_pair(driver: Driver, addresses: [Ipv4Addr; 2]) -> Result<(), Error> {
    let (devices, netdevs) = (driver.devices(), driver.netdevs());
    for (device, netdev) in devices.into_iter().zip(netdevs) {
        if let Some(other) = netdev_of(device).filter(|other| other != netdev) {
            return Err(Error::new(format!(
                "the RDMA device {device} exists already, on the network link {other}: use it \
                 as it is, with VERBS_DEVICE={device}, or remove it, with `rdma link delete {device}`"
            )));
        }
    }
    if !netdevs.iter().all(|name| link_exists(name)) {
        let ends = [veth(driver, 0), veth(driver, 1)];
        // Another run may be faster.
        let made = existing(netlink::add_veth(ends, MTU));
        let what = format!("make the network link {}", netdevs[0]);
        made.map_err(|errno| refused(driver, &what, errno))?;
    }
    // Both first: an end is up only while the other one is, and siw does not see that change.
    for name in netdevs {
        allow_local(name);
        set_up(driver, name)?;
    }
    for (index, address) in addresses.into_iter().enumerate() {
        attach(driver, netdevs[index], devices[index], address)?;
    }
    for device in devices {
        wait_until_active(driver, device)?;
    }
    Ok(())
}

/// Makes one device, on a link whose other end is another host.
pub(crate) fn make_single(driver: Driver, address: Ipv4Addr) -> Result<(), Error> {
    let device = driver.devices()[0];
    set_up(driver, HOSTS_NETDEV)?;
    attach(driver, HOSTS_NETDEV, device, address)?;
    wait_until_active(driver, device)
}

/// Removes the wire and its devices. Returns what was there.
pub(crate) fn remove_pair(driver: Driver) -> Result<Vec<&'static str>, Error> {
    let mut removed = Vec::new();
    let netdevs = driver.netdevs();
    for (device, netdev) in driver.devices().into_iter().zip(netdevs) {
        if netdev_of(device).as_deref() == Some(netdev) {
            // The kernel would wait for them, without a bound and deaf to signals.
            let holders = holders(device);
            if !holders.is_empty() {
                return Err(Error::new(format!(
                    "cannot remove the RDMA device {device}: it is in use by {}; end that first",
                    holders.join(", ")
                )));
            }
            let gone = netlink::delete_rdma(device);
            let what = format!("remove the RDMA device {device}");
            gone.map_err(|errno| refused(driver, &what, errno))?;
            removed.push(device);
        }
    }
    if link_exists(netdevs[0]) {
        let gone = netlink::delete_link(netdevs[0]);
        let what = format!("remove the network link {}", netdevs[0]);
        gone.map_err(|errno| refused(driver, &what, errno))?;
        removed.extend(netdevs);
    }
    Ok(removed)
}

/// Whether both devices are there, on the links they belong on.
pub(crate) fn is_up(driver: Driver) -> bool {
    let mut pairs = driver.devices().into_iter().zip(driver.netdevs());
    pairs.all(|(device, netdev)| {
        netdev_of(device).as_deref() == Some(netdev) && gids(device).len() >= driver.gids()
    })
}

/// The network link below an RDMA device.
pub(crate) fn netdev_of(device: &str) -> Option<String> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/0");
    // It cannot be read while the table's first entry is empty; rxe names its link here too.
    let parent = format!("/sys/class/infiniband/{device}/parent");
    let text = fs::read_to_string(file).or_else(|_empty| fs::read_to_string(parent));
    if let Ok(text) = text {
        return Some(text.trim().to_owned());
    }
    // siw's table names no link.
    netlink::rdma_netdev(device).ok()?
}

fn veth(driver: Driver, index: usize) -> Veth {
    Veth {
        name: driver.netdevs()[index],
        // Locally administered, and the same at each start: so are the link-local GIDs.
        mac: [0x02, 0, 0, 0, 0, driver.macs()[index]],
    }
}

/// Lets a link take packets from an address that is this machine's own: both ends are.
fn allow_local(name: &str) {
    // A system that forbids it loses the IPv4 path between the two devices only.
    for (family, key, value) in [
        ("ipv4", "accept_local", "1"),
        ("ipv4", "rp_filter", "0"),
        ("ipv6", "accept_dad", "0"),
    ] {
        let file = format!("/proc/sys/net/{family}/conf/{name}/{key}");
        drop(fs::write(file, value));
    }
}

fn set_up(driver: Driver, netdev: &str) -> Result<(), Error> {
    let up = netlink::set_up(netdev, Some(MTU));
    up.map_err(|errno| refused(driver, &format!("set {netdev} up"), errno))
}

/// An object that exists already need not be made.
fn existing(made: Result<(), Errno>) -> Result<(), Errno> {
    match made {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn attach(driver: Driver, netdev: &str, device: &str, address: Ipv4Addr) -> Result<(), Error> {
    let refused = |what: String| move |errno| refused(driver, &what, errno);
    existing(netlink::add_address(netdev, address, PREFIX))
        .map_err(refused(format!("give {netdev} the address {address}")))?;
    if netdev_of(device).is_some() {
        return Ok(());
    }
    existing(netlink::add_rdma(driver.name(), device, netdev)).map_err(refused(format!(
        "make the RDMA device {device} on {netdev}"
    )))
}

fn wait_until_active(driver: Driver, device: &str) -> Result<(), Error> {
    let state = || {
        let state = fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/1/state"));
        state.unwrap_or_default().trim().to_owned()
    };
    let deadline = Instant::now() + GIDS;
    while gids(device).len() < driver.gids() || !state().ends_with("ACTIVE") {
        if Instant::now() > deadline {
            return Err(Error::new(format!(
                "the RDMA device {device} is not active after {} s: it is in the state {}, and \
                 has the GIDs {}; it needs {} of them",
                GIDS.as_secs(),
                state(),
                gids(device).join(", "),
                driver.gids()
            )));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The processes that have a device open, as far as this user may see.
fn holders(device: &str) -> Vec<String> {
    let nodes = entries(Path::new("/sys/class/infiniband_verbs"));
    let node = nodes.into_iter().find(|node| {
        fs::read_to_string(node.join("ibdev")).is_ok_and(|name| name.trim() == device)
    });
    let node = node.and_then(|node| Some(Path::new("/dev/infiniband").join(node.file_name()?)));
    let Some(node) = node else {
        return Vec::new();
    };
    let mut holders = Vec::new();
    for process in entries(Path::new("/proc")) {
        let files = entries(&process.join("fd"));
        if files
            .iter()
            .any(|file| fs::read_link(file).is_ok_and(|target| target == node))
        {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let pid = process.file_name().unwrap_or_default().to_string_lossy();
            holders.push(format!("{} (pid {pid})", name.trim()));
        }
    }
    holders
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// The GIDs of a device's port that are not empty.
pub(crate) fn gids(device: &str) -> Vec<String> {
    let dir = format!("/sys/class/infiniband/{device}/ports/1/gids");
    let read = |index: usize| fs::read_to_string(format!("{dir}/{index}")).ok();
    let all = (0..8).filter_map(read).map(|gid| gid.trim().to_owned());
    all.filter(|gid| gid.chars().any(|c| !"0:".contains(c)))
        .collect()
}

fn link_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// The operation that the kernel refused, the reason, and the remedy.
fn refused(driver: Driver, what: &str, errno: Errno) -> Error {
    let hint: &str = match errno {
        Errno::PERM | Errno::ACCESS => {
            ": this needs root (CAP_NET_ADMIN in the initial user namespace): use sudo, or --guest"
        }
        Errno::INVAL => &format!(
            ": the kernel module {} is not loaded, or this kernel has none: see `soft-roce status`, \
             or use --guest",
            driver.module()
        ),
        Errno::PROTONOSUPPORT => ": this kernel has no RDMA: use --guest",
        Errno::OPNOTSUPP => ": this kernel cannot make such a link: use --guest",
        Errno::NODEV => ": there is no such device",
        Errno::NFILE => ": a device of this name exists on another link: see `rdma link`",
        Errno::AGAIN => ": the kernel did not answer in 10 s: see `dmesg`",
        _ => "",
    };
    let why = std::io::Error::from(errno);
    Error::new(format!("cannot {what}: {why}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::{Driver, Errno, gids, netdev_of, refused};

    #[test]
    fn rejection_contains_the_remedy() {
        let refused = |what, errno| refused(Driver::Siw, what, errno);
        let text = refused("make the RDMA device rxe0", Errno::PERM).to_string();
        assert!(
            text.starts_with("cannot make the RDMA device rxe0: "),
            "{text}"
        );
        assert!(text.contains("sudo"), "{text}");
        assert!(refused("x", Errno::AGAIN).to_string().contains("dmesg"));
        assert!(
            refused("x", Errno::INVAL)
                .to_string()
                .contains("module siw")
        );
    }

    #[test]
    fn a_device_that_is_not_there_has_nothing() {
        assert_eq!(netdev_of("no-such-device"), None);
        assert!(gids("no-such-device").is_empty());
    }
}
