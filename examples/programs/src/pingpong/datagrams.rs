//! The ping-pong over datagrams.
#![expect(unsafe_code, reason = "posts work requests")]

use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::memory::Sge;
use verbs_core::path::QKey;

use super::buffers::Buffers;
use super::game::{Game, receive};
use super::link::Link;
use super::meet::meet;
use super::options::Options;
use super::queue::Queue;
use crate::{Address, Failure};

/// The key that C's program has built in.
const QKEY: u32 = 0x1111_1111;

/// Plays over datagrams of `size` bytes.
///
/// # Errors
///
/// Whatever goes wrong, in words for the user.
pub fn datagrams(size: u32, options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = crate::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, size, Grh::LEN, options.chk)?;
    let queue = Queue::new(&context, options, options.rx_depth + 1)?;
    let qp = DatagramQueuePair::builder(&pd, &queue.cq, &queue.cq)
        .max_send_wr(1)
        .max_recv_wr(options.rx_depth)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qkey(QKey::new(QKEY)?)
        .sl(options.sl)
        .build()?;
    let max = qp.max_payload();
    if size > max {
        return Err(Failure::new(format!(
            "a message of {size} bytes is too long: a datagram is one packet, and those of port {} \
             have {max} bytes at most",
            qp.port_num()
        )));
    }
    let mut element = Sge::from(buffers.receive()?);
    receive(&mut element, options.rx_depth, |receive| {
        // SAFETY: `buffers` outlives the queue pair, which is declared after it; its receive buffer
        // is a shared region, of which only copies are taken.
        unsafe { qp.post_receive(receive) }
    })?;
    queue.arm()?;
    let ours = Address::from(&qp.endpoint());
    let link = meet(common, &[ours], |[theirs]| {
        let peer = theirs.to_datagram_endpoint(qp.qkey())?;
        let handle = qp.address_handle(&peer)?;
        Ok(Link::Datagrams { qp, handle, peer })
    })?;
    Game::new(link, &buffers, options).run(&queue)
}
