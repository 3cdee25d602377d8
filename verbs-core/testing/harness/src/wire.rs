//! Breaking the wire between the two devices, and mending it.
//!
//! A device in user space has its own wire, in each process: this one spoils what the devices of this process send.

use std::env;
use std::ffi::{CString, c_char};
use std::fs;
use std::mem::transmute;
use std::process::Command;

use super::{PATIENCE, Test, device_name, is_in_user_space, peer_name, until};

/// Something that is wrong with a network interface until this is dropped.
pub struct Broken {
    netdev: String,
    mend: Vec<String>,
}

/// The two interfaces, or why there are none that a test may break; in user space the devices.
pub fn netdevs(test: &Test) -> Option<[String; 2]> {
    if is_in_user_space() {
        return Some([device_name(), peer_name()]);
    }
    links(test)
}

/// The two interfaces, for tests that break the wire of other processes.
pub fn links(test: &Test) -> Option<[String; 2]> {
    let netdev = |name| env::var(name).ok();
    let netdevs = netdev("VERBS_NETDEV").zip(netdev("VERBS_PEER_NETDEV"));
    let Some((here, there)) = netdevs else {
        test.skip("VERBS_NETDEV and VERBS_PEER_NETDEV name no wire that may be broken");
        return None;
    };
    Some([here, there])
}

/// Takes an interface down.
pub fn down(netdev: &str) -> Broken {
    if is_in_user_space() {
        return spoil(netdev, "down", "up");
    }
    run("ip", &["link", "set", "dev", netdev, "down"]);
    Broken {
        netdev: netdev.to_owned(),
        mend: words(&["ip", "link", "set", "dev", netdev, "up"]),
    }
}

/// Takes the IPv4 address away from an interface, and with it the GIDs that were made of it.
pub fn without_address(netdev: &str) -> Broken {
    if is_in_user_space() {
        return spoil(netdev, "no address", "address");
    }
    let output = Command::new("ip")
        .args(["-4", "-o", "addr", "show", "dev", netdev])
        .output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut words = output.split_whitespace().skip_while(|word| *word != "inet");
    let address = words
        .nth(1)
        .expect("the interface has an address")
        .to_owned();
    run("ip", &["addr", "del", &address, "dev", netdev]);
    Broken {
        netdev: netdev.to_owned(),
        mend: ["ip", "addr", "add", &address, "dev", netdev]
            .map(str::to_owned)
            .into(),
    }
}

/// Makes an interface misbehave, as `tc netem` has it: `loss 100%`.
pub fn netem(netdev: &str, how: &[&str]) -> Broken {
    if is_in_user_space() {
        return spoil(netdev, &how.join(" "), "");
    }
    let dev = ["qdisc", "replace", "dev", netdev, "root", "netem"];
    run("tc", &[&dev, how].concat());
    Broken {
        netdev: netdev.to_owned(),
        mend: words(&["tc", "qdisc", "delete", "dev", netdev, "root"]),
    }
}

/// Nothing is lost any more. While a `netem` is deleted, the kernel refuses packets for a moment, and soft-RoCE of
/// Linux 6.12 then fails the queue pair that sends one.
pub const NO_LOSS: &[&str] = &["loss", "0%"];

/// Ways in which a wire that works disturbs packets, and soft-RoCE's counter that shows it.
pub const DISTURBANCES: [(&[&str], &str); 4] = [
    (&["loss", "5%"], "out_of_seq_request"),
    (&["duplicate", "10%"], "duplicate_request"),
    (&["delay", "1ms", "reorder", "20%"], "out_of_seq_request"),
    (&["corrupt", "5%"], "out_of_seq_request"),
];

/// A wire that disturbs packets in both directions until this is dropped.
pub struct Disturbed {
    _broken: [Broken; 2],
    counter: &'static str,
    before: [u64; 2],
}

impl Disturbed {
    /// One of the [`DISTURBANCES`] between these interfaces.
    pub fn new(netdevs: &[String; 2], (how, counter): (&[&str], &'static str)) -> Self {
        Self {
            _broken: netdevs.each_ref().map(|netdev| netem(netdev, how)),
            counter,
            before: counted(counter),
        }
    }

    /// Whether the packets to each of the devices were disturbed.
    pub fn was_seen(&self) -> bool {
        let now = counted(self.counter);
        self.before
            .iter()
            .zip(now)
            .all(|(before, now)| now > before + 2)
    }
}

/// A counter of both devices.
fn counted(counter: &str) -> [u64; 2] {
    if is_in_user_space() {
        return [peer_name(), device_name()].map(|device| own_wire(&device, "count"));
    }
    [device_name(), peer_name()].map(|device| {
        let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim().parse().unwrap()
    })
}

impl Broken {
    /// Makes it misbehave in another way: packets under way stay so.
    pub fn change(&self, how: &[&str]) {
        if is_in_user_space() {
            own_wire(&self.netdev, &how.join(" "));
            return;
        }
        let dev = ["qdisc", "change", "dev", &self.netdev, "root", "netem"];
        run("tc", &[&dev, how].concat());
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if is_in_user_space() {
            own_wire(&self.netdev, &self.mend[0]);
            return;
        }
        let mend: Vec<_> = self.mend.iter().map(String::as_str).collect();
        run(mend[0], &mend[1..]);
        let whole = until(PATIENCE, is_whole);
        // In a test that fails already, this is not the news.
        assert!(
            whole || std::thread::panicking(),
            "{} does not mend",
            self.netdev
        );
    }
}

/// Whether both ports are ACTIVE and have a GID to be reached by.
fn is_whole() -> bool {
    [device_name(), peer_name()].iter().all(|device| {
        let port = format!("/sys/class/infiniband/{device}/ports/1");
        let read = |file: &str| fs::read_to_string(format!("{port}/{file}")).unwrap_or_default();
        // An address that comes back has another index while a queue pair uses the one that it had.
        let has_address = (0..8).any(|index| read(&format!("gids/{index}")).contains("ffff"));
        read("state").contains("ACTIVE") && has_address
    })
}

/// Does this to what a device in user space sends, until it is mended.
fn spoil(device: &str, how: &str, mend: &str) -> Broken {
    own_wire(device, how);
    Broken {
        netdev: device.to_owned(),
        mend: words(&[mend]),
    }
}

/// Has the library change the wire of a device in user space; returns how many packets were disturbed there.
fn own_wire(device: &str, how: &str) -> u64 {
    type Wire = unsafe extern "C" fn(*const c_char, *const c_char) -> i64;
    // SAFETY: the name is a string of C's.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"soft_verbs_wire".as_ptr()) };
    assert!(!found.is_null(), "the libibverbs is not soft-verbs");
    // SAFETY: soft-verbs has this function of this name, and it is not null.
    let wire = unsafe { transmute::<*mut libc::c_void, Wire>(found) };
    let [device, how] = [device, how].map(|text| CString::new(text).unwrap());
    // SAFETY: both are strings of C's.
    let count = unsafe { wire(device.as_ptr(), how.as_ptr()) };
    u64::try_from(count).unwrap_or_else(|_none| panic!("{device:?}: {how:?}"))
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (iproute2): {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {}: {words}",
        args.join(" ")
    );
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
