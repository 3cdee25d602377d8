//! The two ends of a connection, and their memory.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use verbs_channel::connect::Connected;
use verbs_channel::engine::ConnectedMember;
#[cfg(feature = "rdmacm")]
use verbs_channel::verbs_core::rdmacm::Connection;
use verbs_channel::verbs_core::{
    AccessFlags, AckTimeout, Device, MaxAckRetries, MaxRnrRetries, MemoryRegion, MinRnrTimer,
    ProtectionDomain, ScatterElement, SharedRegion, WorkError,
};
use verbs_channel::{Channel, Error, PreparedChannel, TransportError};

use verbs_harness::faults::{self, Within};
pub(crate) use verbs_harness::pair::pattern;
use verbs_harness::{PATIENCE, device_name, peer_name, until};

/// A deadline for operations that have to run into it.
pub(crate) const SOON: Duration = Duration::from_millis(150);

/// A thread that has to go to sleep.
pub(crate) struct Sleeper(PathBuf);

impl Sleeper {
    pub(crate) fn this_thread() -> Self {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        Self(Path::new("/proc").join(thread).join("stat"))
    }

    /// Waits until it sleeps.
    pub(crate) fn sleeps(&self) {
        let sleeps = || {
            let stat = fs::read_to_string(&self.0).unwrap();
            let (_name, state) = stat.rsplit_once(") ").unwrap();
            state.starts_with('S')
        };
        assert!(until(PATIENCE, sleeps), "it does not sleep");
    }
}

/// A protection domain on the device under test.
pub(crate) fn here() -> ProtectionDomain {
    on(&device_name())
}

/// A protection domain at the other end of the wire.
pub(crate) fn there() -> ProtectionDomain {
    on(&peer_name())
}

fn on(device: &str) -> ProtectionDomain {
    let context = Device::by_name(device).unwrap().open().unwrap();
    context.alloc_pd().unwrap()
}

/// A connected pair across the wire, with all defaults but for a deadline.
pub(crate) fn pair() -> (Channel, Channel) {
    pair_of(patient)
}

/// A connected pair across the wire, created by `build`.
pub(crate) fn pair_of(build: impl Fn(&ProtectionDomain) -> PreparedChannel) -> (Channel, Channel) {
    between(&here(), &there(), build)
}

/// A connected pair within one device: no packet is on the wire.
pub(crate) fn inside(build: impl Fn(&ProtectionDomain) -> PreparedChannel) -> (Channel, Channel) {
    let pd = here();
    between(&pd, &pd, build)
}

pub(crate) fn between(
    a: &ProtectionDomain,
    b: &ProtectionDomain,
    build: impl Fn(&ProtectionDomain) -> PreparedChannel,
) -> (Channel, Channel) {
    meet(build(a), build(b))
}

/// Connects two prepared channels to each other, on iWARP by `rdma_cm`: they keep its connection.
pub(crate) fn meet<A: Keeps, B: Keeps>(a: PreparedChannel<A>, b: PreparedChannel<B>) -> (A, B) {
    #[cfg(feature = "rdmacm")]
    if verbs_harness::iwarp::is_iwarp() {
        use verbs_channel::__private::CmExchange;

        let ((mut a, of_a), (mut b, of_b)) = CmExchange::pair(a, b, PATIENCE).unwrap();
        a.keep(of_a);
        b.keep(of_b);
        return (a, b);
    }
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    (a.handshake(&to_b).unwrap(), b.handshake(&to_a).unwrap())
}

/// A connected channel, which keeps the connection of `rdma_cm`.
pub(crate) trait Keeps: Connected {
    #[cfg(feature = "rdmacm")]
    fn keep(&mut self, connection: Connection);
}

impl Keeps for Channel {
    #[cfg(feature = "rdmacm")]
    fn keep(&mut self, connection: Connection) {
        self.watch_connection(connection).unwrap();
    }
}

