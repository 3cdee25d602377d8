//! The number of system calls: none while completions keep arriving, and for a sleep those to arm
//! the queue once and to take one event. Busy polling sleeps only after its time has passed.
//!
//! `strace` watches a process of its own, between two calls that nothing else makes.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use verbs_async::verbs_channel::BufferPool;
use verbs_async::{AsyncChannel, Operation};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{Test, begin, device_name, is_soft, peer_name};

use super::ends::{PATIENCE, WAYS, Way, alone, block, buffer, connect, run};

/// Completions that come without a pause.
const READY: usize = 40;

/// Rounds in which each end sleeps once.
const ROUNDS: usize = 10;

/// Bytes that take a device a while.
const LONG: usize = 1 << 20;

/// A busy-poll time in which nothing completes.
const A_MOMENT: Duration = Duration::from_millis(2);

/// The part that the traced process runs between the marks.
#[derive(Clone, Copy)]
enum Part {
    KeepComing,
    SleepForEach,
    PollBusily,
    PollBusilyInVain,
}

/// A system call that nothing else makes, to be found among others.
fn mark() {
    // SAFETY: the call only returns a number.
    unsafe { libc::getpgid(0) };
}

/// An end of the wire.
struct End {
    channel: AsyncChannel,
    pool: BufferPool,
}

impl End {
    fn send(&self) -> Operation {
        self.channel.send(block(&self.pool, &[1; 8]))
    }

    fn receive(&self) -> Operation {
        self.channel.receive(block(&self.pool, &[0; 8]))
    }
}

/// Messages that have arrived before they are awaited, and new receives in their places: on this
/// device a post needs no system call.
async fn keep_coming(here: &End, there: &End) {
    let mut receives = [(); READY].map(|()| here.receive());
    for measured in [false, true] {
        for _ in 0..READY {
            there.send().await.0.unwrap();
        }
        if measured {
            mark();
        }
        for receive in &mut receives {
            let (received, bytes) = (&mut *receive).await;
            received.unwrap();
            assert_eq!(bytes[..], [1; 8]);
            drop(bytes);
            *receive = here.receive();
        }
    }
    mark();
}

/// Each end is polled only when it is woken: if the end of one had the other polled, a completion could be found
/// before its event is taken, and the next sleep would need no arming.
async fn sleep_for_each(here: &End, there: &End) {
    mark();
    for _ in 0..ROUNDS {
        let receive: BoxFuture<'_, _> = Box::pin(here.receive());
        // Begun when the receive sleeps.
        let send: BoxFuture<'_, _> = Box::pin(async { there.send().await });
        let mut ends: FuturesUnordered<_> = [receive, send].into_iter().collect();
        while let Some((result, _)) = ends.next().await {
            result.unwrap();
        }
    }
    mark();
}

/// Each completes within the busy-poll time, but not at once: it is long.
async fn poll_busily(here: &End, there: &End) {
    let long = |end: &End| buffer(end.channel.pd(), &vec![0; LONG]);
    let (mut to, mut from) = (long(here), long(there));
    mark();
    for _ in 0..ROUNDS {
        let receive = here.channel.receive(to);
        let send = there.channel.send(from);
        let (received, sent) = (receive.await, send.await);
        received.0.unwrap();
        sent.0.unwrap();
        (to, from) = (received.1, sent.1);
    }
    mark();
}

/// The traced process.
fn be_watched(way: &str, mut line: Line, part: Part) {
    let found = WAYS.into_iter().find(|each| format!("{each:?}") == way);
    let way = found.unwrap();
    run(way, async move {
        let groups = [device_name(), peer_name()].map(|device| alone(way, &device));
        for group in &groups {
            group.set_busy_poll(part.busy_poll());
        }
        let (here, there) = connect(&groups[0], &groups[1]);
        let [here, there] = [here, there].map(|channel| End {
            pool: BufferPool::new(channel.pd(), 8, 2 * READY).unwrap(),
            channel,
        });
        line.is_slow();
        line.write(&std::process::id().to_string());
        line.read();
        let start = Instant::now();
        match part {
            Part::KeepComing => keep_coming(&here, &there).await,
            Part::PollBusily => poll_busily(&here, &there).await,
            Part::SleepForEach | Part::PollBusilyInVain => sleep_for_each(&here, &there).await,
        }
        assert!(start.elapsed() >= part.at_least());
        line.write("done");
        line.read();
    });
}

impl Part {
    const fn busy_poll(self) -> Duration {
        match self {
            Self::KeepComing | Self::SleepForEach => Duration::ZERO,
            Self::PollBusily => PATIENCE,
            Self::PollBusilyInVain => A_MOMENT,
        }
    }

