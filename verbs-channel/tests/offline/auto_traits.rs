//! Types that can be moved to other threads, and shared by them: a private field must not change
//! that.

use verbs_channel::__private::{Closed, Closing, DatagramEngine, Leak};
use verbs_channel::buffer::{SharedSlice, TakeWhenFree};
use verbs_channel::channel::{ChannelBuilder, InGroup};
use verbs_channel::connect::DatagramListener;
use verbs_channel::datagrams::{Datagram, DatagramsBuilder, DatagramsConfig};
use verbs_channel::engine::{ConnectedMember, Engine, TransferError, TransferOutcome};
use verbs_channel::error::Rejected;
use verbs_channel::group::{MemberFactory, SharedReceivesConfig};
use verbs_channel::immediates::{ImmediateCounter, ImmediateCounters};
use verbs_channel::registration_cache::{CachedMemory, RegistrationCacheBuilder};
use verbs_channel::request::OwnedChain;
use verbs_channel::{
    BufferPool, Channel, ChannelConfig, ChannelGroup, ChannelId, Completed, Datagrams, Error,
    Message, OwnedBuffer, OwnedRequest, PoolBuffer, PreparedChannel, Rails, RegistrationCache,
    ScopeError, SharedMemory, Ticket, Transfer,
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
    PreparedChannel, PreparedChannel<ConnectedMember>, MemberFactory, Rails,
    RegistrationCache, RegistrationCacheBuilder<'static>, Rejected<OwnedChain, Error>, ScopeError<Error>,
    SharedMemory, SharedReceivesConfig, SharedSlice, TakeWhenFree<'static>, Ticket, Transfer,
    TransferError, TransferOutcome,
}
