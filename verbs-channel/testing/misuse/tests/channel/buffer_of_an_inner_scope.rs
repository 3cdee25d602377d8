//! A buffer posted in an outer scope outlives the outer scope, not only the inner one.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(outer: &mut Channel, inner: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = outer.scope(|outer| {
        inner.scope(|_inner| {
            let region = region;
            drop(outer.post_send(region.gather_element(..).unwrap()));
            Ok::<_, ()>(())
        })
    });
    drop(ended);
}

fn main() {}
