//! The channel's loops, for `cargo xtask bench` to count instructions in: the work of their twins in
//! `verbs-core`'s benches, on a stand-in for libibverbs that completes every request at once.
//!
//! `channel OPERATION COUNT` runs one of them.
#![expect(clippy::print_stderr, reason = "a program: it says why it failed")]

use std::error::Error;
use std::fmt::Display;
use std::process;

use verbs_channel::verbs_core::{Context, GatherElement, MemoryRegion, ProtectionDomain};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Outgoing, OwnedBuffer, OwnedWork, PoolBuffer,
    ScopeError,
};

const MESSAGE: usize = 64;
const BATCH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(operation), Some(count)) = (args.next(), args.next()) else {
        // `cargo bench` itself comes here.
        eprintln!("this is run by `cargo xtask bench`");
        return Ok(());
    };
    let pd = Context::first_active()?.alloc_pd()?;
    let region = pd.reg_mr(vec![0; BATCH * MESSAGE])?;
    let mut channel = Channel::loopback(&pd)?.0;
    let pool = BufferPool::new(&pd, MESSAGE, BATCH)?;
    let count = count.parse()?;
    match operation.as_str() {
        "channel_send1" => send1(&mut channel, &region, count),
        "channel_scope16" => scope16(&mut channel, &region, count),
        "channel_batch16" => batch16(&mut channel, &region, count),
        "channel_owned1" => owned1(&mut channel, pool.take(), count),
        "channel_owned16" => {
            let blocks = std::iter::from_fn(|| pool.take()).map(Outgoing::send);
            owned16(&mut channel, blocks.map(OwnedWork::from).collect(), count);
        }
        "group1" => group_of(1, &pd, pool.take(), count),
        "group4096" => group_of(4096, &pd, pool.take(), count),
        other => fail(&format!("there is no operation `{other}`")),
    }
    Ok(())
}

/// The messages of a batch, one after the other in the region.
fn messages(region: &MemoryRegion<Vec<u8>>) -> [GatherElement<'_>; BATCH] {
    let mut messages = [check(region.gather_element(..MESSAGE)); BATCH];
    for (index, message) in messages.iter_mut().enumerate() {
        let start = index * MESSAGE;
        *message = check(region.gather_element(start..start + MESSAGE));
    }
    messages
}

#[inline(never)]
fn send1(channel: &mut Channel, region: &MemoryRegion<Vec<u8>>, count: u64) {
    let message = check(region.gather_element(..MESSAGE));
    for _ in 0..count {
        check(channel.send(message));
    }
}

#[inline(never)]
fn scope16(channel: &mut Channel, region: &MemoryRegion<Vec<u8>>, count: u64) {
    let messages = messages(region);
    for _ in 0..count {
        let sent: Result<(), ScopeError<verbs_channel::Error>> = channel.scope(|scope| {
            for &message in &messages {
                let _left_to_the_scope = scope.post_send(message)?;
            }
            Ok(())
        });
        check(sent);
    }
}

#[inline(never)]
fn batch16(channel: &mut Channel, region: &MemoryRegion<Vec<u8>>, count: u64) {
    let messages = messages(region);
    for _ in 0..count {
        check(channel.run_batch(messages.map(Outgoing::send)));
    }
}

#[inline(never)]
fn owned1(channel: &mut Channel, block: Option<PoolBuffer>, count: u64) {
    let mut buffer = block.map(OwnedBuffer::from);
    for _ in 0..count {
        let given = buffer.take().unwrap_or_default();
        let ticket = check(channel.start_send(given));
        let ended = check(channel.wait(ticket, None));
        buffer = ended.and_then(|ended| ended.buffer);
    }
}

#[inline(never)]
fn owned16(channel: &mut Channel, mut works: Vec<OwnedWork>, count: u64) {
    for _ in 0..count {
        let ticket = check(channel.start_batch(works));
        works = check(channel.wait(ticket, None)).map_or_else(Vec::new, |ended| ended.batch);
    }
}

/// One send after the other, each on the next channel of as many that share a queue.
fn group_of(channels: u32, pd: &ProtectionDomain, block: Option<PoolBuffer>, count: u64) {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    let mut group = check(builder.group(channels));
    for _ in 0..channels {
        let member = check(group.prepare());
        let itself = member.endpoint();
        check(group.join(check(member.handshake(&itself))));
    }
    group_sends(&mut group, block.map(OwnedBuffer::from), count);
}

#[inline(never)]
fn group_sends(group: &mut ChannelGroup, mut buffer: Option<OwnedBuffer>, count: u64) {
    let channels: Vec<ChannelId> = group.channels().collect();
    let mut channels = channels.iter().cycle();
    for _ in 0..count {
        let Some(&at) = channels.next() else { return };
        let given = buffer.take().unwrap_or_default();
        let _found_below = check(check(group.channel(at)).start_send(given));
        buffer = group.next_completed().and_then(|ended| ended.buffer);
    }
}

/// The value, or the end of the program.
#[inline(always)]
fn check<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| fail(&error))
}

#[cold]
#[inline(never)]
fn fail(why: &dyn Display) -> ! {
    eprintln!("channel: {why}");
    process::exit(1);
}
