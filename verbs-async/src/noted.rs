//! Those who were noted under a lock, to be woken when it is free.

use std::task::Waker;

/// Unlocks, and wakes those who were noted under the lock.
///
/// If they are many it is some at a time: so the room for them stays where it is, and waking
/// allocates nothing, whatever those who are woken do meanwhile.
pub(crate) fn wake<G>(
    mut state: G,
    wakers_of: impl Fn(&mut G) -> &mut Vec<Waker>,
    lock: impl Fn() -> G,
) {
    loop {
        let noted = wakers_of(&mut state);
        let mut some = [const { None }; AT_ONCE];
        let count = noted.len().min(AT_ONCE);
        for (place, waker) in some.iter_mut().zip(noted.drain(..count)) {
            *place = Some(waker);
        }
        let is_all = noted.is_empty();
        drop(state);
        crate::wake::all(some.into_iter().flatten());
        if is_all {
            return;
        }
        state = lock();
    }
}

/// How many are woken before the lock is taken again.
const AT_ONCE: usize = 16;
