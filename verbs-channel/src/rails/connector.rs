//! Connecting rails anew, on a thread.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use log::Level;

use crate::channel::Channel;
use crate::panics::{log, panics};

/// How long it pauses before it connects a rail again.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that connects the rails that it is asked for.
pub(super) struct Connector {
    asked: Sender<usize>,
    // Never locked: rails can be shared by threads like all other types.
    connected: Mutex<Receiver<(usize, Channel)>>,
}

impl Connector {
    #[expect(clippy::type_complexity, reason = "a function")]
    pub(super) fn new(
        mut connect: Box<dyn FnMut(usize) -> Result<Channel, Box<dyn Error + Send + Sync>> + Send>,
    ) -> io::Result<Self> {
        let ((asked, orders), (done, connected)) = (channel(), channel());
        let run = move || {
            // When each is tried, and when each may be tried again.
            let (mut due, mut again) = (BTreeSet::<(Instant, usize)>::new(), HashMap::new());
            // Until the rails are dropped.
            loop {
                let now = Instant::now();
                let next = match due.first() {
                    None => orders
                        .recv()
                        .map_err(|_gone| RecvTimeoutError::Disconnected),
                    Some((at, _)) => orders.recv_timeout(at.saturating_duration_since(now)),
                };
                match next {
                    Ok(rail) => {
                        due.insert((again.get(&rail).copied().unwrap_or(now), rail));
                        continue;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let Some((_, rail)) = due.pop_first() else {
                    continue;
                };
                let mut connected = Err("the function has panicked".into());
                let _panicked = panics(|| connected = connect(rail));
                let at = Instant::now() + PAUSE;
                again.insert(rail, at);
                match connected {
                    Ok(channel) => drop(done.send((rail, channel))),
                    Err(why) => {
                        log(
                            Level::Warn,
                            format_args!("rail {rail} is not connected yet: {why}"),
                        );
                        due.insert((at, rail));
                    }
                }
            }
        };
        thread::Builder::new().name("rails".to_owned()).spawn(run)?;
        let connected = Mutex::new(connected);
        Ok(Self { asked, connected })
    }

    pub(super) fn ask(&self, rail: usize) {
        // The thread is there as long as this is.
        let _sent = self.asked.send(rail);
    }

    /// The next rail that is connected.
    pub(super) fn next(&mut self) -> Option<(usize, Channel)> {
        let connected = self.connected.get_mut();
        let connected = connected.unwrap_or_else(PoisonError::into_inner);
        connected.try_recv().ok()
    }
}
