//! Connecting by a connection manager whose calls block until a test releases them: they are made by helper threads.
//!
//! The devices are those of this process, so tests that count what is left run one after the other.
#![cfg(test)]
#![cfg(feature = "rdmacm")]

mod by_manager;
mod executor;
mod iwarp;
mod multicast;
mod rails;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use soft_verbs::Host;
use verbs_async::CqEvents;
use verbs_core::rdmacm::Listener;
use verbs_core::{Context, ProtectionDomain};
use verbs_harness::until;

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

static HOOK: Mutex<Option<Hook>> = Mutex::new(None);

fn hook() -> MutexGuard<'static, Option<Hook>> {
    HOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs this before each call of a verb that is no post, until the test ends.
fn watch_calls(watch: impl Fn(&'static str) + Send + Sync + 'static) {
    *hook() = Some(Arc::new(watch));
    Host::current().before(|verb| {
        let hook = hook().clone();
        hook.into_iter().for_each(|hook| hook(verb));
    });
}

/// Runs a test on a tokio runtime of this thread alone, without other tests. No identifier of the connection manager is
/// left; the process is aborted if it hangs.
fn alone<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    verbs_harness::bounded(LONG, || runtime.block_on(test()));
    assert!(until(LONG, || Host::current().cm_ids() == 0));
    *hook() = None;
}

/// Calls of some verbs. Each waits until it is released.
struct Held {
    begun: Receiver<(&'static str, ThreadId)>,
    release: Sender<()>,
}

impl Held {
    fn new(verbs: &'static [&'static str]) -> Self {
        let (begins, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let released = Mutex::new(released);
        watch_calls(move |verb| {
            if verbs.contains(&verb) {
                begins.send((verb, thread::current().id())).ok();
                released.lock().unwrap().recv_timeout(LONG).ok();
            }
        });
        Self { begun, release }
    }

    /// Waits until a call of this verb has begun on a helper thread.
    async fn begins(&self, verb: &str) {
        let (begun, thread) = loop {
            match self.begun.try_recv() {
                Ok(begun) => break begun,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!(begun, verb);
        assert_ne!(thread, thread::current().id(), "the executor is blocked");
    }

    /// Lets one return.
    fn returns(&self) {
        self.release.send(()).unwrap();
    }
}

/// A domain of the device at `10.0.0.1`, and its events.
fn device() -> (ProtectionDomain, CqEvents) {
    let context = Context::first_active().unwrap();
    let events = CqEvents::create_thread(&context).unwrap();
    (context.alloc_pd().unwrap(), events)
}

/// A listener at this device.
fn listener() -> (Listener, SocketAddr) {
    let listener = Listener::bind(([10, 0, 0, 1], 0).into(), 1).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
