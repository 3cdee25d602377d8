//! The inline functions of librdmacm.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr;

use verbs_sys::{
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, RDMA_UDP_QKEY, ibv_ah, ibv_comp_channel,
    ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, rdma_cm_id,
};

use crate::fake::{Device, Object as _, Value as _, calls, errno, record, set_errno};

/// An identifier with a protection domain, a queue pair and queues.
fn id(device: &Device) -> Box<rdma_cm_id> {
    let context = device.context();
    let mut id = Box::<rdma_cm_id>::default();
    id.pd = ibv_pd::make(context);
    id.qp = ibv_qp::make(context);
    id.send_cq = ibv_cq::make(context);
    id.recv_cq = ibv_cq::make(context);
    id.send_cq_channel = ptr::without_provenance_mut(0x5500);
    id.recv_cq_channel = ptr::without_provenance_mut(0x6600);
    id
}

/// Records a request for the send queue, whole; answers `ENOMEM`.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: there is a request, and it has one element.
    let (wr, sge) = unsafe { (&*wr, &*(*wr).sg_list) };
    assert!(wr.next.is_null());
    let remote = match wr.opcode {
        // SAFETY: a datagram's address, or zeroes.
        IBV_WR_SEND => unsafe {
            let ud = wr.wr.ud;
            [ud.ah.bits(), ud.remote_qpn.into(), ud.remote_qkey.into()]
        },
        // SAFETY: the peer's memory.
        _ => unsafe { [wr.wr.rdma.remote_addr, wr.wr.rdma.rkey.into(), 0] },
    };
    let mut words = vec![qp.bits(), wr.wr_id, u64::from(wr.opcode.0)];
    words.extend([wr.num_sge.bits(), u64::from(wr.send_flags)]);
    words.extend([sge.addr, sge.length.into(), sge.lkey.into()]);
    words.extend(remote);
    record(words);
    libc::ENOMEM
}

/// Records a receive; answers with success.
fn received(queue: u64, wr: *mut ibv_recv_wr) -> c_int {
    // SAFETY: there is a request, and it has one element.
    let (wr, sge) = unsafe { (&*wr, &*(*wr).sg_list) };
    assert!(wr.next.is_null());
    let element = [sge.addr, sge.length.into(), sge.lkey.into()];
    record([&[queue, wr.wr_id, wr.num_sge.bits()], &element[..]].concat());
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    received(qp.bits(), wr)
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    received(srq.bits(), wr)
}

const CONTEXT: *mut c_void = ptr::without_provenance_mut(0x1234);
const ADDR: *mut c_void = ptr::without_provenance_mut(0xabc0);

/// A region with the key 9.
fn region(device: &Device) -> *mut ibv_mr {
    let mr = ibv_mr::make(device.context());
    // SAFETY: just made.
    unsafe { (*mr).lkey = 9 };
    mr
}

#[test]
fn sends_reads_writes_and_datagrams_are_requests_as_in_c() {
    let device = Device::new();
    let mut id = id(&device);
    let (qp, id) = (id.qp.bits(), &raw mut *id);
    let (mr, none) = (region(&device), ptr::null_mut());
    let ah = ibv_ah::make(device.context());
    // SAFETY: the device is live.
    unsafe { (*device.context()).ops.post_send = Some(post_send) };
    let posted = |answer: c_int, opcode: u32, lkey: u64, remote: [u64; 3]| {
        assert_eq!((answer, errno()), (-1, libc::ENOMEM));
        let request = [qp, 0x1234, opcode.into(), 1, 2, 0xabc0, 77, lkey];
        assert_eq!(calls(), [[&request[..], &remote[..]].concat()]);
    };
    let (send, read, write) = (IBV_WR_SEND.0, IBV_WR_RDMA_READ.0, IBV_WR_RDMA_WRITE.0);
    // SAFETY: the objects are live; the fakes only look at the requests.
    unsafe {
        let sent = verbs_sys::rdma_post_send(id, CONTEXT, ADDR, 77, mr, 2);
        posted(sent, send, 9, [0; 3]);
        let sent = verbs_sys::rdma_post_send(id, CONTEXT, ADDR, 77, none, 2);
        posted(sent, send, 0, [0; 3]);
        let sent = verbs_sys::rdma_post_read(id, CONTEXT, ADDR, 77, mr, 2, 0x50_0000_0000, 6);
        posted(sent, read, 9, [0x50_0000_0000, 6, 0]);
        let sent = verbs_sys::rdma_post_write(id, CONTEXT, ADDR, 77, mr, 2, 0x50_0000_0000, 6);
        posted(sent, write, 9, [0x50_0000_0000, 6, 0]);
        let sent = verbs_sys::rdma_post_write(id, CONTEXT, ADDR, 77, none, 2, 5, 6);
        posted(sent, write, 0, [5, 6, 0]);
        let sent = verbs_sys::rdma_post_ud_send(id, CONTEXT, ADDR, 77, mr, 2, ah, 0x11);
        posted(sent, send, 9, [ah.bits(), 0x11, RDMA_UDP_QKEY.into()]);
    }
}

