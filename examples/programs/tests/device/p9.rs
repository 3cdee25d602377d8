//! `p9_server`, mounted by the kernel.
//!
//! Each test has the device alone: the kernel's client connects with no retries, and leaves a process waiting when its
//! queue pair breaks. On soft-RoCE that is rarer when nothing else keeps the processors busy.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use verbs_harness::{Test, begin, until};

use verbs_harness::program::{Program, Scratch};

const P9_SERVER: &str = env!("CARGO_BIN_EXE_p9_server");

/// Operations on a mount whose server is gone have failed by then.
const SOON: Duration = Duration::from_secs(20);

/// A server of a directory in `scratch`.
pub(crate) struct Server {
    scratch: Scratch,
    pub(crate) program: Program,
    pub(crate) addr: String,
}

/// A mount, which goes when it is dropped.
struct Mount(PathBuf);

impl Server {
    /// `None` if the kernel cannot mount it here.
    fn start(test: &Test, words: &[&str]) -> Option<Self> {
        if !verbs_harness::is_root() {
            test.skip("only root can mount");
            return None;
        }
        for module in ["9p", "9pnet_rdma"] {
            let loaded = Command::new("modprobe").arg(module).output();
            if !loaded.is_ok_and(|output| output.status.success()) {
                test.skip(format!("the kernel has no module {module}"));
                return None;
            }
        }
        Self::unmounted(test, words)
    }

    /// For clients other than the kernel.
    pub(crate) fn unmounted(test: &Test, words: &[&str]) -> Option<Self> {
        let Some(ip) = verbs_harness::ip(&verbs_harness::context()) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let scratch = Scratch::new();
        for dir in ["root", "mount"] {
            fs::create_dir(scratch.path(dir)).unwrap();
        }
        let listen = format!("{ip}:0");
        let (program, addr) = Self::serve(&scratch, &listen, words);
        Some(Self {
            scratch,
            program,
            addr,
        })
    }

    fn serve(scratch: &Scratch, listen: &str, words: &[&str]) -> (Program, String) {
        let root = scratch.path("root");
        let common = ["--root", root.to_str().unwrap(), "--listen", listen];
        let program = Program::start(P9_SERVER, &[&common, words].concat(), "");
        let addr = program.prints_after(" over RDMA at ");
        (program, addr)
    }

    /// A file or directory as the server sees it.
    pub(crate) fn root(&self, name: &str) -> PathBuf {
        self.scratch.path("root").join(name)
    }

    fn mount(&self) -> Mount {
        let (ip, port) = self.addr.split_once(':').unwrap();
        let options = format!("trans=rdma,port={port},version=9p2000.L,msize=131072");
        let dir = self.scratch.path("mount");
        let mount = Command::new("mount")
            .args(["-t", "9p", "-o", &options, ip])
            .arg(&dir)
            .output();
        let mount = mount.unwrap();
        let error = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "{error}");
        Mount(dir)
    }

    /// The descriptors that the server has open.
    pub(crate) fn descriptors(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.program.id());
        fs::read_dir(dir).unwrap().count()
    }
}

impl Mount {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily if something still uses it, as after a failure.
        let unmount = |words: &[&str]| Command::new("umount").args(words).arg(&self.0).output();
        if !unmount(&[]).is_ok_and(|output| output.status.success()) {
            drop(unmount(&["-l"]));
        }
    }
}

/// The contents of a file of this number.
fn contents(number: usize) -> Vec<u8> {
    let len = number * number * 7 % 40_000;
    (number..number + len)
        .map(|byte| u8::try_from(byte * 31 % 251).unwrap())
        .collect()
}

/// A process that reads or writes a file all the time.
fn busy(from: &Path, to: &Path) -> Child {
    let loops = "while :; do dd if=\"$0\" of=\"$1\" bs=64k count=16 conv=notrunc || exit; done";
    Command::new("sh")
        .args(["-c", loops])
        .args([from, to])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until this file of a server that is gone cannot be read. The kernel's client leaves a process
/// waiting whose request was sent before the connection manager noticed the end; such a one is killed.
fn ends_with_an_error(file: &Path) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < SOON, "{} can be read", file.display());
        let mut read = Command::new("cat");
        let mut read = read
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ended = until(Duration::from_secs(2), || {
            read.try_wait().unwrap().is_some()
        });
        read.kill().unwrap();
        if !read.wait().unwrap().success() && ended {
            return;
        }
    }
}

/// Files in each directory: the kernel's client takes 0.3 s for one of them in a guest on a busy machine, over TCP,
/// too.
const FILES: usize = 10;

