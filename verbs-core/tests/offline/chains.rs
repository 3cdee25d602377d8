//! Chains that were built once: what the driver sees of them, whole, in parts, and after a failure.

use std::ops::{Bound, RangeBounds};

use fake_libibverbs::{Posted, assert_all_is_well, connected, with};
use verbs_core::error::{ErrorKind, PostError};
use verbs_core::memory::Sge;
use verbs_core::verbs_sys::ibv_send_wr;
use verbs_core::work_request::{ChainRequest, RequestChain};
use verbs_core::{
    MemoryRegion, QueuePair, ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest,
};
use verbs_harness::assert_says;

const FENCE: u32 = 1;
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const INLINE: u32 = 8;

fn post<W: ChainRequest<Wr = ibv_send_wr>>(
    qp: &QueuePair,
    chain: &mut RequestChain<W>,
    part: impl RangeBounds<usize>,
) -> Result<(), PostError> {
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_chain(chain, part) }
}

fn receive(
    qp: &QueuePair,
    chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
    part: impl RangeBounds<usize>,
) -> Result<(), PostError> {
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive_chain(chain, part) }
}

fn posted() -> Vec<Vec<Posted>> {
    with(|library| std::mem::take(&mut library.posted))
}

fn ids(posted: &[Posted]) -> Vec<u64> {
    posted.iter().map(|request| request.wr_id).collect()
}

fn refuse(at: usize, ret: i32, named: bool) {
    with(|library| library.refuse_post = Some((at, ret, named)));
}

/// An element that is like no other.
fn element(number: u64) -> Sge {
    let length = u32::try_from(number).unwrap() + 1;
    Sge::new(0x1000 * (number + 1), length, 7)
}

/// Sends whose IDs are 0, 1 and so on.
fn sends(len: usize) -> RequestChain<SendWorkRequest<'static>> {
    let mut chain = RequestChain::sends(len, 1).unwrap();
    for (index, number) in (0..len).zip(0..) {
        chain.set(index, element(number)).unwrap();
    }
    chain.set_wr_ids(0);
    chain
}

fn receives(len: usize) -> RequestChain<ReceiveWorkRequest<'static>> {
    let mut chain = RequestChain::receives(len, 1).unwrap();
    for (index, number) in (0..len).zip(0..) {
        chain.set(index, element(number)).unwrap();
    }
    chain.set_wr_ids(0);
    chain
}

#[test]
fn any_part_is_posted_and_leaves_the_chain_whole() {
    let qp = connected();
    for every in [1, 2, 4, 0] {
        let mut chain = sends(6).signal_every(every).inline().solicited();
        post(&qp, &mut chain, ..).unwrap();
        let whole = posted().remove(0);
        let kept = |wr: &Posted| wr.send_flags & !SIGNALED == INLINE | SOLICITED;
        assert!(whole.iter().all(kept), "{whole:?}");
        for start in 0..6 {
            for end in start + 1..=6 {
                post(&qp, &mut chain, start..end).unwrap();
                let mut part = whole[start..end].to_vec();
                part.last_mut().unwrap().send_flags |= SIGNALED;
                assert_eq!(posted(), [part]);
            }
        }
        post(&qp, &mut chain, ..).unwrap();
        assert_eq!(posted(), [whole]);
    }
    let mut chain = receives(6);
    for (start, end) in [(0, 6), (0, 1), (5, 6), (2, 4), (0, 6)] {
        receive(&qp, &mut chain, start..end).unwrap();
        let expected: Vec<u64> = (start as u64..end as u64).collect();
        assert_eq!(ids(&posted()[0]), expected);
    }
}

#[test]
fn ranges_of_every_form_are_understood() {
    let qp = connected();
    let mut chain = sends(4);
    post(&qp, &mut chain, 2..).unwrap();
    post(&qp, &mut chain, ..=1).unwrap();
    let after = (Bound::Excluded(0), Bound::Excluded(2));
    post(&qp, &mut chain, after).unwrap();
    let seen: Vec<_> = posted().iter().map(|posted| ids(posted)).collect();
    assert_eq!(seen, [vec![2, 3], vec![0, 1], vec![1]]);
}

