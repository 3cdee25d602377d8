//! Wakers that a test can wait for, a pipe to read, and a time limit for each test.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use verbs_async::CqNotifier;

/// Runs a test, and fails it if it hangs.
pub(crate) fn within_limit(test: impl FnOnce() + Send + 'static) {
    verbs_harness::within(Duration::from_secs(60), test);
}

/// A waker that counts, and that a test can sleep on.
#[derive(Default)]
pub(crate) struct WakeCounter {
    woken: Mutex<u32>,
    changed: Condvar,
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl WakeCounter {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let counter = Arc::new(Self::default());
        (Arc::clone(&counter), Waker::from(counter))
    }

    /// Sleeps until it is woken, and resets the count.
    pub(crate) fn wait(&self) {
        let woken = self.woken.lock().unwrap();
        let quiet = |woken: &mut u32| *woken == 0;
        *self.changed.wait_while(woken, quiet).unwrap() = 0;
    }
}

/// Sleeps until `poll` is ready, and polls only when woken.
pub(crate) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let (counter, waker) = WakeCounter::new();
    let mut woken = 0;
    loop {
        if let Poll::Ready(done) = poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        counter.wait();
        woken += 1;
        assert!(woken < 20, "woken again and again, and never ready");
    }
}

/// Sleeps until it is readable.
pub(crate) fn wait_readable(notifier: &dyn CqNotifier) -> io::Result<()> {
    block_on(|cx| notifier.poll_readable(cx))
}

/// A pipe whose reading end does not block.
pub(crate) fn pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
    (reader, writer)
}

pub(crate) fn write(mut writer: &PipeWriter) {
    writer.write_all(&[7]).unwrap();
}

/// Reads until nothing is left, and returns the number of bytes.
pub(crate) fn drain(mut reader: &PipeReader) -> usize {
    let mut taken = 0;
    loop {
        match reader.read(&mut [0; 64]) {
            Ok(0) => return taken,
            Ok(read) => taken += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}
