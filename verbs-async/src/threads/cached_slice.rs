//! Slices of cached memory, awaited.

use std::future::poll_fn;
use std::ops::RangeBounds;
use std::task::Poll;

use verbs_channel::buffer::SharedSlice;
use verbs_channel::registration_cache::CachedMemory;

use crate::error::Result;
use crate::task::coop;
use crate::threads;

/// Takes a slice of the memory of a [`RegistrationCache`](verbs_channel::RegistrationCache), as soon as
/// there is room. The range counts bytes.
///
/// A slice of registered memory is ready at once, and allocates nothing. Otherwise a helper thread
/// registers it. If the cache has no room because everything is in use, this waits until there is some. All
/// waiting tasks are then woken, and one of them gets the room. [`CachedMemory::room`] describes what makes
/// room.
///
/// ```no_run
/// # async fn example(
/// #     channel: &verbs_async::AsyncChannel,
/// #     memory: &verbs_async::verbs_channel::registration_cache::CachedMemory,
/// # ) -> verbs_async::Result<()> {
/// let page = verbs_async::cached_slice(memory, 4096..8192).await?;
/// channel.send(page).result().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping the future has no effect on other tasks. A registration that has begun continues, and the cache
/// keeps what it has registered.
///
/// # Errors
///
/// [`Error::Channel`](crate::Error::Channel), with those of [`CachedMemory::slice`] except for backpressure. [`Error::Thread`](crate::Error::Thread):
/// no helper thread can be started.
#[doc(alias = "ibv_reg_mr")]
pub async fn cached_slice(
    memory: &CachedMemory,
    range: impl RangeBounds<usize>,
) -> Result<SharedSlice> {
    let range = (range.start_bound().cloned(), range.end_bound().cloned());
    yield_in_turn().await;
    let mut room = None;
    loop {
        let result = match memory.slice_if_registered(range) {
            Ok(Some(slice)) => return Ok(slice),
            Ok(None) => {
                let memory = memory.clone();
                let registers = threads::run(move || memory.slice(range));
                registers.await?
            }
            Err(error) => Err(error),
        };
        match result {
            Err(error) if error.is_backpressure() => {}
            result => return Ok(result?),
        }
        match &mut room {
            // From now on nothing is missed: it is tried once more before this waits.
            None => room = Some(memory.room()),
            Some(room) => room.await,
        }
    }
}

/// Yields if the task has not for long: a slice may be ready each time.
async fn yield_in_turn() {
    poll_fn(|cx| {
        if coop::must_yield(cx) {
            return Poll::Pending;
        }
        coop::count_ready(cx);
        Poll::Ready(())
    })
    .await;
}
