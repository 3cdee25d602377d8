//! The programs on an RDMA device, each with its peer, and their errors when the peer is killed.
//!
//! The device is named by `VERBS_DEVICE`, `VERBS_PEER_DEVICE` is the other end of the wire. Run all
//! with `cargo xtask soft-roce test`, or on a NIC with
//! `VERBS_DEVICE=mlx5_0 cargo test -p programs -- --ignored`.
#![cfg(test)]

mod copies;
mod kv_transfer;
mod nvme;
mod nvme_target;
mod p9;
mod p9_raw;
mod perf;

use std::fs;
use std::thread;
use std::time::Duration;

use verbs_harness::begin;
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::program::{Program, Scratch};

const ASYNC_ECHO: &str = env!("CARGO_BIN_EXE_async_echo");
const SMOL_ECHO: &str = env!("CARGO_BIN_EXE_smol_echo");
const KV_STORE: &str = env!("CARGO_BIN_EXE_kv_store");
const MANY_CLIENTS: &str = env!("CARGO_BIN_EXE_many_clients");
const ASYNC_KV: &str = env!("CARGO_BIN_EXE_async_kv");
const HTTP: &str = env!("CARGO_BIN_EXE_http_over_rdma");
const CHANNEL_ECHO: &str = env!("CARGO_BIN_EXE_channel_echo");
const DATAGRAM_ECHO: &str = env!("CARGO_BIN_EXE_datagram_echo");
const ATOMIC_COUNTER: &str = env!("CARGO_BIN_EXE_atomic_counter");
const READ_WRITE: &str = env!("CARGO_BIN_EXE_rdma_read_write");
const PINGPONG: &str = env!("CARGO_BIN_EXE_rc_pingpong");
const UC_PINGPONG: &str = env!("CARGO_BIN_EXE_uc_pingpong");
const UD_PINGPONG: &str = env!("CARGO_BIN_EXE_ud_pingpong");
const SRQ_PINGPONG: &str = env!("CARGO_BIN_EXE_srq_pingpong");
const PERF: &str = env!("CARGO_BIN_EXE_perf");
const FILE_COPY: &str = env!("CARGO_BIN_EXE_file_copy");

/// Long enough for a client that is connected to be in the middle of its run.
const A_WHILE: Duration = Duration::from_millis(300);

/// All that have a server.
const SERVERS: [&str; 15] = [
    UC_PINGPONG,
    UD_PINGPONG,
    DATAGRAM_ECHO,
    PERF,
    PINGPONG,
    SRQ_PINGPONG,
    READ_WRITE,
    ATOMIC_COUNTER,
    CHANNEL_ECHO,
    FILE_COPY,
    KV_STORE,
    MANY_CLIENTS,
    ASYNC_ECHO,
    SMOL_ECHO,
    HTTP,
];

/// Those whose queue pairs the device has: the first three are not reliably connected.
fn servers() -> &'static [&'static str] {
    let lacked = if is_iwarp() { 3 } else { 0 };
    &SERVERS[lacked..]
}

