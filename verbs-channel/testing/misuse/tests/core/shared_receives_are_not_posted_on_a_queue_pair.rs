//! A queue pair on a shared receive queue has no `post_receive`: on siw the call kills the process.

use verbs_core::{PreparedQueuePair, QueuePair, ReceiveWorkRequest};
use verbs_core::queue_pair::SharedReceives;

fn main() {
    let _ = prepared;
    let _ = connected;
}

fn prepared(qp: &PreparedQueuePair<SharedReceives>, request: &mut ReceiveWorkRequest<'_>) {
    let _ = unsafe { qp.post_receive(request) };
}

fn connected(qp: &QueuePair<SharedReceives>, request: &mut ReceiveWorkRequest<'_>) {
    let _ = unsafe { qp.post_receive(request) };
}
