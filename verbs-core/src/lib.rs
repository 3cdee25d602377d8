//! RDMA verbs as RAII types, typed work requests and spin polling, with C's control and speed.

mod completion;
mod context;
mod device;
mod device_attr;
mod error;
mod event;
mod fd;
mod gid;
mod handle;
mod macros;
mod memory;
mod path;
mod port;
mod protection_domain;
mod queue_pair;
mod ret;
mod work_request;

pub use completion::{
    CompletionChannel, CompletionQueue, CompletionQueueBuilder, Completions, PollError, PollSlot,
    PolledCompletions, WcOpcode, WcStatus, WorkCompletion, WorkError, WorkSuccess,
};
pub use context::{Context, fork_init};
pub use device::{Device, Guid, NodeType, ParseGuidError, TransportType};
pub use device_attr::{AtomicCap, DeviceAttr, DeviceAttrEx};
pub use error::{EndpointError, Error, ErrorKind, Refused, Result};
pub use event::{AsyncEvent, EventElement, EventType};
pub use gid::{Gid, GidEntry, GidType};
pub use memory::{
    AccessFlags, Buffer, Chunks, DmabufRegion, Element, Gather, GatherElement, MemoryRegion,
    RawRegion, RemoteMemoryRegion, Scatter, ScatterElement, Sge, SharedElement, SharedRegion,
};
pub use path::AhAttr;
pub use port::{LinkLayer, PortAttr, PortState};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{
    AckTimeout, ENDPOINT_VERSION, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer,
    PacketSequenceNumber, PostError, PreparedQueuePair, QpAttr, QpAttrMask, QpCap, QpState,
    QueuePair, QueuePairBuilder, QueuePairEndpoint, QueuePairEndpointBuilder,
};
pub use work_request::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};

pub use verbs_sys;
