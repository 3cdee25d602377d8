//! A queue pair for datagrams takes no request that has no address handle, nor the other way round.
use verbs_core::{QueuePair, SendWorkRequest};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::work_request::DatagramWorkRequest;

fn send(qp: &DatagramQueuePair, request: &mut SendWorkRequest<'_>) {
    // SAFETY: it does not compile.
    let _ = unsafe { qp.post_send(request) };
}

fn datagram(qp: &QueuePair, request: &mut DatagramWorkRequest<'_>) {
    // SAFETY: it does not compile.
    let _ = unsafe { qp.post_send(request) };
}

fn main() {}
