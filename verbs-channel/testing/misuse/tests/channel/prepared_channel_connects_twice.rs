//! A prepared channel connects once.

use verbs_channel::PreparedChannel;
use verbs_channel::verbs_core::QueuePairEndpoint;

fn broken(prepared: PreparedChannel, peer: &QueuePairEndpoint) {
    drop(prepared.handshake(peer));
    drop(prepared.handshake(peer));
}

fn main() {}
