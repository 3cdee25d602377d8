//! A prepared queue pair connects once.

use verbs_core::{PreparedQueuePair, QueuePairEndpoint};

fn connect(qp: PreparedQueuePair, peer: &QueuePairEndpoint) {
    let _first = qp.handshake(peer);
    let _second = qp.handshake(peer);
}

fn main() {}
