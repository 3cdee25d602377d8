//! Chains that were built once: whole, in parts, resumed after a full queue, patched between posts.

use verbs_core::codes::WcOpcode;
use verbs_core::memory::Sge;
use verbs_core::work_request::RequestChain;
use verbs_core::{AccessFlags, SharedRegion, WorkCompletion};
use verbs_harness::pair::{Pair, pattern, works};
use verbs_harness::{assert_silent, begin, wait_for};

const PAGE: usize = 4096;

fn bytes(region: &SharedRegion<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn ids(done: &[WorkCompletion]) -> Vec<u64> {
    done.iter()
        .map(|done| done.result().unwrap().wr_id())
        .collect()
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_are_written_with_an_immediate_on_the_last() {
    let _test = begin!(iwarp lacks "immediates");
    const PAGES: usize = 48;
    for pair in Pair::everywhere() {
        let from = pair.a.pd().reg_mr(pattern(1, PAGES * PAGE)).unwrap();
        let target = pair
            .b
            .given(vec![0_u8; PAGES * PAGE], AccessFlags::REMOTE_WRITE);
        let remote = target.remote();
        let mut receives = RequestChain::receives(4, 1).unwrap();
        receives.set_wr_ids(0);
        // SAFETY: they have no memory.
        unsafe { pair.b.qp.post_receive_chain(&mut receives, ..) }.unwrap();
        let mut chain = RequestChain::writes(PAGES, 1).unwrap().signal_every(0);
        // Each round sends each page to another place.
        for round in 0..4_u32 {
            let place = |page| (page * 5 + round as usize * 7) % PAGES;
            for page in 0..PAGES {
                let element = from.gather_element(page * PAGE..(page + 1) * PAGE).unwrap();
                let at = (place(page) * PAGE) as u64;
                chain
                    .set(page, element, &remote.slice(at..at + PAGE as u64).unwrap())
                    .unwrap();
            }
            chain.set_immediate(PAGES - 1, Some(round)).unwrap();
            chain.set_wr_id(PAGES - 1, round.into()).unwrap();
            // SAFETY: `from` outlives the wait below, and nothing writes to it.
            unsafe { pair.a.qp.post_chain(&mut chain, ..) }.unwrap();
            let received = pair.b.received();
            assert_eq!(received.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
            assert_eq!(received.imm_data(), Some(round));
            assert_eq!(pair.a.sent().wr_id(), u64::from(round));
            assert_silent(&pair.a.side.send_cq);
            let now = bytes(&target);
            for page in 0..PAGES {
                let place = place(page) * PAGE;
                let expected = &from[page * PAGE..(page + 1) * PAGE];
                assert!(&now[place..place + PAGE] == expected, "page {page}");
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn chain_that_overfills_the_queue_is_resumed_until_all_is_written() {
    let _test = begin!(iwarp lacks "the reason why a queue is full");
    const LEN: usize = 1000;
    const PIECE: usize = 96;
    let pair = Pair::new();
    let from = pair.a.pd().reg_mr(pattern(2, LEN * PIECE)).unwrap();
    let target = pair
        .b
        .given(vec![0_u8; LEN * PIECE], AccessFlags::REMOTE_WRITE);
    let mut chain = RequestChain::writes(LEN, 1).unwrap().signal_every(8);
    chain.set_wr_ids(0);
    let pieces = from.gather_element(..).unwrap().chunks(PIECE).unwrap();
    for (index, piece) in pieces.enumerate() {
        let at = (index * PIECE) as u64;
        let remote = target.remote().slice(at..).unwrap();
        chain.set(index, piece, &remote).unwrap();
    }
    let (mut next, mut resumed, mut done) = (0, 0, Vec::new());
    // SAFETY: `from` outlives the waits, and nothing writes to it.
    while let Err(error) = unsafe { pair.a.qp.post_chain(&mut chain, next..) } {
        assert!(error.is_full(), "{error}");
        next += error.posted();
        resumed += 1;
        done.extend(wait_for(&pair.a.side.send_cq, 1));
    }
    assert!(resumed > 0, "the queue was never full");
    done.extend(wait_for(&pair.a.side.send_cq, LEN / 8 - done.len()));
    assert_silent(&pair.a.side.send_cq);
    let expected: Vec<u64> = (7..LEN as u64).step_by(8).collect();
    assert_eq!(ids(&done), expected);
    assert!(bytes(&target) == from[..]);
    works(&pair.a, &pair.b);
}

#[test]
#[ignore = "needs an RDMA device"]
fn inline_chain_needs_no_registration() {
    let _test = begin!();
    let pair = Pair::new();
    let target = pair.b.given(vec![0_u8; 8 * 32], AccessFlags::REMOTE);
    let mut from = pattern(5, 8 * 32);
    let mut chain = RequestChain::writes(8, 1).unwrap().inline().signal_every(0);
    let base = from.as_mut_ptr().expose_provenance() as u64;
    for index in 0..8 {
        let at = index as u64 * 32;
        let remote = target.remote().slice(at..).unwrap();
        chain
            .set(index, Sge::new(base + at, 32, 0), &remote)
            .unwrap();
    }
    for part in [0..3, 3..4, 4..8] {
        // SAFETY: the bytes are copied during the post.
        unsafe { pair.a.qp.post_chain(&mut chain, part) }.unwrap();
    }
    let expected = from.clone();
    from.fill(0);
    assert_eq!(pair.a.sends(2).len(), 2);
    pair.a.written(&target.remote());
    assert_silent(&pair.a.side.send_cq);
    assert!(bytes(&target) == expected);
}
