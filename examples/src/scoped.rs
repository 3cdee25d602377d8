//! How a scope of a channel ended, as a program tells it.

use verbs_channel::ScopeError;

use crate::Failure;

/// What a scope came to: its own failure, or that of work that was left to it.
///
/// # Errors
///
/// The scope failed in one of these ways.
pub fn scoped<T>(ended: Result<T, ScopeError<Failure>>) -> Result<T, Failure> {
    ended.map_err(|error| match error {
        ScopeError::ClosureError(failure) => failure,
        ScopeError::AutoPollError(error) => error.into(),
    })
}
