//! The channel's loops, for `cargo xtask bench` to count instructions in: the work of their twins in
//! `verbs-core`'s benches, on a stand-in for libibverbs that completes every request at once.
//!
//! `channel OPERATION COUNT` runs one of them. Half of it runs in one function, and half in another
//! with another error type: what is inlined only as long as it has a single caller is not counted
//! as cheap.
#![expect(clippy::print_stderr, reason = "a program: it prints why it failed")]

use std::error::Error;
use std::fmt::Display;
use std::{array, process};

use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::error::Rejected;
use verbs_channel::verbs_core::{
    AccessFlags, Context, GatherElement, MemoryRegion, ProtectionDomain, RemoteMemoryRegion,
};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Outgoing, OwnedBuffer, OwnedRequest, PoolBuffer,
    RejectReason, ScopeError, SharedMemory, TransportError,
};

const MESSAGE: usize = 64;
const BATCH: usize = 16;
const PAGES: usize = 64;
const REMOTE: u64 = 0x7000_0000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(operation), Some(count)) = (args.next(), args.next()) else {
        // `cargo bench` itself comes here.
        eprintln!("this is run by `cargo xtask bench`");
        return Ok(());
    };
    let pd = Context::first_active()?.alloc_pd()?;
    let region = pd.reg_mr(vec![0; BATCH * MESSAGE])?;
    // The peer stays: a busy channel notices, too, that it has left.
    let (mut channel, _peer) = Channel::loopback(&pd)?;
    let pool = BufferPool::new(&pd, MESSAGE, BATCH)?;
    let count: u64 = count.parse()?;
    let half = count / 2;
    /// Runs a loop with each of two error types.
    macro_rules! both {
        ($operation:ident($($argument:expr),*)) => {{
            $operation::<verbs_channel::Error>($($argument),*)?;
            $operation::<Box<dyn Error>>($($argument),*)?;
        }};
    }
    match operation.as_str() {
        "channel_send1" => both!(send1(&mut channel, &region, half)),
        "channel_scope16" => both!(scope16(&mut channel, &region, half)),
        "channel_handles16" => both!(handles16(&mut channel, &region, half)),
        "channel_batch16" => both!(batch16(&mut channel, &region, half)),
        "channel_owned1" => both!(owned1(&mut channel, pool.take(), half)),
        "channel_pooled1" => both!(pooled1(&mut channel, &pool, half)),
        "channel_owned16" => {
            let mut works = std::iter::from_fn(|| pool.take())
                .map(|block| OwnedRequest::from(Outgoing::send(block)))
                .collect();
            both!(owned16(&mut channel, &mut works, half));
        }
        "channel_chain4" => both!(chained(&mut channel, &mut Some(sends(&pool, 4)?), half)),
        "channel_chain16" => both!(chained(&mut channel, &mut Some(sends(&pool, BATCH)?), half)),
        "channel_chain64" => {
            let pool = BufferPool::new(&pd, MESSAGE, PAGES + 1)?;
            let builder = Channel::builder(&pd).max_send_wr(64).max_recv_wr(1);
            let prepared = builder.build()?;
            let itself = prepared.endpoint();
            let mut channel = prepared.handshake(&itself)?;
            let mut chain = Some(sends(&pool, PAGES)?);
            both!(patched(&mut channel, &mut chain, pool.take(), half));
        }
        "channel_pages1" => both!(pages(&mut channel, &mut pages_of(&pd, 1)?, half)),
        "channel_pages4" => both!(pages(&mut channel, &mut pages_of(&pd, 4)?, half)),
        "channel_pages16" => both!(pages(&mut channel, &mut pages_of(&pd, BATCH)?, half)),
        "group_two" => both!(two_sends(&mut group_of(2, &pd, None)?, &pool, half)),
        // A share of one request for each queue, and common room for four.
        "group_budget" => both!(two_sends(&mut group_of(2, &pd, Some(8))?, &pool, half)),
        "rejoin64" => both!(rejoin(&mut group_with_receives(64, 1, &pd)?, half)),
        "rejoin64000" => both!(rejoin(&mut group_with_receives(250, 256, &pd)?, half)),
        other => match other.strip_prefix("group").map(str::parse) {
            Some(Ok(channels)) => {
                let mut group = group_of(channels, &pd, None)?;
                both!(group_sends(&mut group, pool.take(), half));
            }
            _ => fail(&format!("there is no operation `{other}`")),
        },
    }
    Ok(())
}

