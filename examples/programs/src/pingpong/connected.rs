//! The ping-pong over a connection, reliable or not.
#![expect(unsafe_code, reason = "posts work requests")]

use verbs_core::codes::QpType;
use verbs_core::memory::Sge;
use verbs_core::{AccessFlags, QueuePair};

use super::buffers::Buffers;
use super::game::{Game, receive};
use super::link::Link;
use super::meet::meet;
use super::options::Connected;
use super::queue::Queue;
use crate::{Address, Failure};

/// Plays over a connection of this type.
///
/// # Errors
///
/// Whatever goes wrong, in words for the user.
pub fn connected(qp_type: QpType, options: &Connected) -> Result<(), Failure> {
    let Connected { size, mtu, options } = options;
    let common = &options.common;
    let context = crate::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, *size, 0, options.chk)?;
    let queue = Queue::new(&context, options, options.rx_depth + 1)?;
    let prepared = QueuePair::builder(&pd, &queue.cq, &queue.cq)
        .qp_type(qp_type)
        .max_send_wr(1)
        .max_recv_wr(options.rx_depth)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(AccessFlags::empty())
        .path_mtu(*mtu)
        .max_rd_atomic(u8::from(qp_type == QpType::Rc))
        .max_dest_rd_atomic(u8::from(qp_type == QpType::Rc))
        .sl(options.sl)
        .build()?;
    let port_num = prepared.endpoint().port_num();
    crate::check_size(&context, port_num, (*size).into())?;
    let mut element = Sge::from(buffers.receive()?);
    receive(&mut element, options.rx_depth, |receive| {
        // SAFETY: `buffers` outlives the queue pair, which is declared after it; its receive buffer
        // is a shared region, of which only copies are taken.
        unsafe { prepared.post_receive(receive) }
    })?;
    queue.arm()?;
    let ours = Address::from(&prepared.endpoint());
    let qp = meet(common, &[ours], |[theirs]| {
        Ok(prepared.handshake(&theirs.to_endpoint_of(qp_type)?)?)
    })?;
    Game::new(Link::Connected(qp), &buffers, options).run(&queue)
}