#[test]
fn receives_go_to_the_shared_queue_if_there_is_one() {
    let device = Device::new();
    let mut id = id(&device);
    let (qp, mr) = (id.qp.bits(), region(&device));
    let srq = ibv_srq::make(device.context());
    let id = &raw mut *id;
    // SAFETY: the objects are live; the fakes only look at the requests.
    unsafe {
        (*device.context()).ops.post_recv = Some(post_recv);
        (*device.context()).ops.post_srq_recv = Some(post_srq_recv);
        assert_eq!(verbs_sys::rdma_post_recv(id, CONTEXT, ADDR, 77, mr), 0);
        assert_eq!(calls(), [[qp, 0x1234, 1, 0xabc0, 77, 9]]);
        (*id).srq = srq;
        assert_eq!(verbs_sys::rdma_post_recv(id, CONTEXT, ADDR, 77, mr), 0);
        assert_eq!(calls(), [[srq.bits(), 0x1234, 1, 0xabc0, 77, 9]]);
    }
}

#[test]
fn lists_are_passed_whole() {
    let device = Device::new();
    let mut id = id(&device);
    let id = &raw mut *id;
    let mut list = [1, 2].map(|addr| ibv_sge {
        addr,
        length: 3,
        lkey: 4,
    });
    let list = list.as_mut_ptr();
    // SAFETY: the objects are live; the fakes only look at the requests.
    unsafe {
        (*device.context()).ops.post_send = Some(post_send);
        (*device.context()).ops.post_recv = Some(post_recv);
        verbs_sys::rdma_post_sendv(id, CONTEXT, list, 2, 0);
        verbs_sys::rdma_post_readv(id, CONTEXT, list, 2, 0, 5, 6);
        verbs_sys::rdma_post_writev(id, CONTEXT, list, 2, 0, 5, 6);
        verbs_sys::rdma_post_recvv(id, CONTEXT, list, 2);
    }
    let lengths: Vec<_> = calls().iter().map(|words| words[words.len() / 3]).collect();
    assert_eq!(lengths, [2, 2, 2, 2]);
}

// The completion queue of an identifier, as a script: what each poll finds, and what is called.
thread_local! {
    static POLLS: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    record(vec![1, cq.bits(), count.bits(), wc.bits()]);
    POLLS.with_borrow_mut(|polls| polls.remove(0))
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    record(vec![2, cq.bits(), solicited_only.bits()]);
    0
}

unsafe extern "C" fn req_notify_fails(_cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    libc::EIO
}

// Fakes of the functions called last: the linker takes them from this program.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    _cq: *mut *mut ibv_cq,
    _context: *mut *mut c_void,
) -> c_int {
    record(vec![3, channel.addr() as u64]);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    record(vec![4, cq.bits(), count.into()]);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    record(vec![pd.bits(), addr.bits(), length.bits(), access.bits()]);
    ptr::without_provenance_mut(0x9900)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    record(vec![mr.addr() as u64]);
    libc::EBUSY
}

