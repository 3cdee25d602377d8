//! A test's other process: the same test, started again with the name of its part.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::time::Instant;
use std::{env, fs, process};

use super::{LIMIT, PATIENCE, Test, device_name, is_root, until, user};

const PORT: &str = "VERBS_TEST_PORT";
const ROLE: &str = "VERBS_TEST_ROLE";
const READY: &str = "ready";

/// A user with no rights, on every distribution.
const NOBODY: u32 = 65534;

/// The role of this process, and the line to its parent; `None` in the first process.
pub fn role() -> Option<(String, Line)> {
    let role = env::var(ROLE).ok()?;
    let port = env::var(PORT).unwrap().parse::<u16>().unwrap();
    // The process that started it is dead then, or should be.
    std::thread::spawn(|| {
        std::thread::sleep(LIMIT);
        process::abort();
    });
    let line = Line::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
    Some((role, line))
}

/// From now on this process gets no more file descriptors; for one that [has a role](role).
pub fn without_descriptors() {
    limit(libc::RLIMIT_NOFILE, 0).expect("the limit is not set");
}

/// Limits a resource of this process. After `fork` it may be called, too: it is one system call.
fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: `limit` is a local.
    match unsafe { libc::setrlimit(resource, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// A control group that limits its processes; removed when dropped.
pub struct LimitedGroup {
    mount: PathBuf,
    group: PathBuf,
}

impl LimitedGroup {
    /// A new group, whose processes can create only some objects of the device under test.
    ///
    /// # Errors
    ///
    /// Why there can be no such group.
    pub fn of_objects(test: &Test, objects: u32) -> Result<Self, String> {
        let limit = format!("{} hca_object={objects}", device_name());
        Self::new(test, &env::temp_dir().join(name(test)), "rdma.max", &limit)
    }

    /// A new group with a limit in bytes on huge pages of 2 MiB, in this file; for a test that runs
    /// [alone](Test::alone), as it mounts the groups where programs look for them.
    ///
    /// # Errors
    ///
    /// Why there can be no such group.
    pub fn of_huge_pages(test: &Test, file: &str, bytes: u64) -> Result<Self, String> {
        Self::new(test, Path::new("/sys/fs/cgroup"), file, &bytes.to_string())
    }

    fn new(test: &Test, mount: &Path, file: &str, limit: &str) -> Result<Self, String> {
        if !is_root() {
            return Err("only root can create a control group".to_owned());
        }
        fs::create_dir_all(mount).unwrap();
        let mut command = Command::new("mount");
        let mounted = command.args(["-t", "cgroup2", "none"]).arg(mount).status();
        assert!(mounted.unwrap().success());
        let limited = Self {
            group: mount.join(name(test)),
            mount: mount.to_owned(),
        };
        let controller = file.split('.').next().unwrap_or_default();
        let control = mount.join("cgroup.subtree_control");
        let written = fs::write(control, format!("+{controller}"))
            .and_then(|()| fs::create_dir(&limited.group))
            .and_then(|()| fs::write(limited.group.join(file), limit));
        match written {
            Ok(()) => Ok(limited),
            Err(error) => Err(format!("no control group has {file}: {error}")),
        }
    }

    /// For [`join_group`].
    pub fn path(&self) -> &str {
        self.group.to_str().unwrap()
    }
}

/// The name of this test's control group.
fn name(test: &Test) -> String {
    format!("verbs-{}-{}", process::id(), test.name().replace("::", "-"))
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        // Its processes have ended, which takes the kernel a moment.
        until(PATIENCE, || {
            fs::remove_dir(&self.group).is_ok() || !self.group.exists()
        });
        drop(Command::new("umount").arg("-l").arg(&self.mount).status());
        drop(fs::remove_dir(&self.mount));
    }
}

/// From now on this process belongs to this [`LimitedGroup`].
pub fn join_group(path: &str) {
    fs::write(Path::new(path).join("cgroup.procs"), "0").unwrap();
}

/// Another process that runs the same test; killed when dropped.
pub struct Child {
    process: Process,
    /// To talk to it.
    pub line: Line,
}

impl Child {
    /// Starts the test again, in a process of its own.
    pub fn start(test: &Test, role: &str) -> Self {
        Self::start_with(test, role, |_| {})
    }

    /// The same as a user without rights, with a limit on locked memory in bytes, if one is given.
    pub fn start_as_nobody(test: &Test, role: &str, memlock: Option<u64>) -> Self {
        Self::start_without_rights(test, role, move || {
            memlock.map_or(Ok(()), |bytes| limit(libc::RLIMIT_MEMLOCK, bytes))
        })
    }

    /// The same as root in a user namespace, if this host permits it: a user with all capabilities there, and
    /// with none elsewhere, as in a container without root.
    pub fn start_as_root_of_container(test: &Test, role: &str, memlock: u64) -> Self {
        let user = if is_root() { NOBODY } else { user() };
        let map = format!("0 {user} 1");
        let enter = move || {
            limit(libc::RLIMIT_MEMLOCK, memlock)?;
            // After a change of the user, its files in /proc are root's otherwise.
            // SAFETY: the call changes this process only.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
            // SAFETY: the call changes this process only.
            let entered = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            if entered == 0 {
                // AppArmor may refuse it: then this user has no capabilities in the namespace.
                let _written = fs::write("/proc/self/uid_map", &map);
            }
            Ok(())
        };
        Self::start_without_rights(test, role, enter)
    }

    /// As a user without rights, who first calls this, which consists of system calls.
    fn start_without_rights(
        test: &Test,
        role: &str,
        first: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(test, role, |command| {
            // SAFETY: system calls are all it does.
            unsafe { command.pre_exec(first) };
            if is_root() {
                command.uid(NOBODY).gid(NOBODY);
            }
        })
    }

    fn start_with(test: &Test, role: &str, change: impl FnOnce(&mut Command)) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        // The path to the program may be closed to others; this is not.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", test.name(), "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(PORT, port.to_string())
            .stdout(Stdio::null());
        change(&mut command);
        let mut process = command.spawn().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut stream = None;
        let connected = until(PATIENCE, || {
            // Before the look for a connection: it may connect, and end at once.
            let status = process.try_wait().unwrap();
            stream = listener.accept().ok();
            assert!(
                status.is_none() || stream.is_some(),
                "the other process ended early: {status:?}"
            );
            stream.is_some()
        });
        assert!(connected, "the other process did not come");
        let (stream, _) = stream.unwrap();
        stream.set_nonblocking(false).unwrap();
        Self {
            process,
            line: Line::new(stream),
        }
    }

    /// Waits until it is [ready](Line::is_ready): it may take seconds to start.
    pub fn ready(&mut self) -> Instant {
        assert_eq!(self.line.read(), READY);
        Instant::now()
    }

    /// Ends it as SIGKILL does.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn ended(mut self) -> ExitStatus {
        let mut status = None;
        let ended = until(PATIENCE, || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "the other process does not end");
        status.unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Forks this process. The result is 0 in the child, which has as long as anything here.
///
/// Only this thread is in the child, where a lock that another one holds stays locked: fork with those locks
/// that the child needs.
pub fn fork() -> libc::pid_t {
    // SAFETY: tests do in the child what the library promises to be possible there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        let seconds = u32::try_from(PATIENCE.as_secs()).unwrap();
        // SAFETY: the call has no memory arguments.
        unsafe { libc::alarm(seconds) };
    }
    child
}

