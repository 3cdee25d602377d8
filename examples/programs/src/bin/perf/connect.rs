//! Connecting: each side sends where its ends are, and connects each to the peer's of the same number.

use std::net::{Ipv4Addr, SocketAddr};

use programs::{Common, Context as _, Failure, Frames};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::{Peer, PreparedChannel};
use verbs_core::RemoteMemoryRegion;
use verbs_core::rdmacm::Listener;

use crate::buffers::Buffers;
use crate::messages;
use crate::plan::Plan;

/// A side's message before it connects.
#[derive(Serialize, Deserialize)]
struct Offer<E> {
    ends: Vec<E>,
    memory: Option<RemoteMemoryRegion>,
    /// Where a server that connects by `rdma_cm` listens.
    port: Option<u16>,
}

/// How an end reaches the peer's.
pub(crate) enum Way<'w, E> {
    /// The peer's came over TCP.
    Known(&'w E),
    /// The peer connects, by `rdma_cm`.
    Accept(&'w mut Listener),
    /// The peer listens at this host and port, by `rdma_cm`.
    Connect((&'w str, u16)),
}

/// The connections of a side, and the peer's memory.
pub(crate) type Connected<C> = (Vec<C>, Option<RemoteMemoryRegion>);

/// Connects each of these ends. Receives have been posted before, as the peer may send at once.
pub(crate) fn connect<P, E: Serialize + DeserializeOwned, C>(
    prepared: Vec<P>,
    end: impl Fn(&P) -> E,
    memory: Option<RemoteMemoryRegion>,
    (common, plan, frames): (&Common, &Plan, &Frames),
    mut one: impl FnMut(P, Way<'_, E>) -> Result<C, Failure>,
) -> Result<Connected<C>, Failure> {
    let mut listener = None;
    if plan.cm && common.host.is_none() {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        listener = Some(Listener::bind(any, 16)?);
    }
    let address = listener.as_ref().and_then(Listener::local_addr);
    let ours = Offer {
        ends: prepared.iter().map(end).collect(),
        memory,
        port: address.map(|address| address.port()),
    };
    messages::send(frames, &ours)?;
    let theirs: Offer<E> = messages::receive(frames).context(|| "the peer did not connect")?;
    if theirs.ends.len() != prepared.len() {
        return Err(Failure::new("the peer has another number of connections"));
    }
    let pairs = prepared.into_iter().zip(&theirs.ends);
    let connections = pairs.map(|(prepared, end)| {
        let way = match (&mut listener, &common.host, theirs.port) {
            (Some(listener), ..) => Way::Accept(listener),
            (None, Some(host), Some(port)) => Way::Connect((host, port)),
            _ => Way::Known(end),
        };
        one(prepared, way).context(|| "cannot connect")
    });
    Ok((connections.collect::<Result<_, _>>()?, theirs.memory))
}

/// Prepares the channels of a group, and connects them. Unless a stream uses them, they have these buffers.
pub(crate) fn channels<E: Into<Failure>>(
    prepare: impl Fn() -> Result<PreparedChannel<ConnectedMember>, E>,
    buffers: Option<&Buffers<'_>>,
    (common, plan, frames): (&Common, &Plan, &Frames),
) -> Result<Connected<ConnectedMember>, Failure> {
    let mut prepared = Vec::new();
    for conn in 0..plan.qps() {
        let mut channel = prepare().map_err(Into::into)?;
        if let Some(buffers) = buffers.filter(|_| plan.posts_receives()) {
            for number in 0..plan.receives().into() {
                channel.start_receive(buffers.receive(conn, number)?)?;
            }
        }
        prepared.push(channel);
    }
    let limit = common.limit();
    let memory = buffers.map(|buffers| buffers.memory.region().remote());
    connect(
        prepared,
        PreparedChannel::endpoint,
        memory,
        (common, plan, frames),
        |prepared, way| {
            Ok(match way {
                Way::Known(end) => prepared.handshake(end)?,
                Way::Accept(listener) => prepared.accept(listener, limit)?.channel,
                Way::Connect(address) => prepared.connect(Peer::cm(address), limit)?.channel,
            })
        },
    )
}
