//! The quick start of verbs-core.

use std::time::{Duration, Instant};

use soft_verbs as _;
use verbs_core::{
    CompletionQueue, Context, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
};

#[test]
fn quick_start_of_verbs_core_runs() -> Result<(), Box<dyn std::error::Error>> {
    let context = Context::first_active()?;
    let pd = context.alloc_pd()?;
    let cq = CompletionQueue::create(&context, 16)?;
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
    finish(&cq, 2);
    assert_eq!(&inbox[..5], b"hello");
    Ok(())
}

/// Polls until this many requests have succeeded.
fn finish(cq: &CompletionQueue, mut count: usize) {
    let mut slots = [const { PollSlot::new() }; 4];
    let deadline = Instant::now() + Duration::from_secs(5);
    while count > 0 {
        assert!(Instant::now() < deadline, "no completion for five seconds");
        for completion in cq.poll(&mut slots).unwrap() {
            completion.result().unwrap();
            count -= 1;
        }
    }
}
