//! `kv_transfer` with every fault: no byte is wrong, no canary is damaged, pages are free in time, and nothing is
//! leaked.
//!
//! A program that succeeds has closed its devices, which fails while any of their objects is left, and has
//! written nothing to standard error, where the libraries log what they leak.

use std::fs;
use std::ops::Range;

use verbs_harness::{begin, device_name, peer_name, wire};

use verbs_harness::program::Program;

const KV_TRANSFER: &str = env!("CARGO_BIN_EXE_kv_transfer");

/// The pages of a request that ends early are free after this many milliseconds.
const FREE_MS: f64 = 1000.0;

/// 128 pages, 512 KiB a request.
const SMALL: [&str; 4] = ["--pages", "128", "--page", "4"];

/// 64 pages, 8 MiB a request: prefill posts all at once.
const LARGE: [&str; 4] = ["--pages", "64", "--page", "128"];

/// 512 pages of 1 KiB: more than decode has receives posted.
const MANY: [&str; 4] = ["--pages", "512", "--page", "1"];

/// A small request takes a fifth of a second or more then, and a large one 3.4 s.
const SLOW: [&str; 2] = ["rate", "20mbit"];

fn decode(devices: &str, size: &[&str], words: &[&str]) -> Program {
    let words = [&["--devices", devices], size, words].concat();
    Program::serve(KV_TRANSFER, &words)
}

fn prefill(decode: &Program, devices: &str, size: &[&str], words: &[&str]) -> Program {
    let words = [&["--devices", devices], size, words].concat();
    decode.client(KV_TRANSFER, &words)
}

/// The number before `after` in the rest of a line that begins with `before`.
fn number(output: &str, before: &str, after: &str) -> f64 {
    let (_, rest) = output
        .split_once(before)
        .unwrap_or_else(|| panic!("{before}: {output}"));
    rest.split_once(after).unwrap().0.trim().parse().unwrap()
}

/// The end of decode, after `requests` requests: checks what must always hold. Returns its output.
fn ends(decode: Program, requests: u32, early: Range<u32>) -> String {
    let output = decode.succeeds();
    assert!(
        output.contains(": 0 wrong bytes, 0 of canaries"),
        "{output}"
    );
    let free = "their pages were free after";
    assert!(number(&output, free, "ms at most") < FREE_MS, "{output}");
    let line = |part: &str| output.lines().find_map(|line| line.split_once(part));
    let done: u32 = line(" requests of ").unwrap().0.parse().unwrap();
    let ended: u32 = line(" ended early").unwrap().0.parse().unwrap();
    assert_eq!(done + ended, requests, "{output}");
    assert!(early.contains(&ended), "{output}");
    output
}

/// How many pages the rails of prefill have written.
fn written(output: &str) -> u32 {
    let lines = output.lines().filter_map(|line| {
        let (rail, _) = line.split_once(" pages written")?;
        rail.rsplit(' ').next()?.parse::<u32>().ok()
    });
    lines.sum()
}

/// How often the rail of this device came up.
fn ups(output: &str, device: &str) -> usize {
    let up = format!("rail {device} is up");
    output.lines().filter(|line| *line == up).count()
}

/// The devices of two rails, for decode and for prefill: each rail goes over the wire.
fn crossed() -> (String, String) {
    let (here, there) = (device_name(), peer_name());
    (format!("{here},{there}"), format!("{there},{here}"))
}

/// Waits until this many bytes have left an interface from now on.
fn moves(program: &Program, netdev: &str, bytes: u64) {
    let file = format!("/sys/class/net/{netdev}/statistics/tx_bytes");
    let sent = || -> u64 { fs::read_to_string(&file).unwrap().trim().parse().unwrap() };
    let before = sent();
    program.waits_for(|| sent() >= before + bytes);
}

