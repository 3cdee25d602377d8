//! verbs-core: queue pairs, one completion queue, requests built for each post.
#![expect(unsafe_code, reason = "posts work requests")]

use std::collections::HashMap;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use programs::{Common, Failure, Frames};
use serde::{Deserialize, Serialize};
use verbs_core::completion::{CompletionChannel, Grh};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::memory::Sge;
use verbs_core::path::{AddressHandle, DatagramEndpoint};
use verbs_core::queue_pair::{Receives, SharedReceives};
use verbs_core::rdmacm::{Connected, Connection, Connector};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::work_request::{AtomicWorkRequest, DatagramWorkRequest};
use verbs_core::{
    CompletionQueue, Context, PollSlot, PreparedQueuePair, ProtectionDomain, QueuePair,
    QueuePairEndpoint, ReadWorkRequest, ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest,
    WriteWorkRequest,
};

use crate::connect::{Way, connect};
use crate::figures::Figures;
use crate::link::{Counts, Link};
use crate::memory::{Arrived, Memory};
use crate::plan::{Op, Plan};
use crate::run::Side;

/// Where the peer's queue pair is.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum End {
    Connected(QueuePairEndpoint),
    Datagrams(DatagramEndpoint),
}

/// A queue pair before it is connected.
enum Prepared {
    Own(PreparedQueuePair),
    Shared(PreparedQueuePair<SharedReceives>),
    Datagrams(DatagramQueuePair),
}

enum Qp {
    Own(QueuePair),
    Shared(QueuePair<SharedReceives>),
    Datagrams {
        // First, so that it is destroyed before the handle that its sends need.
        qp: DatagramQueuePair,
        handle: AddressHandle,
        peer: DatagramEndpoint,
    },
}

