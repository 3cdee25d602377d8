//! Receives that are started before their channel is connected.

#[cfg(not(feature = "rdmacm"))]
use std::io::Read as _;
#[cfg(not(feature = "rdmacm"))]
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ptr::NonNull;
#[cfg(not(feature = "rdmacm"))]
use std::time::Duration;

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::error::ErrorKind;
use verbs_channel::verbs_core::verbs_sys::IBV_TRANSPORT_IWARP;
use verbs_channel::verbs_core::{AccessFlags, Error as Core};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, DownReason, Error, PreparedChannel, RejectReason,
    SharedMemory, TransportError,
};

use verbs_harness::logged::listen;

use crate::fake_device::{called, forget_the_past, pd, posted, refuse, succeeds};

/// Longer than a test may take.
#[cfg(not(feature = "rdmacm"))]
const LONG: Duration = Duration::from_secs(3600);

/// A prepared channel with room for two receives, and a pool of three blocks.
fn prepared() -> (PreparedChannel, BufferPool) {
    let pd = pd();
    let prepared = Channel::builder(&pd).max_recv_wr(2).build().unwrap();
    forget_the_past();
    (prepared, BufferPool::new(&pd, 8, 3).unwrap())
}

/// The same for a group of one channel.
fn group() -> (ChannelGroup, BufferPool) {
    let pd = pd();
    let group = Channel::builder(&pd).max_recv_wr(2).group(1).unwrap();
    (group, BufferPool::new(&pd, 8, 3).unwrap())
}

/// Connects a channel to itself.
fn handshake<T: verbs_channel::connect::Connected>(
    prepared: PreparedChannel<T>,
) -> Result<T, Error> {
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint)
}

/// The addresses of the receives that were posted, in their order.
fn addresses() -> Vec<u64> {
    let receive = |posted: &fake_libibverbs::Posted| {
        assert!(!posted.is_send);
        posted.list[0].0
    };
    with(|library| library.posted.iter().flatten().map(receive).collect())
}

#[test]
fn prepared_receives_are_posted_in_their_order_once_the_channel_is_connected() {
    let (mut prepared, pool) = prepared();
    let mut expected = Vec::new();
    for _ in 0..2 {
        let block = pool.take().unwrap();
        expected.push(block.as_ptr().addr() as u64);
        prepared.start_receive(block).unwrap();
    }
    let rejected = prepared.start_receive(pool.take().unwrap()).unwrap_err();
    assert_eq!(
        *rejected.error(),
        RejectReason::Backpressure(Queue::Receive)
    );
    assert_eq!(rejected.into_given().len(), 8, "the block is handed back");
    assert_eq!((addresses(), pool.available()), (Vec::new(), 1));
    let mut channel = handshake(prepared).unwrap();
    assert_eq!(addresses(), expected);
    assert_eq!(channel.credits(Queue::Receive), 0);
    let tickets = channel.prepared_receives();
    assert_eq!(tickets.len(), 2);
    assert!(
        channel.prepared_receives().is_empty(),
        "they are taken once"
    );
    for (ticket, (wr_id, address)) in tickets.into_iter().zip(posted().into_iter().zip(expected)) {
        assert!(channel.poll(ticket).unwrap().is_none());
        succeeds(wr_id);
        let (_, block) = channel.wait_success(ticket).unwrap();
        assert_eq!(block.as_ptr().addr() as u64, address);
    }
    drop((channel, pool));
    assert_all_is_well();
}

#[test]
fn prepared_receives_whose_tickets_are_not_taken_are_found_as_all_operations() {
    let (mut prepared, pool) = prepared();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    let mut channel = handshake(prepared).unwrap();
    succeeds(posted()[0]);
    let completed = channel.next_completed().unwrap();
    assert!(completed.result.is_ok() && completed.buffer.is_some());
    let [ticket] = channel.prepared_receives()[..] else {
        panic!("one receive");
    };
    assert_eq!(completed.ticket, ticket);
    assert!(matches!(channel.poll(ticket), Err(Error::StaleTicket)));
}

#[test]
fn channel_that_is_not_connected_drops_its_prepared_receives() {
    for fails in [false, true] {
        let (mut prepared, pool) = prepared();
        prepared.start_receive(pool.take().unwrap()).unwrap();
        assert_eq!(pool.available(), 2);
        if fails {
            refuse("ibv_modify_qp", 1);
            handshake(prepared).unwrap_err();
        } else {
            drop(prepared);
        }
        assert_eq!((pool.available(), addresses()), (3, Vec::new()));
        drop(pool);
        assert_all_is_well();
    }
}

#[cfg(not(feature = "rdmacm"))]
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

/// An error of a device of iWARP, after which nothing was posted.
fn needs_rdma_cm<T>(connected: Result<T, Error>, pool: &BufferPool) {
    let error = connected.err().unwrap();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Core(Core::NeedsRdmaCm { .. })),
        "{error}"
    );
    assert!(text.starts_with("fake0 is an iWARP device"), "{text}");
    assert!(text.contains("switch on the feature `rdmacm`"), "{text}");
    assert_eq!((pool.available(), addresses()), (3, Vec::new()));
}