/// The messages of a batch, one after the other in the region.
fn messages(region: &MemoryRegion<Vec<u8>>) -> verbs_channel::Result<[GatherElement<'_>; BATCH]> {
    let mut messages = [region.gather_element(..MESSAGE)?; BATCH];
    for (index, message) in messages.iter_mut().enumerate() {
        let start = index * MESSAGE;
        *message = region.gather_element(start..start + MESSAGE)?;
    }
    Ok(messages)
}

/// The error type of a loop.
trait Failure: From<verbs_channel::Error> + From<RejectReason> + From<TransportError> {}

impl<E: From<verbs_channel::Error> + From<RejectReason> + From<TransportError>> Failure for E {}

#[inline(never)]
fn send1<E: Failure>(
    channel: &mut Channel,
    region: &MemoryRegion<Vec<u8>>,
    count: u64,
) -> Result<(), E> {
    let [message, ..] = messages(region)?;
    for _ in 0..count {
        channel.send(message)?;
    }
    Ok(())
}

#[inline(never)]
fn scope16<E: Failure>(
    channel: &mut Channel,
    region: &MemoryRegion<Vec<u8>>,
    count: u64,
) -> Result<(), E> {
    let messages = messages(region)?;
    for _ in 0..count {
        let sent: Result<(), ScopeError<E>> = channel.scope(|scope| {
            for &message in &messages {
                let _left_to_the_scope = scope.post_send(message)?;
            }
            Ok(())
        });
        sent.map_err(ScopeError::flatten)?;
    }
    Ok(())
}

#[inline(never)]
fn handles16<E: Failure>(
    channel: &mut Channel,
    region: &MemoryRegion<Vec<u8>>,
    count: u64,
) -> Result<(), E> {
    let messages = messages(region)?;
    for _ in 0..count {
        let sent: Result<(), ScopeError<E>> = channel.scope(|scope| {
            let mut handles = [const { None }; BATCH];
            for (handle, &message) in handles.iter_mut().zip(&messages) {
                *handle = Some(scope.post_send(message)?);
            }
            for handle in handles.iter_mut().flatten() {
                while handle.poll().transpose()?.is_none() {}
            }
            Ok(())
        });
        sent.map_err(ScopeError::flatten)?;
    }
    Ok(())
}

#[inline(never)]
fn batch16<E: Failure>(
    channel: &mut Channel,
    region: &MemoryRegion<Vec<u8>>,
    count: u64,
) -> Result<(), E> {
    let messages = messages(region)?;
    for _ in 0..count {
        channel.run_batch(messages.map(Outgoing::send))?;
    }
    Ok(())
}

#[inline(never)]
fn owned1<E: Failure>(
    channel: &mut Channel,
    block: Option<PoolBuffer>,
    count: u64,
) -> Result<(), E> {
    let mut buffer = block.map(OwnedBuffer::from);
    for _ in 0..count {
        let given = buffer.take().unwrap_or_default();
        let ticket = channel.start_send(given).map_err(|sent| *sent.error())?;
        let ended = channel.wait(ticket, None)?;
        buffer = ended.and_then(|ended| ended.buffer);
    }
    Ok(())
}

