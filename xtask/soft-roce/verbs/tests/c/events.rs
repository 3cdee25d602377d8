//! Completion channels and asynchronous events: descriptors, acknowledgements, ends.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use verbs_core::verbs_sys::*;
use verbs_harness::bounded;

use crate::ladder::{Ladder, PATIENCE, connect, errno, ok, receive, send};

/// Whether a descriptor is readable, or becomes so.
fn is_readable(fd: c_int, milliseconds: c_int) -> bool {
    let mut polled = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    unsafe { libc::poll(&raw mut polled, 1, milliseconds) == 1 }
}

fn set_nonblocking(fd: c_int) {
    assert!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } >= 0);
}

fn get(channel: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
    let got = unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) };
    (got == 0).then_some(cq)
}

/// C's pointers, for another thread.
#[derive(Clone, Copy)]
struct Sent<T>(*mut T);
// SAFETY: C's objects can be used by all threads.
unsafe impl<T> Send for Sent<T> {}
impl<T> Sent<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

#[test]
fn a_descriptor_is_readable_while_events_are_left() {
    let ladder = Ladder::new();
    let fd = unsafe { (*ladder.channel).fd };
    set_nonblocking(fd);
    let qp = ladder.queue_pair();
    let other = unsafe { ibv_create_cq(ladder.context, 4, ptr::null_mut(), ladder.channel, 0) };
    let mut init = ladder.attributes();
    (init.send_cq, init.recv_cq) = (other, other);
    let beside = unsafe { ibv_create_qp(ladder.pd, &raw mut init) };
    connect(beside, unsafe { (*beside).qp_num });
    for (queue, qp) in [(ladder.cq, qp), (other, beside)] {
        ok(unsafe { ibv_req_notify_cq(queue, 0) });
        receive(qp);
        send(qp);
    }
    for queue in [ladder.cq, other] {
        assert!(is_readable(fd, 0));
        assert_eq!(get(ladder.channel), Some(queue));
        unsafe { ibv_ack_cq_events(queue, 1) };
    }
    assert!(!is_readable(fd, 0));
    ok(unsafe { ibv_destroy_qp(beside) });
    ok(unsafe { ibv_destroy_cq(other) });
    ok(unsafe { ibv_destroy_qp(qp) });
    ladder.end();
}

#[test]
fn a_queue_ends_when_its_events_are_acknowledged() {
    let ladder = Ladder::new();
    let qp = ladder.queue_pair();
    ok(unsafe { ibv_req_notify_cq(ladder.cq, 0) });
    receive(qp);
    send(qp);
    get(ladder.channel).unwrap();
    ok(unsafe { ibv_destroy_qp(qp) });
    let (ended, end) = mpsc::channel();
    let cq = Sent(ladder.cq);
    let destroyer = thread::spawn(move || {
        ok(unsafe { ibv_destroy_cq(cq.get()) });
        ended.send(()).unwrap();
    });
    let early = end.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "an event is not acknowledged");
    unsafe { ibv_ack_cq_events(ladder.cq, 1) };
    end.recv_timeout(PATIENCE).unwrap();
    destroyer.join().unwrap();
    unsafe {
        ok(ibv_destroy_comp_channel(ladder.channel));
        ok(ibv_dealloc_pd(ladder.pd));
        ok(ibv_close_device(ladder.context));
    }
}

#[test]
fn timers_run_while_all_threads_sleep() {
    let ladder = Ladder::new();
    let qp = unsafe { ibv_create_qp(ladder.pd, &mut ladder.attributes()) };
    // Nobody has this number.
    connect(qp, 0xff_fff0);
    ok(unsafe { ibv_req_notify_cq(ladder.cq, 0) });
    send(qp);
    assert_eq!(bounded(PATIENCE, || get(ladder.channel)), Some(ladder.cq));
    unsafe { ibv_ack_cq_events(ladder.cq, 1) };
    assert_eq!(ladder.completion().status, IBV_WC_RETRY_EXC_ERR);
    ok(unsafe { ibv_destroy_qp(qp) });
    ladder.end();
}

#[test]
fn an_asynchronous_event_names_its_object_which_waits_for_the_acknowledgement() {
    let ladder = Ladder::new();
    let fd = unsafe { (*ladder.context).async_fd };
    set_nonblocking(fd);
    let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
    assert_eq!(
        unsafe { ibv_get_async_event(ladder.context, &raw mut event) },
        -1
    );
    assert_eq!(errno(), libc::EAGAIN);
    let small = unsafe { ibv_create_cq(ladder.context, 1, ptr::null_mut(), ptr::null_mut(), 0) };
    let mut init = ladder.attributes();
    init.send_cq = small;
    let qp = unsafe { ibv_create_qp(ladder.pd, &raw mut init) };
    connect(qp, unsafe { (*qp).qp_num });
    (0..3).for_each(|_| {
        receive(qp);
        send(qp);
    });
    assert!(is_readable(fd, 0), "the queue has overrun");
    ok(unsafe { ibv_get_async_event(ladder.context, &raw mut event) });
    assert_eq!(event.event_type, IBV_EVENT_CQ_ERR);
    assert_eq!(unsafe { event.element.cq }, small);
    ok(unsafe { ibv_destroy_qp(qp) });
    let destroyed = Sent(small);
    let destroyer = thread::spawn(move || ok(unsafe { ibv_destroy_cq(destroyed.get()) }));
    thread::sleep(Duration::from_millis(100));
    assert!(!destroyer.is_finished(), "the event is not acknowledged");
    unsafe { ibv_ack_async_event(&raw mut event) };
    bounded(PATIENCE, || destroyer.join().unwrap());
    ladder.end();
}
