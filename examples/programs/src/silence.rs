//! How async work, on any runtime, ends when its peer is silent or leaves.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::io::{AsyncRead, AsyncReadExt as _};

use crate::Failure;

/// How often progress is checked within the limit of silence.
const LOOKS: u32 = 8;
/// How long to wait for the peer's last message after work with it has failed.
const PARTING_WAIT: Duration = Duration::from_millis(200);

/// Counts the progress of a connection.
#[derive(Debug, Default)]
pub struct Moved(AtomicU64);

impl Moved {
    /// Counts one step.
    pub fn one(&self) {
        let _before = self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of steps.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends when there was no progress for `limit`. It sleeps by the runtime's `sleep`, a few times in
    /// that time; the work itself only counts.
    pub async fn silent<S: Future>(
        &self,
        limit: Duration,
        sleep: impl Fn(Duration) -> S,
    ) -> Failure {
        let (mut seen, mut looks) = (self.count(), 0);
        while looks < LOOKS {
            drop(sleep(limit / LOOKS).await);
            let count = self.count();
            looks = if count == seen { looks + 1 } else { 0 };
            seen = count;
        }
        let limit = limit.as_secs();
        Failure::new(format!(
            "the peer is gone, stuck or very slow: nothing moved for {limit} s (--timeout waits longer)"
        ))
    }
}

/// The last message of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else")]
pub enum Parting {
    /// It ends as it should.
    Bye,
    /// It is gone without one.
    Gone,
}

impl Parting {
    /// The message of a side that ends in order.
    pub const BYE: [u8; 1] = *b".";

    /// Waits until the peer sends its last message, or is gone.
    pub async fn of(mut peer: impl AsyncRead + Unpin) -> Self {
        let mut message = [0];
        let read: io::Result<usize> = peer.read(&mut message).await;
        match read {
            Ok(1) if message == Self::BYE => Self::Bye,
            _ => Self::Gone,
        }
    }
}

/// Does `work` beside the TCP connection to the peer, whose parting ends it with the result of
/// `parted`.
///
/// If the peer leaves, `work` fails, too. Its last message is the better reason, so this waits a
/// moment for it.
///
/// # Errors
///
/// Those of `work` and of `parted`.
pub async fn beside<T, S: Future>(
    peer: impl AsyncRead + Unpin,
    work: impl Future<Output = Result<T, Failure>>,
    parted: impl FnOnce(Parting) -> Result<T, Failure>,
    sleep: impl Fn(Duration) -> S,
) -> Result<T, Failure> {
    let parting = pin!(async { parted(Parting::of(peer).await) });
    match select(pin!(work), parting).await {
        Either::Left((Err(why), parting)) => {
            let late_parting = async {
                drop(sleep(PARTING_WAIT).await);
                Err(why)
            };
            first(parting, late_parting).await
        }
        Either::Left((done, _)) | Either::Right((done, _)) => done,
    }
}

/// The output of the future that ends first; of `left`, if both have ended.
pub async fn first<T>(left: impl Future<Output = T>, right: impl Future<Output = T>) -> T {
    match select(pin!(left), pin!(right)).await {
        Either::Left((output, _)) | Either::Right((output, _)) => output,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol::Timer;
    use smol::io::Cursor;

    #[test]
    fn only_silence_ends_it() {
        let moved = Moved::default();
        let limit = Duration::from_millis(400);
        let start = std::time::Instant::now();
        let talking = async {
            for _ in 0..10 {
                let _now = Timer::after(limit / 4).await;
                moved.one();
            }
        };
        let silent = moved.silent(limit, Timer::after);
        let (_, _why) = smol::block_on(smol::future::zip(talking, silent));
        assert!(start.elapsed() >= limit * 10 / 4 + limit / 2);
    }

    #[test]
    fn closed_connection_is_no_bye() {
        let parting = |message: &'static [u8]| smol::block_on(Parting::of(Cursor::new(message)));
        assert_eq!(parting(b"."), Parting::Bye);
        assert_eq!(parting(b""), Parting::Gone);
        assert_eq!(parting(b"?"), Parting::Gone);
    }
}
