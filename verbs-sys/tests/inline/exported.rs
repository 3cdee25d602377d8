//! The exported functions that inline verbs end in, as fakes: the linker takes them from this
//! program, not from libibverbs.

use std::ffi::c_int;
use std::ptr;

use verbs_sys::{
    ibv_context, ibv_device_attr, ibv_gid_entry, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr,
    ibv_srq, ibv_srq_init_attr,
};

use crate::fake::{Device, Value as _, calls, record};

/// The return value of the fakes.
pub(crate) const EXPORTED: c_int = 88;
pub(crate) const EXPORTED_QP: *mut ibv_qp = ptr::without_provenance_mut(0x8800);
pub(crate) const EXPORTED_SRQ: *mut ibv_srq = ptr::without_provenance_mut(0x8800);

macro_rules! exported {
    ($($(#[$cfg:meta])? fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty { $result:expr })+) => {$(
        $(#[$cfg])?
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            record(vec![$($arg.bits()),*]);
            $result
        }
    )+};
}

exported! {
    fn ibv_query_port(
        context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr
    ) -> c_int { EXPORTED }
    fn ibv_query_device(
        context: *mut ibv_context, device_attr: *mut ibv_device_attr
    ) -> c_int { EXPORTED }
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp { EXPORTED_QP }
    fn ibv_create_srq(
        pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr
    ) -> *mut ibv_srq { EXPORTED_SRQ }
    fn _ibv_query_gid_ex(
        context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry,
        flags: u32, entry_size: usize
    ) -> c_int { EXPORTED }
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32,
        entry_size: usize
    ) -> isize { -88 }
    #[cfg(has_comp_cntr)]
    fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context, caps: *mut verbs_sys::ibv_comp_cntr_caps, caps_size: usize
    ) -> c_int { EXPORTED }
}

#[test]
fn gid_queries_pass_the_length_of_an_entry() {
    let context = Device::new().context();
    let mut entry = ibv_gid_entry::default();
    let entry = &raw mut entry;
    // SAFETY: the device is live, and there is one entry.
    unsafe {
        assert_eq!(
            verbs_sys::ibv_query_gid_ex(context, 1, 2, entry, 3),
            EXPORTED
        );
        assert_eq!(calls(), [[context.bits(), 1, 2, entry.bits(), 3, 32]]);
        assert_eq!(verbs_sys::ibv_query_gid_table(context, entry, 1, 2), -88);
        assert_eq!(calls(), [[context.bits(), entry.bits(), 1, 2, 32]]);
    }
}

#[cfg(has_comp_cntr)]
#[test]
fn ibv_query_comp_cntr_caps_passes_their_length() {
    let context = Device::new().context();
    let mut caps = verbs_sys::ibv_comp_cntr_caps::default();
    let caps = &raw mut caps;
    // SAFETY: the device is live.
    assert_eq!(
        unsafe { verbs_sys::ibv_query_comp_cntr_caps(context, caps) },
        EXPORTED
    );
    assert_eq!(calls(), [[context.bits(), caps.bits(), 16]]);
}
