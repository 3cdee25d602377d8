//! The client's processes: started, counted, and some of them killed.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Latencies, Measured, say};
use serde::{Deserialize, Serialize};

use crate::Options;

/// Reports of a process, a line each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// All of its connections are open. It waits for a line before it begins.
    Connected,
    /// Each of its connections has had an answer.
    UnderWay,
    /// All is done: the time that each request took in nanoseconds, but for those of slow connections.
    Done(Vec<u64>),
}

impl Report {
    pub(crate) fn print(&self) -> Result<(), Failure> {
        say(serde_json::to_string(self)?)
    }
}

/// A process, which is killed when this is dropped.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        // Most have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A report from the process of this number, or why it ended.
type Came = (u32, Result<Report, Failure>);

/// Runs all processes, the server being on this host.
pub(crate) fn run(options: &Options, host: &str) -> Result<(), Failure> {
    let (sender, came) = mpsc::channel();
    let numbers = 1..=options.processes + options.kill;
    let mut parts: Vec<_> = numbers
        .map(|number| start(number, &sender))
        .collect::<Result<_, _>>()?;
    drop(sender);
    let mut running: BTreeSet<_> = (1..).take(parts.len()).collect();
    let next = |running: &BTreeSet<u32>| {
        loop {
            let (number, report) = came.recv().context(|| "all processes have ended")?;
            // One that was killed has ended without a report.
            if running.contains(&number) {
                let report = report.context(|| format!("process {number}"))?;
                return Ok::<_, Failure>((number, report));
            }
        }
    };
    for _ in 0..parts.len() {
        let (number, report) = next(&running)?;
        if !matches!(report, Report::Connected) {
            return Err(Failure::new(format!(
                "process {number} is out of step: {report:?}"
            )));
        }
    }
    let start = Instant::now();
    for part in &mut parts {
        if let Some(mut input) = part.0.stdin.take() {
            input.write_all(b"\n").context(|| "cannot start all")?;
        }
    }
    let mut nanos = Vec::new();
    while !running.is_empty() {
        match next(&running)? {
            (number, Report::UnderWay) if number > options.processes => {
                let _runs = running.remove(&number);
                if let Some(doomed) = parts.get_mut(usize::try_from(number)? - 1) {
                    doomed.0.kill()?;
                }
            }
            (_, Report::UnderWay | Report::Connected) => {}
            (number, Report::Done(part)) => {
                let _ran = running.remove(&number);
                nanos.extend(part);
            }
        }
    }
    let took = start.elapsed();
    print(options, host, nanos, took)
}

/// Starts this program again, as one of the processes.
fn start(number: u32, sender: &Sender<Came>) -> Result<Part, Failure> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(env::args_os().skip(1))
        .args(["--part", &number.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context(|| "cannot start a process")?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let sender = sender.clone();
    thread::spawn(move || {
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
        for line in lines.map_while(Result::ok) {
            let report: Result<Report, _> = serde_json::from_str(&line);
            let is_last = matches!(report, Ok(Report::Done(_)) | Err(_));
            drop(sender.send((number, report.map_err(Failure::from))));
            if is_last {
                return;
            }
        }
        // The line of its error, if it was not killed.
        let mut why = String::new();
        let read = err.map(|mut err| err.read_to_string(&mut why));
        let why = match read {
            Some(Ok(len)) if len > 0 => why.trim_end().trim_start_matches("many_clients: "),
            _ => "it ended early",
        };
        drop(sender.send((number, Err(Failure::new(why)))));
    });
    Ok(Part(child))
}

fn print(options: &Options, host: &str, nanos: Vec<u64>, took: Duration) -> Result<(), Failure> {
    let Options {
        processes,
        connections,
        count,
        kill,
        ..
    } = *options;
    let slow = processes * options.slow.min(connections);
    let all = processes * connections;
    let requests = u64::from(all) * u64::from(count);
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "shown without digits")]
    let rate = requests as f64 / seconds;
    say(format_args!(
        "{all} connections to {host} in {processes} processes, {slow} of them slow; {kill} further processes were killed"
    ))?;
    say(format_args!(
        "{requests} requests in {seconds:.2} seconds, {rate:.0} requests/s, each byte checked"
    ))?;
    let latencies = nanos.into_iter().map(Duration::from_nanos).collect();
    say(Latencies::new(latencies))?;
    Measured::new("request", options.size.into(), requests, took, true).print()
}
