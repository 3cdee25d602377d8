//! Types that can be moved to other threads, and shared by them: a private field must not change
//! that.

use verbs_channel::datagrams::DatagramEngine;
use verbs_channel::engine::{Closed, Closing, Engine, Leak};
use verbs_channel::{
    BufferPool, CachedMemory, Channel, ChannelBuilder, ChannelConfig, ChannelGroup, ChannelId,
    Completed, ConnectedMember, Datagram, DatagramListener, Datagrams, DatagramsBuilder,
    DatagramsConfig, Error, ImmediateCounter, ImmediateCounters, Message, OwnedBuffer, OwnedChain,
    OwnedRequest, PoolBuffer, PreparedChannel, Preparer, Reached, RegistrationCache,
    RegistrationCacheBuilder, Rejected, ScopeError, SharedMemory, SharedReceivesConfig,
    SharedSlice, Ticket, Transfer, TransferError, TransferOutcome,
    bounds::{InGroup, TakeWhenFree},
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
    BufferPool, CachedMemory, Channel, Channel<InGroup<'static>>, ChannelBuilder, ChannelConfig, ChannelGroup,
    ChannelId, Closed, Closing, Completed, ConnectedMember, Datagram, DatagramEngine,
    DatagramListener, Datagrams, DatagramsBuilder, DatagramsConfig, Engine, Error, ImmediateCounter,
    ImmediateCounters, Leak, Message, OwnedBuffer, OwnedChain, OwnedRequest, PoolBuffer,
    PreparedChannel, PreparedChannel<ConnectedMember>, Preparer, Reached<'static>,
    RegistrationCache, RegistrationCacheBuilder<'static>, Rejected<OwnedChain, Error>, ScopeError<Error>,
    SharedMemory, SharedReceivesConfig, SharedSlice, TakeWhenFree<'static>, Ticket, Transfer,
    TransferError, TransferOutcome,
}
