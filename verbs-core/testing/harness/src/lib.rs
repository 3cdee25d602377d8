//! Helpers that the tests of several crates share.
//!
//! The root is what every test on a device begins with: the device, a watchdog, and its turn on the
//! wire. A program that uses this crate alone calls the real libibverbs.
#![expect(unsafe_code, reason = "posts, forks, and looks at processes")]
#![expect(
    missing_debug_implementations,
    clippy::exhaustive_structs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "for tests, which a panic fails"
)]

pub mod allocations;
pub mod chains;
pub mod child;
pub mod drops;
pub mod faults;
pub mod iwarp;
pub mod logged;
#[cfg(feature = "rdmacm")]
pub mod manager;
pub mod pair;
pub mod program;
pub mod stacks;
mod wake_counter;
mod watchdog;
pub mod wire;

use std::cell::RefCell;
use std::env;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::codes::GidType;
use verbs_core::{CompletionQueue, Context, Device, PollSlot, WorkCompletion};

pub use wake_counter::WakeCounter;
use watchdog::Watchdog;
pub use watchdog::{bounded, within};

/// A test may take this long. On an emulated machine the longest takes a quarter of it, nearly all
/// others a hundredth.
const LIMIT: Duration = Duration::from_secs(100);

/// The longest wait for something that must happen, on an emulated machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Tests share the wire; those that break it, or that others disturb, have it alone.
static WIRE: RwLock<()> = RwLock::new(());

/// Begins a test: its name is that of the function.
///
/// `begin!(iwarp lacks "atomics")` is for a test of something that iWARP does not have: it returns from
/// it there, and the test is skipped.
#[macro_export]
macro_rules! begin {
    () => {
        $crate::begin!(shared)
    };
    (iwarp lacks $what:literal) => {
        $crate::begin!(shared, iwarp lacks $what)
    };
    ($how:ident, iwarp lacks $what:literal) => {{
        let test = $crate::begin!($how);
        if $crate::iwarp::is_iwarp() {
            return test.skip(concat!("iWARP lacks ", $what));
        }
        test
    }};
    ($how:ident) => {{
        fn here() {}
        $crate::Test::$how(std::any::type_name_of_val(&here))
    }};
}

/// A test that runs.
pub struct Test {
    name: String,
    start: Instant,
    _turn: Turn,
    _watchdog: Watchdog,
}

