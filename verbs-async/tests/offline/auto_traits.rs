//! Types that can be moved to other threads, and shared by them: a private field must not change
//! that.

use std::future;
use std::time::Instant;

use verbs_async::verbs_channel::registration_cache::CachedMemory;
use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::{OwnedBuffer, OwnedRequest};
use verbs_async::{
    AsyncChannel, AsyncCq, AsyncDatagrams, AsyncGroup, AsyncTransfer, ByteStream, CqEvents,
    CqPollState, DeviceEvents, Error, IncomingMessage, IncomingMessages, Operation,
    OperationResult, OwnedReadHalf, OwnedWriteHalf, RailsTransfer, SharedMessages, StreamError,
    cached_slice,
};

/// Fails to compile if a type cannot be moved to another thread, or shared with it, or is pinned.
const fn is_send_and_sync<T: Send + Sync + Unpin + 'static>() {}

macro_rules! are_send_and_sync {
    ($($type:ty,)*) => {
        const _: () = {
            $(is_send_and_sync::<$type>();)*
        };
    };
}

are_send_and_sync! {
    AsyncChannel, AsyncCq, AsyncDatagrams, AsyncGroup, AsyncTransfer, ByteStream, CqEvents,
    CqPollState, DeviceEvents, Error, IncomingMessage, IncomingMessages, Operation<OwnedBuffer>,
    Operation<Vec<OwnedRequest>>, Operation<OwnedChain>, OperationResult<OwnedBuffer>,
    OwnedReadHalf, OwnedWriteHalf, RailsTransfer, SharedMessages, StreamError,
}

/// Futures of tasks that a runtime moves between its threads.
#[expect(dead_code, reason = "it need only compile")]
fn are_send(transfer: &'static mut AsyncTransfer, memory: &'static CachedMemory) {
    const fn is_send(_: &(impl Send + 'static)) {}
    is_send(&cached_slice(memory, ..8));
    is_send(&transfer.finish_by(Instant::now(), |_| future::ready(())));
}