#[test]
#[ignore = "needs an RDMA device"]
fn a_tree_is_copied_to_a_mount_and_back() {
    let test = begin!(alone);
    let Some(server) = Server::start(&test, &[]) else {
        return;
    };
    let mount = server.mount();
    // Several write at once, to one directory each.
    thread::scope(|threads| {
        for part in 0..4 {
            let (server, mount) = (&server, &mount);
            threads.spawn(move || {
                let dir = format!("dir-{part}");
                fs::create_dir(mount.path(&dir)).unwrap();
                for number in FILES * part..FILES * (part + 1) {
                    let name = format!("{dir}/file-{number}");
                    fs::write(mount.path(&name), contents(number)).unwrap();
                    let there = fs::read(server.root(&name)).unwrap();
                    assert!(there == contents(number), "{name}");
                    assert!(fs::read(mount.path(&name)).unwrap() == there, "{name}");
                }
                assert_eq!(fs::read_dir(mount.path(&dir)).unwrap().count(), FILES);
            });
        }
    });
    let large: Vec<u8> = (0..250).cycle().take(4 << 20).collect();
    fs::write(mount.path("large"), &large).unwrap();
    assert!(fs::read(server.root("large")).unwrap() == large);
    assert!(fs::read(mount.path("large")).unwrap() == large);
    // The remaining operations.
    fs::rename(mount.path("dir-0/file-3"), mount.path("moved")).unwrap();
    fs::hard_link(mount.path("moved"), mount.path("second")).unwrap();
    symlink("/etc/passwd", mount.path("link")).unwrap();
    assert_eq!(
        fs::read_link(server.root("link")).unwrap(),
        Path::new("/etc/passwd")
    );
    fs::remove_file(mount.path("moved")).unwrap();
    assert!(fs::read(server.root("second")).unwrap() == contents(3));
    fs::remove_dir_all(mount.path("dir-1")).unwrap();
    assert!(!server.root("dir-1").exists());
    let mut file = File::options()
        .append(true)
        .open(mount.path("second"))
        .unwrap();
    file.write_all(b"end").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(server.root("second")).unwrap().ends_with(b"end"));
    drop(mount);
    server.program.prints("client 1 left");
    server.program.interrupt();
    let output = server.program.succeeds();
    assert!(output.contains("1 clients, "), "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_killed_process_leaves_no_file_open_and_a_killed_server_is_an_error() {
    let test = begin!(alone);
    let Some(mut server) = Server::start(&test, &[]) else {
        return;
    };
    fs::write(server.root("file"), vec![b'x'; 1 << 20]).unwrap();
    let mount = server.mount();
    let before = server.descriptors();
    let mut doomed = busy(&mount.path("file"), &mount.path("copy"));
    server
        .program
        .waits_for(|| server.descriptors() > before + 1);
    doomed.kill().unwrap();
    let _status = doomed.wait().unwrap();
    server.program.waits_for(|| server.descriptors() <= before);
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 1 << 20);
    // Now the server, with a file open.
    let mut file = File::open(mount.path("file")).unwrap();
    let mut busy = busy(&mount.path("file"), &mount.path("copy"));
    server
        .program
        .waits_for(|| server.descriptors() > before + 2);
    let root = server.root("");
    server.program.kill();
    ends_with_an_error(&mount.path("file"));
    assert_eq!(
        file.read(&mut [0; 100]).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    busy.kill().unwrap();
    let _status = busy.wait().unwrap();
    drop(mount);
    // The next server has the same files.
    assert!(root.join("file").exists());
    (server.program, server.addr) = Server::serve(&server.scratch, &server.addr, &[]);
    let mount = server.mount();
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 1 << 20);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_read_only_mount_refuses_changes_and_ends_with_its_server() {
    let test = begin!(alone);
    let Some(server) = Server::start(&test, &["--read-only", "--max-clients", "1"]) else {
        return;
    };
    fs::write(server.root("file"), "contents").unwrap();
    symlink("/etc", server.root("out")).unwrap();
    let mount = server.mount();
    let file = mount.path("file");
    assert_eq!(fs::read(&file).unwrap(), b"contents");
    let error = fs::write(&file, "other").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{error}");
    assert_eq!(fs::read(server.root("file")).unwrap(), b"contents");
    // The link leads to the client's own directory.
    assert!(mount.path("out/passwd").exists());
    server.program.interrupt();
    let output = server.program.succeeds();
    assert!(output.contains("1 clients, "), "{output}");
    ends_with_an_error(&file);
}