#[inline(never)]
fn pooled1<E: Failure>(channel: &mut Channel, pool: &BufferPool, count: u64) -> Result<(), E> {
    for _ in 0..count {
        let Some(block) = pool.take() else { break };
        let ticket = channel.start_send(block).map_err(|sent| *sent.error())?;
        if let Some(ended) = channel.wait(ticket, None)? {
            ended.result?;
        }
    }
    Ok(())
}

#[inline(never)]
fn owned16<E: Failure>(
    channel: &mut Channel,
    works: &mut Vec<OwnedRequest>,
    count: u64,
) -> Result<(), E> {
    for _ in 0..count {
        let given = std::mem::take(works);
        let ticket = channel.start_batch(given).map_err(|sent| *sent.error())?;
        *works = channel
            .wait(ticket, None)?
            .and_then(|ended| ended.batch)
            .unwrap_or_default();
    }
    Ok(())
}

/// A chain of sends.
fn sends(pool: &BufferPool, len: usize) -> Result<OwnedChain, Box<dyn Error>> {
    let blocks = std::iter::from_fn(|| pool.take()).take(len);
    let requests = blocks.map(|block| Outgoing::send(block).into());
    Ok(OwnedChain::new(requests.collect())?)
}

/// A chain that was built once.
#[inline(never)]
fn chained<E: Failure>(
    channel: &mut Channel,
    chain: &mut Option<OwnedChain>,
    count: u64,
) -> Result<(), E> {
    for _ in 0..count {
        let Some(given) = chain.take() else { break };
        let ticket = channel.start_chain(given).map_err(|sent| *sent.error())?;
        *chain = channel.wait(ticket, None)?.and_then(|ended| ended.chain);
    }
    Ok(())
}

/// The same, and each of its requests is replaced.
#[inline(never)]
fn patched<E: Failure>(
    channel: &mut Channel,
    chain: &mut Option<OwnedChain>,
    block: Option<PoolBuffer>,
    count: u64,
) -> Result<(), E> {
    let places: [_; PAGES] = array::from_fn(|page| {
        let addr = REMOTE + (page * MESSAGE) as u64;
        RemoteMemoryRegion::new(addr, MESSAGE as u64, 9)
    });
    let mut spare = block.map(OwnedBuffer::from).unwrap_or_default();
    for _ in 0..count {
        let Some(mut given) = chain.take() else { break };
        for (index, place) in places.iter().enumerate() {
            let Ok(place) = place else { continue };
            let write = Outgoing::write(spare, *place);
            spare = given.set(index, write).map_err(|set| *set.error())?;
        }
        let ticket = channel.start_chain(given).map_err(|sent| *sent.error())?;
        *chain = channel.wait(ticket, None)?.and_then(|ended| ended.chain);
    }
    Ok(())
}

/// Foreign memory, and a chain of writes of its pages.
fn pages_of(
    pd: &ProtectionDomain,
    len: usize,
) -> Result<(SharedMemory, Option<OwnedChain>), Box<dyn Error>> {
    let region = pd.reg_shared(vec![0_u8; BATCH * MESSAGE], AccessFlags::LOCAL_WRITE)?;
    let memory = SharedMemory::new([region]);
    let remote = RemoteMemoryRegion::new(REMOTE, MESSAGE as u64, 9)?;
    let write = |_| Ok(Outgoing::write(memory.slice(..MESSAGE)?, remote).into());
    let writes: verbs_channel::Result<_> = (0..len).map(write).collect();
    let chain = OwnedChain::new(writes?)?;
    Ok((memory, Some(chain)))
}