/// The child of [`fork`] runs this and ends; the parent waits for that.
pub fn in_the_child(child: libc::pid_t, run: impl FnOnce()) {
    if child == 0 {
        end_the_child(run);
    }
    wait_for_the_child(child);
}

/// Runs this in the child of [`fork`], and ends it.
pub fn end_the_child(run: impl FnOnce()) -> ! {
    let ended = catch_unwind(AssertUnwindSafe(run));
    if let Err(panic) = &ended {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("");
        // Past the lock of stderr, and past what the test's runner captures.
        // SAFETY: the text is of this length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: `_exit` ends the process, without the handlers that are the parent's.
    unsafe { libc::_exit(i32::from(ended.is_err())) };
}

/// Waits until a child of [`fork`] has ended, and panics if it has panicked, or has not ended in time.
pub fn wait_for_the_child(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the status is a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let has_ended = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    assert!(
        has_ended,
        "the child ended with {status:#x}: 0xe is a child that hung"
    );
}

/// Lines of text between two processes, or two machines.
pub struct Line {
    stream: BufReader<TcpStream>,
}

impl Line {
    /// A line over this stream.
    pub fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// The other side may take as long as a test may.
    pub fn is_slow(&mut self) {
        self.stream.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
    }

    /// Sends a line.
    pub fn write(&mut self, text: &str) {
        let stream = self.stream.get_mut();
        stream.write_all(format!("{text}\n").as_bytes()).unwrap();
    }

    /// Sends bytes, as numbers in a line.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        let numbers: Vec<_> = bytes.iter().map(u8::to_string).collect();
        self.write(&numbers.join(" "));
    }

    /// Receives bytes that were [sent](Self::write_bytes).
    pub fn read_bytes(&mut self) -> Vec<u8> {
        let line = self.read();
        line.split(' ').map(|byte| byte.parse().unwrap()).collect()
    }

    /// This process begins now with what is measured.
    pub fn is_ready(&mut self) {
        self.write(READY);
    }

    /// Receives a line.
    pub fn read(&mut self) -> String {
        let mut text = String::new();
        self.stream.read_line(&mut text).unwrap();
        assert!(
            text.ends_with('\n'),
            "the other side is gone, after {text:?}"
        );
        text.trim_end().to_owned()
    }
}
