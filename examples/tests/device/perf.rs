//! `perf`: each layer and each operation, with every byte verified.

use verbs_harness::begin;

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
