//! The names given to fields of anonymous unions.

use std::ptr;

use verbs_sys::{__be32, ibv_mw_bind_info, ibv_send_wr, ibv_wc};

#[test]
fn immediate_data_keeps_its_byte_order() {
    let mut wr = ibv_send_wr::default();
    wr.set_imm_data(__be32(0x0102_0304_u32.to_be()));
    // SAFETY: just set.
    assert_eq!(unsafe { wr.imm_data() }.0.to_ne_bytes(), [1, 2, 3, 4]);
}

#[test]
fn a_key_to_invalidate_takes_the_place_of_immediate_data() {
    let mut wr = ibv_send_wr::default();
    wr.set_invalidate_rkey(7);
    // SAFETY: just set, the one by the other.
    unsafe {
        assert_eq!(wr.invalidate_rkey(), 7);
        assert_eq!(wr.imm_data().0, 7);
    }
}

#[test]
fn a_bind_and_a_segmented_send_share_their_place() {
    let mut wr = ibv_send_wr::default();
    let (mw, mr) = (
        ptr::without_provenance_mut(0x11),
        ptr::without_provenance_mut(0x22),
    );
    wr.set_bind_mw(
        mw,
        3,
        ibv_mw_bind_info {
            mr,
            addr: 4,
            length: 5,
            mw_access_flags: 6,
        },
    );
    // SAFETY: just set.
    let bind = unsafe { wr.bind_mw() };
    assert_eq!((bind.mw, bind.rkey, bind.bind_info.mr), (mw, 3, mr));
    assert_eq!((bind.bind_info.addr, bind.bind_info.length), (4, 5));
    assert_eq!(bind.bind_info.mw_access_flags, 6);

    wr.set_tso(ptr::without_provenance_mut(0x33), 8, 9);
    // SAFETY: just set.
    let tso = unsafe { wr.tso() };
    assert_eq!((tso.hdr.addr(), tso.hdr_sz, tso.mss), (0x33, 8, 9));
    // SAFETY: both begin with a pointer.
    assert_eq!(unsafe { wr.bind_mw() }.mw.addr(), 0x33);
}

#[test]
fn a_completion_has_immediate_data_or_an_invalidated_key() {
    let mut wc = ibv_wc::default();
    wc.__bindgen_anon_1.imm_data = __be32(0x0102_0304_u32.to_be());
    // SAFETY: just set.
    unsafe {
        assert_eq!(wc.imm_data().0.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(wc.invalidated_rkey(), 0x0102_0304_u32.to_be());
    }
}
