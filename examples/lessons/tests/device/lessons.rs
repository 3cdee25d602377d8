//! The lessons on an RDMA device: each succeeds, and prints what it did in its last line.

use std::net::SocketAddr;

use verbs_channel::verbs_core::Context;
use verbs_harness::begin;
use verbs_harness::program::Program;

const LESSONS: [(&str, &str); 5] = [
    (env!("CARGO_BIN_EXE_hello_async"), "received \"hello\""),
    (
        env!("CARGO_BIN_EXE_hello_scope"),
        "received 3 messages in one scope",
    ),
    (
        env!("CARGO_BIN_EXE_hello_loans"),
        "100 blocks of 1024 bytes were written through two elements",
    ),
    (
        env!("CARGO_BIN_EXE_hello_owned"),
        "all 6 buffers are back in the pool",
    ),
    (
        env!("CARGO_BIN_EXE_hello_foreign"),
        "8 messages of foreign memory, 4 of its 16 parts are registered",
    ),
];

/// Those that need what iWARP lacks: a handshake, atomics, datagrams, immediates, or sends that wait for a
/// receive.
const BEYOND_IWARP: [(&str, &str); 9] = [
    (
        env!("CARGO_BIN_EXE_hello_channel"),
        "received \"how are you?\"",
    ),
    (
        env!("CARGO_BIN_EXE_hello_write"),
        "a note at 100: \"here I was\"",
    ),
    (
        env!("CARGO_BIN_EXE_hello_shared_receives"),
        "4 clients sent 10 messages each through 2 blocks",
    ),
    (
        env!("CARGO_BIN_EXE_hello_group"),
        "3 clients got their answers from one queue",
    ),
    (env!("CARGO_BIN_EXE_hello_core"), "received \"hello\""),
    (
        env!("CARGO_BIN_EXE_hello_atomics"),
        "2 clients counted to 200",
    ),
    (
        env!("CARGO_BIN_EXE_hello_datagrams"),
        "3 clients got their answers from one endpoint",
    ),
    (env!("CARGO_BIN_EXE_hello_events"), "received \"hello\""),
    (
        env!("CARGO_BIN_EXE_hello_stream"),
        "1000000 bytes went there and back",
    ),
];

/// Those that are started twice, or more.
pub(crate) const TWO_HOSTS: &str = env!("CARGO_BIN_EXE_hello_two_hosts");
const RDMA_CM: &str = env!("CARGO_BIN_EXE_hello_rdma_cm");
const SERVER: &str = env!("CARGO_BIN_EXE_hello_server");
const ASYNC_SERVER: &str = env!("CARGO_BIN_EXE_hello_async_server");

#[test]
#[ignore = "needs an RDMA device"]
fn each_lesson_succeeds_and_prints_its_result() {
    let _test = begin!();
    succeed(&LESSONS);
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_lesson_beyond_iwarp_succeeds_and_prints_its_result() {
    let _test = begin!(iwarp lacks "handshakes, atomics, datagrams, immediates and sends that wait: each of these lessons needs one");
    succeed(&BEYOND_IWARP);
}

fn succeed(lessons: &[(&'static str, &str)]) {
    for (lesson, last) in lessons {
        let output = Program::start(lesson, &[], "").succeeds();
        assert_eq!(output.lines().last(), Some(*last), "{lesson}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_lesson_for_two_hosts_runs_in_two_processes() {
    let _test = begin!();
    let listener = Program::start(TWO_HOSTS, &["listen", "0"], "");
    connect(&format!(
        "localhost:{}",
        listener.prints_after("listening on port ")
    ));
    answered(listener);
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_server_of_the_guide_answers_one_client_after_another() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let _server = Program::start(SERVER, &[], "");
    for question in ["one?", "two?"] {
        answers(
            Program::start(SERVER, &["localhost:7471", question], ""),
            question,
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_async_server_answers_clients_at_the_same_time() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let _server = Program::start(ASYNC_SERVER, &[], "");
    let questions = ["one?", "two?", "three?"];
    let ask = |question| Program::start(ASYNC_SERVER, &["localhost:7472", question], "");
    let clients = questions.map(ask);
    for (client, question) in clients.into_iter().zip(questions) {
        answers(client, question);
    }
}

/// The servers listen at ports of their own, and answer in capitals.
fn answers(client: Program, question: &str) {
    let output = client.succeeds();
    assert_eq!(output.lines().last(), Some(&*question.to_uppercase()));
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_lesson_of_rdma_cm_runs_in_two_processes() {
    let test = begin!();
    let context = Context::first_active().unwrap();
    let Some(ip) = verbs_harness::ip_of_another_process(&context) else {
        test.skip("the device has no IP address");
        return;
    };
    let listener = Program::start(
        RDMA_CM,
        &["listen", &SocketAddr::new(ip, 0).to_string()],
        "",
    );
    let peer = listener.prints_after("listening at ");
    let output = Program::start(RDMA_CM, &["connect", &peer], "").succeeds();
    assert_eq!(output.lines().last(), Some("answer: \"HELLO\""));
    answered(listener);
}

pub(crate) fn connect(peer: &str) {
    let output = Program::start(TWO_HOSTS, &["connect", peer], "").succeeds();
    assert_eq!(output.lines().last(), Some("answer: IS ANYBODY THERE?"));
}

pub(crate) fn answered(listener: Program) {
    let output = listener.succeeds();
    assert_eq!(output.lines().last(), Some("answered"));
}
