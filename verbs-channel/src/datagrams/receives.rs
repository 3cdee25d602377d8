//! The datagrams that have arrived, and the blocks that they arrive in.

use super::datagram::Datagram;
use super::engine::DatagramEngine;
use crate::buffer::{BufferPool, OwnedBuffer, PoolBuffer};
use crate::error::{Queue, RejectReason};

impl DatagramEngine {
    /// The pool of the receives' blocks. While all of them are in use, a layer that waits in its
    /// own way waits for a free block of this pool, too, since no completion announces one. It
    /// passes the block to [`receive_into`](Self::receive_into).
    #[must_use]
    pub const fn receive_pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Posts a receive into a block of the [`receive_pool`](Self::receive_pool). The block is returned
    /// if there is no room, if it is of another pool, or if the endpoint is down.
    #[must_use = "it is dropped without a lock"]
    pub fn receive_into(&mut self, block: PoolBuffer) -> Option<OwnedBuffer> {
        let block = OwnedBuffer::from(block);
        if !self.pool.has(&block) {
            return Some(block);
        }
        self.post_block(block)
    }

    /// An error if no datagram will ever arrive: if it is down, or was built without receives. To be called when
    /// none [has arrived](Self::received).
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`], and [`RejectReason::NoCapacity`] if `max_recv_wr` is 0.
    pub const fn check_receives(&self) -> Result<(), RejectReason> {
        match self.down {
            Some(reason) => Err(RejectReason::Down(reason)),
            None if self.receives.capacity() == 0 => Err(RejectReason::NoCapacity(Queue::Receive)),
            None => Ok(()),
        }
    }

    /// The oldest datagram that was not taken.
    #[must_use]
    pub fn received(&mut self) -> Option<Datagram> {
        self.received.pop_front()
    }
}
