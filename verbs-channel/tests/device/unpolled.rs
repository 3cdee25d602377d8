//! Unpolled posts, whose buffers the caller manages.

use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_harness::allocations::allocations;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, filled, given, pair, works, zeros};

#[test]
#[ignore = "needs an RDMA device"]
fn chain_of_pages_is_one_operation_and_is_posted_again() {
    let _test = begin!(iwarp lacks "room in a queue as soon as a completion is there (soft-iWARP)");
    const PAGES: usize = 12;
    const PAGE: usize = 4096;
    let (mut a, mut b) = pair();
    let from = filled(&a, 3, PAGES * PAGE);
    let target = given(&b, vec![0_u8; PAGES * PAGE]);
    let mut chain = RequestChain::writes(PAGES, 1).unwrap();
    chain.set_immediate(PAGES - 1, Some(7)).unwrap();
    let mut empty = zeros(&b, 1);
    for round in 0..3 {
        let place = |page| (page * 5 + round * 3) % PAGES * PAGE;
        for page in 0..PAGES {
            let element = from.gather_element(page * PAGE..(page + 1) * PAGE).unwrap();
            let at = place(page) as u64;
            let remote = target.remote().slice(at..at + PAGE as u64).unwrap();
            chain.set(page, element, &remote).unwrap();
        }
        // SAFETY: the receive completes below.
        let receive = unsafe { b.post_receive_unpolled(empty.scatter_element(..).unwrap()) };
        let before = allocations();
        // SAFETY: `from` outlives the waits, and nothing writes to it.
        let tickets = [0..4, 4..PAGES]
            .map(|part| unsafe { a.post_chain_unpolled(&mut chain, part) }.unwrap());
        for ticket in tickets {
            let ended = a.wait(ticket, Some(PATIENCE)).unwrap().expect("in time");
            assert_eq!(ended.result.unwrap().opcode(), WcOpcode::RDMA_WRITE);
        }
        assert_eq!(allocations() - before, 0);
        let received = b.wait(receive.unwrap(), Some(PATIENCE)).unwrap();
        let received = received.expect("in time").result.unwrap();
        assert_eq!(received.imm_data(), Some(7));
        let now = bytes(&target);
        for page in 0..PAGES {
            let expected = &from[page * PAGE..(page + 1) * PAGE];
            assert!(&now[place(page)..place(page) + PAGE] == expected, "{page}");
        }
    }
    works(&mut a, &mut b, 10);
}
