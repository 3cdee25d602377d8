//! A raw element borrows no memory, so a safe request does not accept it.

use verbs_channel::Channel;
use verbs_channel::verbs_core::memory::Sge;

fn broken(channel: &mut Channel) {
    drop(channel.send(Sge::new(0x1000, 64, 7)));
}

fn main() {}
