//! The ladder that tests climb: device, PD, queues, and two queue pairs that are connected.

#[cfg(feature = "rdmacm")]
use std::sync::Mutex;

use verbs_core::codes::WcStatus;
use verbs_core::error::PostError;
use verbs_core::memory::Buffer;
use verbs_core::queue_pair::QueuePairBuilder;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;
use verbs_core::work_request::WorkRequest;
use verbs_core::{
    AccessFlags, AckTimeout, CompletionQueue, Context, Device, MaxAckRetries, PreparedQueuePair,
    ProtectionDomain, QueuePair, QueuePairEndpoint, ReadWorkRequest, ReceiveWorkRequest,
    RemoteMemoryRegion, SendWorkRequest, SharedRegion, WorkCompletion, WorkSuccess,
};

use super::child::Line;
use super::{device_name, iwarp, peer_name, wait_for};

/// The objects that one end of a connection is made of.
pub struct Side {
    /// The device.
    pub context: Context,
    /// A domain of this device.
    pub pd: ProtectionDomain,
    /// For completions of sends.
    pub send_cq: CompletionQueue,
    /// For completions of receives.
    pub recv_cq: CompletionQueue,
    /// Connections of its queue pairs, where the connection manager connects them.
    pub connections: Connections,
}

/// Connections of the connection manager; their queue pairs end with them.
#[derive(Default)]
pub struct Connections {
    #[cfg(feature = "rdmacm")]
    kept: Mutex<Vec<Connection>>,
}

impl Side {
    /// On the device of this name.
    pub fn new(device: &str) -> Self {
        let context = Device::by_name(device).unwrap().open().unwrap();
        Self {
            pd: context.alloc_pd().unwrap(),
            send_cq: CompletionQueue::create(&context, 256).unwrap(),
            recv_cq: CompletionQueue::create(&context, 256).unwrap(),
            connections: Connections::default(),
            context,
        }
    }

    /// The same objects once more, for another queue pair.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            context: self.context.clone(),
            pd: self.pd.clone(),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            connections: Connections::default(),
        }
    }

    /// Keeps a connection as long as this side.
    #[cfg(feature = "rdmacm")]
    pub(super) fn keep(&self, connection: Connection) {
        self.connections.kept.lock().unwrap().push(connection);
    }

    /// On the device under test.
    pub fn here() -> Self {
        Self::new(&device_name())
    }

    /// Starts to build a queue pair of these objects.
    pub fn builder(&self) -> QueuePairBuilder {
        QueuePair::builder(&self.pd, &self.send_cq, &self.recv_cq)
    }

    /// A queue pair with all defaults.
    pub fn prepared(&self) -> PreparedQueuePair {
        self.builder()
            .max_send_wr(64)
            .max_recv_wr(64)
            .max_send_sge(4)
            .max_recv_sge(4)
            .max_inline_data(64)
            .build()
            .unwrap()
    }

    /// A queue pair whose retries end soon, with these codes.
    pub fn impatient(&self, ack_timeout: u8, retry_cnt: u8) -> PreparedQueuePair {
        self.builder()
            .timeout(AckTimeout::new(ack_timeout).unwrap())
            .retry_cnt(MaxAckRetries::new(retry_cnt).unwrap())
            .build()
            .unwrap()
    }
}

/// One end of a connection.
pub struct End {
    /// The queue pair.
    pub qp: QueuePair,
    /// The objects the queue pair was made of.
    pub side: Side,
}

impl End {
    /// Connects a queue pair of this side to the one at the other end of the line.
    pub fn connect(side: Side, prepared: PreparedQueuePair, line: &mut Line) -> Self {
        line.write_bytes(&prepared.endpoint().to_bytes());
        let theirs = QueuePairEndpoint::from_bytes(&line.read_bytes()).unwrap();
        let qp = prepared.handshake(&theirs).unwrap();
        line.write("connected");
        assert_eq!(line.read(), "connected");
        Self { qp, side }
    }

