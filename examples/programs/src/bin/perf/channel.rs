//! verbs-channel: a group of channels, and owned buffers. Nothing here is `unsafe`.

use std::collections::HashMap;
use std::time::Duration;

use programs::{Common, Failure, Frames};
use verbs_channel::{
    Channel, ChannelConfig, ChannelGroup, ChannelId, Completed, Message, OwnedBuffer, PollStrategy,
};
use verbs_core::ProtectionDomain;
use verbs_core::codes::WcOpcode;

use crate::buffers::{Buffers, shared_receives};
use crate::connect;
use crate::figures::Figures;
use crate::link::{Counts, Link};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::run::Side;

/// The channels of a side.
struct Channels<'m> {
    // Declared first, so that it ends before the memory does.
    group: ChannelGroup,
    ids: Vec<ChannelId>,
    conns: HashMap<ChannelId, usize>,
    // Result of a sleep.
    found: Option<Found>,
    buffers: Buffers<'m>,
    plan: &'m Plan,
}

enum Found {
    Completed(Completed),
    // In a shared receive.
    Message(Message),
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let memory = Memory::new(&pd, plan, 0)?;
    let link = Channels::new(&pd, &memory, plan, common, frames)?;
    let side = Side::new(link, plan, &memory, frames, common.host.is_some());
    let (figures, mut link) = side.measure()?;
    for id in link.ids {
        link.group.remove(id)?;
    }
    Ok(figures)
}

/// The settings of channels.
pub(crate) fn builder(pd: &ProtectionDomain, plan: &Plan, common: &Common) -> ChannelConfig {
    let strategy = match plan.events {
        true => PollStrategy::Notify { after: 0 },
        false => PollStrategy::Spin,
    };
    Channel::builder(pd)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .max_send_wr(plan.in_flight())
        .max_recv_wr(plan.receives())
        .strategy(strategy)
        .config()
}

impl<'m> Channels<'m> {
    fn new(
        pd: &ProtectionDomain,
        memory: &'m Memory,
        plan: &'m Plan,
        common: &Common,
        frames: &Frames,
    ) -> Result<Self, Failure> {
        let builder = builder(pd, plan, common);
        let mut group = match plan.srq {
            true => shared_receives(&builder, plan)?.group(plan.qps)?,
            false => builder.group(plan.qps)?,
        };
        let mut buffers = Buffers::new(memory, plan)?;
        let (members, theirs) =
            connect::channels(|| group.prepare(), Some(&buffers), (common, plan, frames))?;
        buffers.theirs = theirs;
        let mut ids = Vec::new();
        for member in members {
            ids.push(group.join(member)?);
        }
        Ok(Self {
            conns: ids.iter().copied().zip(0..).collect(),
            group,
            ids,
            found: None,
            buffers,
            plan,
        })
    }

    #[inline]
    fn completed(&mut self, completed: Completed, counts: &mut Counts) -> Result<(), Failure> {
        let conn = self.conn(completed.channel);
        let success = completed.result?;
        let is_receive = matches!(
            success.opcode(),
            WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM
        );
        if !is_receive {
            if self.plan.op.is_one_sided() {
                let memory = self.buffers.memory;
                memory.verify_fetched(conn, counts.sent[conn])?;
            }
            counts.sent[conn] += 1;
            return Ok(());
        }
        let buffer = completed.buffer.unwrap_or_else(OwnedBuffer::empty);
        let (number, len) = (counts.received[conn], success.byte_len());
        let buffer = self.buffers.verify_received(conn, number, buffer, len)?;
        counts.received[conn] += 1;
        let mut channel = self.group.channel(completed.channel)?;
        let _found_by_its_channel = channel.start_receive(buffer)?;
        Ok(())
    }

    fn message(&self, message: &Message, counts: &mut Counts) -> Result<(), Failure> {
        let conn = self.conn(message.channel);
        let number = counts.received[conn];
        self.buffers.verify_message(conn, number, message)?;
        counts.received[conn] += 1;
        Ok(())
    }

    #[inline]
    fn conn(&self, id: ChannelId) -> usize {
        *self.conns.get(&id).unwrap_or(&0)
    }
}

impl Link for Channels<'_> {
    #[inline]
    fn post(&mut self, conn: usize, number: u64, _signaled: bool) -> Result<(), Failure> {
        let request = self.buffers.request(conn, number)?;
        let mut channel = self.group.channel(self.ids[conn])?;
        let _found_by_its_channel = channel.start(request)?;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, counts: &mut Counts) -> Result<bool, Failure> {
        let group = &mut self.group;
        let found = self.found.take();
        let mut found = found.or_else(|| group.next_completed().map(Found::Completed));
        if found.is_none() && self.plan.srq {
            found = group.next_message().map(Found::Message);
        }
        match found {
            None => return Ok(false),
            Some(Found::Completed(completed)) => self.completed(completed, counts)?,
            Some(Found::Message(message)) => self.message(&message, counts)?,
        }
        Ok(true)
    }

    fn sleep(&mut self, counts: &Counts, at_most: Duration) -> Result<bool, Failure> {
        if !self.plan.events {
            return Ok(true);
        }
        let (group, at_most) = (&mut self.group, Some(at_most));
        // A message is no completion, and takes no part in this wait: what is in flight ends it.
        self.found = match self.plan.srq && !counts.is_busy() {
            true => group.wait_message(at_most).map(Found::Message),
            false => group.wait_completed(at_most).map(Found::Completed),
        };
        Ok(self.found.is_some())
    }
}