impl Keeps for ConnectedMember {
    #[cfg(feature = "rdmacm")]
    fn keep(&mut self, connection: Connection) {
        self.watch_connection(connection);
    }
}

/// Defaults, with a deadline that passes only in a hang.
pub(crate) fn patient(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd)
        .timeout(PATIENCE)
        .max_inline_data(64)
        .build()
        .unwrap()
}

const ACK_TIMEOUT: u8 = 12;
const RETRY_CNT: u8 = 3;

/// The bound on the time of an [`impatient`] channel's requests.
pub(crate) fn retries(start: Instant) -> Within {
    faults::retries(start, ACK_TIMEOUT, RETRY_CNT)
}

/// A channel whose device reports a dead peer after about 100 ms, and that does not watch the peer.
pub(crate) fn impatient(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd)
        .timeout(PATIENCE)
        .peer_timeout(None)
        .ack_timeout(AckTimeout::new(ACK_TIMEOUT).unwrap())
        .retry_cnt(MaxAckRetries::new(RETRY_CNT).unwrap())
        .build()
        .unwrap()
}

/// A channel whose device retries forever if the peer is dead or has no receive posted, and that does
/// not watch the peer.
pub(crate) fn stubborn(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd)
        .timeout(PATIENCE)
        .peer_timeout(None)
        .drain_timeout(SOON)
        .ack_timeout(AckTimeout::new(ACK_TIMEOUT).unwrap())
        .retry_cnt(MaxAckRetries::MAX)
        .rnr_retry(MaxRnrRetries::UNLIMITED)
        .min_rnr_timer(MinRnrTimer::new(20).unwrap())
        .build()
        .unwrap()
}

/// No elements.
pub(crate) const NOTHING: [ScatterElement<'static>; 0] = [];

/// A registered buffer of zeros.
pub(crate) fn zeros(channel: &Channel, len: usize) -> MemoryRegion<Vec<u8>> {
    channel.pd().reg_mr(vec![0; len]).unwrap()
}

/// A registered buffer with a pattern.
pub(crate) fn filled(channel: &Channel, seed: usize, len: usize) -> MemoryRegion<Vec<u8>> {
    channel.pd().reg_mr(pattern(seed, len)).unwrap()
}

/// Memory that the peer may use in every way.
pub(crate) fn given(channel: &Channel, bytes: Vec<u8>) -> SharedRegion<Vec<u8>> {
    channel.pd().reg_shared(bytes, AccessFlags::REMOTE).unwrap()
}

/// The contents of memory that the peer may use.
pub(crate) fn bytes(region: &SharedRegion<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Sends a message of `len` pattern bytes from one end to the other, and checks it.
pub(crate) fn works(from: &mut Channel, to: &mut Channel, len: usize) {
    let source = filled(from, len, len);
    let mut sink = zeros(to, len);
    let received = to.scope(|scope| {
        let receive = scope.post_receive(sink.scatter_element(..)?)?;
        from.send(source.gather_element(..)?)?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(received.unwrap().byte_len() as usize, len);
    assert!(sink[..] == source[..], "{len} bytes are not those sent");
}

/// Runs a function that has to return by itself, long before a hang is assumed.
pub(crate) fn bounded<T>(what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = what();
    let took = start.elapsed();
    assert!(took < PATIENCE / 2, "it took {took:?}");
    result
}

/// Asserts that an operation ran into its deadline, and took its channel down.
pub(crate) fn assert_timed_out<T: Debug>(result: Result<T, TransportError>, channel: &Channel) {
    match result.unwrap_err() {
        TransportError::Aborted(reason) if reason.is_timed_out() => {
            assert_eq!(channel.down_reason(), Some(reason));
        }
        other => panic!("{other:?}"),
    }
}

/// The status of a failed operation.
pub(crate) fn work_error(error: &TransportError) -> WorkError {
    match error {
        TransportError::Work { error, .. } => *error,
        other => panic!("no work error: {other:?}"),
    }
}