    /// The protection domain of this end.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.side.pd
    }

    /// Memory of this end that its peer may use like this.
    pub fn given<B: Buffer + 'static>(&self, buffer: B, access: AccessFlags) -> SharedRegion<B> {
        self.pd().reg_shared(buffer, access).unwrap()
    }

    /// Posts to the send queue.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::post`].
    pub fn post(&self, requests: &mut [WorkRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: each test waits for what it posts, or destroys the queue pair, before what the
        // elements name goes.
        unsafe { self.qp.post(requests) }
    }

    /// Posts one request to the send queue.
    pub fn post_one<'l>(&self, request: impl Into<WorkRequest<'l>>) {
        self.post(&mut [request.into()]).unwrap();
    }

    /// Posts one receive.
    pub fn receive(&self, request: ReceiveWorkRequest<'_>) {
        // SAFETY: each test waits for its receives, or destroys the queue pair, before their memory
        // goes.
        unsafe { self.qp.post_receive(&mut [request]) }.unwrap();
    }

    /// Waits until one request of the send queue has succeeded.
    pub fn sent(&self) -> WorkSuccess {
        wait_for(&self.side.send_cq, 1)[0].result().unwrap()
    }

    /// Waits until one write to this place has succeeded, and its bytes are there.
    pub fn written(&self, place: &RemoteMemoryRegion) -> WorkSuccess {
        let written = self.sent();
        if !iwarp::is_iwarp() {
            return written;
        }
        // TCP has the bytes, and the peer's device not yet. It serves a read only after what was sent before.
        let mut one = self.pd().reg_mr(vec![0_u8]).unwrap();
        let mut list = [one.scatter_element(..).unwrap()];
        let place = place.slice(..1).unwrap();
        self.post_one(ReadWorkRequest::new(&mut list, &place).unwrap());
        self.sent();
        written
    }

    /// Waits until one receive has succeeded.
    pub fn received(&self) -> WorkSuccess {
        wait_for(&self.side.recv_cq, 1)[0].result().unwrap()
    }

    /// Sends `len` bytes to the peer, which runs this too, and checks those that it sends.
    pub fn exchange(&self, line: &mut Line, first: bool, len: usize) {
        let [own, peers] = [first, !first].map(|seed| pattern(usize::from(seed), len));
        let from = self.pd().reg_mr(own).unwrap();
        let mut into = self.pd().reg_mr(vec![0_u8; len]).unwrap();
        let mut list = [into.scatter_element(..).unwrap()];
        self.receive(ReceiveWorkRequest::new(&mut list));
        line.write("ready");
        assert_eq!(line.read(), "ready");
        let mut list = [from.gather_element(..).unwrap()];
        self.post_one(SendWorkRequest::new(&mut list));
        self.sent();
        self.received();
        assert!(into[..] == peers);
        // Neither ends before the other has its bytes.
        line.write("done");
        assert_eq!(line.read(), "done");
    }

    /// Waits for one completion of the send queue, whatever its status.
    pub fn send_status(&self) -> WcStatus {
        wait_for(&self.side.send_cq, 1)[0].status()
    }

    /// Waits for one completion of the receive queue, whatever its status.
    pub fn receive_status(&self) -> WcStatus {
        wait_for(&self.side.recv_cq, 1)[0].status()
    }

    /// Waits for `count` completions of the send queue.
    pub fn sends(&self, count: usize) -> Vec<WorkCompletion> {
        wait_for(&self.side.send_cq, count)
    }
}

/// Two queue pairs, connected.
pub struct Pair {
    /// One end.
    pub a: End,
    /// The other end.
    pub b: End,
}

impl Pair {
    /// Across the wire, with all defaults.
    pub fn new() -> Self {
        Self::of(Side::prepared)
    }

    /// Across the wire, with the queue pairs that `build` makes.
    pub fn of(build: impl Fn(&Side) -> PreparedQueuePair) -> Self {
        Self::between(Side::here(), Side::new(&peer_name()), build)
    }

    /// Both ways that packets go: across the wire, and within one device.
    pub fn everywhere() -> [Self; 2] {
        [
            Self::new(),
            Self::between(Side::here(), Side::here(), Side::prepared),
        ]
    }

    /// Between these two, with the queue pairs that `build` makes.
    pub fn between(a: Side, b: Side, build: impl Fn(&Side) -> PreparedQueuePair) -> Self {
        let (qa, qb) = (build(&a), build(&b));
        Self::connect((a, qa), (b, qb))
    }

    /// Connects these two.
    pub fn connect((a, qa): (Side, PreparedQueuePair), (b, qb): (Side, PreparedQueuePair)) -> Self {
        let [qa, qb] = if iwarp::is_iwarp() {
            by_manager((&a, qa), (&b, qb))
        } else {
            let (ea, eb) = (qa.endpoint(), qb.endpoint());
            [qa.handshake(&eb).unwrap(), qb.handshake(&ea).unwrap()]
        };
        Self {
            a: End { qp: qa, side: a },
            b: End { qp: qb, side: b },
        }
    }
}

#[cfg(feature = "rdmacm")]
use super::manager::connect as by_manager;

#[cfg(not(feature = "rdmacm"))]
fn by_manager(_: (&Side, PreparedQueuePair), _: (&Side, PreparedQueuePair)) -> [QueuePair; 2] {
    panic!("pairs on iWARP need the feature verbs-harness/rdmacm");
}

/// A pattern that differs from one place to the next and from one seed to the next.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Some bytes, in more than one packet, cross from one end to the other unharmed.
pub fn works(from: &End, to: &End) {
    let source = from.pd().reg_mr(pattern(1, 20_000)).unwrap();
    let mut sink = to.pd().reg_mr(vec![0_u8; 20_000]).unwrap();
    let mut list = [sink.scatter_element(..).unwrap()];
    to.receive(ReceiveWorkRequest::new(&mut list));
    let mut list = [source.gather_element(..).unwrap()];
    from.post_one(SendWorkRequest::new(&mut list));
    from.sent();
    to.received();
    assert!(sink[..] == source[..]);
}
