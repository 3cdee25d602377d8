//! Transfers over several cards, awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use verbs_channel::channel::AbortHandle;
use verbs_channel::engine::TransferError;
use verbs_channel::error::Rejected;
use verbs_channel::{Rails, Transfer};

use crate::error::Error;
use crate::threads::{self, Call};

/// Begins a transfer over [`Rails`], on a thread of its own: no task's thread waits for it.
///
/// The future returns the rails, the transfer with its [outcomes](Transfer::drain), and how that has ended: as
/// [`Rails::transfer`], when the devices are done with all memory. With no deadline, the timeout is that of the first
/// channel. To end it early, keep the rails' [`abort_handle`](Rails::abort_handle), and await the end.
///
/// If the future is dropped, the transfer is aborted: a helper thread drops the rails and the transfer when the devices are
/// done with all memory.
///
/// The thread waits by the [strategy](verbs_channel::PollStrategy) of the first channel:
/// [`Notify`](verbs_channel::PollStrategy::Notify) leaves the processor to the tasks, and the default takes a processor. Threads
/// are kept for the next transfer for some seconds.
///
/// Rails that a transfer has returned, or that were handed back, destroy their queue pairs where they are dropped.
///
/// # Errors
///
/// [`Error::Thread`]: no thread can be started. The rails and the transfer are handed back.
///
/// # Examples
///
/// ```no_run
/// # use std::time::{Duration, Instant};
/// # use verbs_async::verbs_channel::{Rails, Transfer};
/// # async fn fetch(rails: Rails, pages: Transfer) -> verbs_async::Result<()> {
/// let deadline = Instant::now() + Duration::from_millis(200);
/// let (rails, mut pages, ended) = verbs_async::transfer_over(rails, pages, Some(deadline))?.await;
/// if let Err(error) = ended {
///     eprintln!("{error}");
/// }
/// for outcome in pages.drain() {
///     println!("page {}: {}", outcome.index, outcome.result.is_ok());
/// }
/// # drop(rails);
/// # Ok(())
/// # }
/// ```
#[expect(clippy::result_large_err, reason = "what was given is handed back")]
pub fn transfer_over(
    rails: Rails,
    transfer: Transfer,
    deadline: Option<Instant>,
) -> Result<RailsTransfer, Rejected<(Rails, Transfer), Error>> {
    let aborts = rails.abort_handle();
    let moving = threads::run_transfer((rails, transfer), move |(mut rails, mut transfer)| {
        let ended = rails.transfer(&mut transfer, deadline);
        (rails, transfer, ended)
    });
    moving
        .map(|call| RailsTransfer { call, aborts })
        .map_err(|(error, given)| Rejected::new(Error::Thread(error), given))
}

/// A transfer over rails: from [`transfer_over`].
#[must_use = "dropping it aborts the transfer"]
pub struct RailsTransfer {
    call: Call<(Rails, Transfer, Result<(), TransferError>)>,
    aborts: AbortHandle,
}

impl Future for RailsTransfer {
    type Output = (Rails, Transfer, Result<(), TransferError>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let returned = Pin::new(&mut self.call).poll(cx);
        returned.map(|returned| returned.expect("a future is not polled after it was ready"))
    }
}

impl Drop for RailsTransfer {
    fn drop(&mut self) {
        if self.call.is_running() {
            self.aborts.abort();
        }
    }
}

impl fmt::Debug for RailsTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RailsTransfer").finish_non_exhaustive()
    }
}
