//! Only a connected queue pair sends.

use verbs_core::{PostError, PreparedQueuePair, SendWorkRequest};

fn send(qp: &PreparedQueuePair, request: SendWorkRequest<'_>) -> Result<(), PostError> {
    unsafe { qp.post_send(&mut [request]) }
}

fn main() {}
