//! A block of a pool is not read while it is lent.

use verbs_channel::{Channel, PoolBuffer};

fn broken(channel: &mut Channel, mut block: PoolBuffer) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(block.scatter_element(..).unwrap());
        println!("{}", block[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
