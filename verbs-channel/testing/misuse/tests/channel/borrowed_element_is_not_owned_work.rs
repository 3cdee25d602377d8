//! Only owned buffers are started: a borrow could end while the device uses it.

use verbs_channel::verbs_core::GatherElement;
use verbs_channel::{Channel, Outgoing};

fn broken(channel: &mut Channel, element: GatherElement<'_>) {
    let _ticket = channel.start(Outgoing::send(element));
}

fn main() {}
