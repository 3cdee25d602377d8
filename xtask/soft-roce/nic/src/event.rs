//! Events: of completion queues, and asynchronous ones (11.6).

use crate::completion::CompletionQueueId;
use crate::shared_receive::SharedReceiveId;

/// Something that happened (an answer of `ibv_get_cq_event`, `ibv_get_async_event`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A completion came to a queue that was armed.
    Completion(CompletionQueueId),
    /// A completion was lost, because its queue was full (`CQ_ERR`); one event until it is taken.
    CompletionQueueOverrun(CompletionQueueId),
    /// A queue pair broke without a completion that has the error (`QP_FATAL`).
    QueuePairFatal(u32),
    /// A peer's request was refused as invalid (`QP_REQ_ERR`).
    QueuePairRequestError(u32),
    /// A peer's access to memory was refused (`QP_ACCESS_ERR`).
    QueuePairAccessError(u32),
    /// The first packet came to a queue pair in RTR (`COMM_EST`).
    CommunicationEstablished(u32),
    /// A queue pair in SQD has completed all that it had begun (`SQ_DRAINED`).
    SendQueueDrained(u32),
    /// A queue pair in ERR takes no more from its shared receive queue (`QP_LAST_WQE_REACHED`).
    LastWqeReached(u32),
    /// A shared receive queue has fewer entries than its limit (`SRQ_LIMIT_REACHED`).
    SharedReceiveLimitReached(SharedReceiveId),
    /// The link came up (`PORT_ACTIVE`).
    PortActive,
    /// The link went down (`PORT_ERR`).
    PortError,
    /// An entry of the GID table changed (`GID_CHANGE`).
    GidChange,
    /// The device is broken (`DEVICE_FATAL`).
    DeviceFatal,
}
