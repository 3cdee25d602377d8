//! `perf`: each layer and each operation, with every byte verified.

use serde_json::{Value, json};
use verbs_harness::{begin, context, ip};

use crate::PERF;
use crate::program::Program;

/// Runs a client with these options against a server. Returns its line of JSON.
fn measured(words: &[&str]) -> String {
    let server = Program::serve(PERF, &[]);
    let client = server.client(PERF, &[&["--json"], words].concat());
    let output = client.succeeds();
    let _output = server.succeeds();
    output
}

/// Runs it, and asserts that so many operations were measured and none was lost.
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
        "--op write-imm --bandwidth",
        "--op send --srq",
        "--layer channel --op read --bandwidth --size 5000",
        "--layer async --op faa",
    ] {
        measures(&format!("-n 40 --check {words}"), 40);
    }
    measures(
        "-n 40 --bandwidth --depth 8 --size 3000 --h2 --layer stream",
        40,
    );
    let both = "-n 40 --check --bandwidth --bidirectional --qps 2";
    for layer in ["channel --depth 8", "async --depth 8", "stream", "tcp"] {
        measures(&format!("{both} --layer {layer}"), 160);
    }
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
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
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
    // Many in flight, each of which is timed.
    for words in [
        "-n 100 --depth 50",
        "-n 100 --depth 50 --layer channel --events",
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
fn channels_that_rdma_cm_connects_are_measured() {
    let test = begin!(iwarp lacks "endpoints that connect without rdma_cm");
    let Some(host) = ip(&context()) else {
        return test.skip("the device has no IP address");
    };
    let server = Program::serve(PERF, &[]);
    let words = "--json --layer channel --cm --bandwidth --qps 2 -n 100 --check -p";
    let mut words: Vec<&str> = words.split(' ').collect();
    let host = host.to_string();
    words.extend([server.port(), &host]);
    let client = Program::start(PERF, &words, "VERBS_DEVICE");
    let json: Value = serde_json::from_str(&client.succeeds()).unwrap();
    assert_eq!(json["operations"], 200, "{json}");
    let _output = server.succeeds();
}
