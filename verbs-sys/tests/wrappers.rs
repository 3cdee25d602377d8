//! With the feature `dlopen`, a function that is missing fails as its kind does in C.
#![cfg(test)]

#[path = "../build/wrappers.rs"]
mod wrappers;

/// The function of `src/dlopen.rs` that answers for a missing one with this name and this return type.
fn fails_as(name: &str, returned: &str) -> String {
    let declared = format!("unsafe extern \"C\" {{ pub fn {name}(of: u32) {returned}; }}");
    let wrapper = wrappers::of_functions(&declared);
    let (_, fails) = wrapper.split_once("Err (errno) =>").unwrap();
    let (_, fails) = fails.split_once("dlopen ::").unwrap();
    fails.split('(').next().unwrap().trim().to_owned()
}

#[test]
fn a_missing_function_fails_as_its_kind() {
    let int = "-> ::core::ffi::c_int";
    for (name, returned, fails) in [
        ("ibv_query_port", int, "errno"),
        ("ibv_query_gid", int, "minus_one"),
        // Numbers: an errno would be taken for one.
        ("ibv_rate_to_mult", int, "minus_one"),
        ("ibv_rate_to_mbps", int, "minus_one"),
        ("ibv_get_device_index", int, "minus_one"),
        // Flags, of which an errno would have some.
        ("ibv_query_qp_data_in_order", int, "zero"),
        ("rdma_connect", int, "minus_one"),
        ("ibv_open_device", "-> *mut ibv_context", "null"),
        (
            "ibv_get_device_name",
            "-> *const ::core::ffi::c_char",
            "null_const",
        ),
        ("_ibv_query_gid_table", "-> isize", "minus_errno"),
        ("mult_to_ibv_rate", "-> ibv_rate", "zero"),
        ("ibv_ack_cq_events", "", "nothing"),
    ] {
        assert_eq!(fails_as(name, returned), fails, "{name}");
    }
}
