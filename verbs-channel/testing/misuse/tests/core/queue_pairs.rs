//! Queue pairs are used in the states that they have.

use std::time::Duration;

use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::PostError;
use verbs_core::queue_pair::SharedReceives;
use verbs_core::rdmacm::Connector;
use verbs_core::{
    PreparedQueuePair, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, Result, SendWorkRequest,
};

/// Only a connected queue pair sends.
fn prepared_queue_pair_sends(
    qp: &PreparedQueuePair,
    request: SendWorkRequest<'_>,
) -> Result<(), PostError> {
    unsafe { qp.post_send(&mut [request]) }
}

/// A prepared queue pair connects once.
fn prepared_queue_pair_connects_twice(qp: PreparedQueuePair, peer: &QueuePairEndpoint) {
    let _first = qp.handshake(peer);
    let _second = qp.handshake(peer);
}

/// A queue pair that was reset is not connected any more.
fn queue_pair_used_after_reset(qp: QueuePair) -> Result<()> {
    let _prepared = qp.reset()?;
    qp.to_error()
}

/// A queue pair that was closed is not used.
fn queue_pair_used_after_close(qp: QueuePair) -> Result<u32> {
    qp.close()?;
    Ok(qp.qp_num())
}

/// A queue pair that is attached to a multicast group is not destroyed.
fn queue_pair_destroyed_while_it_is_attached(qp: DatagramQueuePair, group: Gid) {
    let attachment = qp.attach_mcast(group, 0).unwrap();
    qp.close().unwrap();
    attachment.detach().unwrap();
}

/// A queue pair on a shared receive queue has no `post_receive`: on siw the call kills the process.
fn shared_receives_of_a_prepared_queue_pair(
    qp: &PreparedQueuePair<SharedReceives>,
    request: &mut ReceiveWorkRequest<'_>,
) {
    let _ = unsafe { qp.post_receive(request) };
}

fn shared_receives_of_a_queue_pair(
    qp: &QueuePair<SharedReceives>,
    request: &mut ReceiveWorkRequest<'_>,
) {
    let _ = unsafe { qp.post_receive(request) };
}

/// An identifier of the connection manager is for one connection.
fn identifier_used_twice() -> Result<(), Box<dyn std::error::Error>> {
    let connector = Connector::new()?;
    let (addr, second) = ("192.0.2.1:7471".parse()?, Duration::from_secs(1));
    let _first = connector.resolve_addr(addr, second)?;
    let _second = connector.resolve_addr(addr, second)?;
    Ok(())
}

fn main() {}
