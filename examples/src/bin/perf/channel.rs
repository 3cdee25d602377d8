//! verbs-channel: a group of channels, and owned buffers. Nothing here is `unsafe`.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use examples::{Common, Context as _, Failure, Frames};
use serde::{Deserialize, Serialize};
use verbs_channel::{
    ChannelBuilder, ChannelGroup, ChannelId, Completed, Incoming, Outgoing, OwnedBuffer,
    OwnedRequest, PollStrategy, PreparedChannel, SharedMemory,
};
use verbs_core::rdmacm::Listener;
use verbs_core::{ProtectionDomain, QueuePairEndpoint, RemoteMemoryRegion, WcOpcode};

use crate::figures::Figures;
use crate::link::{Counts, Link};
use crate::memory::Memory;
use crate::plan::{Op, Plan};
use crate::run::Side;

/// What a side sends before it connects.
#[derive(Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) ends: Vec<QueuePairEndpoint>,
    pub(crate) memory: RemoteMemoryRegion,
    /// Where a server that connects by `rdma_cm` listens.
    pub(crate) port: Option<u16>,
}

/// The memory of owned buffers, here and at the peer.
pub(crate) struct Buffers<'m> {
    pub(crate) memory: &'m Memory,
    shared: SharedMemory,
    pub(crate) theirs: Option<RemoteMemoryRegion>,
    op: Op,
}

/// The channels of a side.
struct Channels<'m> {
    // Declared first, so that it ends before the memory does.
    group: ChannelGroup,
    ids: Vec<ChannelId>,
    conns: HashMap<ChannelId, usize>,
    // What a sleep has found.
    found: Option<Completed>,
    buffers: Buffers<'m>,
    plan: &'m Plan,
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = examples::open(common)?;
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
pub(crate) fn builder(pd: &ProtectionDomain, plan: &Plan, common: &Common) -> ChannelBuilder {
    let strategy = match plan.events {
        true => PollStrategy::Notify { after: 0 },
        false => PollStrategy::Spin,
    };
    common
        .channels(pd)
        .max_send_wr(plan.in_flight())
        .max_recv_wr(plan.receives())
        .strategy(strategy)
}

impl<'m> Buffers<'m> {
    pub(crate) fn new(memory: &'m Memory, plan: &Plan) -> Result<Self, Failure> {
        let places = plan.qps() * (plan.depth() + usize::try_from(plan.receives())? + 1);
        Ok(Self {
            memory,
            shared: SharedMemory::new(Arc::clone(&memory.region), places),
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

    /// The operation with this number.
    #[inline]
    pub(crate) fn request(&self, conn: usize, number: u64) -> Result<OwnedRequest, Failure> {
        let memory = self.memory;
        memory.fill(conn, number)?;
        let ours = match self.op.is_one_sided() {
            true => self.slice(memory.fetched(conn, number))?,
            false => self.slice(memory.out(conn, number))?,
        };
        if self.op == Op::Send {
            return Ok(Outgoing::send(ours).into());
        }
        let theirs = self
            .theirs
            .ok_or_else(|| Failure::new("the peer has no memory"))?;
        let remote = memory.remote(&theirs, conn, number)?;
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

    /// Which receive of a connection has this buffer.
    pub(crate) fn number(&self, conn: usize, buffer: OwnedBuffer) -> (OwnedBuffer, u64) {
        match buffer.into_shared() {
            Ok(slice) => {
                let number = self.memory.number(conn, slice.offset());
                (slice.into(), number)
            }
            Err(other) => (other, 0),
        }
    }
}

/// Tells the peer where the ends of the connections are, and gets its own.
pub(crate) fn exchange(frames: &Frames, ours: &Offer) -> Result<Offer, Failure> {
    frames.send(ours)?;
    let theirs: Offer = frames.receive().context(|| "the peer did not connect")?;
    if theirs.ends.len() == ours.ends.len() {
        Ok(theirs)
    } else {
        Err(Failure::new("the peer has another number of connections"))
    }
}

impl<'m> Channels<'m> {
    fn new(
        pd: &ProtectionDomain,
        memory: &'m Memory,
        plan: &'m Plan,
        common: &Common,
        frames: &Frames,
    ) -> Result<Self, Failure> {
        let mut group = builder(pd, plan, common).group(plan.qps)?;
        let mut buffers = Buffers::new(memory, plan)?;
        let mut prepared = Vec::new();
        for conn in 0..plan.qps() {
            let mut channel = group.prepare()?;
            // Receives are there before the peer is told where to send.
            if plan.op.is_received() {
                for number in 0..plan.receives().into() {
                    channel.start_receive(buffers.receive(conn, number)?)?;
                }
            }
            prepared.push(channel);
        }
        let mut listener = None;
        if plan.cm && common.host.is_none() {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            listener = Some(Listener::bind(any, 16)?);
        }
        let port = listener.as_ref().and_then(Listener::local_addr);
        let ours = Offer {
            ends: prepared.iter().map(PreparedChannel::endpoint).collect(),
            memory: memory.region.remote(),
            port: port.map(|addr| addr.port()),
        };
        let theirs = exchange(frames, &ours)?;
        buffers.theirs = Some(theirs.memory);
        let (mut ids, limit) = (Vec::new(), common.limit());
        for (prepared, end) in prepared.into_iter().zip(&theirs.ends) {
            let connected = match (&mut listener, &common.host, theirs.port) {
                (Some(listener), ..) => prepared.accept_cm(listener, limit),
                (None, Some(host), Some(port)) => prepared.connect_cm((host.as_str(), port), limit),
                _ => prepared.handshake(end),
            };
            ids.push(group.join(connected.context(|| "cannot connect")?)?);
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
        let conn = *self.conns.get(&completed.channel).unwrap_or(&0);
        let success = completed.result?;
        let is_receive = matches!(
            success.opcode(),
            WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM
        );
        let memory = self.buffers.memory;
        if !is_receive {
            if self.plan.op.is_one_sided() {
                memory.verify_fetched(conn, counts.sent[conn])?;
            }
            counts.sent[conn] += 1;
            return Ok(());
        }
        let buffer = completed.buffer.unwrap_or_else(OwnedBuffer::empty);
        let (buffer, number) = self.buffers.number(conn, buffer);
        memory.verify_received(conn, counts.received[conn], (conn, number))?;
        counts.received[conn] += 1;
        let mut channel = self.group.channel(completed.channel)?;
        let _found_by_its_channel = channel.start_receive(buffer)?;
        Ok(())
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
        let found = self.found.take().or_else(|| self.group.next_completed());
        let Some(found) = found else {
            return Ok(false);
        };
        self.completed(found, counts)?;
        Ok(true)
    }

    fn sleep(&mut self, at_most: Duration) -> Result<bool, Failure> {
        if self.plan.events {
            self.found = self.group.wait_completed(Some(at_most));
            return Ok(self.found.is_some());
        }
        Ok(true)
    }
}
