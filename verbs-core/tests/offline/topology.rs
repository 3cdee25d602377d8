//! Rails: what is read from sysfs, and the order of the devices by nearness.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fake_libibverbs::with;
use verbs_core::error::ErrorKind;
use verbs_core::{Device, Error};

/// A sysfs in a directory that is removed with it.
struct Sysfs {
    root: PathBuf,
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

/// Where a device is: its path below `devices`, node, CPUs, rate and state of port 1.
type Rail = (&'static str, &'static str, &'static str, &'static str);

const EDR: &str = "100 Gb/sec (4X EDR)";
const HDR: &str = "200 Gb/sec (4X HDR)";

impl Sysfs {
    /// The sysfs of this test's library, with these devices; two nodes with CPUs 0 to 3 and 4 to 7.
    fn new(test: &str, rails: &[Rail]) -> Self {
        let name = format!("verbs-core-{test}-{}", std::process::id());
        let root = fs::canonicalize(std::env::temp_dir()).unwrap().join(name);
        drop(fs::remove_dir_all(&root));
        let sysfs = Self { root };
        sysfs.write("devices/system/node/online", "0-1\n");
        for (node, distance) in [(0, "10 21\n"), (1, "21 10\n")] {
            sysfs.write(
                &format!("devices/system/node/node{node}/distance"),
                distance,
            );
        }
        for cpu in 0..8 {
            let node = cpu / 4;
            sysfs.write(&format!("devices/system/cpu/cpu{cpu}/node{node}/x"), "");
        }
        for (index, (place, node, cpus, rate)) in rails.iter().enumerate() {
            let of_device = format!("class/infiniband/fake{index}");
            sysfs.write(&format!("{of_device}/ports/1/rate"), &format!("{rate}\n"));
            sysfs.write(&format!("{of_device}/ports/1/state"), "4: ACTIVE\n");
            if place.is_empty() {
                continue;
            }
            sysfs.pci(place, node);
            sysfs.write(
                &format!("devices/{place}/local_cpulist"),
                &format!("{cpus}\n"),
            );
            let target = sysfs.root.join("devices").join(place);
            symlink(target, sysfs.root.join(of_device).join("device")).unwrap();
        }
        with(|library| {
            library.devices = rails.len();
            library.sysfs = sysfs.root.clone();
        });
        sysfs
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A PCI device.
    fn pci(&self, place: &str, node: &str) {
        self.write(&format!("devices/{place}/numa_node"), &format!("{node}\n"));
        let address = Path::new(place).file_name().unwrap();
        let devices = self.root.join("bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        symlink(self.root.join("devices").join(place), devices.join(address)).unwrap();
    }
}

fn names(devices: Result<Vec<Device>, Error>) -> Vec<String> {
    let devices = devices.unwrap();
    devices.iter().map(|device| device.name().into()).collect()
}

fn device(name: &str) -> Device {
    Device::by_name(name).unwrap()
}

#[test]
fn a_pci_device_has_an_address_a_node_and_cpus() {
    let rails = [("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "1", "4-6,7", EDR)];
    let sysfs = Sysfs::new("place", &rails);
    let device = device("fake0");
    assert_eq!(
        device.sysfs_path(),
        sysfs.root.join("class/infiniband/fake0")
    );
    assert_eq!(device.pci_address().unwrap().to_string(), "0000:3b:00.1");
    assert_eq!(device.numa_node(), Some(1));
    assert_eq!(device.near_cpus(), [4, 5, 6, 7]);
    assert_eq!(
        (device.port_rate(1), device.port_rate(2)),
        (Some(100_000), None)
    );
}

#[test]
fn a_virtual_device_has_no_place() {
    let _sysfs = Sysfs::new("virtual", &[("", "", "", "2.5 Gb/sec (1X SDR)")]);
    let device = device("fake0");
    assert_eq!((device.pci_address(), device.numa_node()), (None, None));
    assert_eq!(device.near_cpus(), [0; 0]);
    assert_eq!(device.port_rate(1), Some(2_500));
    assert_eq!(names(Device::near_cpu(3)), ["fake0"]);
    assert_eq!(names(Device::near_node(1)), ["fake0"]);
}

#[test]
fn odd_files_leave_a_value_unknown() {
    let rails = [
        ("pci0000:00/0000:00:01.0", "-1", "all", "fast"),
        // A part of a function, without files of its own.
        ("pci0000:00/0000:00:02.0/mlx5_core.sf.4", "", "", ""),
    ];
    let sysfs = Sysfs::new("odd", &rails);
    let device = device("fake0");
    assert_eq!((device.numa_node(), device.port_rate(1)), (None, None));
    assert_eq!(device.near_cpus(), [0; 0]);
    let part = self::device("fake1");
    assert_eq!(part.pci_address().unwrap().to_string(), "0000:00:02.0");
    // A table that does not fit the nodes is not used.
    sysfs.write("devices/system/node/node0/distance", "10\n");
    assert_eq!(names(Device::near_node(0)), ["fake0", "fake1"]);
    // A kernel without NUMA has node 0 only, and no table.
    fs::remove_dir_all(sysfs.root.join("devices/system/node")).unwrap();
    assert_eq!(names(Device::near_node(0)), ["fake0", "fake1"]);
    assert!(Device::near_node(1).is_err());
}

const RAILS: [Rail; 5] = [
    ("pci0000:00/0000:00:01.0/0000:01:00.0", "0", "0-3", EDR),
    (
        "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0",
        "1",
        "4-7",
        EDR,
    ),
    ("", "", "", HDR),
    ("pci0000:80/0000:80:02.0/0000:90:00.0", "1", "4-7", HDR),
    ("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "1", "4-7", EDR),
];

#[test]
fn devices_near_a_cpu_or_a_node_come_first() {
    let _sysfs = Sysfs::new("near", &RAILS);
    // Equally near devices are ordered by speed, then by name.
    let near_1 = ["fake3", "fake1", "fake4", "fake0", "fake2"];
    assert_eq!(names(Device::near_cpu(5)), near_1);
    assert_eq!(names(Device::near_node(1)), near_1);
    let near_0 = ["fake0", "fake3", "fake1", "fake4", "fake2"];
    assert_eq!(names(Device::near_cpu(0)), near_0);
    assert_eq!(names(Device::near_node(0)), near_0);
}

#[test]
fn devices_that_share_bridges_with_a_pci_device_come_first() {
    let sysfs = Sysfs::new("pci", &RAILS);
    // On the same switch as fake1.
    sysfs.pci("pci0000:80/0000:80:01.0/0000:81:00.0/0000:83:00.0", "1");
    let near = names(Device::near_pci("0000:83:00.0".parse().unwrap()));
    assert_eq!(near, ["fake1", "fake3", "fake4", "fake0", "fake2"]);
    // It shares no bridge with any, and its node with one.
    sysfs.pci("pci0000:40/0000:40:00.0", "0");
    let near = names(Device::near_pci("0000:40:00.0".parse().unwrap()));
    assert_eq!(near, ["fake0", "fake3", "fake1", "fake4", "fake2"]);
    // Its host bridge is all that it shares.
    sysfs.pci("pci0000:a0/0000:a0:07.0", "-1");
    let near = names(Device::near_pci("0000:a0:07.0".parse().unwrap()));
    assert_eq!(near, ["fake4", "fake2", "fake3", "fake0", "fake1"]);
}

#[test]
fn shared_bridges_count_more_than_a_short_way() {
    let rails = [
        // Nothing but the host bridge is shared, and the way to it is short.
        ("pci0000:80/0000:80:05.0", "1", "4-7", HDR),
        (
            "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:84:00.0",
            "1",
            "4-7",
            EDR,
        ),
    ];
    let sysfs = Sysfs::new("bridges", &rails);
    sysfs.pci("pci0000:80/0000:80:01.0/0000:81:00.0/0000:83:00.0", "1");
    let near = names(Device::near_pci("0000:83:00.0".parse().unwrap()));
    assert_eq!(near, ["fake1", "fake0"]);
}

#[test]
fn device_that_cannot_be_used_comes_after_those_that_can() {
    // Two of three near ones have ports that are down, have no GID, or no node that can be opened.
    let none = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    for fault in ["down", "no-gid", "closed"] {
        let sysfs = Sysfs::new(fault, &RAILS);
        for (name, is_well) in [("fake1", false), ("fake3", false), ("fake4", true)] {
            let port = format!("class/infiniband/{name}/ports/1");
            match fault {
                "down" if !is_well => sysfs.write(&format!("{port}/state"), "1: DOWN\n"),
                "no-gid" => {
                    let gid = if is_well { "fe80:0000::0001\n" } else { none };
                    sysfs.write(&format!("{port}/link_layer"), "Ethernet\n");
                    sysfs.write(&format!("{port}/gids/0"), none);
                    sysfs.write(&format!("{port}/gids/1"), gid);
                }
                // An absolute path; the others' nodes do not exist.
                "closed" => with(|library| library.node = Some((4, "/dev/null"))),
                _ => {}
            }
        }
        sysfs.pci("pci0000:80/0000:80:01.0/0000:81:00.0/0000:83:00.0", "1");
        for order in [
            names(Device::near_cpu(5)),
            names(Device::near_node(1)),
            names(Device::near_pci("0000:83:00.0".parse().unwrap())),
        ] {
            assert_eq!(order[0], "fake4", "{fault}: {order:?}");
            let next = ["fake0", "fake2"];
            assert!(
                fault == "closed" || order[1..3] == next,
                "{fault}: {order:?}"
            );
        }
        if fault == "down" {
            // One port is enough.
            sysfs.write("class/infiniband/fake1/ports/2/state", "4: ACTIVE\n");
            assert_eq!(names(Device::near_node(1))[..2], ["fake4", "fake1"]);
        }
        with(|library| library.node = None);
    }
}

#[test]
fn missing_cpu_node_or_pci_device_is_an_error() {
    let sysfs = Sysfs::new("unknown", &RAILS);
    let pci = "0000:ff:00.0".parse().unwrap();
    for (refused, path) in [
        (Device::near_cpu(8), "devices/system/cpu/cpu8"),
        (Device::near_node(2), "devices/system/node/node2"),
        (Device::near_pci(pci), "bus/pci/devices/0000:ff:00.0"),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let path = sysfs.root.join(path);
        assert_eq!(
            error.to_string(),
            format!("{} does not exist", path.display())
        );
    }
}
