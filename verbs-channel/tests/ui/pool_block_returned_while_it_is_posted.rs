//! A pool's block does not go back while the card has it.

use verbs_channel::{Channel, PoolBuffer};

fn broken(channel: &mut Channel, mut block: PoolBuffer) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(block.element());
        drop(block);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
