//! Scopes: what they borrow is the device's until they end.

use verbs_channel::verbs_core::{MemoryRegion, ProtectionDomain};
use verbs_channel::{Channel, ChannelGroup, ChannelId, PoolBuffer};

/// A buffer that is created in a scope is not posted in it: it would be dropped first.
fn buffer_dropped_before_its_scope_ends(channel: &mut Channel, pd: &ProtectionDomain) {
    let ended = channel.scope(|scope| {
        let mut region = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// Bytes that the device may write are not read.
fn buffer_read_while_it_is_received_into(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        println!("{}", region[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A borrow of a scope lasts until the scope ends; only a loan ends earlier.
fn buffer_read_after_its_work_is_done(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_receive(region.scatter_element(..).unwrap());
        drop(work.unwrap().spin_poll());
        println!("{}", region[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// Bytes that the device may read are not written.
fn buffer_written_while_it_is_sent(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_send(region.gather_element(..).unwrap());
        region[0] = 1;
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A block is not returned to its pool while it is posted.
fn pool_block_returned_while_it_is_posted(channel: &mut Channel, mut block: PoolBuffer) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(block.scatter_element(..).unwrap());
        drop(block);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A channel is not used directly in its own scope.
fn channel_used_in_its_own_scope(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        channel.abort();
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A channel of a group is not removed during its scope.
fn member_removed_in_its_scope(
    group: &mut ChannelGroup,
    member: ChannelId,
    region: MemoryRegion<Vec<u8>>,
) {
    let ended = group.channel(member).unwrap().scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        group.remove(member).unwrap();
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A handle does not outlive its scope.
fn handle_leaves_its_scope(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        Ok::<_, ()>(work)
    });
    drop(ended);
}

/// A scope is not used after it has ended.
fn scope_is_kept(channel: &mut Channel) {
    let mut kept = None;
    let ended = channel.scope(|scope| {
        kept = Some(scope);
        Ok::<_, ()>(())
    });
    ended.unwrap();
    kept.unwrap().poll();
}

/// Only the thread of a scope posts in it.
fn scope_in_another_thread(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        std::thread::scope(|threads| {
            threads.spawn(|| scope.post_send(region.gather_element(..).unwrap()).is_ok());
        });
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
