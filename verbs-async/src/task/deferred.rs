//! Deferred actions: wake-ups, log lines and drops that wait until a lock is free.
//!
//! A [`Lock`] has a state under which tasks wait. Whoever unlocks it runs what has become due, on its own thread and
//! without the lock, and takes one action at a time: behind users' code that blocks there, whoever unlocks on another
//! thread runs the rest.
//!
//! *Invariant:* users' code that a thread runs here may come back to this or to another lock. All that is due then is
//! left to the end of the outermost call on this thread, so nothing recurses, and after some [`TURNS`] to a helper
//! thread. Only [what ends something](Defers::take_ending) is not left: the user's code may wait for that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::{Context, Waker};

use super::sync::{Mutex, MutexGuard, thread_local};
use super::wake::{drop_guarded, panics, wake_all};

/// Work deferred until the lock is free: tasks to wake, functions to call, and garbage of this type.
pub(crate) struct Deferred<T> {
    actions: VecDeque<Action>,
    // Dropped one by one: two panics at once would abort the process.
    garbage: Vec<T>,
    // How many were taken, and are being dropped.
    dropping: usize,
}

/// A deferred action.
enum Action {
    Wake(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

/// A state behind a lock, under which actions are deferred.
pub(crate) trait Defers: Sized {
    /// Values to drop after unlocking.
    type Garbage;

    fn deferred(&mut self) -> &mut Deferred<Self::Garbage>;

    /// Is called before each check of whether something is due.
    fn before_unlock(&mut self) {}

    /// Whether there is something to do once the lock is free.
    fn is_due(&self) -> bool;

    /// Defers what has become due.
    fn defer_due(&mut self);

    /// Takes the call that has a helper thread destroy an object that has ended, such as a queue pair.
    fn take_ending(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }

    /// The owner of the lock; `None` as it is dropped.
    fn owner(&self) -> Option<Arc<dyn Owner>>;
}

/// The owner of a [`Lock`].
pub(crate) trait Owner: Send + Sync {
    /// Calls [`Lock::run_due`].
    fn run_due(&self);

    /// Has a helper thread call [`Lock::settle`]. Returns whether one will.
    fn settle_elsewhere(self: Arc<Self>) -> bool;
}

impl<T> Deferred<T> {
    pub(crate) const fn new() -> Self {
        Self {
            actions: VecDeque::new(),
            garbage: Vec::new(),
            dropping: 0,
        }
    }

    pub(crate) fn wake(&mut self, waker: Waker) {
        self.actions.push_back(Action::Wake(waker));
    }

    pub(crate) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.actions.extend(wakers.into_iter().map(Action::Wake));
    }

    /// A function to call after unlocking, such as one that writes to the log.
    pub(crate) fn call(&mut self, call: impl FnOnce() + Send + 'static) {
        self.actions.push_back(Action::Call(Box::new(call)));
    }

    /// Values to drop after unlocking.
    pub(crate) const fn garbage(&mut self) -> &mut Vec<T> {
        &mut self.garbage
    }

    /// Whether all garbage has been dropped.
    pub(crate) const fn is_dropped(&self) -> bool {
        self.garbage.is_empty() && self.dropping == 0
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !(self.actions.is_empty() && self.garbage.is_empty())
    }
}

/// A state, and the lock that it is behind.
pub(crate) struct Lock<S>(Mutex<S>);

/// A state that is locked. Everything that is due is done when this is dropped.
pub(crate) struct Locked<'a, S: Defers> {
    lock: &'a Lock<S>,
    // `None` only while it is dropped.
    state: Option<MutexGuard<'a, S>>,
}

impl<S: Defers> Lock<S> {
    pub(crate) fn new(state: S) -> Self {
        Self(Mutex::new(state))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, S> {
        Locked {
            lock: self,
            state: Some(self.0.lock()),
        }
    }

    /// The state for what makes nothing due, or ends with [`unlock`](Self::unlock).
    #[inline(always)]
    pub(crate) fn lock_only(&self) -> MutexGuard<'_, S> {
        self.0.lock()
    }