/// A channel on a device of iWARP, with a receive.
fn on_iwarp() -> (PreparedChannel, BufferPool) {
    with(|library| library.transport = Some(IBV_TRANSPORT_IWARP));
    let (mut prepared, pool) = prepared();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    (prepared, pool)
}

#[test]
fn on_iwarp_no_endpoints_connect() {
    let (prepared, pool) = on_iwarp();
    needs_rdma_cm(handshake(prepared), &pool);
    drop(pool);
    assert_all_is_well();
}

/// The peer would wait for an answer that cannot come.
#[cfg(not(feature = "rdmacm"))]
#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn on_iwarp_nothing_connects_over_tcp_without_rdma_cm() {
    // Before TCP: no peer listens, and none connects.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let unused = listener.local_addr().unwrap();
    let (prepared, pool) = on_iwarp();
    needs_rdma_cm(prepared.accept(&listener, LONG), &pool);
    drop((listener, pool));
    let (prepared, pool) = on_iwarp();
    needs_rdma_cm(prepared.connect(unused, LONG), &pool);
    drop(pool);
    // A peer that is connected over TCP already gets the reason, too.
    let (mut stream, theirs) = tcp_pair();
    let (prepared, pool) = on_iwarp();
    needs_rdma_cm(prepared.exchange(&theirs, LONG), &pool);
    drop((theirs, pool));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("fake0 is an iWARP device"));
    assert_all_is_well();
}

#[test]
fn prepared_receive_that_the_driver_rejects_fails_the_handshake() {
    for takes_it in [false, true] {
        let (mut prepared, pool) = prepared();
        for _ in 0..2 {
            prepared.start_receive(pool.take().unwrap()).unwrap();
        }
        // The first request of each post is refused; without a bad request, the device may have a
        // part.
        with(|library| library.refuse_post = Some((0, libc::ENOMEM, !takes_it)));
        let error = handshake(prepared).unwrap_err();
        let Error::Transport(TransportError::Rejected(RejectReason::Post(post))) = error else {
            panic!("{error}");
        };
        assert_eq!(post.kind(), ErrorKind::OutOfMemory);
        assert!(called("ibv_destroy_qp"));
        assert_eq!(pool.available(), 3);
        drop(pool);
        assert_all_is_well();
    }
}

#[test]
fn channel_of_a_group_posts_its_prepared_receives_when_it_joins() {
    let (mut group, pool) = group();
    let [first, second] = [1, 2].map(|receives| {
        let mut prepared = group.prepare().unwrap();
        for _ in 0..receives {
            prepared.start_receive(pool.take().unwrap()).unwrap();
        }
        handshake(prepared).unwrap()
    });
    assert_eq!((pool.available(), addresses()), (0, Vec::new()));
    let first = group.join(first).unwrap();
    assert_eq!(addresses().len(), 1);
    // The group is full: the channel is handed back with its receives, and joins later.
    let second = group.join(second).unwrap_err().into_given();
    assert_eq!((addresses().len(), pool.available()), (1, 0));
    group.remove(first).unwrap();
    let aborted = group.next_completed().unwrap();
    assert_eq!(
        aborted.result.unwrap_err().down_reason(),
        Some(DownReason::Closed)
    );
    drop(aborted.buffer);
    forget_the_past();
    let second = group.join(second).unwrap();
    assert_eq!((addresses().len(), pool.available()), (2, 1));
    // The place is the same, but each channel has the tickets of its own receives only.
    assert_eq!(first.index(), second.index());
    assert!(group.engine_mut().prepared_receives(first).is_empty());
    let tickets = group.channel(second).unwrap().prepared_receives();
    assert_eq!(tickets.len(), 2);
    succeeds(posted()[1]);
    group.wait_success(tickets[1]).unwrap();
    assert_eq!(pool.available(), 2);
    drop((group, pool));
    assert_all_is_well();
}

/// Panics when it is dropped, as code of a user may.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("it was dropped");
    }
}

#[test]
fn panic_in_the_drop_of_a_keepalive_is_logged_and_leaves_no_half_joined_channel() {
    listen();
    let (mut group, pool) = group();
    let pd = group.pd().clone();
    let mut bytes = [0_u8; 8];
    let start = NonNull::from(&mut bytes).cast();
    // SAFETY: the bytes live longer than the region, and are not accessed meanwhile.
    let region = unsafe { pd.register_raw(start, 8, AccessFlags::LOCAL_WRITE, Bomb) };
    let memory = SharedMemory::new([region.unwrap()]);
    let mut prepared = group.prepare().unwrap();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    prepared.start_receive(memory.slice(..).unwrap()).unwrap();
    drop(memory);
    let member = handshake(prepared).unwrap();
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    let joined = group.join(member).unwrap();
    assert!(group.channel(joined).unwrap().down_reason().is_some());
    assert!(called("ibv_destroy_qp") && group.is_empty(), "it is down");
    assert_eq!(pool.available(), 3);
    drop((group, pool, pd));
    assert_all_is_well();
}
