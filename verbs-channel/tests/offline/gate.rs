//! The checks before a request is posted, in each way to post one: lengths in 64 bits, and the
//! granted limits.
//!
//! The fake library rejects what exceeds the granted limits before it accesses any memory, so a
//! missing check fails a test at once.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::request::{OwnedChain, Request, ScatterList};
use verbs_channel::verbs_core::memory::SharedElement;
use verbs_channel::verbs_core::{
    AccessFlags, GatherElement, MemoryRegion, ProtectionDomain, QueuePairEndpoint, SharedRegion,
};
use verbs_channel::{
    BufferPool, Channel, Incoming, Outgoing, OwnedBuffer, OwnedRequest, PreparedChannel,
    RejectReason, SharedMemory, TransportError,
};

use crate::fake_device::{connected, forget_the_past, pd, remote};
use crate::foreign::{dmabuf, rejected};

/// A list of 32 such elements is 4 GiB long: 0 bytes if it is added up in 32 bits.
const LONG: usize = 128 << 20;
const TOTAL: u64 = 4 << 30;
/// The limit of the fake library's ports, unless a test changes it.
const MAX_MSG_SZ: u32 = 1 << 30;
const MAX_SEND_SGE: usize = 3;
const MAX_RECV_SGE: usize = 2;
const MAX_INLINE: usize = 64;

const TOO_LONG: RejectReason = RejectReason::MessageTooLong {
    len: TOTAL,
    max: MAX_MSG_SZ,
};

/// The expected rejection; `None` if the request is posted.
type Expected = Option<RejectReason>;

/// A channel with timeouts of zero: its operations are aborted at once.
fn prepared(pd: &ProtectionDomain, max_send_sge: u32, max_recv_sge: u32) -> PreparedChannel {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    let sized = builder
        .max_send_sge(max_send_sge)
        .max_recv_sge(max_recv_sge);
    let hasty = sized.timeout(Duration::ZERO).drain_timeout(Duration::ZERO);
    let inline = u32::try_from(MAX_INLINE).unwrap();
    hasty.max_inline_data(inline).build().unwrap()
}

fn narrow(pd: &ProtectionDomain) -> Channel {
    let [send, recv] = [MAX_SEND_SGE, MAX_RECV_SGE].map(|max| u32::try_from(max).unwrap());
    connected(prepared(pd, send, recv))
}

/// A channel whose requests can have the number of elements that these tests need.
fn wide(pd: &ProtectionDomain) -> Channel {
    with(|library| library.attr.max_sge = 32);
    connected(prepared(pd, 32, 32))
}

/// A channel whose peer serves no reads.
pub(crate) fn without_reads(pd: &ProtectionDomain) -> Channel {
    let prepared = prepared(pd, 3, 2);
    let ours = prepared.endpoint();
    let serves_none = QueuePairEndpoint::builder(ours.qp_num(), ours.psn())
        .port_num(ours.port_num())
        .path_mtu(ours.path_mtu())
        .gid(ours.gid())
        .max_dest_rd_atomic(0)
        .build()
        .unwrap();
    let channel = prepared.handshake(&serves_none).unwrap();
    forget_the_past();
    channel
}

fn memory(pd: &ProtectionDomain, len: usize) -> MemoryRegion<Vec<u8>> {
    pd.reg_mr(vec![0_u8; len]).unwrap()
}

fn shared(pd: &ProtectionDomain, len: usize) -> SharedRegion<Vec<u8>> {
    let access = AccessFlags::LOCAL_WRITE;
    pd.reg_shared(vec![0_u8; len], access).unwrap()
}

/// This many elements of the same memory.
fn gather(from: &MemoryRegion<Vec<u8>>, len: usize, count: usize) -> Vec<GatherElement<'_>> {
    vec![from.gather_element(..len).unwrap(); count]
}

fn elements(of: &SharedRegion<Vec<u8>>, len: usize, count: usize) -> Vec<SharedElement<'_>> {
    vec![of.element(..len).unwrap(); count]
}

