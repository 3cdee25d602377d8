//! Soft-RoCE's guest, as a user meets it: run with `cargo test -p cargo-soft-roce --features
//! guest-tests`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod foreign;
mod siw;

use std::fs;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// However busy the machine is, nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(240);

/// `cargo soft-roce run --guest ARG…`
fn run(args: &[&str]) -> Command {
    let mut command = soft_roce("run");
    command.args(["--guest", "--no-install"]).args(args);
    command
}

/// `cargo soft-roce COMMAND`, as cargo calls it.
fn soft_roce(command: &str) -> Command {
    let mut program = quiet(env!("CARGO_BIN_EXE_cargo-soft-roce"));
    program.args(["soft-roce", command]);
    program
}

/// A program with its output for us.
fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a script in a guest.
fn sh(script: &str) -> Output {
    finish(run(&["--", "sh", "-c", script]).spawn().unwrap())
}

/// Waits for the end, which must come.
fn finish(mut child: Child) -> Output {
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it did not end in {} s", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    };
    Output {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        bytes
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
}

/// A folder of this test's own, empty.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Starts a job, and waits for its script to print `started`.
fn start(args: &[&str], script: &str) -> Child {
    let mut args = args.to_vec();
    args.extend(["--", "sh", "-c", script]);
    let mut child = run(&args).spawn().unwrap();
    let mut first = [0; 8];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"started\n");
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The emulators that belong to a process: their files are that process' own.
fn emulators(of: u32) -> usize {
    let mark = format!("/proc/{of}/fd/");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| text(line).contains(&mark)).count()
}

#[test]
fn two_devices_are_up_and_named_in_the_environment() {
    let output = sh("cat /sys/class/infiniband/$VERBS_DEVICE/ports/1/state \
         /sys/class/infiniband/$VERBS_PEER_DEVICE/ports/1/state; \
         cat /sys/class/net/$VERBS_NETDEV/mtu /sys/class/net/$VERBS_PEER_NETDEV/mtu; \
         echo $SOFT_ROCE; ulimit -l");
    assert_code(&output, 0);
    let expected = "4: ACTIVE\n4: ACTIVE\n4200\n4200\nguest\nunlimited\n";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn exit_codes_and_signals_come_back() {
    assert_code(&sh("exit 3"), 3);
    assert_code(&sh("kill -KILL $$"), 137);
}

#[test]
fn an_illegal_instruction_has_a_hint() {
    let output = sh("kill -ILL $$");
    assert_code(&output, 132);
    assert!(text(&output.stderr).contains("target-cpu"));
}

#[test]
fn output_is_whole() {
    let output = sh("head -c 33554432 /dev/zero; echo end >&2");
    assert_code(&output, 0);
    assert_eq!(output.stdout.len(), 33_554_432);
    assert!(output.stdout.iter().all(|&byte| byte == 0));
    assert_eq!(text(&output.stderr), "end\n");
}

#[test]
fn output_is_whole_for_a_slow_reader() {
    // More than waits on its way, and the job has ended long before it is read.
    let script = "head -c 1000000 /dev/zero; echo end >&2";
    let mut child = run(&["--", "sh", "-c", script]).spawn().unwrap();
    let mut first = [1];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    thread::sleep(Duration::from_secs(8));
    let output = finish(child);
    assert_code(&output, 0);
    assert_eq!(output.stdout.len(), 999_999);
    assert_eq!(text(&output.stderr), "end\n");
}

#[test]
fn a_reader_that_reads_nothing_has_no_longer_than_the_job() {
    // More than the pipe holds, and the job has ended.
    let script = "head -c 70000 /dev/zero";
    let mut child = run(&["--timeout", "15", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let unread = child.stdout.take();
    let output = finish(child);
    drop(unread);
    assert_code(&output, 124);
    assert!(text(&output.stderr).contains("nobody read"));
}

#[test]
fn a_reader_that_reads_nothing_keeps_no_interrupt_from_ending_the_run() {
    let mut child = start(&[], "trap '' INT; echo started; cat /dev/zero");
    let (pid, unread) = (child.id(), child.stdout.take());
    for _ in 0..2 {
        // The first one fills all buffers on its way.
        thread::sleep(Duration::from_secs(3));
        signal(&child, Signal::INT);
    }
    assert_code(&finish(child), 130);
    drop(unread);
    assert_eq!(emulators(pid), 0);
}

#[test]
fn a_reader_that_has_gone_ends_the_run() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut command = run(&["--", "cat", "/dev/zero"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let child = command.spawn().unwrap();
    // Its copies of the writing end.
    drop(command);
    reader.read_exact(&mut [0; 1]).unwrap();
    drop(reader);
    assert_code(&finish(child), 141);
}

#[test]
fn output_and_input_are_live() {
    // The job goes on only when its first line has been answered.
    let mut command = run(&[
        "--timeout",
        "60",
        "--",
        "sh",
        "-c",
        "echo ask; read it; echo $it",
    ]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 4];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"ask\n");
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"answer\n").unwrap();
    let output = finish(child);
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "answer\n");
}

#[test]
fn both_outputs_in_one_file_keep_their_order() {
    let file = scratch("order").join("log");
    let log = fs::File::create(&file).unwrap();
    let script = "for i in 1 2 3; do echo out$i; echo err$i >&2; done";
    let mut command = run(&["--", "sh", "-c", script]);
    command.stdout(log.try_clone().unwrap()).stderr(log);
    assert_code(&finish(command.spawn().unwrap()), 0);
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text, "out1\nerr1\nout2\nerr2\nout3\nerr3\n");
}

