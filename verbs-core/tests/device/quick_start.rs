//! The quick start of the crate's documentation, with a deadline.

use std::time::{Duration, Instant};

use verbs_core::{
    CompletionQueue, Context, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = Context::first_active()?;
    let pd = context.alloc_pd()?;
    let cq = CompletionQueue::create(&context, 16)?;

    // Usually the two ends are in two processes, which exchange their endpoints as bytes.
    let left = QueuePair::builder(&pd, &cq, &cq).build()?;
    let right = QueuePair::builder(&pd, &cq, &cq).build()?;
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let left = left.handshake(&to_right)?;
    let right = right.handshake(&to_left)?;

    let hello = pd.reg_mr(b"hello".to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 64])?;
    let mut room = inbox.scatter_element(..)?;
    let mut message = hello.gather_element(..)?;

    // SAFETY: `inbox` is not accessed until the completion has been polled, and dropped later.
    unsafe { right.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(1))? };
    // SAFETY: `hello` is not written to until the completion has been polled, and dropped later.
    unsafe { left.post_send(&mut SendWorkRequest::new(&mut message).wr_id(2))? };

    let mut slots = [const { PollSlot::new() }; 4];
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut in_flight = 2;
    while in_flight > 0 {
        assert!(Instant::now() < deadline, "no completion for five seconds");
        for completion in cq.poll(&mut slots)? {
            let success = completion.result()?;
            println!("{}: {:?}", success.wr_id(), success.opcode());
            in_flight -= 1;
        }
    }
    assert_eq!(&inbox[..5], b"hello");
    Ok(())
}