#[test]
fn range_without_requests_rings_no_doorbell() {
    let qp = connected();
    let mut chain = sends(4);
    let mut receives = receives(4);
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
    let ranges = [0..0, 2..2, 4..4, 3..1];
    for range in ranges {
        post(&qp, &mut chain, range.clone()).unwrap();
        receive(&qp, &mut receives, range).unwrap();
    }
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
    let ranges = [(0..5, "5"), (4..9, "9"), (5..5, "5"), (7..2, "7")];
    for (range, end) in ranges {
        let error = post(&qp, &mut chain, range.clone()).unwrap_err();
        let words = format!("request {end} was to be posted of a chain of 4");
        assert_says(&error, &words);
        assert_eq!((error.posted(), error.errno()), (0, None));
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!error.is_full());
        let error = receive(&qp, &mut receives, range).unwrap_err();
        assert_says(&error, &words);
    }
    let error = post(&qp, &mut chain, ..=usize::MAX).unwrap_err();
    assert_eq!(error.posted(), 0);
    assert_eq!(posted(), [[]; 0]);
}

#[test]
fn request_that_is_named_bad_is_an_error_whatever_is_returned_and_leaves_the_chain_whole() {
    let qp = connected();
    let mut chain = sends(4).signal_every(0).fence();
    let mut receives = receives(4);
    post(&qp, &mut chain, ..).unwrap();
    let whole = posted().remove(0);
    let flags = [FENCE, FENCE, FENCE, FENCE | SIGNALED];
    assert!(whole.iter().map(|wr| wr.send_flags).eq(flags), "{whole:?}");
    for (ret, named, count) in [
        (0, true, 2),
        (libc::EINVAL, true, 2),
        (-libc::EINVAL, true, 2),
        (libc::EINVAL, false, 3),
    ] {
        refuse(2, ret, named);
        let error = post(&qp, &mut chain, 1..).unwrap_err();
        assert_eq!(error.posted(), count);
        assert_eq!(error.errno(), Some(ret.abs()).filter(|errno| *errno != 0));
        assert_says(&error, "ibv_post_send");
        post(&qp, &mut chain, ..).unwrap();
        assert_eq!(posted().pop().as_ref(), Some(&whole));
        refuse(2, ret, named);
        let error = receive(&qp, &mut receives, 1..).unwrap_err();
        assert_eq!(error.posted(), count);
        assert_says(&error, "ibv_post_recv");
        receive(&qp, &mut receives, ..).unwrap();
        assert_eq!(ids(&posted()[1]), [0, 1, 2, 3]);
    }
}

#[test]
fn immediate_that_is_taken_back_is_not_sent() {
    let qp = connected();
    let mut chain = sends(1);
    for (imm_data, opcode) in [(Some(1), 3), (None, 2)] {
        chain.set_immediate(0, imm_data).unwrap();
        post(&qp, &mut chain, ..).unwrap();
        assert_eq!(posted()[0][0].opcode, opcode);
    }
}

#[test]
fn remote_bounds_are_checked_whenever_they_change() {
    let qp = connected();
    let remote = RemoteMemoryRegion::new(0x7000, 64, 0x99).unwrap();
    let mut chain = RequestChain::writes(1, 4).unwrap();
    chain.set(0, Sge::new(1, 64, 1), &remote).unwrap();
    let error = chain.set(0, Sge::new(1, 65, 1), &remote).unwrap_err();
    let words = "65 local bytes do not fit into the remote region's 64 bytes";
    assert_eq!(error.to_string(), words);
    post(&qp, &mut chain, ..).unwrap();
    assert_eq!(posted()[0][0].list, [(1, 64, 1)], "as it was");
    // Together they are 2^32 + 64 bytes long.
    let list = [u32::MAX, 65].map(|length| Sge::new(1, length, 1));
    assert!(chain.set_list(0, list, &remote).is_err());
    chain.set(0, Sge::new(1, 64, 1), &remote).unwrap();
    let shorter = remote.slice(..63).unwrap();
    let error = chain.set_remote(0, &shorter).unwrap_err();
    assert_says(&error, "64 local bytes");
    post(&qp, &mut chain, ..).unwrap();
    assert_eq!(posted()[0][0].list, [], "without elements");
}

