//! `nvme_copy` and the kernel's storage target, with a disk of memory.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::Pattern;
use verbs_harness::program::{Program, Scratch};
use verbs_harness::{Test, begin};

pub(crate) const NVME_COPY: &str = env!("CARGO_BIN_EXE_nvme_copy");

/// A subsystem of the kernel's target, with a disk of its own, at a port of its own.
struct Target {
    ip: IpAddr,
    port: u16,
    nqn: String,
    scratch: Scratch,
}

impl Target {
    /// `None` if there is no such target here.
    fn start(test: &Test, port: u16, block_len: u32) -> Option<Self> {
        if verbs_harness::is_in_user_space() {
            test.skip("the kernel does not see devices in user space");
            return None;
        }
        if !verbs_harness::is_root() {
            test.skip("only root can set a target up");
            return None;
        }
        for module in [&["nvmet_rdma"][..], &["null_blk", "nr_devices=0"]] {
            let loaded = Command::new("modprobe").args(module).output();
            if !loaded.is_ok_and(|output| output.status.success()) {
                test.skip(format!("the kernel has no module {}", module[0]));
                return None;
            }
        }
        let Some(ip) = verbs_harness::ip(&verbs_harness::context()) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        if !Path::new(CONFIG).join("nvmet").exists() {
            let mount = ["-t", "configfs", "none", CONFIG];
            // Another test may have been faster.
            drop(Command::new("mount").args(mount).output());
        }
        let (nqn, scratch) = (
            format!("nqn.2026-01.com.example:disk-{port}"),
            Scratch::new(),
        );
        let this = Self {
            ip,
            port,
            nqn,
            scratch,
        };
        this.set_up(block_len).unwrap();
        Some(this)
    }

    fn set_up(&self, block_len: u32) -> io::Result<()> {
        let (disk, subsystem, port) = (self.disk(), self.subsystem(), self.at_port());
        fs::create_dir(&disk)?;
        for (attribute, value) in [
            ("size", MEBIBYTES),
            ("blocksize", block_len),
            ("memory_backed", 1),
            ("power", 1),
        ] {
            fs::write(disk.join(attribute), value.to_string())?;
        }
        let namespace = subsystem.join("namespaces/1");
        for dir in [&subsystem, &namespace, &port] {
            fs::create_dir(dir)?;
        }
        let (device, ip, number) = (self.device(), self.ip.to_string(), self.port.to_string());
        for (attribute, value) in [
            (subsystem.join("attr_allow_any_host"), "1"),
            (namespace.join("device_path"), device.to_str().unwrap()),
            (namespace.join("enable"), "1"),
            (port.join("addr_trtype"), "rdma"),
            (port.join("addr_adrfam"), "ipv4"),
            (port.join("addr_traddr"), &ip),
            (port.join("addr_trsvcid"), &number),
        ] {
            fs::write(attribute, value)?;
        }
        symlink(subsystem, self.offer())
    }

    fn disk(&self) -> PathBuf {
        Path::new(CONFIG).join(format!("nullb/disk{}", self.port))
    }

    /// The block device, whose name depends on the kernel's version.
    fn device(&self) -> PathBuf {
        let index = fs::read_to_string(self.disk().join("index")).unwrap();
        let numbered = Path::new("/dev").join(format!("nullb{}", index.trim()));
        let named = Path::new("/dev").join(format!("disk{}", self.port));
        if named.exists() { named } else { numbered }
    }

    fn subsystem(&self) -> PathBuf {
        Path::new(CONFIG).join("nvmet/subsystems").join(&self.nqn)
    }

    fn at_port(&self) -> PathBuf {
        Path::new(CONFIG).join(format!("nvmet/ports/{}", self.port))
    }

    /// The link by which the port has the subsystem.
    fn offer(&self) -> PathBuf {
        self.at_port().join("subsystems").join(&self.nqn)
    }

    fn file(&self, name: &str) -> String {
        self.scratch.path(name).to_str().unwrap().to_owned()
    }

    fn copies(&self, words: &[&str]) -> Program {
        let address = format!("{}:{}", self.ip, self.port);
        Program::start(
            NVME_COPY,
            &[&[address.as_str(), &self.nqn], words].concat(),
            "VERBS_DEVICE",
        )
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(fs::remove_file(self.offer()));
        for dir in [
            self.at_port(),
            self.subsystem().join("namespaces/1"),
            self.subsystem(),
            self.disk(),
        ] {
            // A test that has failed may have left less.
            drop(fs::remove_dir(dir));
        }
    }
}

const CONFIG: &str = "/sys/kernel/config";

/// The length of a disk: no copy of all of it ends. Blocks that were never written take no memory.
const MEBIBYTES: u32 = 1 << 20;

#[test]
#[ignore = "needs an RDMA device"]
fn a_file_is_copied_to_blocks_of_the_kernels_target_and_back() {
    let test = begin!();
    for (port, block_len, depth, size) in [
        (4420, 512, "1", "64"),
        (4421, 512, "31", "4"),
        (4422, 4096, "8", "1024"),
    ] {
        let Some(target) = Target::start(&test, port, block_len) else {
            return;
        };
        let bytes = Pattern::new(port.into()).bytes(0, 600_001);
        let (file, copy) = (target.file("file"), target.file("copy"));
        fs::write(&file, &bytes).unwrap();
        let common = ["--block", "5", "--depth", depth, "--size", size];
        let output = target
            .copies(&[&["write", &file], &common[..]].concat())
            .succeeds();
        assert!(
            output.contains("600001 bytes written, and compared"),
            "{output}"
        );
        // On soft-RoCE a lease is a registration.
        assert!(
            output.contains("leases: 0 given back, 0 revoked"),
            "{output}"
        );
        let back = ["read", &copy, "--bytes", "600001"];
        let output = target.copies(&[&back, &common[..]].concat()).succeeds();
        assert!(
            output.contains("600001 bytes read, and compared"),
            "{output}"
        );
        assert!(fs::read(&copy).unwrap() == bytes);
        // The disk, without the target.
        let disk = fs::File::options()
            .read(true)
            .write(true)
            .open(target.device())
            .unwrap();
        let (first, mut there) = (5 * u64::from(block_len), vec![1; bytes.len() + 1]);
        disk.read_exact_at(&mut there, first).unwrap();
        assert!(there == [&bytes[..], &[0]].concat());
        disk.write_all_at(&[!bytes[599_999]], first + 599_999)
            .unwrap();
        disk.sync_all().unwrap();
        let why = target
            .copies(&[&["verify", &file], &common[..]].concat())
            .fails();
        assert!(
            why.contains("differ from the file: byte 599999 is"),
            "{why}"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejections_of_the_kernels_target_are_told_in_words() {
    let test = begin!();
    let Some(target) = Target::start(&test, 4430, 512) else {
        return;
    };
    let file = target.file("file");
    fs::write(&file, vec![1; 4096]).unwrap();
    let write = ["write", &file];
    let fails = |words: &[&str]| target.copies(&[&write, words].concat()).fails();
    let why = fails(&["--namespace", "2"]);
    assert!(why.contains("namespace 2 has no blocks"), "{why}");
    let why = fails(&["--block", "2147483641"]);
    assert!(why.contains("from 2147483641 on have 3584"), "{why}");
    fs::write(target.subsystem().join("attr_allow_any_host"), "0").unwrap();
    let why = fails(&[]);
    assert!(
        why.contains("rejects Connect: the target does not admit this host"),
        "{why}"
    );
    fs::remove_file(target.offer()).unwrap();
    let why = fails(&["--timeout", "2"]);
    assert!(why.contains("nothing listened at"), "{why}");
}
