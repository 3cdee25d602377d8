//! Both ends of a connection in this process, on each notifier.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use async_io::Timer;
use verbs_async::verbs_channel::engine::ConnectedMember;
use verbs_async::verbs_channel::verbs_core::{
    AccessFlags, Context, Device, MemoryRegion, ProtectionDomain, SharedRegion,
};
use verbs_async::verbs_channel::{
    BufferPool, Channel, ChannelConfig, OwnedBuffer, PreparedChannel,
};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};
use verbs_harness::faults::NOT_AT_ONCE;

/// The notifier that reports events, and the executor that runs the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tokio,
    AsyncIo,
    Thread,
}

pub(crate) const WAYS: [Way; 3] = [Way::Tokio, Way::AsyncIo, Way::Thread];

/// Longer than any wait that ends by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future on the way's executor, with a watchdog that fails a test that hangs.
pub(crate) fn run<T: Send + 'static>(
    way: Way,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    println!("on {way:?}");
    verbs_harness::within(PATIENCE, move || match way {
        Way::Tokio => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(future),
        Way::AsyncIo => async_io::block_on(future),
        Way::Thread => pollster::block_on(future),
    })
}

/// A completion channel on the device under test, watched in this way.
pub(crate) fn events(way: Way, context: &Context) -> CqEvents {
    match way {
        Way::Tokio => CqEvents::create_tokio(context).unwrap(),
        Way::AsyncIo => CqEvents::create_async_io(context).unwrap(),
        Way::Thread => CqEvents::create_thread(context).unwrap(),
    }
}

/// A group of two channels, connected to each other, that do not watch each other: the end of one
/// affects the other by RDMA only.
pub(crate) fn pair(way: Way) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    pair_of(way, |_config| ())
}

/// The same, for a test in which no timeout passes.
pub(crate) fn untimed_pair(way: Way) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    pair_of(way, |config| config.drain_timeout = NOT_AT_ONCE)
}

/// The same with windows for leases.
pub(crate) fn leasing_pair(way: Way) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    pair_of(way, |config| config.lease_windows = 2)
}

fn pair_of(way: Way, set: fn(&mut ChannelConfig)) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    let pd = verbs_harness::context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    let mut config = Channel::builder(&pd).peer_timeout(None).config();
    set(&mut config);
    let group = AsyncGroup::new(config, 16, &events).unwrap();
    let (left, right) = group.loopback().unwrap();
    (group, left, right)
}

/// A group of two channels, connected to each other, with room for this many requests in each queue,
/// or some more if the device rounds up.
pub(crate) fn narrow_pair(way: Way, places: u32) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    let pd = verbs_harness::context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    let builder = Channel::builder(&pd)
        .peer_timeout(None)
        .max_send_wr(places)
        .max_recv_wr(places);
    let group = AsyncGroup::new(builder, 2, &events).unwrap();
    let (left, right) = group.loopback().unwrap();
    (group, left, right)
}

/// A group of one channel at this end of the wire, or at the other.
pub(crate) fn alone(way: Way, device: &str) -> AsyncGroup {
    let context = Device::by_name(device).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    AsyncGroup::new(Channel::builder(&pd), 1, &events(way, &context)).unwrap()
}

/// Connects a channel of each of two groups.
pub(crate) fn connect(here: &AsyncGroup, there: &AsyncGroup) -> (AsyncChannel, AsyncChannel) {
    let (a, b) = (here.prepare().unwrap(), there.prepare().unwrap());
    let (a, b) = meet(a, b);
    (here.join(a).unwrap(), there.join(b).unwrap())
}

type Prepared = PreparedChannel<ConnectedMember>;

/// Connects two prepared channels to each other, on iWARP by `rdma_cm`: they keep its connection.
pub(crate) fn meet(a: Prepared, b: Prepared) -> (ConnectedMember, ConnectedMember) {
    #[cfg(feature = "rdmacm")]
    if verbs_harness::iwarp::is_iwarp() {
        let sides =
            verbs_channel::__private::CmExchange::pair(a, b, verbs_harness::PATIENCE).unwrap();
        let [a, b] = [sides.0, sides.1].map(|(mut member, connection)| {
            member.watch_connection(connection);
            member
        });
        return (a, b);
    }
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    (a.handshake(&to_b).unwrap(), b.handshake(&to_a).unwrap())
}

/// The output of a future, unless it takes longer.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timer) = (pin!(future), Timer::after(time));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut timer).poll(cx).map(|_at| None),
    })
    .await
}

/// The output of a future; another thread calls `then` when it waits.
pub(crate) async fn once_it_waits<T>(
    future: impl Future<Output = T>,
    then: impl FnOnce() + Send + 'static,
) -> T {
    let (mut future, mut then) = (pin!(future), Some(then));
    std::future::poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending()
            && let Some(then) = then.take()
        {
            drop(thread::spawn(then));
        }
        polled
    })
    .await
}

/// A block with these bytes.
pub(crate) fn block(pool: &BufferPool, bytes: &[u8]) -> OwnedBuffer {
    let mut block = pool.take().expect("a block is free");
    block[..bytes.len()].copy_from_slice(bytes);
    let mut block = OwnedBuffer::from(block);
    block.set_range(..bytes.len()).unwrap();
    block
}

/// Memory that the peer may use in every way.
pub(crate) fn given(pd: &ProtectionDomain, bytes: &[u8]) -> SharedRegion<Vec<u8>> {
    pd.reg_shared(bytes.to_vec(), AccessFlags::REMOTE).unwrap()
}

/// The contents of memory that the peer may use.
pub(crate) fn bytes(region: &SharedRegion<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// A registered buffer with these bytes.
pub(crate) fn buffer(pd: &ProtectionDomain, bytes: &[u8]) -> OwnedBuffer {
    let region: MemoryRegion<Vec<u8>> = pd.reg_mr(bytes.to_vec()).unwrap();
    region.into()
}
