//! Extended queue pairs and completion queues.

use verbs_core::codes::WcOpcode;
use verbs_core::completion::CompletionQueueEx;
use verbs_core::error::ErrorKind;
use verbs_core::memory::Sge;
use verbs_core::queue_pair::{QueuePairEx, SendOpsFlags};
use verbs_core::{AccessFlags, QueuePair, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use verbs_harness::begin;
use verbs_harness::pair::Side;

#[test]
#[ignore = "needs an RDMA device"]
fn an_extended_batch_is_posted_and_its_completions_are_polled() {
    let test = begin!(iwarp lacks "connections without rdma_cm");
    let side = Side::here();
    let cq = match CompletionQueueEx::builder(&side.context, 64).build() {
        Ok(cq) => cq,
        Err(error) if error.kind() == ErrorKind::Unsupported => return test.skip(error),
        Err(error) => panic!("{error}"),
    };
    let flags = SendOpsFlags::RDMA_WRITE | SendOpsFlags::SEND_WITH_IMM;
    let prepared = match QueuePair::builder(&side.pd, &cq, &cq)
        .send_ops_flags(flags)
        .max_inline_data(16)
        .build()
    {
        Ok(prepared) => prepared,
        Err(error) if error.kind() == ErrorKind::Unsupported => return test.skip(error),
        Err(error) => panic!("{error}"),
    };
    let endpoint = prepared.endpoint();
    let mut qp = QueuePairEx::new(prepared.handshake(&endpoint).unwrap()).unwrap();
    let memory = side
        .pd
        .reg_shared(vec![0_u8; 32], AccessFlags::REMOTE_WRITE);
    let memory = memory.unwrap();
    let ours = side.pd.reg_mr((1..=16).collect::<Vec<u8>>()).unwrap();
    // SAFETY: the receive has no memory.
    unsafe { qp.post_receive(&mut [ReceiveWorkRequest::new::<Sge>(&mut [])]) }.unwrap();
    let mut batch = qp.start();
    for (at, is_inline) in [(0, false), (16, true)] {
        let mut element = ours.gather_element(..).unwrap();
        let place = memory.remote().slice(at..).unwrap();
        let write = WriteWorkRequest::new(&mut element, &place).unwrap();
        let write = if is_inline { write.inline() } else { write };
        // SAFETY: `ours` is not written to, and outlives the wait.
        unsafe { batch.push(write.wr_id(at)) }.unwrap();
    }
    // SAFETY: the send has no memory.
    unsafe { batch.push(SendWorkRequest::empty().immediate(7).wr_id(1)) }.unwrap();
    batch.complete().unwrap();
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    while sent.len() + received.len() < 4 {
        let Some(done) = cq.poll().unwrap() else {
            continue;
        };
        let done = done.result().unwrap();
        match done.opcode() {
            WcOpcode::RECV => received.push(done.imm_data()),
            opcode => sent.push((done.wr_id(), opcode)),
        }
    }
    let expected = [
        (0, WcOpcode::RDMA_WRITE),
        (16, WcOpcode::RDMA_WRITE),
        (1, WcOpcode::SEND),
    ];
    assert_eq!(sent, expected);
    assert_eq!(received, [Some(7)]);
    let mut bytes = [0; 32];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes[..16], ours[..]);
    assert_eq!(bytes[16..], ours[..]);
}