/// Where receives are posted, before and after connecting.
#[derive(Clone, Copy)]
enum Receiver<'q> {
    Prepared(&'q PreparedQueuePair),
    Own(&'q QueuePair),
    Shared(&'q SharedReceiveQueue),
    Datagrams(&'q DatagramQueuePair),
}

/// The queue pairs of a side.
struct Connections<'m> {
    // First, so that they are destroyed before the memory.
    qps: Vec<Qp>,
    // Those of `rdma_cm`, which end when they are dropped.
    _connections: Vec<Option<Connection>>,
    // The connection of each queue pair, by the queue pair's number.
    conns: HashMap<u32, usize>,
    srq: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    events: Option<CompletionChannel>,
    memory: &'m Memory,
    theirs: Option<RemoteMemoryRegion>,
    plan: &'m Plan,
    inline: bool,
    // The next completion causes an event.
    armed: bool,
}

/// Parts of a `wr_id`: whether it is a receive's, the connection, and a number.
const RECEIVE: u64 = 1 << 63;
const CONN: u32 = 44;
const NUMBER: u64 = (1 << CONN) - 1;

/// Messages up to this long are sent inline when latency is measured, as perftest does.
const INLINE: u32 = 220;

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let header = if plan.datagrams { Grh::LEN } else { 0 };
    let memory = Memory::new(&pd, plan, header)?;
    let link = Connections::new(&context, &pd, &memory, plan, common, frames)?;
    let side = Side::new(link, plan, &memory, frames, common.host.is_some());
    let (figures, link) = side.measure()?;
    link.close()?;
    Ok(figures)
}

impl<'m> Connections<'m> {
    fn new(
        context: &Context,
        pd: &ProtectionDomain,
        memory: &'m Memory,
        plan: &'m Plan,
        common: &Common,
        frames: &Frames,
    ) -> Result<Self, Failure> {
        let events = plan.events.then(|| CompletionChannel::create(context));
        let events = events.transpose()?;
        let depth = plan.qps.saturating_mul(plan.in_flight() + plan.receives());
        let cq = CompletionQueue::builder(context, depth)
            .channel(events.as_ref())
            .build()?;
        let srq = plan
            .srq
            .then(|| SharedReceiveQueue::create(pd, plan.receives().saturating_mul(plan.qps)));
        let srq = srq.transpose()?;
        let inline = if !plan.bandwidth && !plan.op.is_one_sided() && plan.size <= INLINE {
            plan.size
        } else {
            0
        };
        let mut prepared = Vec::new();
        for _ in 0..plan.qps {
            prepared.push(Prepared::new(pd, &cq, srq.as_ref(), plan, common, inline)?);
        }
        // Receives are there before the peer is told where to send.
        let each = plan.receives();
        if plan.op.is_received() {
            for (conn, prepared) in prepared.iter().enumerate() {
                let to = match prepared {
                    Prepared::Own(qp) => Some(Receiver::Prepared(qp)),
                    Prepared::Shared(_) => srq.as_ref().map(Receiver::Shared),
                    Prepared::Datagrams(qp) => Some(Receiver::Datagrams(qp)),
                };
                for number in 0..u64::from(each) {
                    to.map_or(Ok(()), |to| receive(memory, to, conn, number))?;
                }
            }
        }
        let conns = prepared.iter().map(Prepared::qp_num).zip(0..).collect();
        let (connected, theirs) = connect(
            prepared,
            Prepared::end,
            Some(memory.region().remote()),
            (common, plan, frames),
            |prepared, way| prepared.connect(way, common.limit()),
        )?;
        let (qps, connections) = connected.into_iter().unzip();
        Ok(Self {
            qps,
            _connections: connections,
            conns,
            srq,
            cq,
            events,
            memory,
            theirs,
            plan,
            inline: inline > 0,
            armed: false,
        })
    }

    fn close(self) -> Result<(), Failure> {
        for qp in self.qps {
            match qp {
                Qp::Own(qp) => qp.close()?,
                Qp::Shared(qp) => qp.close()?,
                Qp::Datagrams { qp, handle, .. } => {
                    qp.close()?;
                    handle.close()?;
                }
            }
        }
        Ok(self.srq.map_or(Ok(()), SharedReceiveQueue::close)?)
    }

    /// Posts an operation of a connected queue pair.
    #[inline]
    fn post_on<R>(
        &self,
        qp: &QueuePair<R>,
        conn: usize,
        number: u64,
        wr_id: u64,
        signaled: bool,
    ) -> Result<(), Failure> {
        let memory = self.memory;
        let start = match self.plan.op.is_one_sided() {
            true => memory.fetched(conn, number),
            false => memory.out(conn, number),
        };
        let element = memory.region().element(start..start + memory.size())?;
        let mut element = Sge::from(element);
        let remote = || {
            let theirs = self.theirs.as_ref();
            let theirs = theirs.ok_or_else(|| Failure::new("the peer has no memory"))?;
            Ok::<_, Failure>(memory.remote(theirs, conn, number)?)
        };
        macro_rules! post {
            ($request:expr, $post:ident $(, $inline:ident)?) => {{
                let mut request = $request.wr_id(wr_id);
                $(if self.inline {
                    request = request.$inline();
                })?
                if !signaled {
                    request = request.unsignaled();
                }
                // SAFETY: the memory is a shared region, which is never borrowed, outlives the queue
                // pairs, and is of their protection domain. A message that is inline is as long as was
                // granted, and its place is written by this thread only. `check_size` has compared the
                // length with the port's.
                unsafe { qp.$post(&mut request) }?;
            }};
        }
        match self.plan.op {
            Op::Send => post!(SendWorkRequest::new(&mut element), post_send, inline),
            Op::Write => post!(
                WriteWorkRequest::new(&mut element, &remote()?)?,
                post_write,
                inline
            ),
            Op::WriteImm => post!(
                WriteWorkRequest::new(&mut element, &remote()?)?.immediate(7),
                post_write,
                inline
            ),
            Op::Read => post!(ReadWorkRequest::new(&mut element, &remote()?)?, post_read),
            Op::Cas => {
                let next = number.wrapping_add(1);
                let swap =
                    AtomicWorkRequest::compare_and_swap(&mut element, &remote()?, number, next)?;
                post!(swap, post_atomic);
            }
            Op::Faa => {
                let add = AtomicWorkRequest::fetch_and_add(&mut element, &remote()?, 1)?;
                post!(add, post_atomic);
            }
        }
        Ok(())
    }

    /// Posts a receive again.
    fn receive(&self, conn: usize, number: u64) -> Result<(), Failure> {
        let to = match (self.qps.get(conn), &self.srq) {
            (_, Some(srq)) => Receiver::Shared(srq),
            (Some(Qp::Own(qp)), _) => Receiver::Own(qp),
            (Some(Qp::Datagrams { qp, .. }), _) => Receiver::Datagrams(qp),
            _ => return Ok(()),
        };
        receive(self.memory, to, conn, number)
    }
}

impl Prepared {
    fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        plan: &Plan,
        common: &Common,
        inline: u32,
    ) -> Result<Self, Failure> {
        if plan.datagrams {
            let qp = DatagramQueuePair::builder(pd, cq, cq)
                .max_send_wr(plan.in_flight())
                .max_recv_wr(plan.receives())
                .max_inline_data(inline)
                .port_num(common.ib_port)
                .gid_index(common.gid_idx)
                .build()?;
            plan.check_datagram(qp.max_payload())?;
            return Ok(Self::Datagrams(qp));
        }
        let builder = QueuePair::builder(pd, cq, cq)
            .max_send_wr(plan.in_flight())
            .max_recv_wr(plan.receives())
            .max_inline_data(inline)
            .port_num(common.ib_port)
            .gid_index(common.gid_idx);
        let prepared = match srq {
            Some(srq) => Self::Shared(builder.srq(srq).build()?),
            None => Self::Own(builder.build()?),
        };
        if let End::Connected(endpoint) = prepared.end() {
            programs::check_size(pd.context(), endpoint.port_num(), plan.size.into())?;
        }
        Ok(prepared)
    }

    fn end(&self) -> End {
        match self {
            Self::Own(qp) => End::Connected(qp.endpoint()),
            Self::Shared(qp) => End::Connected(qp.endpoint()),
            Self::Datagrams(qp) => End::Datagrams(qp.endpoint()),
        }
    }

    fn qp_num(&self) -> u32 {
        match self {
            Self::Own(qp) => qp.qp_num(),
            Self::Shared(qp) => qp.qp_num(),
            Self::Datagrams(qp) => qp.qp_num(),
        }
    }

    fn connect(
        self,
        way: Way<'_, End>,
        limit: Duration,
    ) -> Result<(Qp, Option<Connection>), Failure> {
        match self {
            Self::Own(qp) => {
                let (qp, connection) = connected(qp, way, limit)?;
                Ok((Qp::Own(qp), connection))
            }
            Self::Shared(qp) => {
                let (qp, connection) = connected(qp, way, limit)?;
                Ok((Qp::Shared(qp), connection))
            }
            Self::Datagrams(qp) => {
                let Way::Known(End::Datagrams(peer)) = way else {
                    return Err(Failure::new("the peer sends no datagrams"));
                };
                let handle = qp.address_handle(peer)?;
                let peer = *peer;
                Ok((Qp::Datagrams { qp, handle, peer }, None))
            }
        }
    }
}

