//! Memory whose bytes cannot be borrowed: slices of it that a channel owns, elements of it that a call
//! borrows, and what is registered in another protection domain.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::error::Rejected;
use verbs_channel::verbs_core::memory::{DmabufRegion, RawRegion};
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};
use verbs_channel::{
    Channel, Error, Incoming, Outgoing, OwnedBuffer, RejectReason, SharedMemory, TransportError,
};
use verbs_harness::allocations::allocations;
use verbs_harness::logged::listen;

use crate::fake_device::{
    DRAIN, called, channel, connected, forget_the_past, pd, posted, refuse, remote, succeeds,
};
use crate::pages::Pages;

pub(crate) const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE;
pub(crate) const LEN: usize = 256;
/// Where the dmabuf is in work requests: nowhere in this program.
const IOVA: u64 = 0x7000;

pub(crate) fn dmabuf(pd: &ProtectionDomain) -> DmabufRegion {
    let file = File::open("/dev/null").unwrap();
    // SAFETY: there is no such memory.
    unsafe { pd.reg_dmabuf_mr(file.as_fd(), 0, LEN, IOVA, ACCESS, ()) }.unwrap()
}

pub(crate) fn shared(pd: &ProtectionDomain) -> SharedRegion<Vec<u8>> {
    pd.reg_shared(vec![1_u8; LEN], ACCESS).unwrap()
}

/// Shared memory of each kind, with the address of its first byte.
fn each_kind(pd: &ProtectionDomain) -> [(SharedMemory, u64); 3] {
    let (shared, raw) = (shared(pd), Pages::new(LEN, &Arc::default()).register(pd));
    let (first, second) = (shared.remote().addr(), raw.remote().addr());
    [
        (SharedMemory::new([shared]), first),
        (SharedMemory::new([raw]), second),
        (SharedMemory::new([dmabuf(pd)]), IOVA),
    ]
}

pub(crate) fn rejected<T, G>(posted: Result<T, Rejected<G, RejectReason>>) -> Option<RejectReason> {
    posted.err().map(|rejected| *rejected.error())
}

#[test]
fn slice_of_every_kind_of_memory_is_posted_and_comes_back() {
    let mut channel = channel();
    for (memory, start) in each_kind(channel.pd()) {
        let theirs = memory.remote(channel.pd()).unwrap();
        assert_eq!((theirs.addr(), theirs.len()), (start, LEN as u64));
        assert_eq!(theirs.slice(16..).unwrap().rkey(), theirs.rkey());
        forget_the_past();
        let write = channel
            .start_write(memory.slice(16..48).unwrap(), remote())
            .unwrap();
        let read = channel
            .start_read(memory.slice(200..).unwrap(), remote())
            .unwrap();
        let lists = with(|library| {
            let posted = library.posted.concat().into_iter();
            posted.map(|request| request.list).collect::<Vec<_>>()
        });
        let places: Vec<_> = lists.iter().map(|list| (list[0].0, list[0].1)).collect();
        assert_eq!(places, [(start + 16, 32), (start + 200, 56)]);
        posted().into_iter().for_each(succeeds);
        for (ticket, offset, len) in [(read, 200, 56), (write, 16, 32)] {
            let ended = channel.poll(ticket).unwrap().unwrap();
            assert!(ended.result.is_ok() && ended.message().is_none());
            let buffer = ended.buffer.unwrap();
            assert!(
                buffer.is_shared() && buffer.is_empty(),
                "no bytes to borrow"
            );
            let slice = buffer.into_shared().unwrap();
            assert_eq!((slice.offset(), slice.len()), (offset, len));
        }
    }
}

#[test]
fn range_of_a_slice_is_within_the_slice() {
    let mut channel = channel();
    let memory = SharedMemory::new([shared(channel.pd())]);
    assert_eq!(memory.len(), LEN);
    assert!(memory.slice(..LEN + 1).is_err());
    let slice = memory.slice(64..128).unwrap();
    let (start, again) = (memory.slice(..0).unwrap(), slice.clone());
    assert!(start.is_empty());
    assert_eq!((again.offset(), again.len()), (64, 64));
    assert_eq!(again.memory().len(), LEN);
    let mut part: OwnedBuffer = slice.into();
    assert!(part.set_range(..65).is_err());
    assert_eq!(part.capacity(), 64);
    part.set_range(8..16).unwrap();
    channel.start_send(part).unwrap();
    let region = memory.region::<SharedRegion<Vec<u8>>>().unwrap();
    let list = with(|library| library.posted[0][0].list.clone());
    let expected = (region.remote().addr() + 72, 8, region.lkey());
    assert_eq!(list, [expected]);
    succeeds(posted()[0]);
    let back = channel.next_completed().unwrap().buffer.unwrap();
    let slice = back.into_shared().unwrap();
    assert_eq!((slice.offset(), slice.len()), (64, 64), "all of it again");
    let empty = OwnedBuffer::empty().into_shared();
    assert!(empty.is_err() && memory.region::<RawRegion>().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "so many slices take minutes")]
fn any_number_of_slices_exists_at_once_and_only_growth_allocates() {
    let pd = pd();
    let memory = SharedMemory::new([shared(&pd)]);
    // The last ones are in no place.
    let all = || -> Vec<_> { (0..90_000).map(|_| memory.slice(..8).unwrap()).collect() };
    drop(all());
    let few = || [0; 1000].map(|_| memory.slice(..8).unwrap());
    let before = allocations();
    drop((few(), few()));
    assert_eq!(allocations(), before);
    drop(all());
}

