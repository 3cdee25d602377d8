//! Memberships in multicast groups: helper threads attach the queue pair, and detach it.

use std::sync::Arc;

use verbs_channel::verbs_core::rdmacm::MulticastGroup;
use verbs_channel::verbs_core::{DatagramEndpoint, ErrorChain};

use super::AsyncDatagrams;
use super::state::Shared;
use crate::blocking;
use crate::error::{Error, Result};
use crate::wake;

impl AsyncDatagrams {
    /// Makes the endpoint a member of a group, which `endpoint` stands for. If the future is dropped, its
    /// membership is as it was before.
    pub(crate) async fn join(
        &self,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let joined = blocking::run(move || Joined::new(shared, endpoint, group)).await;
        joined.map_err(Error::Thread)??.keep();
        Ok(())
    }

    /// Ends the membership in the group that `group` stands for, also if the future is dropped. Returns
    /// whether there was one.
    pub(crate) async fn leave(&self, group: DatagramEndpoint) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        let left = blocking::run_always(move || Left(Some(shared.leave(&group)))).await;
        let mut left = left.map_err(Error::Thread)?;
        left.0.take().unwrap_or(Ok(false))
    }

    /// Waits for the helper threads: the last one destroys the queue pair of an endpoint that is down.
    pub(super) async fn until_memberships_have_changed(&self) {
        let shared = Arc::clone(&self.shared);
        // Without a thread, it has waited before this returns.
        let _waited = blocking::run_always(move || drop(shared.changes.lock())).await;
    }
}

/// A new membership, which ends if it is dropped, unless it was kept.
struct Joined {
    // `None` once it was taken.
    shared: Option<Arc<Shared>>,
    endpoint: DatagramEndpoint,
    // The former membership in the group.
    former: Option<MulticastGroup>,
}

impl Joined {
    fn new(shared: Arc<Shared>, endpoint: DatagramEndpoint, group: MulticastGroup) -> Result<Self> {
        let former = shared.join(endpoint, group)?;
        Ok(Self {
            shared: Some(shared),
            endpoint,
            former,
        })
    }

    /// The former one is dropped on a helper thread.
    fn keep(mut self) {
        self.shared = None;
        if let Some(former) = self.former.take() {
            blocking::detach(move || drop(former));
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let ended = match self.former.take() {
            // The queue pair is attached to the same group.
            Some(former) => shared.join(self.endpoint, former).map(drop),
            None => shared.leave(&self.endpoint).map(drop),
        };
        log_failure(ended);
    }
}

/// Whether a membership has ended.
struct Left(Option<Result<bool>>);

impl Drop for Left {
    fn drop(&mut self) {
        log_failure(self.0.take().unwrap_or(Ok(false)).map(drop));
    }
}

fn log_failure(ended: Result<()>) {
    if let Err(error) = ended {
        wake::log_error(format_args!(
            "a membership in a multicast group was abandoned: {}",
            ErrorChain::new(&error)
        ));
    }
}

/// On helper threads.
impl Shared {
    /// Returns the former membership in the group, if there was one.
    fn join(
        &self,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Result<Option<MulticastGroup>> {
        let _one = self.changes.lock();
        let memberships = self.state.lock().engine.memberships()?;
        let attached = memberships.attach(&group);
        // First: then the queue pair can be destroyed, if the endpoint has gone down.
        drop(memberships);
        let mut state = self.state.lock();
        let (former, down) = match attached {
            Ok(()) => {
                let former = state.engine.add_group(endpoint, group);
                let down = state.engine.memberships().err();
                (former, down.map(Error::from))
            }
            Err(error) => (Some(group), Some(error.into())),
        };
        let ending = state.engine.take_ending();
        self.release(state);
        drop(ending);
        down.map_or(Ok(former), Err)
    }

    /// Returns whether the endpoint was a member.
    fn leave(&self, endpoint: &DatagramEndpoint) -> Result<bool> {
        let _one = self.changes.lock();
        let mut state = self.state.lock();
        let Some(group) = state.engine.take_group(endpoint) else {
            return Ok(false);
        };
        let memberships = state.engine.memberships()?;
        drop(state);
        let detached = memberships.detach(&group);
        drop(memberships);
        let mut state = self.state.lock();
        let group = match detached {
            Ok(()) => Some(group),
            Err(_) => state.engine.add_group(*endpoint, group),
        };
        let ending = state.engine.take_ending();
        self.release(state);
        drop(ending);
        drop(group);
        Ok(detached.map(|()| true)?)
    }
}
