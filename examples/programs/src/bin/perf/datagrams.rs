//! verbs-channel: datagrams. Nothing here is `unsafe`.

use std::time::Duration;

use programs::{Common, Failure, Frames};
use verbs_channel::datagrams::DatagramsConfig;
use verbs_channel::{Datagrams, PollStrategy};
use verbs_core::ProtectionDomain;
use verbs_core::error::Rejected;
use verbs_core::path::DatagramEndpoint;

use crate::buffers::Buffers;
use crate::connect::{Connected, Way, connect};
use crate::figures::Figures;
use crate::link::{Counts, Link};
use crate::memory::{Arrived, Memory};
use crate::plan::Plan;
use crate::run::Side;

/// The endpoints of a side, each with the one that it sends to.
struct Endpoints<'m> {
    // Declared first, so that they end before the memory does.
    all: Vec<(Datagrams, DatagramEndpoint)>,
    buffers: Buffers<'m>,
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let memory = Memory::new(&pd, plan, 0)?;
    let builder = builder(&pd, plan, common);
    let all = (0..plan.qps).map(|_| builder.build());
    let (all, _none) = connect_each(
        all.collect::<Result<_, _>>()?,
        |one: &Datagrams| (one.endpoint(), one.max_payload()),
        (common, plan, frames),
    )?;
    let buffers = Buffers::new(&memory, plan)?;
    let link = Endpoints { all, buffers };
    let side = Side::new(link, plan, &memory, frames, common.host.is_some());
    let (figures, link) = side.measure()?;
    for (endpoint, _) in link.all {
        endpoint.close()?;
    }
    Ok(figures)
}

/// The settings of endpoints.
pub(crate) fn builder(pd: &ProtectionDomain, plan: &Plan, common: &Common) -> DatagramsConfig {
    Datagrams::builder(pd)
        .max_send_wr(plan.in_flight())
        .max_recv_wr(plan.receives())
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .strategy(PollStrategy::Spin)
        .config()
}

/// Finds for each endpoint the one that it sends to.
pub(crate) fn connect_each<D>(
    all: Vec<D>,
    about: impl Fn(&D) -> (DatagramEndpoint, u32),
    (common, plan, frames): (&Common, &Plan, &Frames),
) -> Result<Connected<(D, DatagramEndpoint)>, Failure> {
    for (_, max) in all.iter().map(&about) {
        plan.check_datagram(max)?;
    }
    connect(
        all,
        |one| about(one).0,
        None,
        (common, plan, frames),
        |one, way| match way {
            Way::Known(peer) => Ok((one, *peer)),
            Way::Accept(_) | Way::Connect(_) => Err(Failure::new("datagrams have no connection")),
        },
    )
}

impl Link for Endpoints<'_> {
    #[inline]
    fn post(&mut self, conn: usize, number: u64, _signaled: bool) -> Result<(), Failure> {
        let buffer = self.buffers.ours(conn, number)?;
        let (endpoint, peer) = &mut self.all[conn];
        Ok(endpoint
            .send_to(peer, buffer)
            .map_err(Rejected::into_error)?)
    }

    #[inline]
    fn poll(&mut self, counts: &mut Counts) -> Result<bool, Failure> {
        let mut any = false;
        for (conn, (endpoint, _)) in self.all.iter_mut().enumerate() {
            if let Some(datagram) = endpoint.receive_from(Duration::ZERO)? {
                let number = counts.received[conn];
                let memory = self.buffers.memory;
                memory.verify_received(conn, number, &Arrived::Block(&datagram))?;
                counts.received[conn] += 1;
                any = true;
            }
            let sent = counts.posted[conn] - endpoint.sends_in_flight() as u64;
            any |= sent > counts.sent[conn];
            counts.sent[conn] = sent;
        }
        Ok(any)
    }

    /// An endpoint sleeps alone, so this is polled.
    fn sleep(&mut self, _counts: &Counts, _at_most: Duration) -> Result<bool, Failure> {
        Ok(true)
    }
}