#[test]
fn input_is_whole() {
    let mut command = run(&["--", "sh", "-c", "sleep 1; tr a b | sort | uniq -c"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all("aaa\n".repeat(500_000).as_bytes()));
    let output = finish(child);
    writer.join().unwrap().unwrap();
    assert_eq!(text(&output.stdout).trim(), "500000 bbb");
}

#[test]
fn a_missing_program_is_named() {
    let output = finish(run(&["--", "/no/such/program"]).spawn().unwrap());
    assert_code(&output, 127);
    assert!(text(&output.stderr).contains("/no/such/program"));
}

#[test]
fn a_job_ends_when_its_time_is_over() {
    let child = start(&["--timeout", "10"], "echo started; sleep 1000");
    let (pid, begin) = (child.id(), Instant::now());
    let output = finish(child);
    assert_code(&output, 124);
    assert!(text(&output.stderr).contains("--timeout"));
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(emulators(pid), 0);
}

#[test]
fn kernel_panic_is_reported_and_the_job_not_started_again() {
    let dir = scratch("panic");
    let script = "echo started >> $SOFT_ROCE_RESULTS/log; sync; echo c > /proc/sysrq-trigger";
    let results = dir.to_str().unwrap();
    let output = run(&["--results", results, "--", "sh", "-c", script]).spawn();
    let output = finish(output.unwrap());
    assert_code(&output, 125);
    assert!(text(&output.stderr).contains("Kernel panic"));
    assert_eq!(fs::read_to_string(dir.join("log")).unwrap(), "started\n");
}

#[test]
fn an_interrupt_reaches_the_job() {
    let child = start(
        &[],
        "trap 'echo heard; exit 42' INT; echo started; while :; do sleep 0.1; done",
    );
    signal(&child, Signal::INT);
    let output = finish(child);
    assert_code(&output, 42);
    assert_eq!(text(&output.stdout), "heard\n");
}

#[test]
fn a_run_goes_on_without_its_terminal_if_it_was_started_so() {
    let mut command = quiet("nohup");
    command.args([env!("CARGO_BIN_EXE_cargo-soft-roce"), "soft-roce", "run"]);
    command.args(["--guest", "--no-install", "--", "sh", "-c"]);
    let mut child = command
        .arg("echo started; sleep 2; echo done")
        .spawn()
        .unwrap();
    let mut line = [0; 8];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut line).unwrap();
    signal(&child, Signal::HUP);
    let output = finish(child);
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "done\n");
}

