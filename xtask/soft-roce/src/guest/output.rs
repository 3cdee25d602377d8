//! What a job prints, on its way to whoever reads it.

use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Context as _, Error};

/// Pieces that may be under way to a reader that does not read yet.
const AHEAD: usize = 8;

/// The exit code of a program whose reader has gone, 128 + SIGPIPE.
const READER_GONE: u8 = 141;

/// Standard output or standard error. A thread of its own writes it, so that a reader that reads
/// nothing keeps nothing else waiting.
pub(super) struct Output {
    pieces: Sender<Vec<u8>>,
    /// Has a byte for each piece that was written, and ends with the thread.
    written: UnixStream,
    under_way: usize,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Output {
    pub(super) fn new(to: impl Write + Send + 'static) -> Result<Self, Error> {
        let what = || "cannot prepare the job's output";
        let (written, report) = UnixStream::pair().context(what)?;
        written.set_nonblocking(true).context(what)?;
        let (sender, pieces) = mpsc::channel();
        let writer = thread::Builder::new().spawn(move || write(to, &pieces, &report));
        Ok(Self {
            pieces: sender,
            written,
            under_way: 0,
            writer: Some(writer.context(what)?),
        })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.under_way += 1;
        // If the thread has ended, `check` says why.
        drop(self.pieces.send(bytes.to_vec()));
    }

    /// Whether the reader has to read first.
    pub(super) fn is_full(&self) -> bool {
        self.under_way >= AHEAD
    }

    pub(super) fn is_written(&self) -> bool {
        self.under_way == 0
    }

    /// Readable when [`check`](Self::check) has something to do.
    pub(super) fn pipe(&self) -> &UnixStream {
        &self.written
    }

    /// Counts what has been written. A reader that has gone ends the run, as it would on a pipe.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        loop {
            match (&self.written).read(&mut [0; AHEAD]) {
                Ok(0) => return Err(self.failure()),
                Ok(count) => self.under_way -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(|| "cannot wait for the job's output"),
            }
        }
    }

    /// Waits until all is written, but no longer than `limit`.
    pub(super) fn finish(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.check().is_ok() && !self.is_written() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let left = Timespec::try_from(left).ok();
            let mut pipe = [PollFd::new(&self.written, PollFlags::IN)];
            // A wait that was interrupted begins again, with what is left of the time.
            let _ = poll(&mut pipe, left.as_ref());
        }
    }

    fn failure(&mut self) -> Error {
        let why = match self.writer.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => io::Error::other("its writer has ended"),
        };
        let code = match why.kind() {
            ErrorKind::BrokenPipe => READER_GONE,
            _ => 1,
        };
        Error::new(format!("cannot write the job's output: {why}")).with_code(code)
    }
}

/// Writes each piece as it comes.
fn write(
    mut to: impl Write,
    pieces: &Receiver<Vec<u8>>,
    mut report: &UnixStream,
) -> io::Result<()> {
    for piece in pieces {
        to.write_all(&piece)?;
        to.flush()?;
        report.write_all(&[0])?;
    }
    Ok(())
}
