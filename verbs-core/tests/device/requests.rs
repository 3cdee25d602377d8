//! Work requests: unsignalled, chained, and more than a queue has room for.

use verbs_core::codes::WcOpcode;
use verbs_core::memory::Sge;
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{
    AccessFlags, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkCompletion,
    WriteWorkRequest,
};
use verbs_harness::pair::{Pair, pattern};
use verbs_harness::{assert_says, assert_silent, begin};

#[test]
#[ignore = "needs an RDMA device"]
fn a_chain_of_every_kind_is_done_in_order() {
    let _test = begin!(iwarp lacks "receives without an element");
    for pair in Pair::everywhere() {
        let from = pair.a.pd().reg_mr(pattern(1, 40)).unwrap();
        let access = AccessFlags::REMOTE;
        let target = pair.b.given(vec![0_u64; 5], access);
        let mut back = pair.a.pd().reg_mr(vec![0_u8; 40]).unwrap();
        let mut old = pair.a.pd().reg_mr(vec![0_u64; 2]).unwrap();
        let mut into = pair.b.pd().reg_mr(vec![0_u8; 40]).unwrap();
        let mut list = [into.scatter_element(..).unwrap()];
        pair.b.receive(ReceiveWorkRequest::new(&mut list));
        pair.b.receive(ReceiveWorkRequest::empty());
        let element = || [from.gather_element(..).unwrap()];
        let (mut a, mut b, mut c) = (element(), element(), element());
        let mut sink = [back.scatter_element(..).unwrap()];
        let (mut d, mut e) = old.scatter_element(..).unwrap().split_at_mut(8).unwrap();
        let remote = target.remote();
        let first = remote.slice(..8).unwrap();
        let was = u64::from_ne_bytes(from[..8].try_into().unwrap());
        let mut chain: [WorkRequest<'_>; 6] = [
            WriteWorkRequest::new(&mut a, &remote).unwrap().into(),
            AtomicWorkRequest::fetch_and_add(&mut d, &first, 1)
                .unwrap()
                .into(),
            AtomicWorkRequest::compare_and_swap(&mut e, &first, was.wrapping_add(1), 99)
                .unwrap()
                .into(),
            ReadWorkRequest::new(&mut sink, &remote).unwrap().into(),
            SendWorkRequest::new(&mut b).into(),
            WriteWorkRequest::new(&mut c, &remote)
                .unwrap()
                .immediate(8)
                .into(),
        ];
        for (request, wr_id) in chain.iter_mut().zip(0..) {
            request.set_wr_id(wr_id);
        }
        pair.a.post(&mut chain).unwrap();
        let done = pair.a.sends(6);
        let opcodes: Vec<_> = done
            .iter()
            .map(|done| done.result().unwrap().opcode())
            .collect();
        assert_eq!(
            opcodes,
            [
                WcOpcode::RDMA_WRITE,
                WcOpcode::FETCH_ADD,
                WcOpcode::COMP_SWAP,
                WcOpcode::RDMA_READ,
                WcOpcode::SEND,
                WcOpcode::RDMA_WRITE,
            ]
        );
        assert!(done.iter().map(WorkCompletion::wr_id).eq(0..6));
        assert_eq!(pair.b.received().opcode(), WcOpcode::RECV);
        assert_eq!(pair.b.received().imm_data(), Some(8));
        assert_eq!(old[..], [was, was.wrapping_add(1)]);
        // The read saw what the swap left.
        assert_eq!(
            (&back[..8], &back[8..]),
            (&99_u64.to_ne_bytes()[..], &from[8..])
        );
        assert!(into[..] == from[..]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_unsignalled_request_has_no_completion_and_frees_its_place_later() {
    let _test = begin!();
    let pair = Pair::new();
    let target = pair.b.given(vec![0_u8; 64], AccessFlags::REMOTE_WRITE);
    let from = pair.a.pd().reg_mr(pattern(1, 64)).unwrap();
    let write = || {
        let mut list = [from.gather_element(..).unwrap()];
        pair.a.post_one(
            WriteWorkRequest::new(&mut list, &target.remote())
                .unwrap()
                .unsignaled(),
        );
    };
    write();
    assert_silent(&pair.a.side.send_cq);
    // Several times round the queue, with one signalled in eight.
    for round in 0..200 {
        for _ in 0..7 {
            write();
        }
        let mut list = [from.gather_element(..).unwrap()];
        let signalled = WriteWorkRequest::new(&mut list, &target.remote()).unwrap();
        pair.a.post_one(signalled.wr_id(round));
        assert_eq!(pair.a.sent().wr_id(), round);
    }
    assert_silent(&pair.a.side.send_cq);
}

#[test]
#[ignore = "needs an RDMA device"]
fn post_to_a_full_queue_fails_with_the_number_posted() {
    let _test = begin!(iwarp lacks "the reason why a queue is full");
    let pair = Pair::new();
    let target = pair.b.given(vec![0_u8; 64], AccessFlags::REMOTE_WRITE);
    let from = pair.a.pd().reg_mr(pattern(1, 64)).unwrap();
    let room = usize::try_from(pair.a.qp.cap().max_send_wr).unwrap();
    // More than any driver rounds up to; unsignalled, so that nothing is given back.
    let mut lists = vec![[from.gather_element(..).unwrap()]; 4 * room];
    let remote = target.remote();
    let mut chain: Vec<WorkRequest<'_>> = lists
        .iter_mut()
        .map(|list| {
            WriteWorkRequest::new(list, &remote)
                .unwrap()
                .unsignaled()
                .into()
        })
        .collect();
    let error = pair.a.post(&mut chain).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(
        error.posted() >= room && error.posted() < 4 * room,
        "{error:?}"
    );
    let words = format!("the queue is full ({room} requests)");
    assert_says(&error, &words);
    // A full chain of receives, too.
    let room = usize::try_from(pair.b.qp.cap().max_recv_wr).unwrap();
    let mut lists = vec![[Sge::new(0, 0, 0)]; 4 * room];
    let mut chain: Vec<_> = lists.iter_mut().map(ReceiveWorkRequest::new).collect();
    // SAFETY: the requests name no memory.
    let error = unsafe { pair.b.qp.post_receive(&mut chain) }.unwrap_err();
    assert!(error.is_full() && error.posted() >= room, "{error:?}");
}
