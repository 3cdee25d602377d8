//! The exchange of messages on a channel, with blocking calls and in scopes.

use std::mem;

use verbs_channel::verbs_core::{MemoryRegion, WorkSuccess};
use verbs_channel::{Channel, Result};

/// A channel and two buffers, each as long as the longest message.
pub(crate) struct Echo {
    channel: Channel,
    one: MemoryRegion<Vec<u8>>,
    other: MemoryRegion<Vec<u8>>,
}

impl Echo {
    pub(crate) fn new(channel: Channel, longest: usize) -> Result<Self> {
        let one = channel.pd().reg_mr(vec![0_u8; longest])?;
        let other = channel.pd().reg_mr(vec![0_u8; longest])?;
        Ok(Self {
            channel,
            one,
            other,
        })
    }

    /// The buffer that is sent from, and that holds the next message afterwards.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.one
    }

    /// Receives a message with a blocking call: the server's first.
    pub(crate) fn receive(&mut self, len: usize) -> Result<WorkSuccess> {
        Ok(self.channel.receive(self.one.scatter_element(..len)?)?)
    }

    /// Sends the message back with a blocking call.
    pub(crate) fn send_back(&mut self, len: usize) -> Result<()> {
        Ok(self.channel.send(self.one.gather_element(..len)?)?)
    }

    /// Sends a message and waits for the next one: the receive is posted late, when the message
    /// may have arrived.
    pub(crate) fn blocking(&mut self, len: usize) -> Result<WorkSuccess> {
        self.channel.send(self.one.gather_element(..len)?)?;
        let received = self.channel.receive(self.other.scatter_element(..len)?)?;
        mem::swap(&mut self.one, &mut self.other);
        Ok(received)
    }

    /// The same in a scope: the receive is posted first. Both buffers are borrowed until the scope
    /// ends.
    pub(crate) fn scoped(&mut self, len: usize) -> Result<WorkSuccess> {
        let received = self.channel.scope(|scope| {
            let receive = scope.post_receive(self.other.scatter_element(..len)?)?;
            let send = scope.post_send(self.one.gather_element(..len)?)?;
            send.spin_poll()?;
            Ok::<_, verbs_channel::Error>(receive.spin_poll()?)
        })?;
        mem::swap(&mut self.one, &mut self.other);
        Ok(received)
    }
}
