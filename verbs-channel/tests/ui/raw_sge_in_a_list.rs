//! A raw element keeps no memory: safe work does not take it.

use verbs_channel::Channel;
use verbs_channel::verbs_core::Sge;

fn broken(channel: &mut Channel) {
    drop(channel.send(Sge::new(0x1000, 64, 7)));
}

fn main() {}
