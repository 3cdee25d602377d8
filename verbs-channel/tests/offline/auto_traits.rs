//! Types that can be moved to other threads, and shared by them: a private field must not change
//! that.

use verbs_channel::datagrams::DatagramEngine;
use verbs_channel::engine::{Closed, Closing, Engine, Leak};
use verbs_channel::{
    BufferPool, CachedMemory, Channel, ChannelBuilder, ChannelGroup, ChannelId, Completed,
    ConnectedMember, Datagram, DatagramListener, Datagrams, DatagramsBuilder, Error,
    ImmediateCounter, ImmediateCounters, InGroup, Message, OwnedBuffer, OwnedChain, OwnedRequest,
    PoolBuffer, PreparedChannel, Preparer, Reached, RegistrationCache, RegistrationCacheBuilder,
    Rejected, ScopeError, SharedMemory, SharedReceivesBuilder, SharedSlice, TakeWhenFree, Ticket,
    Transfer, TransferError, TransferOutcome,
};

/// Fails to compile if a type cannot be moved to another thread, or shared with it.
const fn is_send_and_sync<T: Send + Sync>() {}

macro_rules! are_send_and_sync {
    ($($type:ty,)*) => {
        const _: () = {
            $(is_send_and_sync::<$type>();)*
        };
    };
}

are_send_and_sync! {
    BufferPool, CachedMemory, Channel, Channel<InGroup<'static>>, ChannelBuilder, ChannelGroup,
    ChannelId, Closed, Closing, Completed, ConnectedMember, Datagram, DatagramEngine,
    DatagramListener, Datagrams, DatagramsBuilder, Engine, Error, ImmediateCounter,
    ImmediateCounters, Leak, Message, OwnedBuffer, OwnedChain, OwnedRequest, PoolBuffer,
    PreparedChannel, PreparedChannel<ConnectedMember>, Preparer, Reached<'static>,
    RegistrationCache, RegistrationCacheBuilder, Rejected<OwnedChain, Error>, ScopeError<Error>,
    SharedMemory, SharedReceivesBuilder, SharedSlice, TakeWhenFree<'static>, Ticket, Transfer,
    TransferError, TransferOutcome,
}
