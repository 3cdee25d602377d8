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

/// Names of the functions that a header declares and does not define.
fn declared(header: &str) -> Vec<String> {
    let text = std::fs::read_to_string(header).unwrap();
    let mut parts = text.split("/*");
    let first = parts.next().unwrap().to_owned();
    let rest = parts.filter_map(|part| Some(part.split_once("*/")?.1));
    let text = rest.fold(first, |text, part| text + part);
    let lines = text.replace("\\\n", " ").replace("extern \"C\" {", "");
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    let mut depth = 0;
    let mut outside = String::new();
    for c in lines.flat_map(|line| line.chars().chain([' '])) {
        match c {
            '{' => depth += 1,
            '}' => depth = (depth - 1).max(0),
            _ if depth > 0 => continue,
            _ => {}
        }
        outside.push(c);
    }
    let functions = outside.split([';', '}']).filter_map(|declaration| {
        let (before, _) = declaration.split_once('(')?;
        let is_other = ["static", "typedef", "{"].map(|word| declaration.contains(word));
        let name = before.rsplit([' ', '*', '\t']).next()?;
        (is_other == [false; 3] && name.contains('_')).then(|| name.to_owned())
    });
    functions.collect()
}

#[test]
fn every_function_of_the_installed_headers_is_in_the_shared_library() {
    // Its linker refuses a name in the script that is no function.
    let script = include_str!("../../libibverbs.map");
    let mut count = 0;
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h"] {
        for name in declared(&format!("/usr/include/{header}")) {
            assert!(
                script.contains(&format!("\t\t{name};\n")),
                "{header}: {name}"
            );
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
