//! Output of a running job, on its way to the reader.

use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;

use crate::error::{Context as _, Error};

/// Pieces that may be under way to a reader that does not read yet.
const AHEAD: usize = 8;

/// The exit code of a program whose reader has gone, 128 + SIGPIPE.
const READER_GONE: u8 = 141;

/// This process' standard output and error.
pub(super) struct Outputs {
    out: Output,
    /// Its own, if it is not the same file: order matters in one.
    err: Option<Output>,
}

impl Outputs {
    pub(super) fn new() -> Result<Self, Error> {
        let err = (!are_one()).then(|| Output::new(io::stderr()));
        Ok(Self {
            out: Output::new(io::stdout())?,
            err: err.transpose()?,
        })
    }

    pub(super) fn out(&mut self, bytes: Vec<u8>) {
        self.out.push(Piece::Job(bytes));
    }

    pub(super) fn err(&mut self, bytes: Vec<u8>) {
        self.push_err(Piece::Job(bytes));
    }

    /// Prints a message of ours, which nobody has to read.
    pub(super) fn say(&mut self, text: &str) {
        self.push_err(Piece::Ours(format!("soft-roce: {text}\n").into_bytes()));
    }

    fn push_err(&mut self, piece: Piece) {
        self.err.as_mut().unwrap_or(&mut self.out).push(piece);
    }

    /// Whether a reader has to read first.
    pub(super) fn is_full(&self) -> bool {
        self.each().any(|output| output.under_way >= AHEAD)
    }

    pub(super) fn is_written(&self) -> bool {
        self.each().all(|output| output.under_way == 0)
    }

    /// Each is readable when [`check`](Self::check) has something to do.
    pub(super) fn pipes(&self) -> impl Iterator<Item = &UnixStream> {
        let at_work = self.each().filter(|output| output.under_way > 0);
        at_work.map(|output| &output.written)
    }

    /// Counts what has been written. A reader that has gone ends the run, as it would on a pipe.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        self.out.check()?;
        self.err.as_mut().map_or(Ok(()), Output::check)
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
            let fds = self.pipes().map(|pipe| PollFd::new(pipe, PollFlags::IN));
            // A wait that was interrupted begins again, with what is left of the time.
            let _ = poll(&mut fds.collect::<Vec<_>>(), left.as_ref());
        }
    }

    fn each(&self) -> impl Iterator<Item = &Output> {
        std::iter::once(&self.out).chain(&self.err)
    }
}

/// Whether this process' standard output and error are one file, so that their order matters.
pub(super) fn are_one() -> bool {
    let of = |fd: BorrowedFd<'_>| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev));
    match (of(io::stdout().as_fd()), of(io::stderr().as_fd())) {
        (Ok(out), Ok(err)) => out == err,
        _ => false,
    }
}

enum Piece {
    Job(Vec<u8>),
    Ours(Vec<u8>),
}

/// One of them. A thread of its own writes it, so that a reader that reads nothing keeps nothing
/// else waiting.
struct Output {
    pieces: Sender<Piece>,
    /// Has a byte for each piece that was written, and ends with the thread.
    written: UnixStream,
    under_way: usize,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Output {
    fn new(to: impl Write + Send + 'static) -> Result<Self, Error> {
        let what = || "cannot prepare the job's output";
        let (written, report) = UnixStream::pair().context(what)?;
        written.set_nonblocking(true).context(what)?;
        let (sender, pieces) = mpsc::channel();
        let writer = thread::Builder::new().spawn(move || write(to, pieces, &report));
        Ok(Self {
            pieces: sender,
            written,
            under_way: 0,
            writer: Some(writer.context(what)?),
        })
    }

    fn push(&mut self, piece: Piece) {
        self.under_way += 1;
        // If the thread has ended, `check` says why.
        drop(self.pieces.send(piece));
    }

    /// Waits for nothing: each round counts pieces that are under way, or is the last.
    fn check(&mut self) -> Result<(), Error> {
        while self.under_way > 0 {
            match (&self.written).read(&mut [0; AHEAD]) {
                Ok(0) => return Err(self.failure()),
                Ok(count) => self.under_way -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(|| "cannot wait for the job's output"),
            }
        }
        Ok(())
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
fn write(mut to: impl Write, pieces: Receiver<Piece>, mut report: &UnixStream) -> io::Result<()> {
    for piece in pieces {
        let mut write = |bytes: &[u8]| to.write_all(bytes).and_then(|()| to.flush());
        match piece {
            Piece::Job(bytes) => write(&bytes)?,
            Piece::Ours(bytes) => drop(write(&bytes)),
        }
        report.write_all(&[0])?;
    }
    Ok(())
}