enum Turn {
    Shared {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Alone {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

impl Test {
    /// A test beside others.
    pub fn shared(here: &str) -> Self {
        let guard = WIRE.read().unwrap_or_else(PoisonError::into_inner);
        Self::new(here, Turn::Shared { _guard: guard })
    }

    /// A test that changes what others rely on, the wire or the rights on a device's node, or that others disturb.
    pub fn alone(here: &str) -> Self {
        let guard = WIRE.write().unwrap_or_else(PoisonError::into_inner);
        Self::new(here, Turn::Alone { _guard: guard })
    }

    fn new(here: &str, turn: Turn) -> Self {
        // It can be set once; later tests find it there.
        drop(log::set_logger(&Leaks).map(|()| log::set_max_level(log::LevelFilter::Error)));
        // `device::module::test::here`, which libtest calls `module::test`.
        let name = here.strip_suffix("::here").unwrap_or(here);
        let name = name
            .split_once("::")
            .map_or(name, |(_, name)| name)
            .to_owned();
        Self {
            _watchdog: Watchdog::new(name.clone(), LIMIT),
            name,
            start: Instant::now(),
            _turn: turn,
        }
    }

    /// As libtest knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Skips the test with the reason why it cannot run here; the caller returns then.
    pub fn skip(&self, reason: impl Display) {
        println!("SKIPPED {}: {reason}", self.name);
    }

    /// Whether this is the first of two machines, and the other's address; skips the test where
    /// there is none.
    pub fn two_hosts(&self) -> Option<(bool, Ipv4Addr)> {
        let set = env::var("SOFT_ROCE_HOST")
            .ok()
            .zip(env::var("SOFT_ROCE_PEER").ok());
        let Some((host, peer)) = set else {
            self.skip("SOFT_ROCE_HOST and SOFT_ROCE_PEER name no second machine");
            return None;
        };
        Some((host == "1", peer.parse().unwrap()))
    }
}

impl Drop for Test {
    /// Leaks are only logged: a test that logs one without intending to has failed.
    fn drop(&mut self) {
        println!("TOOK {} ms {}", self.start.elapsed().as_millis(), self.name);
        let leaks = LEAKS.take();
        assert!(leaks.is_empty() || thread::panicking(), "{leaks:?}");
    }
}

thread_local! {
    static LEAKS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the errors that are logged on each thread.
struct Leaks;

impl log::Log for Leaks {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() == log::Level::Error
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LEAKS.with_borrow_mut(|leaks| leaks.push(record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// The name of the device under test.
pub fn device_name() -> String {
    env::var("VERBS_DEVICE")
        .expect("VERBS_DEVICE names no device: `cargo xtask soft-roce test` does")
}

/// The name of the device at the other end of the wire.
pub fn peer_name() -> String {
    env::var("VERBS_PEER_DEVICE").unwrap_or_else(|_unset| device_name())
}

/// The IPv4 address of a device, which is the one to connect to by the connection manager: that of a GID
/// for RoCE v2; on iWARP that of the link.
pub fn ip(context: &Context) -> Option<IpAddr> {
    if iwarp::is_iwarp() {
        return iwarp::ip(context);
    }
    let port = context.active_port().unwrap()?;
    let table = context.gid_table(port).unwrap();
    let gids = table
        .iter()
        .filter(|entry| entry.gid_type() == GidType::ROCE_V2);
    let mut v4 = gids.filter_map(|entry| Ipv6Addr::from(entry.gid().raw()).to_ipv4_mapped());
    v4.next().map(IpAddr::from)
}

/// The address by which the connection manager of this process finds a listener of another on this machine: that of a
/// device, which they share but in user space.
pub fn ip_of_another_process(context: &Context) -> Option<IpAddr> {
    match is_in_user_space() {
        true => Some(Ipv4Addr::LOCALHOST.into()),
        false => ip(context),
    }
}

/// The device under test, opened.
pub fn context() -> Context {
    Device::by_name(&device_name()).unwrap().open().unwrap()
}

/// Why what is sent to a multicast group never arrives: soft-RoCE of Linux 6.12 drops it.
pub fn drops_multicast() -> Option<String> {
    let kernel = kernel();
    let drops = is_soft() && kernel.starts_with("6.12.");
    drops.then(|| format!("soft-RoCE of Linux {kernel} drops it"))
}

/// The version of the kernel.
fn kernel() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// Whether the device is the kernel's software one.
pub fn is_soft() -> bool {
    env::var_os("SOFT_ROCE").is_some()
}

/// Whether the device is one in user space, which imitates the kernel's.
pub fn is_in_user_space() -> bool {
    env::var_os("SOFT_ROCE").is_some_and(|way| way == "user")
}

/// Whether this process is root.
pub fn is_root() -> bool {
    user() == 0
}

/// The number of the user that runs this process.
fn user() -> u32 {
    // SAFETY: `geteuid` has no arguments, and cannot fail.
    unsafe { libc::geteuid() }
}

/// A file below the device in sysfs.
pub fn sysfs(file: &str) -> String {
    let path = format!("/sys/class/infiniband/{}/{file}", device_name());
    let text = std::fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
        .trim()
        .to_owned()
}

/// Waits until `count` completions have come, and returns them.
pub fn wait_for(cq: &CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let mut found = Vec::new();
    let mut slots = [const { PollSlot::new() }; 16];
    let all_here = until(PATIENCE, || {
        let room = slots.len().min(count - found.len());
        found.extend_from_slice(cq.poll(&mut slots[..room]).unwrap().as_slice());
        found.len() == count
    });
    assert!(
        all_here,
        "{} of {count} completions: {found:?}",
        found.len()
    );
    found
}

/// Asserts that nothing completes for a moment.
pub fn assert_silent(cq: &CompletionQueue) {
    let mut slots = [const { PollSlot::new() }; 1];
    let spoke = until(Duration::from_millis(50), || {
        !cq.poll(&mut slots).unwrap().is_empty()
    });
    assert!(!spoke, "a completion that should not be: {slots:?}");
}

/// Asserts that the text of an error, or of something else, has these words.
#[track_caller]
pub fn assert_says(error: &impl Display, words: &str) {
    let text = error.to_string();
    assert!(text.contains(words), "no {words:?} in {text:?}");
}

/// Waits until something holds; false if it does not in time.
pub fn until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        thread::yield_now();
    }
}
