//! Steps that have begun.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ffi::fd;

/// A step of connecting that has begun.
///
/// Its descriptor ([`poll_fd`](Self::poll_fd)) is readable when there is something to do. Dropping it
/// abandons the step, and destroys the identifier: the peer's step fails.
#[must_use = "dropping it gives the step up"]
pub struct Pending<T: Step> {
    // `None` once it has ended.
    state: Option<T::State>,
}

/// A result of a [`Pending`] step.
pub trait Step: sealed::Step {}

impl<T: sealed::Step> Step for T {}

pub(super) mod sealed {
    use std::os::fd::AsFd;

    use crate::error::Result;

    #[expect(unnameable_types, reason = "seals `Step`")]
    pub trait Step: Sized {
        /// State of the current step.
        type State: AsFd;

        /// Name of the step, for errors.
        const NAME: &'static str;

        /// Goes on as far as it can without waiting: the result, or the state to wait with.
        fn advance(state: Self::State) -> Result<Result<Self, Self::State>>;
    }
}

impl<T: Step> Pending<T> {
    pub(super) const fn new(state: T::State) -> Self {
        Self { state: Some(state) }
    }

    /// Continues the step without waiting; `None` if it has not ended.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionManager`] if the step has failed, otherwise the errno. The step has ended then. A
    /// step that has ended returns [`Error::Destroyed`].
    pub fn poll(&mut self) -> Result<Option<T>> {
        let object = "the identifier of a step that has ended";
        let state = self.state.take().ok_or(Error::Destroyed { object })?;
        match T::advance(state)? {
            Ok(result) => Ok(Some(result)),
            Err(state) => {
                self.state = Some(state);
                Ok(None)
            }
        }
    }

    /// Waits until the step has ended. Without a timeout it waits forever if the peer does not
    /// answer.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll), and [`Error::TimedOut`] if `timeout` passes first: the step is
    /// abandoned then.
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<T> {
        let deadline = fd::deadline(timeout);
        loop {
            if let Some(result) = self.poll()? {
                return Ok(result);
            }
            let Some(state) = &self.state else {
                continue;
            };
            if !fd::wait_readable(state.as_fd(), deadline)? {
                return Err(Error::TimedOut {
                    what: T::NAME,
                    after: timeout.unwrap_or_default(),
                });
            }
        }
    }

    /// A descriptor that is readable when [`poll`](Self::poll) can continue; `None` if the step has
    /// ended.
    #[must_use]
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.as_ref().map(AsFd::as_fd)
    }
}

impl<T: Step> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", T::NAME)
    }
}
