//! A verb that is not there yet fails, and its name is in the log.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::time::Duration;

use verbs_core::verbs_sys::*;
use verbs_harness::logged;

use crate::ladder::{Ladder, errno};

#[test]
fn a_verb_that_is_not_there_is_named() {
    logged::listen();
    let ladder = Ladder::new();
    assert!(unsafe { ibv_import_pd(ladder.context, 1) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let mut init: ibv_xrcd_init_attr = unsafe { zeroed() };
    assert!(unsafe { ibv_open_xrcd(ladder.context, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let mut counters: ibv_counters_init_attr = unsafe { zeroed() };
    assert!(unsafe { ibv_create_counters(ladder.context, &raw mut counters) }.is_null());
    let lines = logged::lines().join("\n");
    for verb in ["ibv_import_pd", "ibv_open_xrcd", "ibv_create_counters"] {
        assert!(
            lines.contains(&format!("soft-verbs has no {verb} yet")),
            "{lines}"
        );
    }
    ladder.end();
}

#[test]
fn a_logger_may_call_verbs() {
    logged::listen();
    let ladder = Ladder::new();
    let context = ladder.context;
    logged::does(move || unsafe {
        let pd = ibv_alloc_pd(context);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
    let lines = logged::lines().len();
    verbs_harness::bounded(Duration::from_secs(30), || {
        let cq = unsafe { ibv_create_cq(context, c_int::MAX, ptr::null_mut(), ptr::null_mut(), 0) };
        assert!(cq.is_null());
    });
    assert_eq!(logged::lines().len(), lines + 1);
    ladder.end();
}
