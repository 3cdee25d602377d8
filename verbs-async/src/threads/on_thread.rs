//! Values that helper threads drop, since that may block.

use std::ops::{Deref, DerefMut};

use verbs_channel::verbs_core::__private::Process;

use crate::error::Result;
use crate::threads::{self, Source};

/// A value that is dropped on a helper thread: on this one only if no thread can be started, and none runs.
// `None` once it was taken out, which consumes this.
#[derive(Debug)]
pub(crate) struct OnThread<T: Send + 'static>(Option<T>, Process);

impl<T: Send + 'static> OnThread<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value), Process::current())
    }

    /// Makes a call with the value on a helper thread; for a [`Source`] if that chooses its time. If the future is
    /// dropped, the value, or what the call returns, is dropped there.
    pub(crate) async fn call<R: Send + 'static>(
        self,
        source: Option<Source>,
        call: impl FnOnce(T) -> R + Send + 'static,
    ) -> Result<R> {
        let value = self.into_inner();
        threads::run_for(source, move || call(value)).await
    }

    /// The same for a call that leaves the value there.
    pub(crate) async fn call_mut<R: Send + 'static>(
        self,
        source: Option<Source>,
        call: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<(Self, R)> {
        let called = self.call(source, |mut value| {
            let returned = call(&mut value);
            (Self::new(value), returned)
        });
        called.await
    }

    /// The value, for an owner that drops it where it may block.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect(IS_THERE)
    }
}

impl<T: Send + 'static> Deref for OnThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(IS_THERE)
    }
}

impl<T: Send + 'static> DerefMut for OnThread<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(IS_THERE)
    }
}

impl<T: Send + 'static> Drop for OnThread<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        if self.1.is_current() {
            threads::detach(move || drop(value));
        }
    }
}

const IS_THERE: &str = "only `into_inner` takes it out";
