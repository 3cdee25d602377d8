//! The function table: post, poll and arm.

use std::ffi::c_int;
use std::thread;

use verbs_core::verbs_sys::{
    IBV_QPT_UD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic, ibv_sge, ibv_srq, ibv_wc,
};

use super::events::announce_raw;
use super::memory::SIGNALED;
use super::threads::is_adopted;
use super::with;

/// A request as the driver saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// As in the request.
    pub wr_id: u64,
    /// The queue pair that it was posted to; 0 for a shared receive queue.
    pub qp_num: u32,
    /// Whether it was posted to the send queue.
    pub is_send: bool,
    /// C's number.
    pub opcode: u32,
    /// C's flags.
    pub send_flags: u32,
    /// Address, length and key of each element.
    pub list: Vec<(u64, u32, u32)>,
    /// In network byte order, as it is in the request.
    pub imm_data: [u8; 4],
    /// As in the request; 0 if it is a send.
    pub remote_addr: u64,
    /// As in the request; 0 if it is a send.
    pub rkey: u32,
    /// As in the request; 0 if it is no atomic.
    pub compare_add: u64,
    /// As in the request; 0 if it is no atomic.
    pub swap: u64,
    /// The address handle of a datagram; 0 if it is none.
    pub ah: usize,
    /// The bytes to send that were read.
    pub sent: Vec<u8>,
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    head: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller posts a chain of living requests that ends.
    unsafe {
        post(
            Queue::of(qp, true),
            head,
            bad_wr,
            |wr| (*wr).next,
            |wr| {
                let wr = &*wr;
                // As drivers do: what the opcode does not need may be uninitialised.
                let rdma = match wr.opcode {
                    IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => wr.wr.rdma,
                    _ => Rdma::default(),
                };
                let atomic = match wr.opcode {
                    IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => wr.wr.atomic,
                    _ => Atomic::default(),
                };
                // Read for datagrams only: the others have none.
                let ah = match (*qp).qp_type {
                    IBV_QPT_UD => wr.wr.ud.ah.addr(),
                    _ => 0,
                };
                Posted {
                    wr_id: wr.wr_id,
                    qp_num: 0,
                    is_send: true,
                    opcode: wr.opcode.0,
                    send_flags: wr.send_flags,
                    list: list(wr.sg_list, wr.num_sge),
                    imm_data: wr.imm_data().0.to_ne_bytes(),
                    remote_addr: rdma.remote_addr | atomic.remote_addr,
                    rkey: rdma.rkey | atomic.rkey,
                    compare_add: atomic.compare_add,
                    swap: atomic.swap,
                    ah,
                    sent: Vec::new(),
                }
            },
        )
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    head: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller posts a chain of living requests that ends.
    unsafe {
        post(
            Queue::of(qp, false),
            head,
            bad_wr,
            |wr| (*wr).next,
            |wr| receive(wr),
        )
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    head: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let queue = Queue {
        address: srq.addr(),
        qp_num: 0,
        is_send: false,
        max_wr: with(|library| library.shared_cap(srq).0) as usize,
    };
    // SAFETY: the caller posts a chain of living requests that ends.
    unsafe { post(queue, head, bad_wr, |wr| (*wr).next, |wr| receive(wr)) }
}

unsafe fn receive(wr: *mut ibv_recv_wr) -> Posted {
    // SAFETY: the caller has a living request.
    unsafe {
        Posted {
            wr_id: (*wr).wr_id,
            list: list((*wr).sg_list, (*wr).num_sge),
            ..Posted::default()
        }
    }
}

/// A queue that is posted to: half of a queue pair, or a shared receive queue.
struct Queue {
    address: usize,
    qp_num: u32,
    is_send: bool,
    max_wr: usize,
}

impl Queue {
    unsafe fn of(qp: *mut ibv_qp, is_send: bool) -> Self {
        // SAFETY: the caller has it from `ibv_create_qp`.
        let (qp_num, srq) = unsafe { ((*qp).qp_num, (*qp).srq) };
        if !is_send && !srq.is_null() {
            let wrong = "a receive was posted to a queue pair on a shared receive queue";
            with(|library| library.wrong.push(wrong.into()));
        }
        Self {
            address: qp.addr(),
            qp_num,
            is_send,
            max_wr: usize::MAX,
        }
    }
}

/// No test posts this number of requests at once.
const LONGEST: usize = 1000;

/// One doorbell: accepts requests up to the one that has to fail. The place after the last one
/// makes a post fail of which every request was accepted.
unsafe fn post<W>(
    queue: Queue,
    head: *mut W,
    bad_wr: *mut *mut W,
    next: unsafe fn(*mut W) -> *mut W,
    seen: impl Fn(*mut W) -> Posted,
) -> c_int {
    let (refusal, time) = with(|library| (library.refuse_post.take(), library.slow_posts));
    if !time.is_zero() {
        thread::sleep(time);
    }
    let (mut requests, mut wr, mut answer) = (Vec::new(), head, 0);
    loop {
        if let Some((at, ret, named)) = refusal
            && at == requests.len()
        {
            answer = ret;
            if named {
                // SAFETY: the caller has room for it.
                unsafe { *bad_wr = wr };
            }
            break;
        }
        if wr.is_null() {
            break;
        }
        if requests.len() == LONGEST {
            with(|library| library.wrong.push("a chain that does not end".into()));
            break;
        }
        let mut request = seen(wr);
        request.qp_num = queue.qp_num;
        let is_full = with(|library| library.in_queue(queue.address)) >= queue.max_wr;
        if is_full || with(|library| library.exceeds(queue.address, queue.is_send, &request)) {
            answer = if is_full { libc::ENOMEM } else { libc::EINVAL };
            // SAFETY: the caller has room for it.
            unsafe { *bad_wr = wr };
            break;
        }
        with(|library| {
            library.accepted(queue.address, queue.is_send, &mut request);
            if library.completes_sends && request.is_send && request.send_flags & SIGNALED != 0 {
                library.done.push_back(ibv_wc {
                    wr_id: request.wr_id,
                    qp_num: request.qp_num,
                    ..Default::default()
                });
            }
        });
        requests.push(request);
        // SAFETY: the request is alive, as the whole chain is.
        wr = unsafe { next(wr) };
    }
    with(|library| library.posted.push(requests));
    answer
}

unsafe fn list(first: *const ibv_sge, count: c_int) -> Vec<(u64, u32, u32)> {
    let count = usize::try_from(count).unwrap_or(0);
    let sges = (0..count).map(|index| first.wrapping_add(index));
    // SAFETY: a request's list is as long as its `num_sge`.
    let sges = sges.map(|sge| unsafe { sge.read() });
    sges.map(|sge| (sge.addr, sge.length, sge.lkey)).collect()
}

pub(super) unsafe extern "C" fn poll_cq(_cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    if is_adopted() {
        return 0;
    }
    with(|library| {
        library.rooms.push(room);
        if let Some(answer) = library.poll_answer.take() {
            return answer;
        }
        match &mut library.done_later {
            Some((0, done)) => {
                let done = *done;
                library.done.push_back(done);
                library.done_later = None;
            }
            Some((polls, _)) => *polls -= 1,
            None => {}
        }
        if let Some(wr_id) = library.endless {
            let again = ibv_wc {
                wr_id,
                ..Default::default()
            };
            library.done.push_back(again);
            library.rooms.clear();
        }
        let room = usize::try_from(room).unwrap_or(0);
        let count = room.min(library.done.len());
        for index in 0..count {
            let Some(done) = library.done.pop_front() else {
                break;
            };
            library.completed(&done);
            // SAFETY: the caller has room for that many.
            unsafe { wc.add(index).write(done) };
        }
        c_int::try_from(count).unwrap_or(c_int::MAX)
    })
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let (failed, arrives) = with(|library| {
        library.armed.push(solicited_only);
        let failed = library.called("ibv_req_notify_cq").err();
        (failed, library.when_armed.pop_front())
    });
    // Just after it was armed: the poll that follows finds it, and it raises an event.
    if let Some(done) = arrives {
        with(|library| library.done.push_back(done));
        announce_raw(cq);
    }
    failed.unwrap_or(0)
}
