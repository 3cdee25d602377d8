//! The guest's side of a job: starts it, carries its input and output, and reports its end.

use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use rustix::fs::sync;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::error::{Context as _, Error};

use crate::helper;

use super::frame::{Decoder, Frame, Job, Kind, PIECE, encode};

/// How long to wait for the job's last output after the job itself has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// How often that wait looks whether the host is slow.
const TICK: Duration = Duration::from_millis(50);

/// The guest's end of the port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    file: Arc<File>,
    writer: Arc<Mutex<()>>,
}

impl Port {
    pub(super) fn new(file: File) -> Self {
        let writer = Arc::new(Mutex::new(()));
        let file = Arc::new(file);
        Self { file, writer }
    }

    /// Sends one frame, whole.
    pub(super) fn send(&self, kind: Kind, bytes: &[u8]) -> Result<(), Error> {
        let _whole = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = encode(kind, bytes);
        (&*self.file)
            .write_all(&frame)
            .context(|| "cannot write to the port")
    }

    /// Whether a frame is under way, which takes as long as the host takes to read.
    fn is_sending(&self) -> bool {
        matches!(self.writer.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Says that there is nothing to run, and why.
    pub(super) fn fail(&self, code: i32, why: &str) -> Result<(), Error> {
        let bytes = [&code.to_le_bytes()[..], why.as_bytes()].concat();
        self.send(Kind::Failed, &bytes)
    }

    /// The next frame; `None` once the host has gone.
    fn receive(&self, decoder: &mut Decoder) -> Result<Option<Frame>, Error> {
        let mut buffer = vec![0; PIECE];
        loop {
            if let Some(frame) = decoder.next().map_err(Error::new)? {
                return Ok(Some(frame));
            }
            let read = (&*self.file).read(&mut buffer);
            match read.context(|| "cannot read the port")? {
                0 => return Ok(None),
                count => decoder.push(&buffer[..count]),
            }
        }
    }
}

/// Takes the one job, runs it to its end, and then waits for the host to go.
pub(super) fn serve(port: &Port) -> Result<(), Error> {
    let mut decoder = Decoder::default();
    let Some(frame) = port.receive(&mut decoder)? else {
        return Ok(());
    };
    let job = (frame.kind == Kind::Job)
        .then(|| Job::decode(&frame.bytes))
        .flatten();
    let Some(job) = job else {
        return port.fail(125, "the guest was sent something that is no job");
    };
    let mut running = match start(&job) {
        Ok(running) => running,
        Err((code, why)) => return port.fail(code, &why),
    };
    let output = carry_output(port, running.output);
    let (input, taken) = mpsc::channel();
    let pid = Pid::from_child(&running.child);
    carry_input(port, running.input, taken);
    let listener = port.clone();
    let terminal = running.terminal.take();
    thread::spawn(move || listen(&listener, decoder, pid, &input, terminal));

    let status = reap(pid)?;
    kill_the_rest();
    output.wait(port);
    // The job's results have to be on the host before its exit code.
    sync();
    let code = status.exit_status();
    let code = code.or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    port.send(Kind::Exit, &code.unwrap_or(1).to_le_bytes())?;
    // Data may still be in the port, which is lost with this machine. So the host is the bound:
    // once it has read all of it, once its time limit is over or it is stopped, it goes, and the
    // listener powers off.
    loop {
        thread::park();
    }
}

/// A job under way.
struct Running {
    child: Child,
    input: Option<Box<dyn io::Write + Send>>,
    output: Vec<(Kind, Box<dyn Read + Send>)>,
    terminal: Option<File>,
}

fn start(job: &Job) -> Result<Running, (i32, String)> {
    let program = job.argv.first().cloned().unwrap_or_default();
    if !job.dir.is_dir() {
        let dir = job.dir.display();
        return Err((
            125,
            format!(
                "the folder {dir} does not exist in the guest (the host's /run, /dev/shm and /proc are not visible there)"
            ),
        ));
    }
    let failed = |error: io::Error| {
        (
            i32::from(helper::not_started(&error)),
            format!("cannot run `{}` in the guest: {error}", program.display()),
        )
    };
    let odd = |error: io::Error| (125, format!("cannot prepare the job: {error}"));
    match job.terminal {
        Some(size) => start_on_terminal(job, size).map_err(failed),
        None => {
            let mut command = command(job, Command::new(&program));
            command.args(&job.argv[1..]).process_group(0);
            start_on_pipes(job, command).map_err(odd)?.map_err(failed)
        }
    }
}

fn command(job: &Job, mut command: Command) -> Command {
    command
        .current_dir(&job.dir)
        .env_clear()
        .envs(job.env.iter().cloned());
    command
}

/// An error of its own kind when the pipes fail, so that it is not taken for the program's.
fn start_on_pipes(job: &Job, mut command: Command) -> io::Result<io::Result<Running>> {
    let (out, stdout) = io::pipe()?;
    let mut output: Vec<(Kind, Box<dyn Read + Send>)> = vec![(Kind::Stdout, Box::new(out))];
    if job.merged {
        command.stderr(stdout.try_clone()?);
    } else {
        let (err, stderr): (PipeReader, _) = io::pipe()?;
        command.stderr(stderr);
        output.push((Kind::Stderr, Box::new(err)));
    }
    command.stdout(stdout);
    command.stdin(if job.stdin {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    Ok(command.spawn().map(|mut child| {
        let input: Option<Box<dyn io::Write + Send>> = match child.stdin.take() {
            Some(stdin) => Some(Box::new(stdin)),
            None => None,
        };
        Running {
            child,
            input,
            output,
            terminal: None,
        }
    }))
}

fn start_on_terminal(job: &Job, size: (u16, u16)) -> io::Result<Running> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    // A shell's child is a session leader with the terminal: this program makes it so, and then
    // becomes the job.
    let mut command = command(job, Command::new("/proc/self/exe"));
    command.arg(helper::TERMINAL).args(&job.argv);
    command
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave);
    let child = command.spawn()?;
    let master = File::from(master);
    Ok(Running {
        input: Some(Box::new(master.try_clone()?)),
        output: vec![(Kind::Stdout, Box::new(master.try_clone()?))],
        child,
        terminal: Some(master),
    })
}

fn resize(terminal: &impl std::os::fd::AsFd, (rows, columns): (u16, u16)) -> io::Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// The threads that carry output.
struct Output {
    done: Receiver<()>,
    count: usize,
}

impl Output {
    /// Waits until all of it has been carried: as long as the host takes to read it, but not forever for
    /// what may come yet.
    fn wait(self, port: &Port) {
        let (mut open, mut left) = (self.count, LAST_OUTPUT);
        while open > 0 && !left.is_zero() {
            match self.done.recv_timeout(TICK) {
                Ok(()) => open -= 1,
                Err(RecvTimeoutError::Timeout) if port.is_sending() => {}
                Err(RecvTimeoutError::Timeout) => left = left.saturating_sub(TICK),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn carry_output(port: &Port, output: Vec<(Kind, Box<dyn Read + Send>)>) -> Output {
    let (sender, done) = mpsc::channel();
    let count = output.len();
    for (kind, mut from) in output {
        let (port, sender) = (port.clone(), sender.clone());
        thread::spawn(move || {
            let mut buffer = vec![0; PIECE];
            // A terminal whose last process has gone fails with EIO: its end of file.
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if port.send(kind, &buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = sender.send(());
        });
    }
    Output { done, count }
}

/// Writes input on a thread of its own, because a job may leave its input unread for long.
fn carry_input(port: &Port, input: Option<Box<dyn io::Write + Send>>, pieces: Receiver<Vec<u8>>) {
    let port = port.clone();
    thread::spawn(move || {
        let mut input = input;
        for piece in pieces {
            // A job that has closed its input loses the rest, as it would on a pipe.
            let kept = input
                .as_mut()
                .is_some_and(|to| to.write_all(&piece).is_ok());
            if piece.is_empty() || !kept {
                input = None;
            }
            if port.send(Kind::Taken, &[]).is_err() {
                break;
            }
        }
    });
}

/// Follows the host's orders; without a host there is nothing left to do.
fn listen(
    port: &Port,
    mut decoder: Decoder,
    job: Pid,
    input: &Sender<Vec<u8>>,
    terminal: Option<File>,
) {
    while let Ok(Some(frame)) = port.receive(&mut decoder) {
        match frame.kind {
            Kind::Stdin => drop(input.send(frame.bytes)),
            Kind::Signal => {
                if let Some(signal) = frame.number().and_then(Signal::from_named_raw) {
                    let _ = kill_process_group(job, signal);
                }
            }
            Kind::Resize => {
                if let (Some(terminal), Some(size)) = (&terminal, frame.size()) {
                    drop(resize(terminal, size));
                }
            }
            _ => {}
        }
    }
    let _ = reboot(RebootCommand::PowerOff);
}

/// Waits for the job, and for every orphan on the way, as an init must.
fn reap(job: Pid) -> Result<WaitStatus, Error> {
    loop {
        let waited = wait(WaitOptions::empty());
        match waited.context(|| "cannot wait for the job")? {
            Some((pid, status)) if pid == job => return Ok(status),
            _ => {}
        }
    }
}

/// Ends what the job left behind, so that its output comes to an end.
fn kill_the_rest() {
    // A killed process may just have started another; one that starts them faster is given up.
    for _ in 0..10 {
        let programs = programs();
        if programs.is_empty() {
            return;
        }
        for pid in programs {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Every process that is neither init nor dead nor the kernel's own: those have no command line.
fn programs() -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        Pid::from_raw(pid).filter(|_| pid != 1 && !line.is_empty())
    });
    pids.collect()
}
