//! The host's side of a job: carries its input and output, and ends it when it must end.

use std::io::{self, IsTerminal as _, Read as _, Stdin, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use crate::error::{Context as _, Error};

use super::boot::Guest;
use super::frame::{Frame, Job, Kind, PIECE, encode, size_bytes};
use super::output::Outputs;
use crate::say;
use crate::signals::Signals;
use crate::{Options, TIMED_OUT};

/// A guest that ended without saying how its job did.
const CRASHED: u8 = 125;

/// An illegal instruction, 128 + SIGILL.
const ILLEGAL: i32 = 132;

/// Pieces of input that may be under way to a job that does not read yet.
const INPUT_AHEAD: usize = 8;

/// How long the readers of our output have for the last of a run that was stopped.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Runs one job in each guest; the first one's exit status is the result.
pub(super) fn run(options: &Options, guests: Vec<Guest>, jobs: Vec<Job>) -> Result<i32, Error> {
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGWINCH];
    let signals = options.attached.then(|| Signals::catch(&caught));
    let signals = signals.transpose()?;
    let _raw = options.terminal.then(RawTerminal::set).transpose()?;
    let takes_input = jobs.first().is_some_and(|job| job.stdin);
    let lines = guests.iter().map(|guest| Line {
        pending: Vec::new(),
        over: false,
        unfinished: Vec::new(),
        host: guest.host,
    });
    let mut session = Session {
        lines: lines.collect(),
        guests,
        outputs: Outputs::new()?,
        input: takes_input.then(|| Input {
            stdin: io::stdin(),
            ahead: 0,
        }),
        signals,
        interrupts: 0,
        deadline: options.timeout.map(|limit| (Instant::now() + limit, limit)),
    };
    for (guest, job) in session.guests.iter().zip(&jobs) {
        let nonblocking = guest.port.set_nonblocking(true);
        nonblocking.context(|| "cannot prepare the guest's port")?;
        session.lines[usize::from(guest.host - 1)].pending = encode(Kind::Job, &job.encode());
    }
    let code = session.carry();
    session.outputs.finish(LAST_OUTPUT);
    let code = code?;
    if code == ILLEGAL && session.guests.iter().any(|guest| guest.emulated) {
        say(
            "the job died of an illegal instruction: was it built with target-cpu=native? The \
             emulated processor lacks some of this machine's instructions (AVX-512): build \
             without it, or for x86-64-v3",
        );
    }
    Ok(code)
}

/// The size of the terminal on standard input.
pub(super) fn terminal_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some((size.ws_row.max(1), size.ws_col.max(1)))
}

/// Our terminal, passing every key on as it is, until this is dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn set() -> Result<Self, Error> {
        let what = || "cannot prepare the terminal";
        let before = tcgetattr(io::stdin()).context(what)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).context(what)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that has gone needs no mode.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

struct Session {
    guests: Vec<Guest>,
    lines: Vec<Line>,
    outputs: Outputs,
    input: Option<Input>,
    signals: Option<Signals>,
    interrupts: u32,
    deadline: Option<(Instant, Duration)>,
}

/// The connection to one guest.
struct Line {
    host: u8,
    /// Bytes still to be sent.
    pending: Vec<u8>,
    /// Whether it has ended.
    over: bool,
    /// The last line of a second host's output, until it is whole.
    unfinished: Vec<u8>,
}

/// Standard input, on its way to the first guest.
struct Input {
    stdin: Stdin,
    ahead: usize,
}

impl Session {
    /// Carries what there is to carry until the first host's job has ended, and all output is written.
    fn carry(&mut self) -> Result<i32, Error> {
        let mut end = None;
        loop {
            self.wait(end.is_some())?;
            if let Some(code) = self.obey_signals(end.is_some()) {
                // An error says more than the signal.
                return end.filter(Result::is_err).unwrap_or(Ok(code));
            }
            self.outputs.check()?;
            if end.is_none() {
                end = self.relay().transpose();
            }
            if self.outputs.is_written()
                && let Some(end) = end.take()
            {
                return end;
            }
            if let Some((deadline, limit)) = self.deadline
                && Instant::now() >= deadline
            {
                let what = match end {
                    None => "the job did not end",
                    Some(Err(error)) => return Err(error),
                    Some(Ok(_)) => "nobody read all of the job's output",
                };
                let limit = limit.as_secs_f64();
                self.outputs
                    .say(&format!("{what} in {limit} s (--timeout): stopped"));
                return Ok(TIMED_OUT);
            }
        }
    }

    /// Passes on what can be. Returns how the run ends, once it does.
    fn relay(&mut self) -> Result<Option<i32>, Error> {
        self.read_input()?;
        for index in 0..self.guests.len() {
            self.send_pending(index);
            if let Some(code) = self.receive(index)? {
                return Ok(Some(code));
            }
        }
        Ok(None)
    }