/// The chain, each of whose requests becomes the write of another page, with an immediate.
#[inline(never)]
fn pages<E: Failure>(
    channel: &mut Channel,
    (memory, chain): &mut (SharedMemory, Option<OwnedChain>),
    count: u64,
) -> Result<(), E> {
    for _ in 0..count {
        let Some(mut given) = chain.take() else { break };
        for index in 0..given.len() {
            let start = index * MESSAGE;
            let page = memory.slice(start..start + MESSAGE)?;
            let place = RemoteMemoryRegion::new(REMOTE + start as u64, MESSAGE as u64, 9);
            let place = place.map_err(verbs_channel::Error::from)?;
            let write = Outgoing::write(page, place).immediate(7);
            drop(given.set(index, write).map_err(|set| *set.error())?);
        }
        let ticket = channel.start_chain(given).map_err(|sent| *sent.error())?;
        *chain = channel.wait(ticket, None)?.and_then(|ended| ended.chain);
    }
    Ok(())
}

/// A group of channels that share a queue, and this budget if there is one.
fn group_of(
    channels: u32,
    pd: &ProtectionDomain,
    in_flight: Option<u32>,
) -> Result<ChannelGroup, Box<dyn Error>> {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    let mut group = builder.in_flight(in_flight).group(channels)?;
    for _ in 0..channels {
        let member = group.prepare()?;
        let itself = member.endpoint();
        group.join(member.handshake(&itself)?)?;
    }
    Ok(group)
}

/// One send after the other, each on the next channel.
#[inline(never)]
fn group_sends<E: Failure>(
    group: &mut ChannelGroup,
    block: Option<PoolBuffer>,
    count: u64,
) -> Result<(), E> {
    let mut buffer = block.map(OwnedBuffer::from);
    let channels: Vec<ChannelId> = group.channels().collect();
    for &at in channels
        .iter()
        .cycle()
        .take(usize::try_from(count).unwrap_or(usize::MAX))
    {
        let given = buffer.take().unwrap_or_default();
        let sent = group.channel(at)?.start_send(given);
        let _found_below = sent.map_err(|sent| *sent.error())?;
        buffer = group.next_completed().and_then(|ended| ended.buffer);
    }
    Ok(())
}

/// Two sends in flight on one channel. With a budget, the second is beyond the channel's share.
#[inline(never)]
fn two_sends<E: Failure>(group: &mut ChannelGroup, pool: &BufferPool, count: u64) -> Result<(), E> {
    let mut buffers = [(); 2].map(|()| pool.take().map(OwnedBuffer::from));
    let Some(at) = group.channels().next() else {
        return Ok(());
    };
    for _ in 0..count / 2 {
        for buffer in &mut buffers {
            let given = buffer.take().unwrap_or_default();
            let sent = group.channel(at)?.start(Outgoing::send(given));
            let _found_below = sent.map_err(|sent| *sent.error())?;
        }
        for buffer in &mut buffers {
            *buffer = group.wait_completed(None).and_then(|ended| ended.buffer);
        }
    }
    Ok(())
}

/// A group of channels, each with receives in flight for which no message comes; it has room for
/// one more channel.
fn group_with_receives(
    channels: u32,
    each: u32,
    pd: &ProtectionDomain,
) -> Result<ChannelGroup, Box<dyn Error>> {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(256);
    let mut group = builder.group(channels + 1)?;
    let pool = BufferPool::new(pd, 1, channels as usize * each as usize)?;
    for _ in 0..channels {
        let member = group.prepare()?;
        let itself = member.endpoint();
        let id = group.join(member.handshake(&itself)?)?;
        for _ in 0..each {
            let block = pool.take().ok_or("there are too few blocks")?;
            let nothing = block.into_range(..0)?;
            let _ticket = group.channel(id)?.start_receive(nothing)?;
        }
    }
    Ok(group)
}

/// One channel after the other joins a group and is closed.
#[inline(never)]
fn rejoin<E: Failure>(group: &mut ChannelGroup, count: u64) -> Result<(), E> {
    for _ in 0..count {
        let member = group.prepare()?;
        let itself = member.endpoint();
        let joined = group.join(member.handshake(&itself)?);
        let id = joined.map_err(Rejected::into_error)?;
        group.remove(id)?;
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn fail(why: &dyn Display) -> ! {
    eprintln!("channel: {why}");
    process::exit(1);
}
