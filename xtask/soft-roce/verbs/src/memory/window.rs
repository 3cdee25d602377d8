//! Memory windows.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;

use soft_nic::{Access, Bind, Data, SendOpcode, WindowKind};

use crate::abi::object::ibv_mw;
use crate::abi::request::{IBV_SEND_INLINE, ibv_mw_bind, ibv_mw_bind_info};
use crate::device::destroy;
use crate::errno::{Errno, code, refused};
use crate::network::Locked;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::QueuePair;
use crate::queue_pair::post::request;

const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

pub(crate) extern "C" fn alloc_mw(pd: &ProtectionDomain, type_: u32) -> *mut ibv_mw {
    let context = pd.pd.context;
    context.make("ibv_alloc_mw", |locked| {
        let kind = match type_ {
            TYPE_1 => WindowKind::Type1,
            TYPE_2 => WindowKind::Type2,
            _ => return Err(libc::EINVAL),
        };
        let rkey = locked.nic.alloc_mw(pd.id(), kind).map_err(refused)?;
        Ok(ibv_mw {
            context,
            pd: pd.as_ptr(),
            rkey,
            handle: rkey,
            type_,
        })
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &ibv_mw| {
        // The key that it had first: it may have another tag since.
        locked.nic.dealloc_mw(own.handle).map_err(refused)?;
        Ok(None)
    };
    // SAFETY: `alloc_mw` made it, and the caller does not use it again.
    unsafe { destroy("ibv_dealloc_mw", mw, end) }
}

/// Binds a window of type 1: by a request to the send queue, after which it has the next key.
pub(crate) extern "C" fn bind_mw(qp: &QueuePair, mw: &mut ibv_mw, bind: &ibv_mw_bind) -> c_int {
    let rkey = mw.rkey & !0xff | mw.rkey.wrapping_add(1) & 0xff;
    if bind.send_flags & IBV_SEND_INLINE != 0 {
        return libc::EINVAL;
    }
    let posted = qp.context().card.verb("ibv_bind_mw", |locked| {
        let opcode = SendOpcode::BindWindow(binding(mw.rkey, rkey, &bind.bind_info)?);
        let data = Data::Elements(Vec::new());
        let request = request(bind.wr_id, bind.send_flags, opcode, data);
        let posted = locked.nic.post_send(qp.number(), request);
        posted.map_err(refused)
    });
    code(posted.map(|()| mw.rkey = rkey))
}

/// The card's form of C's.
pub(crate) fn binding(window: u32, rkey: u32, info: &ibv_mw_bind_info) -> Result<Bind, Errno> {
    // SAFETY: the caller of a verb that binds has no region, or one that is alive.
    let region = unsafe { info.mr.as_ref() };
    Ok(Bind {
        window,
        rkey,
        lkey: region.map_or(0, |region| region.lkey),
        address: info.addr,
        length: info.length,
        access: Access::from_bits(info.mw_access_flags).ok_or(libc::EINVAL)?,
    })
}
