//! Which library a thread uses.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Library;

thread_local! {
    static LIBRARY: RefCell<Option<Arc<Mutex<Library>>>> = const { RefCell::new(None) };
    /// It is that of a queue pair.
    static IS_ADOPTED: Cell<bool> = const { Cell::new(false) };
}

/// The library of the threads that have none.
static SHARED: Mutex<Option<Arc<Mutex<Library>>>> = Mutex::new(None);

/// Held by a test that shares its library.
static SHARING: Mutex<()> = Mutex::new(());

/// All of them.
static LIBRARIES: Mutex<Vec<Arc<Mutex<Library>>>> = Mutex::new(Vec::new());

/// Threads without a library use that of this thread, until this is dropped.
pub struct Sharing {
    _turn: MutexGuard<'static, ()>,
}

/// A thread that calls this uses the library of the thread that made it.
pub fn lend() -> impl FnOnce() + Send + 'static {
    let library = own();
    move || LIBRARY.set(Some(library))
}

/// Lets threads that have used no library use this one's, in one test at a time: for programs of
/// which every test does so, since the threads of other tests are such threads too.
pub fn share() -> Sharing {
    let turn = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    *lock(&SHARED) = Some(own());
    Sharing { _turn: turn }
}

impl Drop for Sharing {
    /// A thread without a library may be the last to drop an object of this one, a moment
    /// after the test has ended: in the next test's library the object would be unknown.
    fn drop(&mut self) {
        let library = own();
        let start = Instant::now();
        while !lock(&library).live.is_empty() && start.elapsed() < A_MOMENT {
            thread::yield_now();
        }
        *lock(&SHARED) = None;
    }
}

/// How long to wait for objects that a test may have leaked.
pub(super) const A_MOMENT: Duration = Duration::from_secs(if cfg!(miri) { 20 } else { 1 });

/// Accesses the library of this thread.
pub fn with<T>(access: impl FnOnce(&mut Library) -> T) -> T {
    let here = LIBRARY.with_borrow(Option::clone);
    let library = here.or_else(|| lock(&SHARED).clone()).unwrap_or_else(own);
    let mut library = lock(&library);
    access(&mut library)
}

/// This thread is about to modify or destroy this queue pair: it uses the library of that from now on.
pub(super) fn adopt<T>(qp: *mut T) {
    let made_it = |library: &Arc<Mutex<Library>>| {
        let library = lock(library);
        library.live.iter().any(|live| live.address == qp.addr())
    };
    if LIBRARY.with_borrow(|own| own.as_ref().is_some_and(made_it)) {
        return;
    }
    if lock(&SHARED).as_ref().is_some_and(made_it) {
        LIBRARY.set(None);
        return IS_ADOPTED.set(false);
    }
    let found = lock(&LIBRARIES)
        .iter()
        .find(|library| made_it(library))
        .cloned();
    if found.is_some() {
        LIBRARY.set(found);
        IS_ADOPTED.set(true);
    }
}

/// Whether this thread has the library from a queue pair. Its polls find nothing: the completions are for the
/// test, which may poll several queues in turn.
pub(super) fn is_adopted() -> bool {
    IS_ADOPTED.get()
}

/// This thread's, made if it has none.
fn own() -> Arc<Mutex<Library>> {
    LIBRARY.with_borrow_mut(|library| {
        let made = || {
            let made = Arc::new(Mutex::new(Library::new()));
            lock(&LIBRARIES).push(Arc::clone(&made));
            made
        };
        Arc::clone(library.get_or_insert_with(made))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