    /// Waits until there is something to do; if the job has ended, with its output only.
    fn wait(&self, has_ended: bool) -> Result<(), Error> {
        let limit = self.deadline.map(|(deadline, _)| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the time is over when this returns.
            left + Duration::from_millis(1)
        });
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = Vec::new();
        if let Some(signals) = &self.signals {
            fds.push(PollFd::new(signals.pipe(), PollFlags::IN));
        }
        let pipes = self.outputs.pipes();
        fds.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        for (guest, line) in self.guests.iter().zip(&self.lines) {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, !self.outputs.is_full());
            events.set(PollFlags::OUT, !line.pending.is_empty());
            // Asked for nothing, a guest that has gone would end each wait.
            if !has_ended && !line.over && !events.is_empty() {
                fds.push(PollFd::new(&guest.port, events));
            }
        }
        let input = self.input.as_ref().filter(|_| !has_ended);
        if let Some(input) = input.filter(|input| input.wanted()) {
            fds.push(PollFd::new(&input.stdin, PollFlags::IN));
        }
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context(|| "cannot wait for the guest"),
        }
    }

    /// Passes signals on to the jobs; the second one that would end us ends all, and so does the first once
    /// the job has ended.
    fn obey_signals(&mut self, has_ended: bool) -> Option<i32> {
        let came = self.signals.as_mut().map(Signals::pending);
        for signal in came.unwrap_or_default() {
            if signal == SIGWINCH {
                if let Some(size) = terminal_size() {
                    self.send_all(Kind::Resize, &size_bytes(size));
                }
                continue;
            }
            self.interrupts += 1;
            if self.interrupts > 1 || has_ended {
                self.outputs.say("stopped");
                return Some(128 + signal);
            }
            self.outputs
                .say("passing the signal on to the job (once more to stop the guest)");
            self.send_all(Kind::Signal, &signal.to_le_bytes());
        }
        None
    }

    fn send_all(&mut self, kind: Kind, bytes: &[u8]) {
        for line in &mut self.lines {
            line.pending.extend(encode(kind, bytes));
        }
    }

    fn read_input(&mut self) -> Result<(), Error> {
        let Some(input) = self.input.as_mut().filter(|input| input.wanted()) else {
            return Ok(());
        };
        if !input.readable() {
            return Ok(());
        }
        let mut buffer = vec![0; PIECE];
        // Locked, standard input reads ahead into a buffer that `poll` knows nothing of.
        let read = rustix::io::read(&input.stdin, &mut buffer);
        let count = read.context(|| "cannot read the standard input")?;
        input.ahead += 1;
        let frame = encode(Kind::Stdin, &buffer[..count]);
        if count == 0 {
            self.input = None;
        }
        self.lines[0].pending.extend(frame);
        Ok(())
    }

    fn send_pending(&mut self, index: usize) {
        let line = &mut self.lines[index];
        while !line.pending.is_empty() {
            match (&self.guests[index].port).write(&line.pending) {
                Ok(count) => drop(line.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // That the guest has gone shows when it is read from.
                Err(_) => line.pending.clear(),
            }
        }
    }

    /// Handles a guest's frame. Returns the exit code, if that ends the run.
    fn receive(&mut self, index: usize) -> Result<Option<i32>, Error> {
        if self.lines[index].over || self.outputs.is_full() {
            return Ok(None);
        }
        let mut buffer = vec![0; 2 * PIECE];
        let gone = match self.guests[index].port.read(&mut buffer) {
            Ok(count) => {
                self.guests[index].decoder.push(&buffer[..count]);
                count == 0
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            Err(_) => true,
        };
        while let Some(frame) = self.guests[index].decoder.next().map_err(Error::new)? {
            if let Some(code) = self.take(index, frame)? {
                return Ok(Some(code));
            }
        }
        if !gone {
            return Ok(None);
        }
        self.lines[index].over = true;
        if index > 0 {
            self.lines[index].finish_line(&mut self.outputs);
            self.outputs
                .say(&format!("host {} has gone", self.lines[index].host));
            return Ok(None);
        }
        let console = self.guests[index].console();
        Err(Error::new(format!(
            "the guest died before the job ended; its console:\n{console}"
        ))
        .with_code(CRASHED))
    }

    fn take(&mut self, index: usize, frame: Frame) -> Result<Option<i32>, Error> {
        match frame.kind {
            Kind::Stdout if index == 0 => self.outputs.out(frame.bytes),
            Kind::Stderr if index == 0 => self.outputs.err(frame.bytes),
            Kind::Stdout | Kind::Stderr => self.lines[index].show(&frame.bytes, &mut self.outputs),
            Kind::Taken => {
                if let Some(input) = &mut self.input {
                    input.ahead = input.ahead.saturating_sub(1);
                }
            }
            Kind::Exit if index == 0 => return Ok(Some(frame.number().unwrap_or(1))),
            Kind::Exit => {
                self.lines[index].finish_line(&mut self.outputs);
                self.lines[index].over = true;
                // It powers off when its host is gone. If it has gone itself, that is the same.
                drop(self.guests[index].port.shutdown(Shutdown::Both));
                let (host, code) = (self.lines[index].host, frame.number().unwrap_or(1));
                self.outputs
                    .say(&format!("host {host} ended with exit code {code}"));
            }
            Kind::Failed => return Err(frame.failure()),
            Kind::Ready | Kind::Job | Kind::Stdin | Kind::Signal | Kind::Resize => {}
        }
        Ok(None)
    }
}

impl Line {
    /// Shows whole lines of a second host's output, each with its name.
    fn show(&mut self, bytes: &[u8], to: &mut Outputs) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.unfinished.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.finish_line(to);
            }
        }
    }

    fn finish_line(&mut self, to: &mut Outputs) {
        if self.unfinished.is_empty() {
            return;
        }
        let name = format!("[host {}] ", self.host);
        let end: &[u8] = match self.unfinished.last() {
            Some(b'\n') => b"",
            _ => b"\n",
        };
        to.err([name.as_bytes(), &self.unfinished, end].concat());
        self.unfinished.clear();
    }
}

impl Input {
    /// Whether to read more. Reading a terminal in the background would stop this process.
    fn wanted(&self) -> bool {
        let foreground = || tcgetpgrp(&self.stdin).is_ok_and(|foreground| foreground == getpgrp());
        self.ahead < INPUT_AHEAD && (!self.stdin.is_terminal() || foreground())
    }

    fn readable(&self) -> bool {
        let mut fds = [PollFd::new(&self.stdin, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
