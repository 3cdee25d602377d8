//! Tests that need an RDMA device, and what cargo promises to tests.

use std::env;
use std::fs;
use std::path::Path;

#[test]
#[ignore = "needs an RDMA device"]
fn an_active_device_is_there() {
    let device = env::var("VERBS_DEVICE").expect("VERBS_DEVICE names no device");
    assert!(foreign_crate::devices().contains(&device));
    let state = format!("/sys/class/infiniband/{device}/ports/1/state");
    assert_eq!(fs::read_to_string(state).unwrap().trim(), "4: ACTIVE");
}

#[test]
fn the_folder_and_the_environment_are_cargo_s() {
    let dir = env!("CARGO_MANIFEST_DIR");
    assert_eq!(env::current_dir().unwrap(), Path::new(dir));
    for (name, value) in [
        ("CARGO_MANIFEST_DIR", dir),
        ("CARGO_PKG_NAME", "foreign-crate"),
        ("CARGO_PKG_VERSION_MAJOR", "1"),
        ("FOREIGN_BUILT", env::consts::ARCH),
    ] {
        assert_eq!(env::var(name).as_deref(), Ok(value), "{name}");
    }
    assert!(env::var("OUT_DIR").is_ok_and(|dir| Path::new(&dir).is_dir()));
    let libraries = env::var("LD_LIBRARY_PATH").unwrap();
    assert!(
        libraries.split(':').any(|dir| dir.ends_with("deps")),
        "{libraries}"
    );
}

#[test]
fn fails_when_asked_to() {
    assert!(env::var_os("FOREIGN_FAILS").is_none(), "as asked");
}

#[test]
fn hangs_when_asked_to() {
    while env::var_os("FOREIGN_HANGS").is_some() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