/// Connects a queue pair to the peer's.
fn connected<R: Receives>(
    qp: PreparedQueuePair<R>,
    way: Way<'_, End>,
    limit: Duration,
) -> Result<(QueuePair<R>, Option<Connection>), Failure> {
    let connecting = match way {
        Way::Known(End::Connected(theirs)) => return Ok((qp.handshake(theirs)?, None)),
        Way::Known(End::Datagrams(_)) => {
            return Err(Failure::new("the peer sends datagrams"));
        }
        Way::Accept(listener) => {
            let request = listener.request(Some(limit))?;
            let request =
                request.ok_or_else(|| Failure::new("the peer did not connect in time"))?;
            request.accept(qp, b"")?
        }
        Way::Connect(address) => {
            let address = address.to_socket_addrs()?.next();
            let address = address.ok_or_else(|| Failure::new("the host has no address"))?;
            let resolving = Connector::new()?.resolve_addr(address, limit)?;
            let routing = resolving.wait(Some(limit))?.resolve_route(limit)?;
            routing.wait(Some(limit))?.connect(qp, b"")?
        }
    };
    let Connected {
        queue_pair,
        connection,
        ..
    } = connecting.wait(Some(limit))?;
    Ok((queue_pair, Some(connection)))
}

/// Posts a receive into the place of the message with this number.
#[inline]
fn receive(memory: &Memory, to: Receiver<'_>, conn: usize, number: u64) -> Result<(), Failure> {
    let start = memory.arrives(conn, number);
    let end = start + memory.header() + memory.size();
    let mut element = Sge::from(memory.region().element(start..end)?);
    let wr_id = RECEIVE | (conn as u64) << CONN | number;
    let mut request = ReceiveWorkRequest::new(&mut element).wr_id(wr_id);
    let posted = match to {
        Receiver::Prepared(qp) => {
            // SAFETY: the memory is a shared region, which is never borrowed and outlives its queues.
            unsafe { qp.post_receive(&mut request) }
        }
        Receiver::Own(qp) => {
            // SAFETY: the memory is a shared region, which is never borrowed and outlives its queues.
            unsafe { qp.post_receive(&mut request) }
        }
        Receiver::Shared(srq) => {
            // SAFETY: the memory is a shared region, which is never borrowed and outlives its queues.
            unsafe { srq.post_receive(&mut request) }
        }
        Receiver::Datagrams(qp) => {
            // SAFETY: the memory is a shared region, which is never borrowed and outlives its queues.
            unsafe { qp.post_receive(&mut request) }
        }
    };
    Ok(posted?)
}