#[test]
#[ignore = "needs an RDMA device"]
fn server_that_cannot_start_fails_at_once() {
    let _test = begin!();
    let taken = Program::serve(ASYNC_ECHO, &[]);
    for server in servers() {
        let started = |words: &[&str], device: &str| {
            let words = [&["--wait", "3600"], words].concat();
            Program::start(server, &words, device)
        };
        let refused = [
            (
                started(&["-i", "200"], "VERBS_DEVICE"),
                "port 200 does not exist",
            ),
            (started(&["-g", "255"], "VERBS_DEVICE"), "GID index 255"),
            (
                started(&["-p", taken.port()], "VERBS_DEVICE"),
                "cannot listen on TCP port",
            ),
            (
                started(&["-d", "absent0"], ""),
                "no RDMA device has the name",
            ),
        ];
        for (refused, expected) in refused {
            let why = refused.fails();
            assert!(why.contains(expected), "{why}");
        }
    }
    let nowhere = ["--dir", "/nowhere"];
    for server in [HTTP, FILE_COPY] {
        let why = Program::start(server, &nowhere, "VERBS_DEVICE").fails();
        assert!(why.contains("/nowhere"), "{why}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn client_without_a_server_fails_within_its_timeout() {
    let _test = begin!();
    // No socket listens there: the port was that of a program that is gone.
    let gone = Program::serve(ASYNC_ECHO, &[]);
    let port = gone.port().to_owned();
    gone.kill();
    let clients = [servers(), &[ASYNC_KV]].concat().into_iter();
    // All at once: each of them tries for a while.
    let clients: Vec<Program> = clients
        .map(|client| {
            let rest: &[&str] = match client {
                KV_STORE | ASYNC_KV => &["get", "key"],
                FILE_COPY => &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
                _ => &[],
            };
            let words = [&["-p", &port, "--timeout", "2", "localhost"], rest].concat();
            Program::start(client, &words, "VERBS_DEVICE")
        })
        .collect();
    for client in clients {
        let why = client.fails();
        assert!(why.contains("is the server started?"), "{why}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn echoes_are_served_across_runtimes() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for (server, client) in [(ASYNC_ECHO, SMOL_ECHO), (SMOL_ECHO, ASYNC_ECHO)] {
        let server = Program::serve(server, &["--clients", "3"]);
        let client = server.client(client, &["-n", "50", "-c", "3", "-w", "8", "-s", "4096"]);
        let output = client.succeeds();
        assert!(output.contains("150 messages of 4096 bytes"), "{output}");
        let output = server.succeeds();
        assert!(
            output.contains("3 clients, 150 messages echoed"),
            "{output}"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagrams_are_echoed_and_those_that_are_lost_are_counted() {
    let _test = begin!(iwarp lacks "datagrams");
    let server = Program::serve(DATAGRAM_ECHO, &["--clients", "3", "--lose", "10"]);
    let common = ["-w", "4", "--lost-after", "150"];
    let clients: Vec<_> = ["12", "1000", "1024"]
        .into_iter()
        .map(|size| {
            server.client(
                DATAGRAM_ECHO,
                &[&common[..], &["-n", "40", "-s", size]].concat(),
            )
        })
        .collect();
    let mut lost = 0;
    for client in clients {
        let output = client.succeeds();
        let (came, rest) = output.split_once(" datagrams of ").unwrap();
        let (_, rest) = rest.split_once("each byte checked; ").unwrap();
        let (client_lost, _) = rest.split_once(" lost").unwrap();
        let numbers = [came, client_lost].map(|number| number.parse::<u32>().unwrap());
        assert_eq!(numbers[0] + numbers[1], 40, "{output}");
        lost += numbers[1];
    }
    let output = server.succeeds();
    assert!(output.contains("3 clients"), "{output}");
    // The network may lose some, too.
    assert!(lost >= 11, "{lost} of 120: {output}");
    let on_purpose = output.contains("11 datagrams lost on purpose");
    assert!(
        on_purpose || output.contains("12 datagrams lost on purpose"),
        "{output}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagram_client_reports_that_its_server_is_gone() {
    let _test = begin!(iwarp lacks "datagrams");
    let server = Program::serve(DATAGRAM_ECHO, &[]);
    let client = server.client(DATAGRAM_ECHO, &["-n", "100000000"]);
    server.has(1);
    server.kill();
    let why = client.fails();
    assert!(why.contains("the peer is gone"), "{why}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_echo_server_outlives_its_clients_and_ends_with_ctrl_c() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for (server, client) in [(ASYNC_ECHO, SMOL_ECHO), (SMOL_ECHO, ASYNC_ECHO)] {
        let server = Program::serve(server, &[]);
        let doomed = server.client(client, &["-n", "10000000"]);
        server.has(1);
        doomed.kill();
        server.prints("the peer is gone");
        server.client(client, &["-n", "5"]).succeeds();
        let last = server.client(client, &["-n", "10000000"]);
        server.has(3);
        server.interrupt();
        let output = server.succeeds();
        assert!(output.contains("3 clients"), "{output}");
        let why = last.fails();
        assert!(why.contains("the server ends"), "{why}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_of_different_programs_report_it() {
    let _test = begin!();
    let server = Program::serve(ASYNC_ECHO, &["--clients", "1"]);
    let why = server.client(ASYNC_KV, &["get", "key"]).fails();
    assert!(
        why.contains("is no kv_store") || why.contains("another program"),
        "{why}"
    );
    let output = server.succeeds();
    assert!(output.contains("the peer is"), "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn values_are_stored_read_and_deleted() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let server = Program::serve(KV_STORE, &["--clients", "8"]);
    let kv = |words: &[&str]| server.client(ASYNC_KV, words);
    kv(&["put", "color", "blue"]).succeeds();
    kv(&["put", "shape", "round"]).succeeds();
    assert_eq!(kv(&["get", "color", "shape"]).succeeds(), "blue\nround\n");
    kv(&["delete", "color"]).succeeds();
    let why = kv(&["get", "color"]).fails();
    assert!(why.contains("no value under \"color\""), "{why}");
    let why = kv(&["put", &"k".repeat(129), ""]).fails();
    assert!(why.contains("at most 128"), "{why}");
    let bench = [
        "bench",
        "--clients",
        "2",
        "--tasks",
        "8",
        "-n",
        "20",
        "--keys",
        "3",
    ];
    let output = kv(&bench).succeeds();
    assert!(output.contains("each value checked"), "{output}");
    let output = server.succeeds();
    assert!(output.contains("8 clients"), "{output}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn slow_and_killed_clients_keep_no_answer_from_the_others() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    // A quarter of the receives is kept for channels that have joined, and each of 64 may send four requests before that.
    let server = Program::serve(MANY_CLIENTS, &["--clients", "64", "--receives", "352"]);
    let processes = ["-c", "16", "--processes", "3", "--kill", "1"];
    let words = [&processes[..], &["--slow", "2", "-n", "20"]].concat();
    let output = server.client(MANY_CLIENTS, &words).succeeds();
    assert!(output.contains("48 connections"), "{output}");
    assert!(output.contains("960 requests"), "{output}");
    let output = server.succeeds();
    assert!(output.contains("64 connections at once"), "{output}");
    let end = "64 clients came: 48 left, 16 were lost, 0 of them for bad requests";
    assert!(output.contains(end), "{output}");
}

/// The end shows on the device, whose request fails, or on the connection over which the peers met.
fn assert_server_is_gone(why: &str) {
    let by_card = why.contains("the peer is gone");
    let by_connection = why.contains("the peer closed the connection");
    assert!(by_card || by_connection, "{why}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn server_that_dies_before_its_reply_is_detected() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    // Another client has filled the store of one of them before.
    for (client, last) in [(KV_STORE, 3), (ASYNC_KV, 2)] {
        let server = Program::serve(KV_STORE, &[]);
        let common = ["--timeout", "3600"];
        let bench = ["bench", "--clients", "2", "-n", "10000000"];
        let client = server.client(client, &[&common[..], &bench].concat());
        server.has(last);
        // Its device still receives requests: soon all clients wait for replies.
        server.freeze();
        thread::sleep(A_WHILE);
        server.kill();
        assert_server_is_gone(&client.fails());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_are_served_and_sent_back() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let (page, copy) = (scratch.path("page"), scratch.path("copy"));
    fs::write(&page, &bytes).unwrap();
    let dir = scratch.path("");
    let server = Program::serve(HTTP, &["--clients", "5", "--dir", dir.to_str().unwrap()]);
    let http = |words: &[&str]| server.client(HTTP, words);
    let into = ["-o", copy.to_str().unwrap()];
    let output = http(&[&["/page"], &into[..]].concat()).succeeds();
    assert!(output.contains("200 OK"), "{output}");
    assert!(fs::read(&copy).unwrap() == bytes);
    let output = http(&["/echo", "--data", "hello"]).succeeds();
    assert!(output.trim_end().ends_with("\nhello"), "{output}");
    let page = page.to_str().unwrap();
    let upload = ["/echo", "--upload", page, "--check", page];
    http(&[&upload[..], &into[..]].concat()).succeeds();
    assert!(fs::read(&copy).unwrap() == bytes);
    let why = http(&["/echo", "--data", "no", "--check", page]).fails();
    assert!(why.contains("the body is not"), "{why}");
    let why = http(&["/none"]).fails();
    assert!(why.contains("404"), "{why}");
    let output = server.succeeds();
    assert!(output.contains("5 clients"), "{output}");
}
