//! Channels are used by one caller at a time, in the states that they have.

use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_channel::verbs_core::{MemoryRegion, QueuePairEndpoint, SendWorkRequest};
use verbs_channel::{Channel, ChannelGroup, ChannelId, Outgoing, PreparedChannel};

/// One thread uses a channel at a time.
fn channel_used_through_a_shared_borrow(channel: &Channel, region: &MemoryRegion<Vec<u8>>) {
    drop(channel.send(region.gather_element(..).unwrap()));
}

/// One channel of a group is used at a time: they share a poller.
fn two_channels_of_a_group_at_once(group: &mut ChannelGroup, [one, other]: [ChannelId; 2]) {
    let mut first = group.channel(one).unwrap();
    let mut second = group.channel(other).unwrap();
    first.abort();
    second.abort();
}

/// A channel that is not connected does not send.
fn prepared_channel_sends(mut prepared: PreparedChannel, region: MemoryRegion<Vec<u8>>) {
    drop(prepared.send(region.gather_element(..).unwrap()));
}

/// A prepared channel connects once.
fn prepared_channel_connects_twice(prepared: PreparedChannel, peer: &QueuePairEndpoint) {
    drop(prepared.handshake(peer));
    drop(prepared.handshake(peer));
}

/// Managing the buffers oneself takes `unsafe`.
fn unpolled_without_unsafe(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    drop(channel.post_unpolled(Outgoing::send(region.gather_element(..).unwrap())));
}

fn chain_without_unsafe(channel: &mut Channel, chain: &mut RequestChain<SendWorkRequest<'_>>) {
    let _ticket = channel.post_chain_unpolled(chain, ..);
}

fn main() {}
