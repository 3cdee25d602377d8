//! One message by the verbs themselves: two queue pairs, a receive, a send, and two completions.
//!
//! `verbs_core` is libibverbs with types: each object frees itself, in the right order, and each
//! step is the one that C's programs take. Posting is `unsafe`: from the post until its completion
//! the memory is the device's, and this layer keeps no account of that. `hello_channel` does the
//! same without `unsafe`.
#![expect(unsafe_code, reason = "posts work requests")]
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::{Duration, Instant};

use verbs_core::{
    CompletionQueue, Context, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
};

const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    // The first device with an active port; what is made from it keeps it open.
    let context = Context::first_active()?;
    let pd = context.alloc_pd()?;
    let cq = CompletionQueue::create(&context, 16)?;

    // The device reaches registered memory only, and an element is a part of such memory. It is
    // registered before the queue pairs are made, so dropped after them, however this ends.
    let hello = pd.reg_mr(b"hello".to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 64])?;
    let mut into = inbox.scatter_element(..)?;
    let mut from = hello.gather_element(..)?;

    // Two ends. Between two hosts each program has one, and the endpoints travel as bytes.
    let left = QueuePair::builder(&pd, &cq, &cq).build()?;
    let right = QueuePair::builder(&pd, &cq, &cq).build()?;
    let (left_endpoint, right_endpoint) = (left.endpoint(), right.endpoint());
    let left = left.handshake(&right_endpoint)?;
    let right = right.handshake(&left_endpoint)?;

    // The receive comes first: a message needs a buffer that waits for it.
    // SAFETY: nothing touches `inbox` until this request has completed or `right` is destroyed.
    unsafe { right.post_receive(&mut ReceiveWorkRequest::new(&mut into).wr_id(RECEIVE))? };
    // SAFETY: nothing writes to `hello` until this request has completed or `left` is destroyed.
    unsafe { left.post_send(&mut SendWorkRequest::new(&mut from).wr_id(SEND))? };

    let mut slots = [const { PollSlot::new() }; 4];
    let mut received = None;
    let mut sent = false;
    let deadline = Instant::now() + Duration::from_secs(5);
    while received.is_none() || !sent {
        if Instant::now() > deadline {
            return Err("no completion for five seconds".into());
        }
        for completion in cq.poll(&mut slots)? {
            // A request that failed is an error here, with its status.
            let success = completion.result()?;
            match success.wr_id() {
                RECEIVE => received = Some(success.byte_len() as usize),
                _ => sent = true,
            }
        }
    }
    let message = &inbox[..received.unwrap_or(0)];
    assert_eq!(message, b"hello");
    println!("received {:?}", String::from_utf8_lossy(message));
    Ok(())
}
