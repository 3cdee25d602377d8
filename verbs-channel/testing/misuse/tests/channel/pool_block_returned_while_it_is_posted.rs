//! A block is not returned to its pool while it is posted.

use verbs_channel::{Channel, PoolBuffer};

fn broken(channel: &mut Channel, mut block: PoolBuffer) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(block.scatter_element(..).unwrap());
        drop(block);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
