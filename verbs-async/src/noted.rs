//! Those who were noted under a lock, to be woken when it is free.

use std::mem;
use std::task::Waker;

/// Unlocks, and wakes those who were noted under the lock, which is taken again after that: so the
/// room for them is used again, and waking allocates nothing.
pub(crate) fn wake<G>(
    mut state: G,
    wakers_of: impl Fn(&mut G) -> &mut Vec<Waker>,
    lock: impl FnOnce() -> G,
) {
    let mut wakers = mem::take(wakers_of(&mut state));
    drop(state);
    crate::wake::all(wakers.drain(..));
    let mut state = lock();
    let room = wakers_of(&mut state);
    if room.capacity() < wakers.capacity() {
        wakers.append(room);
        mem::swap(room, &mut wakers);
    }
}
