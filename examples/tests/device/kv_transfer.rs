//! `kv_transfer` with every fault: no byte is wrong, no canary is damaged, and pages are free in time.

use std::time::{Duration, Instant};

use verbs_harness::{begin, device_name, peer_name, wire};

use crate::program::Program;

const KV_TRANSFER: &str = env!("CARGO_BIN_EXE_kv_transfer");

/// The pages of a request that ends early are free after so many milliseconds.
const FREE_MS: f64 = 1000.0;

/// 512 KiB a request.
const SMALL: [&str; 6] = ["--layers", "4", "--pages", "32", "--page", "4"];

/// A request takes a tenth of a second or more then.
const SLOW: [&str; 2] = ["rate", "40mbit"];

fn decode(devices: &str, words: &[&str]) -> Program {
    let words = [&["--devices", devices], &SMALL[..], words].concat();
    Program::serve(KV_TRANSFER, &words)
}

fn prefill(decode: &Program, devices: &str, words: &[&str]) -> Program {
    decode.client(KV_TRANSFER, &[&["--devices", devices], words].concat())
}

/// The number before `after` in a line that has `before`.
fn number(output: &str, before: &str, after: &str) -> f64 {
    let (_, rest) = output
        .split_once(before)
        .unwrap_or_else(|| panic!("{before}: {output}"));
    rest.split_once(after).unwrap().0.trim().parse().unwrap()
}

/// Waits for the end of decode, after so many requests, and checks what must always hold. Returns how
/// many ended early.
fn ends(decode: Program, requests: u32) -> u32 {
    let output = decode.succeeds();
    assert!(
        output.contains(": 0 wrong bytes, 0 of canaries"),
        "{output}"
    );
    let early = "their pages were free after";
    assert!(number(&output, early, "ms at most") < FREE_MS, "{output}");
    let lines = || output.lines();
    let ended = lines().find_map(|line| line.strip_suffix("at most")?.split_once(" ended early"));
    let ended: u32 = ended.unwrap().0.parse().unwrap();
    let done = lines()
        .find_map(|line| line.split_once(" requests of "))
        .unwrap();
    assert_eq!(done.0.parse::<u32>().unwrap() + ended, requests, "{output}");
    ended
}

/// The devices of two rails, for decode and for prefill: each rail goes over the wire.
fn crossed() -> (String, String) {
    let (here, there) = (device_name(), peer_name());
    (format!("{here},{there}"), format!("{there},{here}"))
}

/// The same, but the second rail does not: what happens to the wire does not touch it.
fn half_inside() -> (String, String) {
    let (here, there) = (device_name(), peer_name());
    (format!("{here},{here}"), format!("{there},{here}"))
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_arrive_over_one_rail_and_over_two() {
    let one = decode(&device_name(), &["-n", "3", "--count-rails"]);
    prefill(&one, &peer_name(), &["--chain", "5"]).succeeds();
    assert_eq!(ends(one, 3), 0);
    let (here, there) = crossed();
    let two = decode(&here, &["-n", "3"]);
    let output = prefill(&two, &there, &[]).succeeds();
    assert!(output.contains("384 pages written"), "{output}");
    assert_eq!(ends(two, 3), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_of_aborted_requests_are_used_again_at_once() {
    let (here, there) = crossed();
    let decode = decode(&here, &["-n", "6", "--abort-every", "2"]);
    prefill(&decode, &there, &[]).succeeds();
    assert_eq!(ends(decode, 6), 3);
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_of_a_lost_rail_go_over_the_other_until_it_is_back() {
    let (here, there) = crossed();
    let decode = decode(&here, &["-n", "4"]);
    let prefill = prefill(&decode, &there, &["--lose-every", "2"]);
    decode.prints("rail 0 failed");
    prefill.succeeds();
    assert_eq!(ends(decode, 4), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn rail_that_is_alone_and_lost_ends_its_request_only() {
    let decode = decode(&device_name(), &["-n", "4"]);
    prefill(&decode, &peer_name(), &["--lose-every", "2"]).succeeds();
    assert_eq!(ends(decode, 4), 2);
}

#[test]
#[ignore = "needs an RDMA device"]
fn deadline_holds_while_prefill_is_stopped() {
    let test = begin!(alone);
    let Some([_, there]) = wire::netdevs(&test) else {
        return;
    };
    let slow = wire::netem(&there, &SLOW);
    let decode = decode(&device_name(), &["-n", "4", "--deadline", "50"]);
    let prefill = prefill(&decode, &peer_name(), &[]);
    decode.prints("prefill is here: generation 1");
    prefill.freeze();
    let start = Instant::now();
    // A request takes longer on this wire. What prefill has posted goes on arriving.
    decode.prints("generation 1: its deadline has passed: its pages were free after ");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(slow);
    prefill.thaw();
    prefill.succeeds();
    assert!(ends(decode, 4) >= 1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn another_prefill_goes_on_where_one_was_killed() {
    let test = begin!(alone);
    let Some([_, there]) = wire::netdevs(&test) else {
        return;
    };
    let slow = wire::netem(&there, &SLOW);
    let decode = decode(&device_name(), &["-n", "3"]);
    let doomed = prefill(&decode, &peer_name(), &[]);
    decode.prints("prefill is here: generation 1");
    doomed.kill();
    decode.prints("prefill is gone");
    drop(slow);
    prefill(&decode, &peer_name(), &[]).succeeds();
    assert_eq!(ends(decode, 3), 1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn prefill_reports_that_decode_was_killed() {
    let (here, there) = crossed();
    let decode = decode(&here, &["-n", "1000000"]);
    let prefill = prefill(&decode, &there, &[]);
    decode.prints("prefill is here");
    decode.kill();
    let why = prefill.fails();
    assert!(why.contains("TCP"), "{why}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn rail_whose_link_goes_down_rejoins_when_it_is_up() {
    let test = begin!(alone);
    let Some([_, there]) = wire::netdevs(&test) else {
        return;
    };
    let (here_rails, there_rails) = half_inside();
    let slow = wire::netem(&there, &SLOW);
    let decode = decode(&here_rails, &["-n", "5"]);
    let prefill = prefill(&decode, &there_rails, &[]);
    decode.prints("prefill is here: generation 1");
    let down = wire::down(&there);
    decode.prints("rail 0 failed");
    drop(down);
    drop(slow);
    prefill.succeeds();
    assert_eq!(ends(decode, 5), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn packets_that_are_lost_damage_nothing() {
    let test = begin!(alone);
    let Some([here, there]) = wire::netdevs(&test) else {
        return;
    };
    let _lossy = [&here, &there]
        .map(|netdev| wire::netem(netdev, &["loss", "1%", "reorder", "5%", "delay", "1ms"]));
    let (here, there) = crossed();
    let decode = decode(&here, &["-n", "6", "--abort-every", "3"]);
    prefill(&decode, &there, &[]).succeeds();
    assert_eq!(ends(decode, 6), 2);
}
