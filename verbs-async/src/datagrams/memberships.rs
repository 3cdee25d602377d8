//! Memberships in multicast groups: helper threads attach the queue pair, and detach it.

use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_channel::verbs_core::error::{ErrorChain, Rejected};
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::verbs_core::rdmacm::MulticastGroup;

use super::AsyncDatagrams;
use super::state::Shared;
use crate::error::Result;
use crate::task::wake;
use crate::threads;

impl AsyncDatagrams {
    pub(crate) fn ended_group(&self) -> Result<Option<(DatagramEndpoint, u64)>> {
        Ok(self.shared.state.lock().engine.ended_group()?)
    }

    /// Makes the endpoint a member of a group, which `endpoint` stands for. If the future is dropped, its
    /// other memberships in the group, and those of other clones, are as before.
    pub(crate) async fn join(
        &self,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let joined = threads::run(move || Joined::new(shared, endpoint, group)).await??;
        joined.keep();
        Ok(())
    }

    /// Ends the memberships with these numbers in the group that `group` stands for, also if the future is
    /// dropped. Returns whether there was one.
    pub(crate) async fn leave(
        &self,
        group: DatagramEndpoint,
        numbers: impl RangeBounds<u64> + Send + 'static,
    ) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        let left = threads::run_always(move || Left(Some(shared.leave(&group, numbers))));
        let mut left = left.await?;
        left.0.take().unwrap_or(Ok(false))
    }
}

/// A new membership, which ends if it is dropped, unless it was kept.
pub(super) struct Joined {
    // `None` once it was kept.
    shared: Option<Arc<Shared>>,
    endpoint: DatagramEndpoint,
    number: u64,
}

impl Joined {
    pub(super) fn new(
        shared: Arc<Shared>,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Result<Self> {
        let number = shared.join(endpoint, group)?;
        Ok(Self {
            shared: Some(shared),
            endpoint,
            number,
        })
    }

    #[cfg(test)]
    pub(super) const fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// It replaces those before it, which are dropped on a helper thread.
    pub(super) fn keep(mut self) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let older = ..self.number;
        let former = shared
            .state
            .lock()
            .engine
            .take_groups(&self.endpoint, older);
        if !former.is_empty() {
            threads::detach(move || drop(former));
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take().filter(|shared| !shared.is_in_child()) {
            let own = self.number..=self.number;
            log_failure(shared.leave(&self.endpoint, own).map(drop));
        }
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
    /// Returns the number of the membership.
    fn join(&self, endpoint: DatagramEndpoint, group: MulticastGroup) -> Result<u64> {
        let changing = self.changes.lock();
        let memberships = self.state.lock().engine.memberships()?;
        let attached = memberships.attach(&group);
        // Before the state is unlocked: the queue pair can be destroyed then, if the endpoint has gone down.
        drop(memberships);
        let mut state = self.state.lock();
        let added = match attached {
            Ok(()) => state.engine.add_group(endpoint, group),
            Err(error) => Err(Rejected::new(error, group)),
        };
        drop(changing);
        drop(state);
        Ok(added?)
    }

    /// Returns whether the endpoint had such a membership.
    pub(super) fn leave(
        &self,
        endpoint: &DatagramEndpoint,
        numbers: impl RangeBounds<u64>,
    ) -> Result<bool> {
        let changing = self.changes.lock();
        let mut state = self.state.lock();
        let taken = state.engine.take_groups(endpoint, numbers);
        let Some((_, group)) = taken.first() else {
            return Ok(false);
        };
        let mut detached = Ok(());
        if !state.engine.has_group(endpoint) {
            let memberships = state.engine.memberships();
            drop(state);
            // They are dropped before the state is unlocked again, as above.
            detached = memberships.and_then(|memberships| memberships.detach(group));
            state = self.state.lock();
        }
        let groups: Vec<_> = if detached.is_err() {
            // It still is a member, unless it is down.
            let put_back = |taken| state.engine.put_back_group(*endpoint, taken).err();
            let rejected = taken.into_iter().filter_map(put_back);
            rejected.map(Rejected::into_given).collect()
        } else {
            taken.into_iter().map(|(_, group)| group).collect()
        };
        drop(changing);
        drop(state);
        drop(groups);
        Ok(detached.map(|()| true)?)
    }
}
