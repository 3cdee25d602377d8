//! Connecting rails anew, on a thread.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use crate::channel::Channel;

/// How long it pauses after a connection has failed.
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
            let mut rails = VecDeque::new();
            // Until the rails are dropped.
            loop {
                let next = match rails.is_empty() {
                    true => orders
                        .recv()
                        .map_err(|_gone| RecvTimeoutError::Disconnected),
                    false => orders.recv_timeout(PAUSE),
                };
                match next {
                    Ok(rail) => rails.push_front(rail),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let Some(rail) = rails.pop_front() else {
                    continue;
                };
                match connect(rail) {
                    Ok(channel) => drop(done.send((rail, channel))),
                    Err(why) => {
                        log::warn!("rail {rail} is not connected yet: {why}");
                        rails.push_back(rail);
                    }
                }
            }
        };
        thread::Builder::new().name("rails".to_owned()).spawn(run)?;
        let connected = Mutex::new(connected);
        Ok(Self { asked, connected })
    }

    /// Asks for a rail. `false` if the thread is gone.
    pub(super) fn ask(&self, rail: usize) -> bool {
        self.asked.send(rail).is_ok()
    }

    /// The next rail that is connected. `is_gone` is set if the thread is gone.
    pub(super) fn next(&mut self, is_gone: &mut bool) -> Option<(usize, Channel)> {
        let connected = self.connected.get_mut();
        let next = connected.unwrap_or_else(PoisonError::into_inner).try_recv();
        *is_gone |= matches!(next, Err(TryRecvError::Disconnected));
        next.ok()
    }
}
