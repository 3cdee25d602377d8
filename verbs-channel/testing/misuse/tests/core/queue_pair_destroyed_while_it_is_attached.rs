//! A queue pair that is attached to a multicast group is not destroyed.
use verbs_core::codes::Gid;
use verbs_core::datagram::DatagramQueuePair;

fn attached(qp: DatagramQueuePair, group: Gid) {
    let attachment = qp.attach_mcast(group, 0).unwrap();
    qp.close().unwrap();
    attachment.detach().unwrap();
}

fn main() {}
