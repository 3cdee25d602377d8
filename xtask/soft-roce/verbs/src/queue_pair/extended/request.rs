//! The parts of a request.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_void;

use soft_nic::{RemoteAddress, SendOpcode};

use super::super::elements::{element, list_of};
use super::super::post::receiver;
use super::{Request, batch};
use crate::abi::extended::{ibv_data_buf, ibv_qp_ex};
use crate::abi::object::{ibv_ah, ibv_mw};
use crate::abi::request::{ibv_mw_bind_info, ibv_sge};
use crate::errno::Errno;
use crate::memory::window::binding;

/// Begins a request.
///
/// # Safety
///
/// The queue pair is alive.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: Result<SendOpcode, Errno>) {
    // SAFETY: the caller has a queue pair that is alive.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: the caller has a queue pair that is alive.
    let flags = unsafe { (*qp).wr_flags };
    // SAFETY: the caller has a queue pair that is alive.
    let mut batch = unsafe { batch(qp) };
    match opcode {
        Ok(opcode) => batch.requests.push(Request {
            wr_id,
            flags,
            opcode,
            to: None,
            elements: Vec::new(),
            inline: None,
        }),
        Err(errno) => batch.fail(errno),
    }
}

/// A verb that begins a request.
macro_rules! begins {
    ($($verb:ident($($argument:ident: $type:ty),*) => $opcode:expr;)*) => {
        $(pub(super) unsafe extern "C" fn $verb(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the caller has a queue pair that is alive.
            unsafe { begin(qp, Ok($opcode)) };
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

pub(super) unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller has a window that is alive.
    let window = unsafe { (*mw).rkey };
    // SAFETY: the caller has it.
    let info = unsafe { &*info };
    // SAFETY: the caller has a region that is alive, if there is one.
    let binding = unsafe { binding(window, rkey, info) };
    // SAFETY: the caller has a queue pair that is alive.
    unsafe { begin(qp, binding.map(SendOpcode::BindWindow)) };
}

pub(super) unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the caller has an address handle that is alive.
    let to = unsafe { receiver(ah, remote_qpn, remote_qkey) };
    // SAFETY: the caller has a queue pair that is alive.
    unsafe { batch(qp) }.last(|request| {
        request.to = Some(to?);
        Ok(())
    });
}

pub(super) unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the caller has a queue pair that is alive, and the list one element.
    unsafe { wr_set_sge_list(qp, 1, &raw const sge) };
}

pub(super) unsafe extern "C" fn wr_set_sge_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller has this many elements, or none.
    let list = unsafe { list_of(list, count) };
    let elements = list.iter().map(element);
    // SAFETY: the caller has a queue pair that is alive.
    unsafe { batch(qp) }.last(|request| {
        request.elements.extend(elements);
        Ok(())
    });
}

pub(super) unsafe extern "C" fn wr_set_inline_data(
    qp: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: the caller has a queue pair that is alive, and the list one element.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

/// Copies at once: the caller may change the bytes when this returns.
pub(super) unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let mut bytes = Vec::new();
    // SAFETY: the caller has this many parts, or none.
    for part in unsafe { list_of(list, count) } {
        // SAFETY: the caller has the bytes of each part.
        bytes.extend_from_slice(unsafe { list_of(part.addr.cast::<u8>(), part.length) });
    }
    // SAFETY: the caller has a queue pair that is alive.
    unsafe { batch(qp) }.last(|request| {
        request.inline = Some(bytes);
        Ok(())
    });
}
