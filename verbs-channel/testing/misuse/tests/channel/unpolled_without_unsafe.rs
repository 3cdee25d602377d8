//! Managing the buffers oneself takes `unsafe`.

use verbs_channel::verbs_core::{MemoryRegion, SendWorkRequest};
use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_channel::{Channel, Outgoing};

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    drop(channel.post_unpolled(Outgoing::send(region.gather_element(..).unwrap())));
}

fn chain(channel: &mut Channel, chain: &mut RequestChain<SendWorkRequest<'_>>) {
    let _ticket = channel.post_chain_unpolled(chain, ..);
}

fn main() {}
