//! The docs of generated items link to manual pages that exist.

use std::collections::BTreeSet;
use std::path::Path;

#[path = "../build/manual.rs"]
mod manual;

use manual::documented;

/// The output of bindgen and the build script.
const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Whether the manual page is installed; None if the manual is not.
fn is_installed(page: &str) -> Option<bool> {
    let is_there = |page: &str| {
        let names = ["3", "3.gz", "3.zst", "3.xz"].map(|ending| format!("{page}.{ending}"));
        names
            .iter()
            .any(|name| Path::new("/usr/share/man/man3").join(name).exists())
    };
    is_there("ibv_post_send").then(|| is_there(page))
}

/// The pages that are linked to.
fn linked() -> BTreeSet<&'static str> {
    let links = BINDINGS.split("man-pages/man3/").skip(1);
    links
        .filter_map(|rest| rest.split(".3.html").next())
        .collect()
}

#[test]
fn items_of_all_kinds_are_documented_however_bindgen_lays_them_out() {
    let docs = |text: &str| {
        let documented = documented(text);
        let undocumented = documented.lines().filter(|line| !line.contains("#[doc"));
        assert_eq!(undocumented.collect::<String>(), text.replace('\n', ""));
        documented.matches("#[doc").count()
    };
    let of_function = documented("pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;");
    assert!(of_function.starts_with("#[doc = \"See [`ibv_dealloc_pd(3)`](https://man7.org/"));
    let of_type = documented("pub struct ibv_qp_attr {\npub qp_state: ibv_qp_state,\n}");
    assert!(of_type.starts_with("#[doc = \"C: `ibv_qp_attr`, see [`ibv_modify_qp(3)`]"));
    let of_value = documented("pub const IBV_QPS_RTS : ibv_qp_state = ibv_qp_state (3) ;");
    assert!(of_value.starts_with("#[doc = \"A value of [`ibv_qp_state`].\"]"));
    assert_eq!(docs("pub fn ibv_dealloc_pd (pd : * mut ibv_pd) ; "), 1);
    assert_eq!(
        docs("pub union ibv_gid {\n    pub raw: [u8; 16usize],\n}"),
        1
    );
    assert_eq!(docs("pub struct ibv_flow_spec_eth(pub u8);"), 1);
    // There is nothing to say of these.
    assert_eq!(docs("pub struct __be64(pub u64);"), 0);
    assert_eq!(docs("pub const IBV_SYSFS_NAME_MAX: u32 = 64;"), 0);
    assert_eq!(docs("pub fn ibv_wc_status_str();"), 0);
    assert_eq!(docs("impl ibv_wc {\npub fn new() {}\n}"), 0);
}

#[test]
fn items_of_librdmacm_have_a_label() {
    let is_labelled = |text: &str| documented(text).contains("doc(cfg(feature = \"rdmacm\"))");
    assert!(is_labelled(
        "pub fn rdma_create_qp(id: *mut rdma_cm_id) -> c_int;"
    ));
    assert!(is_labelled("pub struct rdma_cm_id {}"));
    assert!(is_labelled(
        "pub const RDMA_PS_TCP: rdma_port_space = rdma_port_space(262);"
    ));
    assert!(is_labelled("pub const RAI_PASSIVE: u32 = 1;"));
    assert!(!is_labelled(
        "pub fn ibv_close_device(context: *mut ibv_context) -> c_int;"
    ));
    assert!(!is_labelled("pub rdma_field: *mut rdma_cm_id,"));
}

#[test]
fn linked_manual_pages_exist() {
    let linked = linked();
    assert!(linked.len() > 90, "links to manual pages: {linked:?}");
    let missing: Vec<_> = linked
        .iter()
        .filter(|page| is_installed(page) == Some(false))
        .collect();
    if is_installed("").is_none() {
        println!("SKIPPED linked_manual_pages_exist: no manual of libibverbs is installed");
    }
    assert!(missing.is_empty(), "no such manual pages: {missing:?}");
}
