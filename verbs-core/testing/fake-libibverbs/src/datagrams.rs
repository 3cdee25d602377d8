//! Address handles, and multicast groups.

use std::ffi::c_int;

use verbs_core::verbs_sys::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp, ibv_wc,
};

use super::objects::{end, made};
use super::queries::{answer, minus_one};
use super::{before, with};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    before("ibv_create_ah", None);
    // SAFETY: the caller has both.
    let (context, attr) = unsafe { ((*pd).context, *attr) };
    let ah = made("ibv_create_ah", &[pd.addr()], |library| {
        library.paths.push(attr);
        let port = library
            .ports
            .get(usize::from(attr.port_num).wrapping_sub(1));
        let mut gids = port.into_iter().flat_map(|port| &port.gids);
        // As the kernel.
        if attr.is_global != 0 && !gids.any(|gid| gid.gid_index == attr.grh.sgid_index.into()) {
            return Err(libc::ENODATA);
        }
        Ok(ibv_ah {
            context,
            pd,
            handle: library.number(),
        })
    });
    if !ah.is_null() {
        with(|library| library.handles.push(ah.addr()));
    }
    ah
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    before("ibv_destroy_ah", None);
    with(|library| {
        if library.is_needed(ah.addr()) {
            let wrong = "ibv_destroy_ah while a datagram in flight is sent with it";
            library.wrong.push(wrong.into());
        }
    });
    // SAFETY: the caller has it from `ibv_create_ah`.
    let code = unsafe { end("ibv_destroy_ah", ah) };
    if code == 0 {
        with(|library| library.handles.retain(|alive| *alive != ah.addr()));
    }
    code
}

/// As the real one for a header of 40 bytes, but the GID is always at index 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|library| {
        library.called("ibv_init_ah_from_wc")?;
        // SAFETY: the caller has all three.
        let (wc, grh) = unsafe { (&*wc, &*grh) };
        let mut path = ibv_ah_attr {
            dlid: wc.slid,
            sl: wc.sl,
            src_path_bits: wc.dlid_path_bits,
            port_num,
            ..Default::default()
        };
        if wc.wc_flags & IBV_WC_GRH.0 != 0 {
            path.is_global = 1;
            path.grh.dgid = grh.sgid;
            path.grh.hop_limit = grh.hop_limit;
        }
        // SAFETY: the caller has room for it.
        unsafe { *attr = path };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller has both.
    let group = unsafe { ((*qp).qp_num, (*gid).raw, lid) };
    before("ibv_attach_mcast", None);
    answer(|library| {
        library.called("ibv_attach_mcast")?;
        library.attached.push(group);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller has both.
    let group = unsafe { ((*qp).qp_num, (*gid).raw, lid) };
    before("ibv_detach_mcast", None);
    answer(|library| {
        library.called("ibv_detach_mcast")?;
        let at = library.attached.iter().position(|other| *other == group);
        library.attached.remove(at.ok_or(libc::EINVAL)?);
        Ok(())
    })
}
