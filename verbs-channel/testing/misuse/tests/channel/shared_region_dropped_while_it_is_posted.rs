//! A shared region, too, is borrowed while it is posted.

use verbs_channel::Channel;
use verbs_channel::verbs_core::SharedRegion;

fn broken(channel: &mut Channel, region: SharedRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(region.element(..).unwrap());
        drop(region);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
