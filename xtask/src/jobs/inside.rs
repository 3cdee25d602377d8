//! The side that runs jobs, where the RDMA devices are: in the virtual machine, or on a host
//! that has them.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::plan::{self, Job};
use super::{END, OWN_LINES, START};
use crate::error::{Context as _, Error};
use crate::process::{self, exit_code, kill_tree};
use crate::stream::{self, Text};
use crate::test::libtest::starting;

/// How often processes are looked at.
const POLL: Duration = Duration::from_millis(10);

/// Runs every job of the plan in the file `path`, one after the other, and prints how each ended.
pub(crate) fn main(path: &str) -> Result<u8, Error> {
    let text = fs::read_to_string(path).context(|| format!("cannot read the jobs in {path}"))?;
    let mut code = 0;
    // Only the first machine reports; another one's output is shown beside it.
    let reports = env::var("SOFT_ROCE_HOST").map_or(true, |host| host == "1");
    let report = |text: String| if reports { print_line(&text) } else { Ok(()) };
    for job in plan::read(&text)? {
        report(format!("{START}{}", job.name))?;
        let failure = run(&job).unwrap_or_else(|error| Some((error.to_string(), 1)));
        match failure {
            None => report(format!("{END}0 {}", job.name))?,
            Some((why, failed)) => {
                let why = why.replace('\n', "; ");
                report(format!("{END}{failed} {}: {why}", job.name))?;
                code = if code == 0 { failed } else { code };
            }
        }
    }
    Ok(code)
}

/// Prints one line at once: this machine may die in the next moment.
fn print_line(line: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.context(|| "cannot write the job's output")
}

fn run(job: &Job) -> Result<Option<(String, u8)>, Error> {
    match job.commands.as_slice() {
        [only] => run_one(job, only),
        [server, clients @ ..] => Conversation::start(job, server)?.run(clients),
        [] => Err(Error::new("the job has no command")),
    }
}

/// Runs a test program. Its output goes on as it comes, and so does the name of a test that
/// starts: if this machine dies of it, that is the last output.
fn run_one(job: &Job, argv: &[String]) -> Result<Option<(String, u8)>, Error> {
    let mut printed = Ok(());
    let mut running = String::new();
    let mut print = |line: &str| {
        if printed.is_ok() {
            printed = print_line(line);
        }
    };
    let mut command = command(job, argv)?;
    let end = stream::run(&mut command, job.limits, |text| match text {
        Text::Line(line) => print(line),
        Text::Partial(text) if text != running && starting(text).is_some() => {
            running = text.to_owned();
            print(text);
        }
        _ => {}
    })?;
    printed?;
    Ok(end.failure())
}

fn command(job: &Job, argv: &[String]) -> Result<Command, Error> {
    let (program, args) = argv
        .split_first()
        .ok_or_else(|| Error::new("an empty command"))?;
    let mut command = Command::new(program);
    for arg in args {
        command.arg(match arg.as_str() {
            "{device}" => variable("VERBS_DEVICE")?,
            "{peer}" => variable("VERBS_PEER_DEVICE")?,
            other => other.to_owned(),
        });
    }
    let variables = job
        .env
        .iter()
        .filter_map(|variable| variable.split_once('='));
    command
        .envs(variables)
        .current_dir(&job.dir)
        .stdin(Stdio::null());
    Ok(command)
}

fn variable(name: &str) -> Result<String, Error> {
    env::var(name).context(|| format!("no RDMA device is named by {name}"))
}

/// A server and its clients. Their output is kept: shown whole if anything fails, else only the
/// lines that were meant for a reader.
struct Conversation<'a> {
    job: &'a Job,
    start: Instant,
    parts: Vec<Part>,
}

struct Part {
    name: String,
    child: Child,
    output: Scratch,
    code: Option<u8>,
}

impl<'a> Conversation<'a> {
    fn start(job: &'a Job, server: &[String]) -> Result<Self, Error> {
        let mut this = Self {
            job,
            start: Instant::now(),
            parts: Vec::new(),
        };
        this.add("server".into(), server)?;
        Ok(this)
    }