#[test]
fn region_is_deregistered_after_its_last_slice_and_then_its_keepalive_dropped() {
    let freed = Arc::default();
    let mut channel = channel();
    let memory = SharedMemory::new([Pages::new(LEN, &freed).register(channel.pd())]);
    let ticket = channel.start_receive(memory.slice(..64).unwrap()).unwrap();
    let left = memory.slice(64..).unwrap();
    drop((memory.clone(), memory));
    drop(left);
    assert!(!called("ibv_dereg_mr"), "a receive is posted");
    channel.abort();
    drop(channel.poll(ticket).unwrap());
    assert!(called("ibv_dereg_mr"));
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn keepalive_is_leaked_if_the_memory_cannot_be_deregistered() {
    listen();
    let (freed, pd) = (Arc::default(), pd());
    refuse("ibv_dereg_mr", 2);
    drop(Pages::new(LEN, &freed).register(&pd));
    assert!(Pages::new(LEN, &freed).register(&pd).dereg().is_err());
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    let pages = Pages::new(LEN, &freed).register(&pd).dereg().unwrap();
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    drop(pages);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn list_of_more_than_32_shared_elements_is_rejected_and_handed_back() {
    let pd = pd();
    with(|library| library.attr.max_sge = 64);
    let builder = Channel::builder(&pd).max_send_sge(64).max_recv_sge(64);
    let mut channel = connected(builder.drain_timeout(DRAIN).build().unwrap());
    let region = shared(&pd);
    let list = |count| vec![region.element(..8).unwrap(); count];
    let reason = RejectReason::TooManyElements { count: 33, max: 32 };
    channel
        .scope(|scope| {
            let mut with_empty = list(32);
            with_empty.push(region.element(..0).unwrap());
            for given in [list(33), with_empty] {
                let text = format!("{given:?}");
                let sent = scope.try_lend(Outgoing::send(given)).err().unwrap();
                assert_eq!(*sent.error(), reason);
                let given = sent.into_given().into_list();
                assert_eq!(format!("{given:?}"), text);
                let received = scope.try_lend(Incoming::receive(given)).err().unwrap();
                assert_eq!(*received.error(), reason);
                let given = received.into_given().into_list();
                assert_eq!(format!("{given:?}"), text);
            }
            assert!(posted().is_empty());
            let loan = scope.lend(Outgoing::send(list(32))).unwrap();
            succeeds(posted()[0]);
            let (sent, given) = loan.spin_poll();
            assert_eq!(given.len(), 32);
            sent.map(drop)
        })
        .unwrap();
    assert!(channel.is_idle() && !channel.is_down());
}

/// The driver gets elements side by side, and the list is as it was afterwards.
#[test]
fn lists_of_shared_elements_are_posted_and_can_be_lent_again() {
    let pd = pd();
    with(|library| library.attr.max_sge = 8);
    let builder = Channel::builder(&pd).max_send_sge(8).max_recv_sge(8);
    let mut channel = connected(builder.drain_timeout(DRAIN).build().unwrap());
    let region = shared(&pd);
    let at = |start: usize| region.element(start..start + 8).unwrap();
    for count in 1..=8 {
        let list: Vec<_> = (0..count).map(|index| at(16 * index)).collect();
        let text = format!("{list:?}");
        let expected: Vec<_> = list
            .iter()
            .map(|element| (element.addr(), element.length(), element.lkey()))
            .collect();
        channel
            .scope(|scope| {
                forget_the_past();
                let loan = scope.lend(Outgoing::write(list, remote())).unwrap();
                succeeds(posted()[0]);
                let (sent, list) = loan.spin_poll();
                sent?;
                assert_eq!(format!("{list:?}"), text);
                let loan = scope.lend(Incoming::receive(list)).unwrap();
                succeeds(posted()[1]);
                let (received, list) = loan.spin_poll();
                received?;
                assert_eq!(format!("{list:?}"), text);
                let batch = [[list[0]; 3], [list[count - 1]; 3]].map(Outgoing::send);
                scope.post_batch(batch)?;
                succeeds(*posted().last().unwrap());
                Ok::<_, Error>(())
            })
            .unwrap();
        let lists = with(|library| {
            let posted = library.posted.concat().into_iter();
            posted.map(|request| request.list).collect::<Vec<_>>()
        });
        assert_eq!(lists[..2], [expected.clone(), expected.clone()]);
        assert_eq!(
            lists[2..],
            [vec![expected[0]; 3], vec![expected[count - 1]; 3]]
        );
    }
    // Rejected by the driver, and by the gate.
    let list = vec![at(0), at(64), at(128)];
    let text = format!("{list:?}");
    let small = RemoteMemoryRegion::new(0x1000, 1, 7).unwrap();
    let back = channel.scope(|scope| {
        let back = scope.try_lend(Outgoing::write(list, small)).err().unwrap();
        let list = back.into_given().into_list();
        with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
        let back = scope.try_lend(Outgoing::send(list)).err().unwrap();
        Ok::<_, Error>(back.into_given().into_list())
    });
    assert_eq!(format!("{:?}", back.unwrap()), text);
}

/// A timeout ends the operation before the memory is used again.
#[test]
fn borrowed_element_of_raw_memory_is_done_when_its_call_returns() {
    let mut channel = channel();
    let raw = Pages::new(LEN, &Arc::default()).register(channel.pd());
    let received = channel.run(Incoming::receive(raw.element(..).unwrap()).timeout(Duration::ZERO));
    assert!(matches!(received, Err(TransportError::Aborted(_))));
    assert!(called("ibv_destroy_qp") && channel.is_down());
    drop(raw.dereg().unwrap());
}
