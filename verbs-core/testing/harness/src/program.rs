//! A program that runs, its output, and waits with a timeout.
#![expect(missing_docs, reason = "the names say it")]

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// No wait lasts longer: whatever is waited for has failed then.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Program {
    name: &'static str,
    child: Child,
    out: Output,
    err: Output,
    // The port it listens on, if it is a server.
    port: String,
}

/// The output so far; whether that is all.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<(String, bool)>>);

impl Output {
    fn read(from: impl Read + Send + 'static) -> Self {
        let output = Self::default();
        let writer = output.clone();
        thread::spawn(move || {
            let mut lines = BufReader::new(from);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|len| len > 0) {
                writer.0.lock().unwrap().0.push_str(&line);
                line.clear();
            }
            writer.0.lock().unwrap().1 = true;
        });
        output
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().0.clone()
    }

    fn is_all(&self) -> bool {
        self.0.lock().unwrap().1
    }
}

impl Program {
    pub fn start(program: &'static str, words: &[&str], device: &str) -> Self {
        let mut command = Command::new(program);
        // Before the words of a subcommand.
        if let Ok(device) = env::var(device) {
            command.args(["-d", &device]);
        }
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            name: program.rsplit('/').next().unwrap(),
            out: Output::read(child.stdout.take().unwrap()),
            err: Output::read(child.stderr.take().unwrap()),
            child,
            port: String::new(),
        }
    }

    /// Starts a server, on whichever port is free, and waits until it listens.
    pub fn serve(program: &'static str, words: &[&str]) -> Self {
        let words = [&["-p", "0", "--wait", "60"], words].concat();
        let mut server = Self::start(program, &words, "VERBS_DEVICE");
        server.port = server.prints_after("TCP port ");
        server
    }

    /// Whether its output has ended.
    pub fn is_over(&self) -> bool {
        self.out.is_all()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port that this server listens on.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Starts a client of this server.
    #[must_use]
    pub fn client(&self, program: &'static str, words: &[&str]) -> Self {
        let words = [&["-p", &self.port, "localhost"], words].concat();
        // A device need not have a peer: it is its own.
        let device = ["VERBS_PEER_DEVICE", "VERBS_DEVICE"];
        let device = device.into_iter().find(|name| env::var(name).is_ok());
        Self::start(program, &words, device.unwrap_or_default())
    }

    /// Waits until it has printed this.
    pub fn prints(&self, this: &str) {
        self.waits_for(|| {
            // In whole lines.
            let output = self.out.text();
            let there = output.contains(this);
            assert!(
                there || !self.out.is_all(),
                "{}: {output}{}",
                self.name,
                self.err.text()
            );
            there
        });
    }

    pub fn has_printed(&self, this: &str) -> bool {
        self.printed().contains(this)
    }

    /// Its output so far.
    pub fn printed(&self) -> String {
        self.out.text()
    }

    /// Waits until it has printed this. Returns the rest of that line.
    pub fn prints_after(&self, this: &str) -> String {
        self.prints(this);
        let output = self.out.text();
        let (_, after) = output.split_once(this).unwrap();
        after.lines().next().unwrap().to_owned()
    }

    pub fn waits_for(&self, mut what: impl FnMut() -> bool) {
        let start = Instant::now();
        while !what() {
            let (out, err) = (self.out.text(), self.err.text());
            assert!(start.elapsed() < LIMIT, "{}: {out}{err}", self.name);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the client of this number is under way.
    pub fn has(&self, number: u32) {
        self.prints(&format!("client {number} is here"));
        thread::sleep(Duration::from_millis(300));
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        let _status = self.child.wait().unwrap();
    }

    /// Stops the process until it is killed, or goes on; its device still works.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    /// Lets a stopped process go on.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Presses Ctrl-C.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for its end, which is a success. Returns its output.
    pub fn succeeds(mut self) -> String {
        let status = self.end();
        let (out, err) = (self.out.text(), self.err.text());
        assert!(status.success(), "{}: {status}: {out}{err}", self.name);
        assert_eq!(err, "", "{}", self.name);
        out
    }

    /// Waits for its end, which is a failure. Returns the one line of the error.
    pub fn fails(mut self) -> String {
        let status = self.end();
        let err = self.err.text();
        assert_eq!(status.code(), Some(1), "{}: {err}", self.name);
        assert_eq!(err.lines().count(), 1, "{}: {err}", self.name);
        assert!(err.starts_with(&format!("{}: ", self.name)), "{err}");
        err
    }

    /// Waits for its end, whatever that is. Returns its errors.
    pub fn ends(mut self) -> String {
        let _status = self.end();
        self.err.text()
    }

    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.waits_for(|| self.out.is_all() && self.err.is_all());
                return status;
            }
            let (out, err) = (self.out.text(), self.err.text());
            assert!(
                start.elapsed() < LIMIT,
                "{} does not end: {out}{err}",
                self.name
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Most have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A directory of one's own, which goes when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbs-examples-{}-{number}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
