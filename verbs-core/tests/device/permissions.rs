//! Errors of a user without rights.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use verbs_core::error::ErrorKind;
use verbs_core::{Device, Error};
use verbs_harness::child::{Child, LimitedGroup, join_group, role, without_descriptors};
use verbs_harness::faults::{self, chain};
use verbs_harness::pair::Side;
use verbs_harness::{begin, context, device_name, is_root};

#[test]
#[ignore = "needs an RDMA device"]
fn a_memlock_limit_that_is_too_low_is_named() {
    if let Some((_, mut line)) = role() {
        let pd = context().alloc_pd().unwrap();
        let small = pd.reg_mr(vec![0_u8; 4096]).map(drop);
        line.write(&format!("{:?}", small.is_ok()));
        line.is_ready();
        let refused = pd.reg_mr(vec![1_u8; 1 << 20]).unwrap_err();
        let (error, buffer) = refused.into_parts();
        line.write(&format!("{:?} {:?}", error.kind(), buffer.len()));
        return line.write(&chain(&error));
    }
    let test = begin!();
    let mut child = Child::start_as_nobody(&test, "register", Some(64 << 10));
    assert_eq!(child.line.read(), "true", "64 KiB are enough for a page");
    let start = child.ready();
    assert_eq!(child.line.read(), "Limit 1048576");
    let words = child.line.read();
    let within = faults::at_once(start);
    faults::text(faults::MEMLOCK, "core", &words, within);
    for part in ["registering 1048576 bytes", "65536 bytes", "ulimit -l"] {
        assert!(words.contains(part), "{words}");
    }
    assert!(child.ended().success());
}

/// Its `CAP_IPC_LOCK` is one of the namespace, which the kernel does not ask for here.
#[test]
#[ignore = "needs an RDMA device"]
fn the_memlock_limit_is_named_to_root_of_a_user_namespace() {
    if let Some((_, mut line)) = role() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let has = |line: &str| line.starts_with("CapEff:") && !line.ends_with("0000");
        line.write(&status.lines().any(has).to_string());
        let pd = context().alloc_pd().unwrap();
        let refused = pd.reg_mr(vec![1_u8; 1 << 20]).unwrap_err();
        return line.write(&chain(&refused.into_parts().0));
    }
    let test = begin!();
    let mut child = Child::start_as_root_of_container(&test, "register", 64 << 10);
    if child.line.read() != "true" {
        return test.skip("user namespaces are not permitted, or have no capabilities");
    }
    let words = child.line.read();
    let limit = "most likely because the limit on locked memory is 65536 bytes";
    assert!(words.contains(limit), "{words}");
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_that_gets_no_descriptor_is_not_opened() {
    if let Some((_, mut line)) = role() {
        let device = Device::by_name(&device_name()).unwrap();
        without_descriptors();
        line.is_ready();
        let error = device.open().unwrap_err();
        return line.write(&chain(&error));
    }
    let test = begin!();
    let mut child = Child::start(&test, "open");
    let (start, words) = (child.ready(), child.line.read());
    faults::text(faults::DESCRIPTORS, "core", words, faults::at_once(start));
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_pair_beyond_the_limit_of_its_control_group_is_an_error() {
    if let Some((group, mut line)) = role() {
        let side = Side::here();
        join_group(&group);
        line.is_ready();
        let built = side.builder().build();
        return line.write(&chain(&built.unwrap_err()));
    }
    let test = begin!();
    let few = match LimitedGroup::of_objects(&test, 0) {
        Ok(few) => few,
        Err(reason) => return test.skip(reason),
    };
    let mut child = Child::start(&test, few.path());
    let (start, words) = (child.ready(), child.line.read());
    faults::text(faults::QUEUE_PAIRS, "core", words, faults::at_once(start));
    assert!(child.ended().success());
}

/// The rights on a file, given back when dropped.
struct Rights {
    path: std::path::PathBuf,
    before: Permissions,
}

impl Drop for Rights {
    fn drop(&mut self) {
        fs::set_permissions(&self.path, self.before.clone()).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_node_that_may_not_be_opened_is_named() {
    if let Some((_, mut line)) = role() {
        let error = Device::by_name(&device_name()).unwrap().open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(matches!(error, Error::DeviceNode { .. }), "{error}");
        return line.write(&error.to_string());
    }
    let test = begin!(alone);
    if !is_root() {
        return test.skip("only root can take a right away from another user");
    }
    let path = Device::by_name(&device_name()).unwrap().node();
    let before = fs::metadata(&path).unwrap().permissions();
    let rights = Rights {
        path: path.clone(),
        before,
    };
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let mut child = Child::start_as_nobody(&test, "open", None);
    let words = child.line.read();
    assert!(words.contains(path.to_str().unwrap()), "{words}");
    assert!(child.ended().success());
    drop(rights);
}
