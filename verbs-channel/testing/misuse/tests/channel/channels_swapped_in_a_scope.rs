//! Two channels are not swapped while their scopes have operations in flight.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(one: &mut Channel, other: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = one.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        std::mem::swap(one, other);
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
