//! Requests on owned buffers, as the driver receives them.

use std::time::Duration;

use fake_libibverbs::{Posted, with};
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_REM_ACCESS_ERR;
use verbs_channel::{
    BufferPool, Channel, Error, Incoming, Outgoing, OwnedBuffer, OwnedRequest, RejectReason,
    TransportError,
};

use crate::fake_device::{
    bounded, called, channel, ends, forget_the_past, posted, region, remote, succeeds,
};

const SIGNALED: u32 = 2;
const FENCE: u32 = 1;
const SOLICITED: u32 = 4;
const INLINE: u32 = 8;

/// Starts a request and takes its result. Returns what the driver received, and the buffer.
fn run(channel: &mut Channel, request: impl Into<OwnedRequest>) -> (Posted, OwnedBuffer) {
    forget_the_past();
    let ticket = channel.start(request).unwrap();
    let seen = with(|library| library.posted[0][0].clone());
    succeeds(seen.wr_id);
    let ended = channel.poll(ticket).unwrap().unwrap();
    ended.result.unwrap();
    assert!(ended.batch.is_none());
    (seen, ended.buffer.unwrap())
}

#[test]
fn all_options_reach_the_driver() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let block = pool.take().unwrap();
    let addr = block.as_ptr().addr() as u64;
    let mut buffer = OwnedBuffer::from(block);
    buffer.set_range(8..16).unwrap();

    let send = Outgoing::send(buffer).immediate(7).solicited().fence();
    let (seen, buffer) = run(&mut channel, send);
    assert_eq!((seen.opcode, seen.imm_data), (3, [0, 0, 0, 7]));
    assert_eq!(seen.send_flags, SIGNALED | SOLICITED | FENCE);
    assert_eq!((seen.list[0].0, seen.list[0].1), (addr + 8, 8));

    let (seen, buffer) = run(&mut channel, Outgoing::write(buffer, remote()).inline());
    assert_eq!((seen.opcode, seen.send_flags), (0, SIGNALED | INLINE));
    assert_eq!((seen.remote_addr, seen.rkey), (0x1000, 77));

    let (seen, buffer) = run(&mut channel, Incoming::read(buffer, remote()).fence());
    assert_eq!((seen.opcode, seen.send_flags), (4, SIGNALED | FENCE));
    assert_eq!(seen.list[0].1, 8);

    let swap = Incoming::compare_and_swap(buffer, remote(), 3, 4);
    let (seen, buffer) = run(&mut channel, swap);
    assert_eq!((seen.opcode, seen.compare_add, seen.swap), (5, 3, 4));

    let (seen, buffer) = run(&mut channel, Incoming::fetch_and_add(buffer, remote(), 5));
    assert_eq!((seen.opcode, seen.compare_add), (6, 5));
    assert_eq!((seen.remote_addr, seen.rkey), (0x1000, 77));

    let (seen, buffer) = run(&mut channel, OwnedRequest::receive(buffer));
    assert_eq!((seen.list[0].0, seen.list[0].1), (addr + 8, 8));
    assert_eq!((pool.available(), buffer.capacity()), (0, 64));
}

#[test]
fn operation_that_is_waited_for_too_briefly_keeps_its_buffer_and_its_ticket() {
    let mut channel = channel();
    let timeout = Duration::from_millis(5);
    channel.set_timeout(Some(timeout));
    let ticket = channel.start_receive(region(&channel)).unwrap();
    for _ in 0..2 {
        let error = bounded(|| channel.wait_success(ticket)).unwrap_err();
        assert!(
            matches!(error, Error::InFlight { queue: Queue::Receive, after } if after == timeout),
            "{error}"
        );
        assert!(!channel.is_down() && !called("ibv_modify_qp"));
        assert_eq!(channel.in_flight(Queue::Receive), 1);
    }
    succeeds(posted()[0]);
    let (success, buffer) = channel.wait_success(ticket).unwrap();
    assert_eq!((success.byte_len(), buffer.len()), (0, 64));
    let error = channel.wait_success(ticket).unwrap_err();
    assert!(matches!(error, Error::StaleTicket), "{error}");
}

#[test]
fn wait_for_a_success_returns_a_failure_and_drops_the_buffer() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let ticket = channel.start_send(pool.take().unwrap()).unwrap();
    ends(posted()[0], IBV_WC_REM_ACCESS_ERR);
    // Without a timeout it waits for the completion.
    let error = channel.wait_success(ticket).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Transport(TransportError::Work {
                queue: Queue::Send,
                ..
            })
        ),
        "{error}"
    );
    assert_eq!(pool.available(), 1);
    assert!(channel.is_down());
}

#[test]
fn rejected_request_is_handed_back_with_its_options() {
    let mut channel = channel();
    let atomic = Incoming::fetch_and_add(region(&channel), remote(), 5).fence();
    let rejected = channel.start(atomic).unwrap_err();
    let RejectReason::Misaligned { addr, len } = *rejected.error() else {
        panic!("{rejected}");
    };
    assert_eq!((addr, len), (0x1000, 64));
    let mut work = rejected.into_given();
    work.buffer_mut().set_range(8..16).unwrap();
    let bytes = (work.buffer().as_ptr().addr() as u64, 8);
    let (seen, _) = run(&mut channel, work);
    assert_eq!((seen.list[0].0, seen.list[0].1), bytes);
    assert_eq!((seen.opcode, seen.compare_add), (6, 5));
    assert_eq!(seen.send_flags, SIGNALED | FENCE);

    let short = remote().slice(..63).unwrap();
    let rejected = channel.start_read(region(&channel), short).unwrap_err();
    assert!(matches!(
        *rejected.error(),
        RejectReason::RemoteTooShort { .. }
    ));
    assert_eq!(rejected.into_given().len(), 64);
    let work = OwnedRequest::receive(region(&channel));
    assert_eq!(work.into_buffer().into_region().unwrap().len(), 64);
}