#[test]
fn a_second_interrupt_stops_the_guest() {
    let child = start(
        &[],
        "trap '' INT; echo started; while :; do sleep 0.1; done",
    );
    signal(&child, Signal::INT);
    thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT);
    let pid = child.id();
    assert_code(&finish(child), 130);
    assert_eq!(emulators(pid), 0);
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    let mut child = start(&[], "echo started; sleep 1000");
    let pid = child.id();
    assert_eq!(emulators(pid), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while emulators(pid) > 0 {
        assert!(Instant::now() < deadline, "the emulator lives on");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn only_the_results_are_written_to_the_host() {
    let dir = scratch("results");
    let outside = scratch("outside").join("file");
    let script = format!(
        "echo inside > {0} && cat {0} && echo kept > $SOFT_ROCE_RESULTS/file",
        outside.display()
    );
    let results = dir.to_str().unwrap();
    let output = run(&["--results", results, "--", "sh", "-c", &script]).spawn();
    let output = finish(output.unwrap());
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "inside\n");
    assert!(!outside.exists());
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "kept\n");
}

#[test]
fn a_second_host_is_on_the_wire_and_may_die() {
    // It dies after they have connected; the first notices that it does not answer any more.
    let script = r"
        pingpong() { timeout 30 ibv_rc_pingpong -d $VERBS_DEVICE -g 1 -n 20 $1 >&2; }
        answers() { timeout 2 bash -c 'echo > /dev/tcp/$SOFT_ROCE_PEER/9' 2>&1 | grep -q refused; }
        tries() { for try in 1 2 3 4 5 6 7 8 9 10; do $@ && return; sleep 1; done; return 1; }
        silent() { ! answers; }
        if [ $SOFT_ROCE_HOST = 2 ]; then
            echo I am two; pingpong && echo b > /proc/sysrq-trigger; sleep 1000
        fi
        tries pingpong $SOFT_ROCE_PEER || exit 2
        tries silent || exit 3
        exit 7";
    let output = run(&["--hosts", "2", "--", "bash", "-c", script]).spawn();
    let output = finish(output.unwrap());
    assert_code(&output, 7);
    let err = text(&output.stderr);
    assert!(err.contains("[host 2] I am two"), "{err}");
    assert!(err.contains("host 2 has gone"), "{err}");
}

#[test]
fn a_guest_that_does_not_come_up_is_started_again() {
    let dir = scratch("retry");
    let name = format!("qemu-system-{}", std::env::consts::ARCH);
    let fake = dir.join(&name);
    let real = format!("/usr/bin/{name}");
    assert!(
        Path::new(&real).exists(),
        "this test knows QEMU at {real} only"
    );
    let mark = dir.join("mark");
    // Ends as a kernel's panic does, the first time.
    let script = format!(
        "#!/bin/sh\n[ -e {0} ] && exec {real} \"$@\"\ntouch {0}\nexit 0\n",
        mark.display()
    );
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = run(&["--", "echo", "up"]);
    command.env("PATH", format!("{}:{path}", dir.display()));
    let output = finish(command.spawn().unwrap());
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "up\n");
    assert!(text(&output.stderr).contains("trying again"));
}

#[test]
fn emulator_that_cannot_start_is_reported_at_once() {
    let dir = scratch("broken");
    let fake = dir.join(format!("qemu-system-{}", std::env::consts::ARCH));
    fs::write(&fake, "#!/bin/sh\necho no such machine >&2\nexit 1\n").unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = run(&["--accel", "tcg", "--", "echo", "up"]);
    command.env("PATH", format!("{}:{path}", dir.display()));
    let output = finish(command.spawn().unwrap());
    assert_code(&output, 125);
    let err = text(&output.stderr);
    assert!(
        err.contains("no such machine") && !err.contains("again"),
        "{err}"
    );
}

#[test]
fn a_damaged_kernel_is_fetched_again() {
    let dir = scratch("cache");
    let mut command = run(&["--", "true"]);
    assert_code(
        &finish(command.env("XDG_CACHE_HOME", &dir).spawn().unwrap()),
        0,
    );
    let image = dir.join("cargo-soft-roce/1/default/image");
    let whole = fs::read(&image).unwrap();
    fs::write(&image, &whole[..whole.len() / 2]).unwrap();
    let mut command = run(&["--", "echo", "up"]);
    let output = finish(command.env("XDG_CACHE_HOME", &dir).spawn().unwrap());
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "up\n");
    assert!(text(&output.stderr).contains("damaged"));
    assert!(fs::read(&image).unwrap() == whole);
    fs::remove_dir_all(&dir).unwrap();
}
