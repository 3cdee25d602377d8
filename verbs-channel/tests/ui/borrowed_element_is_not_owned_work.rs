//! What is started is owned: a borrow could end before the card is done.

use verbs_channel::verbs_core::GatherElement;
use verbs_channel::{Channel, Outgoing};

fn broken(channel: &mut Channel, element: GatherElement<'_>) {
    let _ticket = channel.start(Outgoing::send(element));
}

fn main() {}