/// The reason why a call or a scope rejected a request, if it did. Posted ones have been aborted.
fn reject_reason<T>(ended: Result<T, TransportError>) -> Expected {
    match ended {
        Err(TransportError::Rejected(reason)) => Some(reason),
        Ok(_) | Err(_) => None,
    }
}

/// A way to post a request, and its name.
type Way<'a> = (&'static str, &'a dyn Fn(&mut Channel) -> Expected);

/// Runs each way on a channel of its own, and checks what the driver received.
fn in_each_way(make: &dyn Fn() -> Channel, expected: Expected, ways: &[Way<'_>]) {
    for (way, post) in ways {
        let mut channel = make();
        let found = post(&mut channel);
        let wrong = with(|library| std::mem::take(&mut library.wrong));
        assert_eq!(wrong, [""; 0], "{way}: the driver got it");
        assert_eq!(found, expected, "{way}");
        let posted = with(|library| library.posted.concat().len());
        if expected.is_some() {
            assert_eq!(posted, 0, "{way}: the driver got something");
            assert!(channel.is_idle() && !channel.is_down(), "{way}");
        } else {
            assert!(posted > 0, "{way}: nothing was posted");
        }
    }
}

/// The reason why a post in a scope is rejected.
macro_rules! in_scope {
    ($channel:ident, $scope:ident => $posted:expr) => {{
        let mut found = None;
        let _aborted = $channel.scope(|$scope| {
            found = $posted;
            Ok::<_, ()>(())
        });
        found
    }};
}

/// Each way to post a request on borrowed elements; in a batch beside two that fit.
fn borrowed<W: Request + Clone>(
    make: &dyn Fn() -> Channel,
    (work, fits): (&W, &W),
    expected: Expected,
) {
    let work = || work.clone();
    let batch = |at: usize| {
        let place = |index| if index == at { work() } else { fits.clone() };
        [place(0), place(1), place(2)]
    };
    in_each_way(
        make,
        expected,
        &[
            ("run", &|channel| reject_reason(channel.run(work()))),
            ("run_batch, first", &|channel| {
                reject_reason(channel.run_batch(batch(0)))
            }),
            ("run_batch, in the middle", &|channel| {
                reject_reason(channel.run_batch(batch(1)))
            }),
            ("run_batch, last", &|channel| {
                reject_reason(channel.run_batch(batch(2)))
            }),
            (
                "post",
                &|channel| in_scope!(channel, scope => scope.post(work()).err()),
            ),
            (
                "lend",
                &|channel| in_scope!(channel, scope => scope.lend(work()).err()),
            ),
            (
                "try_lend",
                &|channel| in_scope!(channel, scope => rejected(scope.try_lend(work()))),
            ),
            ("post_batch", &|channel| {
                let mut found = None;
                let _aborted = channel.manual_scope(|scope| {
                    found = scope.post_batch(batch(1)).err();
                    Ok::<_, ()>(())
                });
                found
            }),
            ("post_unpolled", &|channel| {
                // SAFETY: the memory outlives the channel.
                rejected(unsafe { channel.post_unpolled(work()) })
            }),
        ],
    );
}

/// Each way to post a receive.
fn receives<L: ScatterList + Clone>(make: &dyn Fn() -> Channel, list: &L, expected: Expected) {
    let list = || list.clone();
    in_each_way(
        make,
        expected,
        &[
            ("receive", &|channel| reject_reason(channel.receive(list()))),
            (
                "post_receive",
                &|channel| in_scope!(channel, scope => scope.post_receive(list()).err()),
            ),
            (
                "lend",
                &|channel| in_scope!(channel, scope => scope.lend(Incoming::receive(list())).err()),
            ),
            (
                "try_lend",
                &|channel| in_scope!(channel, scope => rejected(scope.try_lend(Incoming::receive(list())))),
            ),
            ("post_receive_unpolled", &|channel| {
                // SAFETY: the memory outlives the channel.
                rejected(unsafe { channel.post_receive_unpolled(list()) })
            }),
        ],
    );
}

/// Each way to start a request on an owned buffer of this length, a vector or a block of a pool; in
/// a batch beside two that fit.
fn owned(
    make: &dyn Fn() -> Channel,
    len: usize,
    work: &dyn Fn(OwnedBuffer) -> OwnedRequest,
    expected: Expected,
) {
    let of_region = |channel: &Channel, len| OwnedBuffer::from(memory(channel.pd(), len));
    let of_pool = |channel: &Channel, len| {
        let pool = BufferPool::new(channel.pd(), len, 1).unwrap();
        OwnedBuffer::from(pool.take().unwrap())
    };
    let requests = |channel: &Channel, at: usize, count: usize| {
        let fits = || Outgoing::send(of_region(channel, 8)).into();
        let mut works: Vec<OwnedRequest> = std::iter::repeat_with(fits).take(count).collect();
        works[at] = work(of_region(channel, len));
        works
    };
    let chain = |channel: &mut Channel, at: usize| {
        let chain = OwnedChain::new(requests(channel, at, 3)).unwrap();
        let (reason, back) = channel.start_chain(chain).err()?.into_parts();
        assert_eq!(back.len(), 3, "a request was lost");
        Some(reason)
    };
    let batch = |channel: &mut Channel, at: usize, count: usize| {
        let works = requests(channel, at, count);
        let posted = channel.start_batch(works).map_err(|rejected| {
            let reason = *rejected.error();
            let works = rejected.into_given();
            assert_eq!(works.len(), count, "a request was lost");
            assert_eq!(works[at].buffer().len(), len);
            reason
        });
        posted.err()
    };
    in_each_way(
        make,
        expected,
        &[
            ("start", &|channel| {
                let work = work(of_region(channel, len));
                rejected(channel.start(work))
            }),
            ("start, of a block", &|channel| {
                let work = work(of_pool(channel, len));
                rejected(channel.start(work))
            }),
            ("start of an engine", &|channel| {
                let mut work = work(of_region(channel, len));
                let id = channel.id();
                let found = channel.engine_mut().start(id, &mut work).err();
                let left = if found.is_some() { len } else { 0 };
                assert_eq!(work.buffer().len(), left, "it is unchanged on rejection");
                found
            }),
            ("start_batch, of one", &|channel| batch(channel, 0, 1)),
            ("start_batch, first", &|channel| batch(channel, 0, 3)),
            ("start_batch, in the middle", &|channel| {
                batch(channel, 1, 3)
            }),
            ("start_batch, last", &|channel| batch(channel, 2, 3)),
            ("start_chain, first", &|channel| chain(channel, 0)),
            ("start_chain, in the middle", &|channel| chain(channel, 1)),
            ("start_chain, last", &|channel| chain(channel, 2)),
        ],
    );
}

#[test]
fn list_of_4_gib_is_not_taken_for_0_bytes() {
    let pd = pd();
    let make = || wide(&pd);
    let (from, into) = (memory(&pd, LONG), shared(&pd, LONG));
    let long = || gather(&from, LONG, 32);
    let short = Outgoing::send(Vec::new());
    for work in [
        Outgoing::send(long()),
        Outgoing::send(long()).inline(),
        Outgoing::write(long(), remote()),
        Outgoing::write(long(), remote()).inline(),
    ] {
        borrowed(&make, (&work, &short), Some(TOO_LONG));
    }
    let read = Incoming::read(elements(&into, LONG, 32), remote());
    let short = Incoming::read(elements(&into, 8, 1), remote());
    borrowed(&make, (&read, &short), Some(TOO_LONG));
    let why = RejectReason::ReceiveTooLong { len: TOTAL };
    receives(&make, &elements(&into, LONG, 32), Some(why));
    // A receive may have room for more than the port can send, up to the longest possible message.
    let mut most = elements(&into, LONG, 31);
    most.push(into.element(..LONG - 1).unwrap());
    receives(&make, &most, None);
}

#[test]
fn message_is_limited_to_the_ports_max_msg_sz() {
    with(|library| library.ports[0].attr.max_msg_sz = 128);
    let pd = pd();
    let make = || narrow(&pd);
    let (from, into) = (memory(&pd, 129), shared(&pd, 129));
    for (len, why) in [
        (128, None),
        (
            129,
            Some(RejectReason::MessageTooLong { len: 129, max: 128 }),
        ),
    ] {
        let one = gather(&from, len, 1);
        let mut two = gather(&from, len - 64, 1);
        two.push(from.gather_element(..64).unwrap());
        let short = Outgoing::send(Vec::new());
        for list in [one, two] {
            borrowed(&make, (&Outgoing::send(list.clone()), &short), why);
            borrowed(&make, (&Outgoing::write(list, remote()), &short), why);
        }
        let short = Incoming::read(elements(&into, 8, 1), remote());
        let read = Incoming::read(elements(&into, len, 1), remote());
        borrowed(&make, (&read, &short), why);
        receives(&make, &elements(&into, len, 1), None);
        owned(&make, len, &|buffer| Outgoing::send(buffer).into(), why);
        let write = |buffer| Outgoing::write(buffer, remote()).into();
        owned(&make, len, &write, why);
        let read = |buffer| Incoming::read(buffer, remote()).into();
        owned(&make, len, &read, why);
    }
}

#[test]
fn inline_data_is_limited_to_the_granted_max_inline_data() {
    let pd = pd();
    let make = || narrow(&pd);
    let from = memory(&pd, 65);
    let short = Outgoing::send(gather(&from, 8, 1)).inline();
    let max = 64;
    for (len, why) in [
        (MAX_INLINE, None),
        (65, Some(RejectReason::InlineTooLong { len: 65, max })),
    ] {
        let one = gather(&from, len, 1);
        let two = [gather(&from, len - 1, 1), gather(&from, 1, 1)].concat();
        for list in [one, two] {
            let send = Outgoing::send(list.clone()).inline();
            borrowed(&make, (&send, &short), why);
            let write = Outgoing::write(list, remote()).inline();
            borrowed(&make, (&write, &short), why);
        }
        let send = |buffer| Outgoing::send(buffer).inline().into();
        owned(&make, len, &send, why);
    }
    // All elements together are too long, though each alone would fit.
    let send = Outgoing::send(gather(&from, 64, 3)).inline();
    let why = RejectReason::InlineTooLong { len: 192, max };
    borrowed(&make, (&send, &short), Some(why));
}

#[test]
fn shared_memory_is_not_sent_inline() {
    let pd = pd();
    let make = || narrow(&pd);
    let from = shared(&pd, 64);
    let inline = |len, count| Outgoing::send(elements(&from, len, count)).inline();
    let fits = Outgoing::send(elements(&from, 8, 1));
    let why = Some(RejectReason::SharedInline);
    borrowed(&make, (&inline(8, 1), &fits), why);
    borrowed(&make, (&inline(8, 2), &fits), why);
    let write = Outgoing::write(elements(&from, 64, 1), remote()).inline();
    borrowed(&make, (&write, &fits), why);
    borrowed(&make, (&fits, &fits), None);
}

#[test]
fn elements_are_limited_to_what_was_granted_and_empty_ones_do_not_count() {
    let pd = pd();
    let make = || narrow(&pd);
    let (from, into) = (memory(&pd, 64), shared(&pd, 64));
    let too_many = |count: usize, granted: usize| {
        let max = u32::try_from(granted).unwrap();
        let reason = RejectReason::TooManyElements { count, max };
        (count > granted).then_some(reason)
    };
    let short = Outgoing::send(Vec::new());
    for count in [MAX_SEND_SGE, MAX_SEND_SGE + 1] {
        let why = too_many(count, MAX_SEND_SGE);
        let mut list = gather(&from, 1, count);
        borrowed(&make, (&Outgoing::send(list.clone()), &short), why);
        list.extend(gather(&from, 0, 10));
        borrowed(&make, (&Outgoing::write(list, remote()), &short), why);
        let mut list = elements(&into, 1, count);
        list.extend(elements(&into, 0, 10));
        let short = Incoming::read(elements(&into, 8, 1), remote());
        borrowed(&make, (&Incoming::read(list, remote()), &short), why);
    }
    for count in [MAX_RECV_SGE, MAX_RECV_SGE + 1] {
        let why = too_many(count, MAX_RECV_SGE);
        let mut list = elements(&into, 1, count);
        receives(&make, &list, why);
        list.extend(elements(&into, 0, 10));
        receives(&make, &list, why);
    }
}

#[test]
fn read_has_no_more_elements_than_the_device_takes_for_one() {
    let pd = pd();
    with(|library| library.attr.max_sge_rd = 1);
    let make = || narrow(&pd);
    let into = shared(&pd, 64);
    let why = Some(RejectReason::TooManyElements { count: 2, max: 1 });
    let read = |count| Incoming::read(elements(&into, 8, count), remote());
    borrowed(&make, (&read(1), &read(1)), None);
    borrowed(&make, (&read(2), &read(1)), why);
    // Those of other requests are not limited by it.
    let send = Outgoing::send(elements(&into, 8, MAX_SEND_SGE));
    borrowed(&make, (&send, &send), None);
    // A device that reports no limit has that of all requests.
    with(|library| library.attr.max_sge_rd = 0);
    borrowed(&make, (&read(MAX_SEND_SGE), &read(1)), None);
}

#[test]
fn read_without_read_depth_is_rejected() {
    let pd = pd();
    let make = || without_reads(&pd);
    let into = shared(&pd, 64);
    let why = Some(RejectReason::NoReads);
    let read = Incoming::read(elements(&into, 64, 1), remote());
    borrowed(&make, (&read, &read), why);
    let add = Incoming::fetch_and_add(elements(&into, 8, 1), remote(), 1);
    borrowed(&make, (&add, &add), why);
    let read = |buffer| Incoming::read(buffer, remote()).into();
    owned(&make, 64, &read, why);
    let swap = |buffer| Incoming::compare_and_swap(buffer, remote(), 1, 2).into();
    owned(&make, 8, &swap, why);
    // Writes and receives are posted.
    let write = |buffer| Outgoing::write(buffer, remote()).into();
    owned(&make, 64, &write, None);
    receives(&make, &elements(&into, 64, 1), None);
}

#[test]
fn memory_of_another_protection_domain_is_rejected() {
    let (ours, theirs) = (pd(), pd());
    let make = || narrow(&ours);
    let (good, bad) = (shared(&ours, 64), dmabuf(&theirs));
    let why = Some(RejectReason::OtherDomain);
    let [good, bad] = [good.element(..8).unwrap(), bad.element(..8).unwrap()];
    assert!(good.is_of(&ours) && !bad.is_of(&ours));
    for list in [vec![bad], vec![good, bad], vec![bad, good]] {
        let send = Outgoing::send(list.clone());
        borrowed(&make, (&send, &Outgoing::send(vec![good])), why);
        receives(&make, &list, why);
    }
    let read = Incoming::read(vec![good, bad], remote());
    borrowed(&make, (&read, &read), why);
    let add = Incoming::fetch_and_add(bad, remote(), 1);
    borrowed(&make, (&add, &add), why);

    let pool = BufferPool::new(&theirs, 64, 1).unwrap();
    let slices = SharedMemory::new([shared(&theirs, 64)]);
    let region = || OwnedBuffer::from(memory(&theirs, 64));
    owned(&make, 64, &|_| Outgoing::send(region()).into(), why);
    let block = || pool.take().unwrap();
    owned(
        &make,
        64,
        &|_| Outgoing::write(block(), remote()).into(),
        why,
    );
    let read = |_| Incoming::read(region(), remote()).into();
    owned(&make, 64, &read, why);
    let slice = || slices.slice(..64).unwrap();
    let mut channel = make();
    for rejected in [
        rejected(channel.start_receive(block())),
        rejected(channel.start_receive(slice())),
        rejected(channel.start_send(slice())),
        rejected(prepared(&ours, 1, 1).start_receive(block())),
    ] {
        assert_eq!(rejected, why);
    }
}
