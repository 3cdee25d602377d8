//! Device tests on devices in software, in a test program that has those in the module `device`.

use std::env;
use std::process::Command;

/// There is no sysfs.
pub const NO_SYSFS: &str = "there is no sysfs";
/// There are no device nodes.
pub const NO_NODE: &str = "there are no device nodes";
/// Memory is not pinned.
pub const NOT_PINNED: &str = "memory is not pinned";
/// Two processes are on two networks.
pub const ONE_PROCESS: &str = "the network ends with its process";
/// The device is part of the program, and allocates.
pub const ALLOCATES: &str = "the device is part of the program, and allocates";
/// For tests of the feature `rdmacm`.
pub const NO_MANAGER: &str = "there is no librdmacm";

/// Runs the device tests of this program, except those that are lacking, each with the reason.
pub fn run(lacking: &[(&str, &str)]) {
    let mut tests = Command::new(env::current_exe().unwrap());
    tests.args(["--ignored", "device::"]);
    for (name, reason) in lacking {
        println!("SKIPPED {name}: {reason}");
        tests.args(["--skip", name]);
    }
    // Codes of errors are those of soft-RoCE.
    tests.env("SOFT_ROCE", "1");
    tests.env("VERBS_DEVICE", "soft0");
    tests.env("VERBS_PEER_DEVICE", "soft1");
    assert!(tests.status().unwrap().success());
}
