//! The memory of a side as owned buffers of verbs-channel, for it and for verbs-async.

use programs::Failure;
use verbs_channel::group::SharedReceivesConfig;
use verbs_channel::{
    BufferPool, ChannelConfig, Incoming, Message, Outgoing, OwnedBuffer, OwnedRequest, SharedMemory,
};
use verbs_core::RemoteMemoryRegion;

use crate::memory::{Arrived, Memory};
use crate::plan::{Op, Plan};

/// The memory of owned buffers, here and at the peer.
pub(crate) struct Buffers<'m> {
    pub(crate) memory: &'m Memory,
    shared: SharedMemory,
    pub(crate) theirs: Option<RemoteMemoryRegion>,
    op: Op,
}

impl<'m> Buffers<'m> {
    pub(crate) fn new(memory: &'m Memory, plan: &Plan) -> Result<Self, Failure> {
        Ok(Self {
            memory,
            shared: memory.shared.clone(),
            theirs: None,
            op: plan.op,
        })
    }

    fn slice(&self, start: usize) -> verbs_channel::Result<OwnedBuffer> {
        let slice = self.shared.slice(start..start + self.memory.size())?;
        Ok(slice.into())
    }

    /// The buffer of a receive.
    pub(crate) fn receive(&self, conn: usize, number: u64) -> verbs_channel::Result<OwnedBuffer> {
        self.slice(self.memory.arrives(conn, number))
    }

    /// The buffer that the operation with this number sends, writes or fetches into.
    #[inline]
    pub(crate) fn ours(&self, conn: usize, number: u64) -> Result<OwnedBuffer, Failure> {
        let memory = self.memory;
        memory.fill(conn, number)?;
        Ok(match self.op.is_one_sided() {
            true => self.slice(memory.fetched(conn, number))?,
            false => self.slice(memory.out(conn, number))?,
        })
    }

    /// The operation with this number.
    #[inline]
    pub(crate) fn request(&self, conn: usize, number: u64) -> Result<OwnedRequest, Failure> {
        let ours = self.ours(conn, number)?;
        if self.op == Op::Send {
            return Ok(Outgoing::send(ours).into());
        }
        let theirs = self
            .theirs
            .ok_or_else(|| Failure::new("the peer has no memory"))?;
        let remote = self.memory.remote(&theirs, conn, number)?;
        Ok(match self.op {
            Op::Send | Op::Write => Outgoing::write(ours, remote).into(),
            Op::WriteImm => Outgoing::write(ours, remote).immediate(7).into(),
            Op::Read => Incoming::read(ours, remote).into(),
            Op::Cas => {
                Incoming::compare_and_swap(ours, remote, number, number.wrapping_add(1)).into()
            }
            Op::Faa => Incoming::fetch_and_add(ours, remote, 1).into(),
        })
    }

    /// Verifies a connection's message with this number, which has arrived in one of its receives.
    /// Returns the buffer, for another receive.
    #[inline]
    pub(crate) fn verify_received(
        &self,
        conn: usize,
        number: u64,
        buffer: OwnedBuffer,
        len: u32,
    ) -> Result<OwnedBuffer, Failure> {
        let slice = buffer.into_shared();
        let slice = slice.map_err(|_other| Failure::new("a receive has another buffer"))?;
        let receive = self.memory.number(conn, slice.offset());
        let message = Arrived::Receive(conn, receive, usize::try_from(len)?);
        self.memory.verify_received(conn, number, &message)?;
        Ok(slice.into())
    }

    /// Verifies a connection's message with this number, which has arrived in a shared receive.
    #[inline]
    pub(crate) fn verify_message(
        &self,
        conn: usize,
        number: u64,
        message: &Message,
    ) -> Result<(), Failure> {
        if let Err(error) = message.result {
            return Err(error.into());
        }
        // A write with immediate data has none.
        let bytes = message.bytes().unwrap_or_default();
        let arrived = Arrived::Block(bytes);
        self.memory.verify_received(conn, number, &arrived)
    }
}

/// Receives that all connections share.
pub(crate) fn shared_receives(
    builder: &ChannelConfig,
    plan: &Plan,
) -> Result<SharedReceivesConfig, Failure> {
    let count = plan.receives().saturating_mul(plan.qps);
    if plan.op == Op::WriteImm {
        return Ok(builder.shared_immediates(count));
    }
    let pool = BufferPool::new(builder.pd(), plan.size(), usize::try_from(count)?)?;
    Ok(builder.shared_receives(&pool, count))
}
