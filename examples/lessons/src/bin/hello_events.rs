//! Sleeping until something completes, instead of polling: completion events.
//!
//! A completion queue that is armed announces its next completion on a completion channel, a
//! descriptor that can be waited for. Between the last empty poll and the arming a completion may
//! come unannounced, so the order is always: arm, poll once more, and only then sleep.
//! `verbs_channel` does this with `PollStrategy::Notify`, and `verbs_async` always does.
#![expect(unsafe_code, reason = "posts work requests")]
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use verbs_core::completion::CompletionChannel;
use verbs_core::{
    CompletionQueue, Context, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
};

fn main() -> Result<(), Box<dyn Error>> {
    let context = Context::first_active()?;
    let pd = context.alloc_pd()?;
    let channel = CompletionChannel::create(&context)?;
    let cq = CompletionQueue::builder(&context, 16)
        .channel(&channel)
        .build()?;

    // Registered before the queue pairs are made, so dropped after them, however this ends.
    let hello = pd.reg_mr(b"hello".to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 64])?;
    let mut into = inbox.scatter_element(..)?;
    let mut from = hello.gather_element(..)?;

    let left = QueuePair::builder(&pd, &cq, &cq).build()?;
    let right = QueuePair::builder(&pd, &cq, &cq).build()?;
    let (left_endpoint, right_endpoint) = (left.endpoint(), right.endpoint());
    let left = left.handshake(&right_endpoint)?;
    let right = right.handshake(&left_endpoint)?;

    // SAFETY: nothing touches `inbox` until this request has completed or `right` is destroyed.
    unsafe { right.post_receive(&mut ReceiveWorkRequest::new(&mut into))? };
    let sender = || {
        // The message comes late: meanwhile there is nothing to poll for.
        thread::sleep(Duration::from_millis(200));
        // SAFETY: nothing writes to `hello` until this request has completed or `left` is destroyed.
        unsafe { left.post_send(&mut SendWorkRequest::new(&mut from)) }
    };
    let (mut outstanding, mut sleeps) = (2, 0);
    thread::scope(|threads| -> Result<(), Box<dyn Error>> {
        let sender = threads.spawn(sender);
        let mut slots = [const { PollSlot::new() }; 4];
        cq.req_notify(false)?;
        while outstanding > 0 {
            let completions = cq.poll(&mut slots)?;
            if completions.is_empty() {
                // Armed, and found empty after that: what completes from now on is announced.
                let event = channel.get_cq_event(Some(Duration::from_secs(5)))?;
                event
                    .ok_or("no event for five seconds")?
                    .req_notify(false)?;
                sleeps += 1;
            }
            for completion in completions {
                completion.result()?;
                outstanding -= 1;
            }
        }
        Ok(sender.join().map_err(|_panic| "the sender panicked")??)
    })?;
    assert_eq!(&inbox[..5], b"hello");
    println!("slept until an event came: {sleeps}");
    println!("received {:?}", String::from_utf8_lossy(&inbox[..5]));
    Ok(())
}
