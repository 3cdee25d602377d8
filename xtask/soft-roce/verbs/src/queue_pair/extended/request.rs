//! The parts of a request.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_void;

use soft_nic::{Data, DatagramAddress, RemoteAddress, SendOpcode};

use super::super::QueuePair;
use super::super::elements::{element, list_of};
use super::super::post::request;
use crate::abi::extended::ibv_data_buf;
use crate::abi::object::ibv_mw;
use crate::abi::request::{ibv_mw_bind_info, ibv_sge};
use crate::address::AddressHandle;
use crate::errno::Errno;
use crate::memory::window::binding;

impl QueuePair {
    /// Begins a request.
    fn begin(&self, opcode: Result<SendOpcode, Errno>) {
        self.batch(|requests| {
            let (wr_id, flags) = (self.queue_pair.wr_id, self.queue_pair.wr_flags);
            let data = Data::Elements(Vec::new());
            requests.push(request(wr_id, flags, opcode?, data));
            Ok(())
        });
    }
}

/// A verb that begins a request.
macro_rules! begins {
    ($($verb:ident($($argument:ident: $type:ty),*) => $opcode:expr;)*) => {
        $(pub(super) extern "C" fn $verb(qp: &QueuePair $(, $argument: $type)*) {
            qp.begin(Ok($opcode));
        })*
    };
}

begins! {
    wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) =>
        SendOpcode::CompareSwap { remote: RemoteAddress::new(address, rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, address: u64, add: u64) =>
        SendOpcode::FetchAdd { remote: RemoteAddress::new(address, rkey), add };
    wr_local_inv(rkey: u32) => SendOpcode::LocalInvalidate(rkey);
    wr_rdma_read(rkey: u32, address: u64) => SendOpcode::Read(RemoteAddress::new(address, rkey));
    wr_rdma_write(rkey: u32, address: u64) => SendOpcode::Write(RemoteAddress::new(address, rkey));
    wr_rdma_write_imm(rkey: u32, address: u64, immediate: u32) =>
        SendOpcode::WriteWithImmediate(RemoteAddress::new(address, rkey), immediate.to_ne_bytes());
    wr_send() => SendOpcode::Send;
    wr_send_imm(immediate: u32) => SendOpcode::SendWithImmediate(immediate.to_ne_bytes());
    wr_send_inv(rkey: u32) => SendOpcode::SendWithInvalidate(rkey);
}

pub(super) extern "C" fn wr_bind_mw(
    qp: &QueuePair,
    mw: &ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) {
    qp.begin(binding(mw.rkey, rkey, info).map(SendOpcode::BindWindow));
}

pub(super) extern "C" fn wr_set_ud_addr(
    qp: &QueuePair,
    ah: Option<&AddressHandle>,
    queue_pair: u32,
    qkey: u32,
) {
    qp.last(|request| {
        request.to = Some(DatagramAddress {
            path: ah.ok_or(libc::EINVAL)?.path,
            queue_pair,
            qkey,
        });
        Ok(())
    });
}

pub(super) extern "C" fn wr_set_sge(qp: &QueuePair, lkey: u32, addr: u64, length: u32) {
    set_elements(qp, &[ibv_sge { addr, length, lkey }]);
}

pub(super) unsafe extern "C" fn wr_set_sge_list(
    qp: &QueuePair,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller has this many elements, or none.
    set_elements(qp, unsafe { list_of(list, count) });
}

fn set_elements(qp: &QueuePair, list: &[ibv_sge]) {
    qp.last(|request| {
        if let Data::Elements(elements) = &mut request.data {
            elements.extend(list.iter().map(element));
        }
        Ok(())
    });
}

pub(super) unsafe extern "C" fn wr_set_inline_data(
    qp: &QueuePair,
    addr: *mut c_void,
    length: usize,
) {
    // SAFETY: the caller has the bytes, and the list one element.
    unsafe { wr_set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) };
}

/// Copies at once: the caller may change the bytes when this returns.
pub(super) unsafe extern "C" fn wr_set_inline_data_list(
    qp: &QueuePair,
    count: usize,
    list: *const ibv_data_buf,
) {
    let mut bytes = Vec::new();
    // SAFETY: the caller has this many parts, or none.
    for part in unsafe { list_of(list, count) } {
        // SAFETY: the caller has the bytes of each part.
        bytes.extend_from_slice(unsafe { list_of(part.addr.cast::<u8>(), part.length) });
    }
    qp.last(|request| {
        request.data = Data::Inline(bytes);
        Ok(())
    });
}
