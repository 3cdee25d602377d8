//! Sends and receives: every form, across the wire and within a device.

use verbs_core::codes::WcOpcode;
use verbs_core::memory::Sge;
use verbs_core::{ReceiveWorkRequest, SendWorkRequest, WorkCompletion};
use verbs_harness::pair::{Pair, Side, pattern};
use verbs_harness::{begin, wait_for};

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_arrive() {
    let _test = begin!();
    for pair in Pair::everywhere() {
        // One byte, a packet, one more, and many packets.
        for len in [1, 2, 1024, 4096, 4097, 100_000, 1 << 20] {
            let from = pair.a.pd().reg_mr(pattern(len, len)).unwrap();
            let mut into = pair.b.pd().reg_mr(vec![0_u8; len]).unwrap();
            let mut list = [into.scatter_element(..).unwrap()];
            pair.b.receive(ReceiveWorkRequest::new(&mut list).wr_id(7));
            let mut list = [from.gather_element(..).unwrap()];
            pair.a.post_one(SendWorkRequest::new(&mut list).wr_id(9));
            let (sent, received) = (pair.a.sent(), pair.b.received());
            assert_eq!((sent.opcode(), sent.wr_id()), (WcOpcode::SEND, 9));
            assert_eq!((received.opcode(), received.wr_id()), (WcOpcode::RECV, 7));
            assert_eq!(usize::try_from(received.byte_len()).unwrap(), len);
            assert_eq!(
                (received.imm_data(), received.invalidated_rkey()),
                (None, None)
            );
            assert_eq!(sent.qp_num(), pair.a.qp.qp_num());
            assert_eq!(received.qp_num(), pair.b.qp.qp_num());
            assert!(into[..] == from[..], "{len} bytes");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn immediate_data_arrives_in_this_machine_s_order() {
    let _test = begin!(iwarp lacks "immediates");
    for pair in Pair::everywhere() {
        for imm_data in [0, 1, 0x0102_0304, u32::MAX] {
            let from = pair.a.pd().reg_mr(pattern(3, 5)).unwrap();
            let mut into = pair.b.pd().reg_mr(vec![0_u8; 5]).unwrap();
            let mut list = [into.scatter_element(..).unwrap()];
            pair.b.receive(ReceiveWorkRequest::new(&mut list));
            let mut list = [from.gather_element(..).unwrap()];
            pair.a
                .post_one(SendWorkRequest::new(&mut list).immediate(imm_data));
            assert_eq!(pair.b.received().imm_data(), Some(imm_data));
            pair.a.sent();
            assert_eq!(into[..], from[..]);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn inline_bytes_are_free_at_once_and_need_no_registration() {
    let _test = begin!();
    let pair = Pair::new();
    let max = usize::try_from(pair.a.qp.cap().max_inline_data).unwrap();
    assert!(max >= 64, "asked for 64");
    for len in [1, 64, max] {
        let bytes = pattern(len, len);
        let mut copy = bytes.clone();
        let mut into = pair.b.pd().reg_mr(vec![0_u8; len]).unwrap();
        let mut list = [into.scatter_element(..).unwrap()];
        pair.b.receive(ReceiveWorkRequest::new(&mut list));
        let length = u32::try_from(len).unwrap();
        // No key at all.
        let mut list = [Sge::new(
            copy.as_ptr().expose_provenance() as u64,
            length,
            0,
        )];
        pair.a.post_one(SendWorkRequest::new(&mut list).inline());
        copy.fill(0);
        drop(copy);
        pair.b.received();
        pair.a.sent();
        assert!(into[..] == bytes, "{len} bytes");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn several_elements_are_gathered_and_scattered_in_their_order() {
    let _test = begin!();
    for pair in Pair::everywhere() {
        let from = pair.a.pd().reg_mr(pattern(5, 1000)).unwrap();
        let mut into = pair.b.pd().reg_mr(vec![0_u8; 1000]).unwrap();
        let element = |range| from.gather_element(range).unwrap();
        // The third comes first, and one is empty.
        let mut sources = [
            element(600..1000),
            element(0..0),
            element(0..100),
            element(100..600),
        ];
        let (first, rest) = into.scatter_element(..).unwrap().split_at_mut(37).unwrap();
        let (second, third) = rest.split_at_mut(900).unwrap();
        let mut sinks = [first, second, third];
        pair.b.receive(ReceiveWorkRequest::new(&mut sinks));
        pair.a.post_one(SendWorkRequest::new(&mut sources));
        pair.a.sent();
        assert_eq!(pair.b.received().byte_len(), 1000);
        assert!(into[..] == [&from[600..], &from[..600]].concat());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn many_receives_in_one_chain_are_filled_in_their_order() {
    let _test = begin!();
    let pair = Pair::new();
    let from = pair.a.pd().reg_mr(pattern(6, 32 * 8)).unwrap();
    let mut into = pair.b.pd().reg_mr(vec![0_u8; 32 * 8]).unwrap();
    let chunks = into.scatter_element(..).unwrap().chunks_mut(8).unwrap();
    let mut sinks: Vec<_> = chunks.map(|chunk| [chunk]).collect();
    let mut chain: Vec<_> = sinks
        .iter_mut()
        .zip(100..)
        .map(|(sink, wr_id)| ReceiveWorkRequest::new(sink).wr_id(wr_id))
        .collect();
    // SAFETY: the requests all complete below, before the region goes.
    unsafe { pair.b.qp.post_receive(&mut chain) }.unwrap();
    let chunks = from.gather_element(..).unwrap().chunks(8).unwrap();
    let mut sources: Vec<_> = chunks.map(|chunk| [chunk]).collect();
    let mut chain: Vec<_> = sources
        .iter_mut()
        .map(|source| SendWorkRequest::new(source).into())
        .collect();
    pair.a.post(&mut chain).unwrap();
    let received: Vec<_> = wait_for(&pair.b.side.recv_cq, 32);
    let order: Vec<_> = received.iter().map(WorkCompletion::wr_id).collect();
    assert_eq!(order, (100..132).collect::<Vec<_>>());
    assert!(pair.a.sends(32).iter().all(|done| done.result().is_ok()));
    assert!(into[..] == from[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_receive_posted_before_the_handshake_is_filled() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let (a, b) = (Side::here(), Side::here());
    let (qa, qb) = (a.prepared(), b.prepared());
    let mut into = b.pd.reg_mr(vec![0_u8; 4]).unwrap();
    let mut list = [into.scatter_element(..).unwrap()];
    // SAFETY: the request completes below, before the region goes.
    unsafe { qb.post_receive(&mut [ReceiveWorkRequest::new(&mut list)]) }.unwrap();
    let pair = Pair::connect((a, qa), (b, qb));
    let from = pair.a.pd().reg_mr(vec![5_u8; 4]).unwrap();
    pair.a.post_one(SendWorkRequest::new(&mut [from
        .gather_element(..)
        .unwrap()]));
    pair.b.received();
    pair.a.sent();
    assert_eq!(into[..], [5; 4]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_quick_start_of_the_documentation_works() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    super::quick_start::main().unwrap();
}
