//! `perf`: each layer and each operation, with every byte verified.

use std::thread;

use serde_json::{Value, json};
use verbs_harness::{begin, context, ip_of_another_process};

use crate::PERF;
use verbs_harness::program::Program;

/// Runs a client with these options against a server. Returns its line of JSON.
fn measured(words: &[&str]) -> String {
    let server = Program::serve(PERF, &[]);
    let client = server.client(PERF, &[&["--json"], words].concat());
    let output = client.succeeds();
    let _output = server.succeeds();
    output
}

/// Runs it, and asserts that this many operations were measured and none was lost.
fn measures(words: &str, operations: u64) {
    let words: Vec<&str> = words.split_whitespace().collect();
    let json = measured(&words);
    let operations = format!("\"operations\":{operations},");
    for part in [&operations, "\"lost\":0,"] {
        assert!(json.contains(part), "{words:?}: {json}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_layer_moves_what_is_measured_and_verifies_it() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    for words in [
        "--op write --size 300",
        "--op write --size 1",
        "--op write --bandwidth --size 1",
        "--op write-imm --bandwidth",
        "--op cas --bandwidth --depth 8",
        "--op send --srq",
        "--layer channel --op read --bandwidth --size 5000",
        "--layer channel --op write --size 300",
        "--layer async --op write-imm --size 300",
        "--layer async --op faa",
    ] {
        measures(&format!("-n 40 --check {words}"), 40);
    }
    measures(
        "-n 40 --bandwidth --depth 8 --size 3000 --h2 --layer stream",
        40,
    );
    let both = "-n 40 --check --bandwidth --bidirectional --qps 2";
    for layer in [
        "core",
        "channel --depth 8",
        "async --depth 8",
        "stream",
        "tcp",
    ] {
        measures(&format!("{both} --layer {layer}"), 160);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn receives_are_shared_in_every_layer_that_has_some() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    for layer in ["core", "channel", "async"] {
        let latency = format!("-n 40 --check --srq --layer {layer} --size 300");
        measures(&latency, 40);
        let both = "-n 40 --check --srq --bandwidth --bidirectional --qps 3 --depth 8";
        measures(&format!("{both} --layer {layer}"), 240);
        measures(&format!("{both} --layer {layer} --op write-imm"), 240);
    }
    measures("-n 40 --check --srq --layer channel --events", 40);
    let both = "-n 40 --check --srq --layer channel --events --bandwidth --bidirectional";
    measures(both, 80);
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagrams_are_sent_in_every_layer_that_has_some() {
    let _test = begin!(iwarp lacks "datagrams");
    for layer in ["core", "channel", "async"] {
        let latency = format!("-n 40 --check --datagrams --layer {layer} --size 300");
        measures(&latency, 40);
        let both = "-n 40 --check --datagrams --bandwidth --bidirectional --qps 2 --depth 8";
        let words = format!("{both} --layer {layer}");
        let words: Vec<&str> = words.split_whitespace().collect();
        // Some may be lost.
        let json = measured(&words);
        assert!(json.contains("\"operations\":160,"), "{json}");
    }
}

/// Runs a client and a server with these options, of which at least one fails. Returns the lines of both.
fn failing(words: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    let server = Program::serve(PERF, &["--timeout", "5"]);
    let client = server.client(PERF, &[&["--timeout", "5"], &words[..]].concat());
    format!("{}{}", client.ends(), server.ends())
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_wrong_byte_is_found_in_every_layer() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    // With 16 receives and places to write to, each of which is used again.
    let ping_pong = "-n 60 --check --size 300 --corrupt 20";
    let flood = "-n 60 --warm-up 0 --check --bandwidth --size 300 --depth 8";
    let runs = [
        format!("{ping_pong} --op send"),
        format!("{ping_pong} --op write"),
        format!("{ping_pong} --op write-imm"),
        format!("{ping_pong} --op read"),
        format!("{ping_pong} --op send --srq"),
        format!("{ping_pong} --op send --datagrams"),
        format!("{ping_pong} --layer channel --op write"),
        format!("{ping_pong} --layer channel --op send --srq"),
        format!("{ping_pong} --layer channel --op send --datagrams"),
        format!("{ping_pong} --layer async --op write-imm"),
        format!("{ping_pong} --layer async --op send --srq"),
        format!("{ping_pong} --layer async --op send --datagrams"),
        format!("{ping_pong} --layer stream"),
        "-n 60 --check --op faa --corrupt 20".to_owned(),
        // The last eight are verified.
        format!("{flood} --op write --corrupt 52"),
        "-n 60 --warm-up 0 --check --bandwidth --depth 8 --op write --size 1 --corrupt 59"
            .to_owned(),
        format!("{flood} --op write-imm --corrupt 59"),
        format!("{flood} --op send --corrupt 20"),
        format!("{flood} --layer channel --op send --corrupt 20"),
        format!("{flood} --layer async --op send --corrupt 20"),
        "-n 60 --warm-up 0 --check --bandwidth --size 300 --layer stream --corrupt 20".to_owned(),
    ];
    // Several at once: when one end has found the byte and left, the other often waits until its timeout.
    thread::scope(|threads| {
        for part in 0..8 {
            let runs = runs.iter().skip(part).step_by(8);
            threads.spawn(move || {
                for words in runs {
                    let lines = failing(words);
                    assert!(lines.contains(" is wrong: byte 0 is "), "{words}: {lines}");
                }
            });
        }
    });
}

/// The line of JSON of a run with these options.
fn figures(words: &str) -> Value {
    let words: Vec<&str> = words.split_whitespace().collect();
    serde_json::from_str(&measured(&words)).unwrap()
}

/// How many operations a histogram counts.
fn timed_operations(figures: &Value) -> u64 {
    let steps = figures["histogram"].as_array().unwrap().iter();
    let counts = steps.map(|step| step["operations"].as_u64().unwrap());
    counts.sum()
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_way_to_measure_is_that_of_its_options() {
    let _test = begin!(alone, iwarp lacks "connecting without rdma_cm");
    measures("-n 100 --check --datagrams --events", 100);
    // Those of the warm-up are neither counted nor timed.
    let timed = figures("-n 100 --check --op cas --warm-up 30 --histogram");
    assert_eq!(
        (&timed["operations"], timed_operations(&timed)),
        (&json!(100), 100)
    );
    let latency = |name: &str| timed["latency_microseconds"][name].as_f64().unwrap();
    let ranks = ["min", "median", "p90", "p99", "p99_9", "max"].map(latency);
    assert!(ranks.is_sorted() && ranks[0] > 0.0, "{timed}");
    // Many in flight, each of which is timed, at both ends if both send.
    for words in [
        "-n 100 --depth 50",
        "-n 50 --depth 20 --bidirectional",
        "-n 100 --depth 50 --layer channel --events",
        "-n 100 --depth 50 --layer channel --datagrams",
        "--duration 1 --depth 4 --layer async",
    ] {
        let timed = figures(&format!("--bandwidth --check --histogram {words}"));
        let (count, took) = (&timed["operations"], timed["seconds"].as_f64().unwrap());
        assert_eq!(count, timed_operations(&timed), "{timed}");
        let is_long = words.contains("--duration");
        assert!(took >= 1.0 || !is_long && *count == 100, "{timed}");
        let max = timed["latency_microseconds"]["max"].as_f64().unwrap() / 1e6;
        assert!(
            max > 0.0 && max <= took * 1.001 && timed["lost"] == 0,
            "{timed}"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn connections_by_rdma_cm_are_measured_in_every_layer() {
    let test = begin!(iwarp lacks "endpoints that connect without rdma_cm");
    let Some(host) = ip_of_another_process(&context()) else {
        return test.skip("the device has no IP address");
    };
    let host = host.to_string();
    for layer in ["core", "core --srq", "channel", "async", "stream"] {
        let server = Program::serve(PERF, &[]);
        let words = format!("--json --cm --bandwidth --qps 2 -n 100 --check --layer {layer} -p");
        let mut words: Vec<&str> = words.split(' ').collect();
        words.extend([server.port(), &host]);
        let client = Program::start(PERF, &words, "VERBS_DEVICE");
        let json: Value = serde_json::from_str(&client.succeeds()).unwrap();
        assert_eq!(json["operations"], 200, "{json}");
        let _output = server.succeeds();
    }
}