    /// Unlocks, and does what is due.
    #[inline(always)]
    pub(crate) fn unlock<'a>(&'a self, mut state: MutexGuard<'a, S>) {
        state.before_unlock();
        if state.is_due() {
            self.unlock_and_run(state);
        }
    }

    /// Polls for a task, with its waker. A waker is cloned, and one that is left over dropped, without the lock: both
    /// run foreign code.
    pub(crate) fn poll<T, const N: usize>(
        &self,
        cx: &Context<'_>,
        step: impl FnOnce(&mut S, Waker) -> (T, [Option<Waker>; N]),
    ) -> T {
        let waker = cx.waker().clone();
        let mut state = self.lock();
        let (polled, spare) = step(&mut state, waker);
        drop(state);
        spare.into_iter().for_each(drop_guarded);
        polled
    }

    /// Ends the wait of a task, whose waker is dropped without the lock.
    pub(crate) fn end_wait<W>(&self, end: impl FnOnce(&mut S) -> W) {
        let mut state = self.lock();
        let ended = end(&mut state);
        drop(state);
        drop_guarded(ended);
    }

    pub(crate) fn get_mut(&mut self) -> &mut S {
        self.0.get_mut()
    }

    /// Does what is due.
    pub(crate) fn settle(&self) {
        self.unlock(self.0.lock());
    }

    /// Runs what is due, for [`Owner::run_due`].
    pub(crate) fn run_due(&self) {
        self.run(self.0.lock());
    }

    #[inline(never)]
    fn unlock_and_run<'a>(&'a self, state: MutexGuard<'a, S>) {
        match Outermost::begin() {
            Some(_outermost) => self.run(state),
            None => self.leave(state),
        }
    }

    /// Leaves what is due to the outermost call on this thread, but for what has ended.
    fn leave<'a>(&'a self, mut state: MutexGuard<'a, S>) {
        while MAY_END.with(Cell::get)
            && let Some(ending) = state.take_ending()
        {
            drop(state);
            end(ending);
            state = self.0.lock();
        }
        if !state.is_due() {
            return;
        }
        let owner = state.owner();
        drop(state);
        match owner {
            Some(owner) => leave(owner),
            // Nobody else comes.
            None => self.run(self.0.lock()),
        }
    }

    /// Unlocks, runs what is due now, and about [`MOST`] actions and drops that are added meanwhile. It leaves the rest.
    ///
    /// An action is taken before what has ended, which another thread may come back from: each thread runs its own first.
    fn run<'a>(&'a self, mut state: MutexGuard<'a, S>) {
        state.defer_due();
        let deferred = state.deferred();
        let mut left = MOST + deferred.actions.len() + deferred.garbage.len();
        loop {
            let deferred = state.deferred();
            let action = (left > 0).then(|| deferred.actions.pop_front()).flatten();
            let garbage = deferred.garbage.pop_if(|_| left > 0);
            let dropping = usize::from(garbage.is_some());
            deferred.dropping += dropping;
            while let Some(ending) = state.take_ending() {
                drop(state);
                end(ending);
                state = self.0.lock();
                state.defer_due();
            }
            if left == 0 {
                return self.leave(state);
            }
            if action.is_some() || garbage.is_some() {
                drop(state);
                users_code(|| {
                    match action {
                        Some(Action::Wake(waker)) => wake_all([waker]),
                        Some(Action::Call(call)) => drop(panics(call)),
                        None => {}
                    }
                    drop_guarded(garbage);
                });
                state = self.0.lock();
                state.deferred().dropping -= dropping;
            } else if !state.is_due() {
                return;
            }
            state.defer_due();
            left -= 1;
        }
    }
}

impl<S: Defers> Deref for Locked<'_, S> {
    type Target = S;

    #[inline(always)]
    fn deref(&self) -> &S {
        self.state.as_ref().expect(IS_THERE)
    }
}

impl<S: Defers> DerefMut for Locked<'_, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S {
        self.state.as_mut().expect(IS_THERE)
    }
}

impl<S: Defers> Drop for Locked<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.lock.unlock(state);
        }
    }
}

const IS_THERE: &str = "it is locked until it is dropped";

thread_local! {
    // The owners of what this thread has left, while it runs actions or holds them back.
    static LEFT: RefCell<Option<Vec<Arc<dyn Owner>>>> = const { RefCell::new(None) };
    // Whether what has ended is taken though other actions are left: it runs users' code, and holds no lock.
    static MAY_END: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function that has a lock of its caller's: what it makes due is done after it.
pub(crate) fn hold<T>(f: impl FnOnce() -> T) -> T {
    let _outermost = Outermost::begin();
    with_ends(false, f)
}

fn users_code(f: impl FnOnce()) {
    with_ends(true, f);
}

/// Has what has ended destroyed. If there is no helper thread for it, that is done here, and comes back.
fn end(ending: Box<dyn FnOnce() + Send>) {
    with_ends(false, || {
        let _panicked = panics(ending);
    });
}

fn with_ends<T>(may_end: bool, f: impl FnOnce() -> T) -> T {
    struct Restores(bool);
    impl Drop for Restores {
        fn drop(&mut self) {
            MAY_END.with(|now| now.set(self.0));
        }
    }
    let _restores = Restores(MAY_END.with(|now| now.replace(may_end)));
    f()
}

fn leave(owner: Arc<dyn Owner>) {
    let is_known = |left: &[Arc<dyn Owner>]| left.iter().any(|other| Arc::ptr_eq(other, &owner));
    match with_left(|left| left.as_deref().is_some_and(is_known)) {
        Some(true) => {}
        Some(false) => drop(with_left(|left| left.get_or_insert_default().push(owner))),
        None => owner.run_due(),
    }
}

/// `None` as the thread ends.
fn with_left<T>(f: impl FnOnce(&mut Option<Vec<Arc<dyn Owner>>>) -> T) -> Option<T> {
    LEFT.try_with(|left| f(&mut left.borrow_mut())).ok()
}

/// The outermost call on this thread that runs actions, or holds them back. The rest is done when it is dropped.
struct Outermost;

impl Outermost {
    fn begin() -> Option<Self> {
        let is_first = with_left(|left| match left {
            Some(_) => false,
            None => {
                *left = Some(Vec::new());
                true
            }
        });
        // Not `then_some`: one that is dropped ends the outermost call.
        is_first.unwrap_or(true).then(|| Self)
    }
}

impl Drop for Outermost {
    fn drop(&mut self) {
        let mut turns = 0;
        while let Some(Some(owner)) = with_left(|left| left.as_mut()?.pop()) {
            turns += 1;
            if turns > TURNS && Arc::clone(&owner).settle_elsewhere() {
                continue;
            }
            owner.run_due();
        }
        drop(with_left(Option::take));
    }
}

/// How many actions that are added meanwhile are run at once.
const MOST: usize = 64;

/// How often a thread goes on with what it has left.
const TURNS: usize = 4;
