//! Posting a chain takes `unsafe`, and a chain goes to the queue that its requests are for.

use verbs_core::{QueuePair, ReceiveWorkRequest, SendWorkRequest};
use verbs_core::error::PostError;
use verbs_core::work_request::RequestChain;

fn send(qp: &QueuePair, chain: &mut RequestChain<SendWorkRequest<'_>>) -> Result<(), PostError> {
    qp.post_chain(chain, ..)
}

fn receive(
    qp: &QueuePair,
    chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
) -> Result<(), PostError> {
    qp.post_receive_chain(chain, ..)
}

fn swapped(
    qp: &QueuePair,
    chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
) -> Result<(), PostError> {
    unsafe { qp.post_chain(chain, ..) }
}

fn main() {}