/// How many TCP connections the port of decode has.
fn connections(decode: &Program) -> usize {
    let port: u16 = decode.port().parse().unwrap();
    // The local address, the remote one, and the state: 1 is ESTABLISHED.
    let (local, state) = (format!(":{port:04X}"), "01");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap());
    let lines = tables.iter().flat_map(|table| table.lines());
    let sockets = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_its = |words: &Vec<&str>| words[1].ends_with(&local) && words[3] == state;
    sockets.filter(is_its).count()
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_arrive_over_one_rail_and_over_two() {
    let _test = begin!(iwarp lacks "immediates");
    let one = decode(&device_name(), &SMALL, &["-n", "3", "--count-rails"]);
    let output = prefill(&one, &peer_name(), &SMALL, &["--chain", "5"]).succeeds();
    assert_eq!(written(&output), 384, "{output}");
    ends(one, 3, 0..1);
    let (here, there) = crossed();
    let two = decode(&here, &SMALL, &["-n", "3"]);
    let output = prefill(&two, &there, &SMALL, &[]).succeeds();
    // Each rail has half of them, from the first request on.
    assert_eq!(output.matches(": 192 pages written").count(), 2, "{output}");
    let output = ends(two, 3, 0..1);
    assert_eq!(ups(&output, &device_name()), 1, "{output}");
    assert_eq!(ups(&output, &peer_name()), 1, "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_of_aborted_requests_are_used_again_at_once() {
    let _test = begin!(alone, iwarp lacks "immediates");
    let (here, there) = crossed();
    // Long ones: between half of a request and all of it there is time to abort it.
    let decode = decode(&here, &LARGE, &["-n", "4", "--abort-every", "2"]);
    let output = prefill(&decode, &there, &LARGE, &[]).succeeds();
    assert!(
        number(&output, "quiesced after", "ms") < FREE_MS,
        "{output}"
    );
    // One that is done before it would be aborted is not.
    let output = ends(decode, 4, 1..3);
    assert!(output.contains(": aborted with "), "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_of_a_lost_rail_go_over_the_other_until_it_is_back() {
    let _test = begin!(iwarp lacks "immediates");
    let (here, there) = crossed();
    let decode = decode(&here, &SMALL, &["-n", "5"]);
    prefill(&decode, &there, &SMALL, &["--lose-every", "2"]).succeeds();
    let output = ends(decode, 5, 0..1);
    let failed = format!("rail {} failed", device_name());
    assert_eq!(output.matches(&failed).count(), 2, "{output}");
    assert_eq!(ups(&output, &device_name()), 3, "{output}");
    assert_eq!(ups(&output, &peer_name()), 1, "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn stopped_prefill_writes_nothing_into_pages_that_are_used_again() {
    let test = begin!(alone, iwarp lacks "immediates");
    let Some([_, there]) = wire::links(&test) else {
        return;
    };
    let slow = wire::netem(&there, &SLOW);
    let decode = decode(&device_name(), &LARGE, &["-n", "4", "--deadline", "1500"]);
    // Both are connected over TCP before the first request begins. The second is not slowed down by the wire:
    // it writes into the pages as soon as they are free, while the device of the first would still write. That
    // needs two seconds more for what it was given. Until the second is connected, decode looks whether
    // anything is written to the free pages: all of that, if their queue pair is destroyed later than decode reports.
    decode.freeze();
    let [stopped, next] = [(&peer_name(), 1), (&device_name(), 2)].map(|(device, connected)| {
        let prefill = prefill(&decode, device, &LARGE, &["--timeout", "60"]);
        prefill.waits_for(|| connections(&decode) == connected);
        prefill
    });
    decode.thaw();
    moves(&stopped, &there, 300_000);
    stopped.freeze();
    let came = decode.prints_after("generation 1: its deadline has passed with ");
    assert!(number(&came, "", " of 64") < 64.0, "{came}");
    next.succeeds();
    ends(decode, 4, 1..4);
    drop(slow);
    stopped.thaw();
    let took = stopped.prints_after("quiesced after ");
    assert!(number(&took, "", "ms") < FREE_MS, "{took}");
    let why = stopped.fails();
    assert!(why.contains("is the server started?"), "{why}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn another_prefill_goes_on_where_one_was_killed() {
    let test = begin!(alone, iwarp lacks "immediates");
    let Some([_, there]) = wire::links(&test) else {
        return;
    };
    let slow = wire::netem(&there, &SLOW);
    let decode = decode(&device_name(), &SMALL, &["-n", "3"]);
    let doomed = prefill(&decode, &peer_name(), &SMALL, &[]);
    moves(&doomed, &there, 100_000);
    doomed.kill();
    decode.prints("all rails have failed: its pages were free after");
    drop(slow);
    prefill(&decode, &peer_name(), &SMALL, &[]).succeeds();
    ends(decode, 3, 1..2);
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_allocate_nothing() {
    let _test = begin!(iwarp lacks "immediates");
    let decode = decode(&device_name(), &MANY, &["-n", "1"]);
    let written = prefill(&decode, &peer_name(), &MANY, &[]).succeeds();
    // Some for the request, and for the first chains.
    for output in [written, ends(decode, 1, 0..1)] {
        let (costs, _) = output.split_once(" allocations a page").unwrap();
        let each: f64 = costs.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(each < 0.1, "{output}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn huge_pages_are_used_where_they_are_reserved() {
    let test = begin!(alone, iwarp lacks "immediates");
    let file = "/proc/sys/vm/nr_hugepages";
    let before = fs::read_to_string(file).unwrap();
    if let Err(error) = fs::write(file, "0") {
        return test.skip(format!("cannot reserve huge pages: {error}"));
    }
    let huge = [&SMALL[..], &["--memory", "huge"]].concat();
    let start = |words: &[&str]| Program::start(KV_TRANSFER, words, "VERBS_DEVICE");
    let why = start(&huge).fails();
    assert!(
        why.contains("no 1 huge pages: vm.nr_hugepages reserves them"),
        "{why}"
    );
    fs::write(file, "2").unwrap();
    let decode = decode(&device_name(), &SMALL, &["-n", "2", "--memory", "huge"]);
    prefill(&decode, &peer_name(), &SMALL, &["--memory", "huge"]).succeeds();
    ends(decode, 2, 0..1);
    fs::write(file, before).unwrap();
}