    fn add(&mut self, name: String, argv: &[String]) -> Result<(), Error> {
        let output = Scratch::new()?;
        let mut command = command(self.job, argv)?;
        command.stdout(output.handle()?).stderr(output.handle()?);
        let shown = process::display(&command);
        let child = command
            .spawn()
            .context(|| format!("cannot start `{shown}`"))?;
        let name = format!("{name}: {shown}");
        let code = None;
        self.parts.push(Part {
            name,
            child,
            output,
            code,
        });
        Ok(())
    }

    fn run(mut self, clients: &[Vec<String>]) -> Result<Option<(String, u8)>, Error> {
        let failure = match self.wait_for_server()? {
            None => {
                for (index, client) in clients.iter().enumerate() {
                    self.add(format!("client {}", index + 1), client)?;
                }
                self.wait_for_all()?
            }
            failure => failure,
        };
        for part in &mut self.parts {
            let text = part.output.text()?;
            if failure.is_some() {
                print_line(&format!("--- {}\n{}", part.name, text.trim_end()))?;
            } else {
                let is_own = |line: &&str| OWN_LINES.iter().any(|own| line.starts_with(own));
                for line in text.lines().filter(is_own) {
                    print_line(line)?;
                }
            }
        }
        Ok(failure)
    }

    /// Waits until the server listens.
    fn wait_for_server(&mut self) -> Result<Option<(String, u8)>, Error> {
        let port = self.job.port;
        while !is_listening(port, self.parts[0].child.id()) {
            if let Some(code) = self.parts[0].look()? {
                let why = format!("the server ended with {code} before it listened on port {port}");
                return Ok(Some((why, code.max(1))));
            }
            if self.is_late() {
                return Ok(Some((
                    format!("the server did not listen on port {port} in time"),
                    124,
                )));
            }
            thread::sleep(POLL);
        }
        Ok(None)
    }

    /// Waits until all have ended; the first that fails, or the time limit, ends the others.
    fn wait_for_all(&mut self) -> Result<Option<(String, u8)>, Error> {
        loop {
            let mut all_ended = true;
            for part in &mut self.parts {
                match part.look()? {
                    None => all_ended = false,
                    Some(0) => {}
                    Some(code) => {
                        let why = format!("{} ended with {code}", part.name);
                        return Ok(Some((why, code)));
                    }
                }
            }
            if all_ended {
                return Ok(None);
            }
            if self.is_late() {
                let seconds = self.job.limits.total.as_secs();
                return Ok(Some((
                    format!("stopped: its time limit of {seconds} s is over"),
                    124,
                )));
            }
            thread::sleep(POLL);
        }
    }

    fn is_late(&self) -> bool {
        self.start.elapsed() >= self.job.limits.total
    }
}

impl Part {
    /// The exit code, once it has ended.
    fn look(&mut self) -> Result<Option<u8>, Error> {
        if self.code.is_none() {
            let status = self.child.try_wait();
            let status = status.context(|| format!("cannot wait for {}", self.name))?;
            self.code = status.map(exit_code);
        }
        Ok(self.code)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.code.is_none() {
            kill_tree(self.child.id());
            // It was killed: this returns at once, and a failure cannot be reported.
            drop(self.child.wait());
        }
    }
}

/// A temporary file of this process only: it has no name once it is open.
#[derive(Debug)]
struct Scratch {
    file: File,
}