#[test]
fn empty_elements_are_left_out() {
    let qp = connected();
    let of = |length| Sge::new(0x1000, length, 1);
    let mut chain = RequestChain::receives(3, 2).unwrap();
    chain
        .set_list(0, [of(0), of(3), of(0), of(5), of(0)])
        .unwrap();
    chain.set(1, of(7)).unwrap();
    chain.set(1, of(0)).unwrap();
    chain.set_list(2, [of(1), of(1)]).unwrap();
    let error = chain.set_list(2, [of(1); 5]).unwrap_err();
    let words = "number of elements 5 is out of range: 0 to 2 are possible";
    assert_eq!(error.to_string(), words);
    receive(&qp, &mut chain, ..).unwrap();
    let lists: Vec<_> = posted()[0].iter().map(|wr| wr.list.clone()).collect();
    let full = vec![(0x1000, 3, 1), (0x1000, 5, 1)];
    assert_eq!(lists, [full, vec![], vec![]]);
}

#[test]
fn requests_that_a_chain_does_not_have_are_not_changed() {
    let mut chain = RequestChain::writes(4, 1).unwrap();
    let remote = RemoteMemoryRegion::new(0x7000, 64, 0x99).unwrap();
    for index in [4, usize::MAX] {
        let errors = [
            chain.set(index, element(0), &remote),
            chain.set_list(index, [element(0)], &remote),
            chain.set_remote(index, &remote),
            chain.set_immediate(index, None),
            chain.set_wr_id(index, 0),
        ];
        for error in errors.map(Result::unwrap_err) {
            let words = format!("index of a request {index} is out of range: 0 to 3 are possible");
            assert_eq!(error.to_string(), words);
        }
    }
}

#[test]
fn chain_without_requests_or_elements_is_not_made() {
    let of = |len, max_sge| RequestChain::sends(len, max_sge).map(drop);
    for (len, max_sge) in [(0, 1), (1, 0), ((1 << 24) + 1, 1), (1, (1 << 16) + 1)] {
        let error = of(len, max_sge).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let words = "length of a chain 0 is out of range: 1 to 16777216 are possible";
    assert_eq!(of(0, 1).unwrap_err().to_string(), words);
    let chain = RequestChain::receives(3, 16).unwrap();
    assert_eq!((chain.len(), chain.max_sge()), (3, 16));
    assert_eq!(
        format!("{chain:?}"),
        "RequestChain { len: 3, max_sge: 16, .. }"
    );
}

#[test]
fn errors_name_the_request_that_is_too_much() {
    let qp = connected();
    let max = qp.cap().max_inline_data;
    let mut chain = sends(2).inline();
    chain.set(1, Sge::new(0, max + 1, 0)).unwrap();
    refuse(1, libc::EINVAL, true);
    let error = post(&qp, &mut chain, ..).unwrap_err();
    assert_says(&error, "request 2 of the chain");
    assert_says(&error, &format!("{} bytes inline exceed", max + 1));
    let count = qp.cap().max_send_sge + 1;
    let mut chain = RequestChain::sends(1, count).unwrap();
    let list = vec![Sge::new(0, 1, 0); usize::try_from(count).unwrap()];
    chain.set_list(0, list).unwrap();
    refuse(0, libc::EINVAL, true);
    let error = post(&qp, &mut chain, ..).unwrap_err();
    assert_says(&error, &format!("{count} elements exceed"));
}

#[test]
fn chain_of_regions_is_posted_by_another_thread() {
    let qp = connected();
    let mut region: MemoryRegion<_> = qp.pd().reg_mr(vec![0_u8; 64]).unwrap();
    let (lkey, base) = (region.lkey(), region[..].as_ptr() as u64);
    let chunks = region.scatter_element(..).unwrap().chunks_mut(16).unwrap();
    let mut chain = RequestChain::receives(4, 1).unwrap();
    for (index, chunk) in chunks.enumerate() {
        chain.set(index, chunk).unwrap();
    }
    let patch = move || {
        chain.set_wr_ids(40);
        chain
    };
    let mut chain = std::thread::scope(|scope| scope.spawn(patch).join().unwrap());
    receive(&qp, &mut chain, ..).unwrap();
    let posted = posted().remove(0);
    assert_eq!(ids(&posted), [40, 41, 42, 43]);
    for (request, number) in posted.iter().zip(0..) {
        assert_eq!(request.list, [(base + 16 * number, 16, lkey)]);
    }
    drop(chain);
    drop((region, qp));
    assert_all_is_well();
}
