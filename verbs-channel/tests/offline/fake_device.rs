//! Channels on the fake library, and what its device does.

use std::time::Duration;

pub(crate) use fake_libibverbs::posted;
use fake_libibverbs::with;
use verbs_channel::engine::ConnectedMember;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_qp_state, ibv_wc, ibv_wc_status,
};
use verbs_channel::verbs_core::{Device, MemoryRegion, ProtectionDomain, RemoteMemoryRegion};
use verbs_channel::{
    BufferPool, Channel, ChannelConfig, ChannelGroup, ChannelId, DownReason, Outgoing,
    OwnedRequest, PreparedChannel,
};

/// Far longer than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long a channel of these tests waits for flushes.
pub(crate) const DRAIN: Duration = Duration::from_millis(50);

/// A protection domain of this thread's device.
pub(crate) fn pd() -> ProtectionDomain {
    let context = Device::by_name("fake0").unwrap().open().unwrap();
    context.alloc_pd().unwrap()
}

/// A channel with room for four requests in each queue.
pub(crate) fn channel() -> Channel {
    channel_with(DRAIN)
}

/// The same with this drain timeout.
pub(crate) fn channel_with(drain_timeout: Duration) -> Channel {
    connected(
        Channel::builder(&pd())
            .max_send_wr(4)
            .max_recv_wr(4)
            .max_inline_data(64)
            .drain_timeout(drain_timeout)
            .build()
            .unwrap(),
    )
}

/// Connects a channel to itself, which the fake library does not check.
pub(crate) fn connected(prepared: PreparedChannel) -> Channel {
    let endpoint = prepared.endpoint();
    let channel = prepared.handshake(&endpoint).unwrap();
    forget_the_past();
    channel
}

/// A channel for the group, connected to itself.
pub(crate) fn member(group: &ChannelGroup) -> ConnectedMember {
    let prepared = group.prepare().unwrap();
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint).unwrap()
}

/// The same, which has joined.
pub(crate) fn join(group: &mut ChannelGroup) -> ChannelId {
    let member = member(group);
    group.join(member).unwrap()
}

/// A group of this number of channels, each connected to itself.
pub(crate) fn group_of(
    config: impl Into<ChannelConfig>,
    channels: u32,
) -> (ChannelGroup, Vec<ChannelId>) {
    let mut group = config.into().group(channels).unwrap();
    let ids = (0..channels).map(|_| join(&mut group)).collect();
    forget_the_past();
    (group, ids)
}

/// The same with room for four requests in each queue.
pub(crate) fn group(pd: &ProtectionDomain, channels: u32) -> (ChannelGroup, Vec<ChannelId>) {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    group_of(builder.drain_timeout(DRAIN), channels)
}

/// Clears the records of the library: from here on only later calls are seen.
pub(crate) fn forget_the_past() {
    with(|library| {
        library.calls.clear();
        library.modified.clear();
        library.posted.clear();
    });
}

/// Takes a channel down without waiting.
pub(crate) fn shut_down(channel: &mut Channel) {
    let id = channel.id();
    let engine = channel.engine_mut();
    engine.flush(id, DownReason::Closed).unwrap();
}

/// Memory of a peer, which the fake library does not access.
pub(crate) fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x1000, 1 << 40, 77).unwrap()
}

/// Sends of this number of blocks.
pub(crate) fn sends(pool: &BufferPool, count: usize) -> Vec<OwnedRequest> {
    let send = |_| Outgoing::send(pool.take().unwrap()).into();
    (0..count).map(send).collect()
}

/// A registered buffer of 64 bytes.
pub(crate) fn region(channel: &Channel) -> MemoryRegion<Vec<u8>> {
    channel.pd().reg_mr(vec![0_u8; 64]).unwrap()
}

/// The device completes a request with this status.
pub(crate) fn ends(wr_id: u64, status: ibv_wc_status) {
    let done = ibv_wc {
        wr_id,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}

pub(crate) fn succeeds(wr_id: u64) {
    ends(wr_id, IBV_WC_SUCCESS);
}

pub(crate) fn flushes(wr_id: u64) {
    ends(wr_id, IBV_WC_WR_FLUSH_ERR);
}

/// The next calls of this verb fail.
pub(crate) fn refuse(verb: &'static str, times: usize) {
    let refusals = std::iter::repeat_n((verb, libc::EIO), times);
    with(|library| library.refuse.extend(refusals));
}

/// The verbs that were called, in order.
pub(crate) fn calls() -> Vec<&'static str> {
    with(|library| library.calls.clone())
}

/// How often a verb was called.
pub(crate) fn count(verb: &str) -> usize {
    calls().iter().filter(|call| **call == verb).count()
}

/// The states that queue pairs were moved to.
pub(crate) fn moved() -> Vec<ibv_qp_state> {
    with(|library| {
        let moves = library.modified.iter();
        moves.map(|(attr, _)| attr.qp_state).collect()
    })
}

/// Whether a verb was called.
pub(crate) fn called(verb: &str) -> bool {
    calls().contains(&verb)
}

/// Runs a function that must return by itself. If it hangs, the process is aborted.
pub(crate) fn bounded<T>(what: impl FnOnce() -> T) -> T {
    verbs_harness::bounded(LONG, what)
}