impl Scratch {
    fn new() -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
        let name = format!("xtask-{}-{count}-{nanos}", std::process::id());
        let path = env::temp_dir().join(name);
        let what = || format!("cannot make the temporary file {}", path.display());
        let file = File::options()
            .read(true)
            .append(true)
            .create_new(true)
            .open(&path)
            .context(what)?;
        fs::remove_file(&path).context(what)?;
        Ok(Self { file })
    }

    /// The same file once more, for a child to write to.
    fn handle(&self) -> Result<File, Error> {
        let handle = self.file.try_clone();
        handle.context(|| "cannot share a temporary file")
    }

    /// All that was written.
    fn text(&mut self) -> Result<String, Error> {
        let what = || "cannot read a child's output back";
        let mut bytes = Vec::new();
        self.file.rewind().context(what)?;
        self.file.read_to_end(&mut bytes).context(what)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether somebody listens on a port, in the network namespace of this process or of another one.
fn is_listening(port: u16, process: u32) -> bool {
    let listens = |table: &str| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| listens_on(line, port))
    };
    let places = ["self", &process.to_string()].map(|process| format!("/proc/{process}/net"));
    let mut tables = places
        .iter()
        .flat_map(|place| ["tcp", "tcp6"].map(|it| format!("{place}/{it}")));
    tables.any(|table| listens(&table))
}

/// Reads `  0: 0100007F:4853 00000000:0000 0A …`: number, own end, other end, state.
fn listens_on(line: &str, port: u16) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let own = fields.next().and_then(|own| own.rsplit_once(':'));
    let state = fields.nth(1);
    let is_it = |(_, hex): (&str, &str)| u16::from_str_radix(hex, 16) == Ok(port);
    state == Some("0A") && own.is_some_and(is_it)
}

#[cfg(test)]
mod tests {
    use super::{is_listening, listens_on, run};
    use crate::jobs::plan::Job;
    use crate::stream::Limits;
    use std::net::TcpListener;
    use std::process;
    use std::time::{Duration, Instant};

    fn job(scripts: &[&str], port: u16) -> Job {
        let command = |script: &&str| vec!["sh".into(), "-c".into(), (*script).into()];
        Job {
            name: "try".into(),
            dir: "/".into(),
            env: vec!["WORD=b c".into()],
            limits: Limits {
                total: Duration::from_millis(500),
                silence: Duration::from_secs(60),
            },
            commands: scripts.iter().map(command).collect(),
            port,
        }
    }

    #[test]
    fn a_listening_port_is_seen_and_a_free_one_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = process::id();
        assert!(is_listening(port, own));
        // No program uses port 1, and none can listen on port 0.
        assert!(!is_listening(1, own) && !is_listening(0, own));
    }

    #[test]
    fn a_connection_is_no_listener() {
        assert!(listens_on("  0: 0100007F:4853 00000000:0000 0A 0", 0x4853));
        assert!(!listens_on("  0: 0100007F:4853 0100007F:1234 01 0", 0x4853));
    }

    #[test]
    fn one_program_passes_on_its_code_and_sees_its_environment() {
        assert_eq!(run(&job(&["test \"$WORD\" = 'b c'"], 0)).unwrap(), None);
        assert_eq!(
            run(&job(&["exit 7"], 0)).unwrap().map(|(_, code)| code),
            Some(7)
        );
    }

    #[test]
    fn a_server_that_ends_too_early_or_never_listens_is_a_failure() {
        let early = run(&job(&["exit 0", "exit 0"], 1)).unwrap().unwrap();
        assert!(early.0.contains("before it listened"), "{early:?}");
        let never = run(&job(&["sleep 50", "exit 0"], 1)).unwrap().unwrap();
        assert!(never.0.contains("did not listen"), "{never:?}");
    }

    #[test]
    fn a_conversation_ends_with_its_first_failure_or_at_its_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let start = Instant::now();
        assert_eq!(
            run(&job(&["exit 0", "exit 0", "sleep 0.1"], port)).unwrap(),
            None
        );
        let failed = run(&job(&["sleep 50", "exit 9"], port)).unwrap().unwrap();
        assert_eq!(failed.1, 9);
        let late = run(&job(&["sleep 50", "exit 0"], port)).unwrap().unwrap();
        assert_eq!(late.1, 124);
        assert!(start.elapsed() < Duration::from_secs(40));
    }
}