    fn at_least(self) -> Duration {
        match self {
            // Each receive is awaited before its message is sent.
            Self::PollBusilyInVain => A_MOMENT * u32::try_from(ROUNDS).unwrap(),
            _ => Duration::ZERO,
        }
    }
}

/// The system calls between the marks.
#[derive(Debug)]
struct Calls {
    // All calls of the thread that marked.
    own: Vec<String>,
    // Number of arms in all threads.
    arms: usize,
    events: usize,
}

/// Traces a process that runs this part; `None` if that is not possible here.
fn watch(test: &Test, way: Way) -> Option<Calls> {
    if !is_soft() {
        test.skip("only of soft-RoCE is it known which calls are whose");
        return None;
    }
    let mut child = Child::start(test, &format!("{way:?}"));
    child.line.is_slow();
    let watched = child.line.read();
    // The file's name is unique, as other tests are watched at the same time.
    let trace = env::temp_dir().join(format!("verbs-async-{watched}"));
    let watcher = Command::new("strace")
        .args(["-f", "-y", "-x", "-s", "4", "-o"])
        .arg(&trace)
        .args(["-p", &watched])
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut watcher) = watcher else {
        test.skip("there is no strace");
        return None;
    };
    let mut output = String::new();
    let mut stderr = BufReader::new(watcher.stderr.take().unwrap());
    stderr.read_line(&mut output).unwrap();
    assert!(output.contains("attached"), "{output}");
    child.line.write("go");
    child.line.read();
    child.kill();
    watcher.wait().unwrap();
    let text = fs::read_to_string(&trace).unwrap();
    fs::remove_file(&trace).ok();
    Some(calls(&text))
}

/// Reads what strace wrote: `THREAD CALL(…) = RESULT` in each line.
fn calls(text: &str) -> Calls {
    let lines: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(thread, call)| (thread, call.trim_start()))
        .collect();
    let marks: Vec<_> = (0..lines.len())
        .filter(|at| lines[*at].1.starts_with("getpgid("))
        .collect();
    let [first, last] = marks[..] else {
        panic!("{} marks", marks.len());
    };
    let between = &lines[first + 1..last];
    let count = |is: fn(&str) -> bool| between.iter().filter(|(_, call)| is(call)).count();
    let thread = lines[first].0;
    Calls {
        own: between
            .iter()
            .filter(|(whose, _)| *whose == thread)
            // The end of the first mark, if another thread's call came in between.
            .filter(|(_, call)| !call.starts_with("<... getpgid resumed>"))
            .map(|(_, call)| (*call).to_owned())
            .collect(),
        // Other writes are doorbells.
        arms: count(|call| {
            let req_notify = call.starts_with("ioctl(") || call.contains(r#""\x17\x00"#);
            req_notify && call.contains("uverbs")
        }),
        events: count(|call| call.starts_with("read(") && call.contains("infinibandevent")),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_system_calls_while_completions_keep_arriving() {
    if let Some((way, line)) = role() {
        return be_watched(&way, line, Part::KeepComing);
    }
    let test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let Some(calls) = watch(&test, way) else {
            return;
        };
        assert!(calls.own.is_empty(), "{way:?}: {calls:#?}");
        assert_eq!((calls.arms, calls.events), (0, 0), "{way:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_sleep_arms_once_and_takes_one_event() {
    if let Some((way, line)) = role() {
        return be_watched(&way, line, Part::SleepForEach);
    }
    each_sleep_arms_once_and_takes_one_event(&begin!(iwarp lacks "sends that wait for a receive"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn completion_within_the_busy_poll_time_costs_no_sleep() {
    if let Some((way, line)) = role() {
        return be_watched(&way, line, Part::PollBusily);
    }
    let test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let Some(calls) = watch(&test, way) else {
            return;
        };
        assert_eq!((calls.arms, calls.events), (0, 0), "{way:?}: {calls:#?}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn completion_after_the_busy_poll_time_wakes_the_task() {
    if let Some((way, line)) = role() {
        return be_watched(&way, line, Part::PollBusilyInVain);
    }
    each_sleep_arms_once_and_takes_one_event(&begin!(iwarp lacks "sends that wait for a receive"));
}

fn each_sleep_arms_once_and_takes_one_event(test: &Test) {
    for way in WAYS {
        let Some(calls) = watch(test, way) else {
            return;
        };
        // Each end, in each round.
        let sleeps = 2 * ROUNDS;
        let Calls { arms, events, .. } = calls;
        assert!(arms >= ROUNDS && arms <= sleeps, "{way:?}: {arms} arms");
        assert!(
            events >= ROUNDS && events <= arms,
            "{way:?}: {events} events, {arms} arms"
        );
    }
}
