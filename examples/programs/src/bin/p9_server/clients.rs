//! The clients: each on a thread and a runtime of its own, up to a number, until the server ends.
//!
//! So a client may wait for the disk and delays no other.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use programs::p9::{Session, Tree, Violation};
use programs::{Failure, say};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Options;

/// Those that are here, and what they share.
pub(crate) struct Clients {
    tree: Arc<Tree>,
    max_size: u32,
    max: usize,
    threads: JoinSet<Result<(), Failure>>,
    ended: watch::Sender<bool>,
    came: u64,
    // One after the other, since a client was accepted.
    failures: u32,
    answered: Arc<AtomicU64>,
}

/// The session of one client, which counts its messages.
pub(crate) struct Service {
    session: Session,
    all: Arc<AtomicU64>,
}

impl Clients {
    pub(crate) fn new(options: &Options, tree: Tree) -> Result<Self, Failure> {
        Ok(Self {
            tree: Arc::new(tree),
            max_size: options.msize,
            max: usize::try_from(options.max_clients)?,
            threads: JoinSet::new(),
            ended: watch::Sender::new(false),
            came: 0,
            failures: 0,
            answered: Arc::default(),
        })
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&mut self) -> Result<bool, Failure> {
        while let Some(ended) = self.threads.try_join_next() {
            ended??;
        }
        Ok(self.threads.len() < self.max)
    }

    /// Starts a thread for a client. `serve` ends when the client has left, or is dropped when the server
    /// ends.
    pub(crate) fn start<F>(
        &mut self,
        peer: SocketAddr,
        serve: impl FnOnce(Service) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), Failure>>,
    {
        self.came += 1;
        self.failures = 0;
        let number = self.came;
        let service = Service {
            session: Session::new(Arc::clone(&self.tree), self.max_size),
            all: Arc::clone(&self.answered),
        };
        let mut ended = self.ended.subscribe();
        self.threads.spawn_blocking(move || {
            say(format_args!("client {number} is here: {peer}"))?;
            let served = programs::runtime(1)?.block_on(async {
                tokio::select! {
                    served = serve(service) => served,
                    // Also if it is gone.
                    _ended = ended.wait_for(|ended| *ended) => Ok(()),
                }
            });
            match served {
                Ok(()) => say(format_args!("client {number} left")),
                // The others are not affected.
                Err(failure) => say(format_args!("client {number} was lost: {failure}")),
            }
        });
    }

    /// A client could not be accepted, perhaps for want of descriptors, of which there will be more soon.
    ///
    /// # Errors
    ///
    /// Returns the failure if too many have come one after the other to blame the clients.
    pub(crate) async fn failed(&mut self, failure: Failure) -> Result<(), Failure> {
        self.failures += 1;
        if self.failures == MAX_FAILURES {
            return Err(failure);
        }
        say(format_args!("cannot accept a client: {failure}"))?;
        sleep(PAUSE).await;
        Ok(())
    }

    /// Waits until all threads have ended.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        self.ended.send_replace(true);
        while let Some(ended) = self.threads.join_next().await {
            ended??;
        }
        let (came, answered) = (self.came, self.answered.load(Ordering::Relaxed));
        say(format_args!("{came} clients, {answered} messages answered"))
    }
}

/// Number of clients in turn that cannot be accepted before the server ends.
const MAX_FAILURES: u32 = 20;
/// How long it then waits for the next client.
const PAUSE: Duration = Duration::from_millis(100);

impl Service {
    /// As [`Session::answer`].
    pub(crate) fn answer(&mut self, message: &[u8], answer: &mut [u8]) -> Result<usize, Violation> {
        let _before = self.all.fetch_add(1, Ordering::Relaxed);
        self.session.answer(message, answer)
    }
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) fn signals() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _signal = interrupt.recv() => {}
            _signal = terminate.recv() => {}
        }
    })
}