#[test]
fn completions_are_waited_for_on_the_queue_s_own_channel() {
    let device = Device::new();
    let mut id = id(&device);
    let queues = [
        (id.send_cq.bits(), 0x5500, true),
        (id.recv_cq.bits(), 0x6600, false),
    ];
    let id = &raw mut *id;
    let mut wc = ibv_wc::default();
    let wc = &raw mut wc;
    // SAFETY: the device is live.
    unsafe {
        (*device.context()).ops.poll_cq = Some(poll_cq);
        (*device.context()).ops.req_notify_cq = Some(req_notify_cq);
    }
    for (cq, channel, is_send) in queues {
        let get = |polls: &[c_int]| {
            POLLS.set(polls.to_vec());
            set_errno(0);
            // SAFETY: the objects are live.
            let got = unsafe {
                match is_send {
                    true => verbs_sys::rdma_get_send_comp(id, wc),
                    false => verbs_sys::rdma_get_recv_comp(id, wc),
                }
            };
            assert!(POLLS.take().is_empty());
            (got, errno(), calls())
        };
        let (poll, arm) = (vec![1, cq, 1, wc.bits()], vec![2, cq, 0]);
        let (event, ack) = (vec![3, channel], vec![4, cq, 1]);
        assert_eq!(get(&[1]), (1, 0, vec![poll.clone()]));
        let raced = vec![poll.clone(), arm.clone(), poll.clone()];
        assert_eq!(get(&[0, 1]), (1, 0, raced.clone()));
        let slept = [raced, vec![event, ack, poll]].concat();
        assert_eq!(get(&[0, 0, 1]), (1, 0, slept));
        let (failed, error, _) = get(&[-5]);
        assert_eq!(
            (failed, error),
            (-1, -5),
            "as in C, which sets what was returned"
        );
    }
    // SAFETY: the device is live.
    unsafe {
        (*device.context()).ops.req_notify_cq = Some(req_notify_fails);
        POLLS.set(vec![0]);
        assert_eq!(verbs_sys::rdma_get_send_comp(id, wc), -1);
    }
    assert_eq!(errno(), libc::EIO);
}

#[test]
fn regions_are_of_the_identifiers_protection_domain() {
    let device = Device::new();
    let mut id = id(&device);
    let (pd, id) = (id.pd.bits(), &raw mut *id);
    type Register = unsafe fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr;
    let register: [(Register, u64); 3] = [
        (verbs_sys::rdma_reg_msgs, 1),
        (verbs_sys::rdma_reg_read, 1 | 4),
        (verbs_sys::rdma_reg_write, 1 | 2),
    ];
    for (register, access) in register {
        // SAFETY: the identifier is live; the fake registers nothing.
        let mr = unsafe { register(id, ADDR, 77) };
        assert_eq!(mr.addr(), 0x9900);
        assert_eq!(calls(), [[pd, 0xabc0, 77, access]]);
    }
    // SAFETY: the fake does not look at it.
    let answer = unsafe { verbs_sys::rdma_dereg_mr(ptr::without_provenance_mut(0x9900)) };
    assert_eq!(
        (answer, errno(), calls()),
        (-1, libc::EBUSY, vec![vec![0x9900]])
    );
}

#[test]
fn functions_are_those_of_the_library() {
    // SAFETY: `rdma_event_str` returns text that lives as long as the library.
    let name = unsafe {
        let name = verbs_sys::rdma_event_str(verbs_sys::RDMA_CM_EVENT_REJECTED);
        std::ffi::CStr::from_ptr(name)
    };
    assert_eq!(name, c"RDMA_CM_EVENT_REJECTED");
}

#[test]
fn addresses_are_those_of_the_route() {
    let device = Device::new();
    let mut id = id(&device);
    let id = &raw mut *id;
    // SAFETY: the identifier is live.
    unsafe {
        (*id).route.addr.__bindgen_anon_1.src_addr.sa_family = 2;
        (*id).route.addr.__bindgen_anon_2.dst_addr.sa_family = 10;
        assert_eq!((*verbs_sys::rdma_get_local_addr(id)).sa_family, 2);
        assert_eq!((*verbs_sys::rdma_get_peer_addr(id)).sa_family, 10);
    }
}

#[test]
fn rdma_seterrno() {
    set_errno(0);
    assert_eq!((verbs_sys::rdma_seterrno(0), errno()), (0, 0));
    assert_eq!((verbs_sys::rdma_seterrno(7), errno()), (-1, 7));
}