impl Link for Connections<'_> {
    #[inline]
    fn post(&mut self, conn: usize, number: u64, signaled: bool) -> Result<(), Failure> {
        // Its completion is that of all before it, too.
        let wr_id = (conn as u64) << CONN | ((number + 1) & NUMBER);
        self.memory.fill(conn, number)?;
        match &self.qps[conn] {
            Qp::Own(qp) => self.post_on(qp, conn, number, wr_id, signaled)?,
            Qp::Shared(qp) => self.post_on(qp, conn, number, wr_id, signaled)?,
            Qp::Datagrams { qp, handle, peer } => {
                let out = self.memory.out(conn, number);
                let element = self
                    .memory
                    .region()
                    .element(out..out + self.memory.size())?;
                let mut element = Sge::from(element);
                let request = DatagramWorkRequest::to(&mut element, handle, peer);
                let mut request = request.wr_id(wr_id);
                if self.inline {
                    request = request.inline();
                }
                if !signaled {
                    request = request.unsignaled();
                }
                // SAFETY: the memory is a shared region, which is never borrowed and outlives the
                // queue pairs; the handle goes after the queue pair.
                unsafe { qp.post_send(&mut request) }?;
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, counts: &mut Counts) -> Result<bool, Failure> {
        let mut slots = [const { PollSlot::new() }; 16];
        let completions = self.cq.poll(&mut slots)?;
        for completion in completions {
            let success = completion.result()?;
            let (wr_id, number) = (success.wr_id(), success.wr_id() & NUMBER);
            let conn = usize::try_from((wr_id & !RECEIVE) >> CONN)?;
            if wr_id & RECEIVE == 0 {
                if self.plan.op.is_one_sided() {
                    for number in counts.sent[conn]..number {
                        self.memory.verify_fetched(conn, number)?;
                    }
                }
                counts.sent[conn] = number;
                continue;
            }
            // With a shared queue, the receive is any connection's.
            let from = match &self.srq {
                Some(_) => *self.conns.get(&success.qp_num()).unwrap_or(&0),
                None => conn,
            };
            let len = success.byte_len() as usize;
            let len = len.saturating_sub(self.memory.header());
            let message = Arrived::Receive(conn, number, len);
            let memory = self.memory;
            memory.verify_received(from, counts.received[from], &message)?;
            counts.received[from] += 1;
            self.receive(conn, number)?;
        }
        Ok(!completions.is_empty())
    }

    fn sleep(&mut self, _counts: &Counts, at_most: Duration) -> Result<bool, Failure> {
        let Some(events) = &self.events else {
            return Ok(true);
        };
        if !self.armed {
            // Completions from before it was armed cause no event, so poll for them first.
            self.cq.req_notify(false)?;
            self.armed = true;
            return Ok(true);
        }
        let event = events.get_cq_event(Some(at_most))?;
        self.armed = event.is_none();
        Ok(event.is_some())
    }
}
