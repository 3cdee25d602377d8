//! Calls of verbs that fail because a test wants them to.

use crate::errno::Errno;

/// Faults of one card.
#[derive(Default)]
pub(super) struct Faults {
    planned: Vec<Refusal>,
    /// The host has died: nothing works but ends of objects.
    pub(super) is_dead: bool,
    pub(super) fired: u64,
}

struct Refusal {
    verb: &'static str,
    /// Calls that go well before.
    after: u64,
    errno: Errno,
}

/// The verbs that work on a dead host: those that end something, and those that get events that are there.
const ENDS: [&str; 7] = [
    "ibv_ack_",
    "ibv_close_",
    "ibv_dealloc_",
    "ibv_dereg_",
    "ibv_destroy_",
    "ibv_free_",
    "ibv_get_",
];

impl Faults {
    pub(super) fn plan(&mut self, verb: &'static str, after: u64, errno: Errno) {
        self.planned.push(Refusal { verb, after, errno });
    }

    /// A verb is called, or a request is posted.
    pub(super) fn meet(&mut self, verb: &'static str) -> Result<(), Errno> {
        if self.is_dead && !ENDS.iter().any(|end| verb.starts_with(end)) {
            return Err(libc::EIO);
        }
        let due = |refusal: &Refusal| refusal.verb == verb && refusal.after == 0;
        let fired = self.planned.iter().position(due);
        for refusal in self.planned.iter_mut().filter(|later| later.verb == verb) {
            refusal.after = refusal.after.saturating_sub(1);
        }
        match fired {
            Some(index) => {
                self.fired += 1;
                Err(self.planned.remove(index).errno)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Faults;

    #[test]
    fn each_refusal_is_met_once_by_the_call_that_it_is_planned_for() {
        let mut faults = Faults::default();
        for (after, errno) in [(0, 1), (0, 2), (3, 4)] {
            faults.plan("ibv_poll_cq", after, errno);
        }
        assert_eq!(faults.meet("ibv_post_send"), Ok(()));
        let calls = [(); 5].map(|()| faults.meet("ibv_poll_cq"));
        assert_eq!(calls, [Err(1), Err(2), Ok(()), Err(4), Ok(())]);
        assert_eq!(faults.fired, 3);
    }

    #[test]
    fn on_a_dead_host_only_ends_go_well() {
        let mut faults = Faults {
            is_dead: true,
            ..Faults::default()
        };
        assert_eq!(faults.meet("ibv_post_send"), Err(libc::EIO));
        assert_eq!(faults.meet("ibv_destroy_qp"), Ok(()));
    }
}
