//! Why a queue could not be polled.

/// The driver could not poll: the device is gone, or the queue is broken.
///
/// The call returned no completion: those that the driver had already taken in it are lost. The device
/// may use the memory of posted requests until their queue pair has been destroyed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "ibv_poll_cq failed with the driver's own code {code}: the device is gone or the queue broke"
)]
pub struct PollError {
    code: i32,
}

impl PollError {
    pub(crate) const fn new(code: i32) -> Self {
        Self { code }
    }

    /// The driver's own code; negative, and not an errno.
    #[must_use]
    pub const fn code(&self) -> i32 {
        self.code
    }
}

crate::error_debug!(PollError);
