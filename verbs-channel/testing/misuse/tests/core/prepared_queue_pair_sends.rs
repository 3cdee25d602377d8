//! Only a connected queue pair sends.

use verbs_core::{PreparedQueuePair, SendWorkRequest};
use verbs_core::error::PostError;

fn send(qp: &PreparedQueuePair, request: SendWorkRequest<'_>) -> Result<(), PostError> {
    unsafe { qp.post_send(&mut [request]) }
}

fn main() {}
