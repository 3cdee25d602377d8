//! Invalid options: one line of error, and exit code 2, with a device or without.
#![cfg(test)]

use std::process::{Command, Output};

const PROGRAMS: [&str; 18] = [
    env!("CARGO_BIN_EXE_devinfo"),
    env!("CARGO_BIN_EXE_rc_pingpong"),
    env!("CARGO_BIN_EXE_uc_pingpong"),
    env!("CARGO_BIN_EXE_ud_pingpong"),
    env!("CARGO_BIN_EXE_srq_pingpong"),
    env!("CARGO_BIN_EXE_rdma_read_write"),
    env!("CARGO_BIN_EXE_atomic_counter"),
    env!("CARGO_BIN_EXE_channel_echo"),
    env!("CARGO_BIN_EXE_datagram_echo"),
    env!("CARGO_BIN_EXE_file_copy"),
    env!("CARGO_BIN_EXE_kv_store"),
    env!("CARGO_BIN_EXE_many_clients"),
    env!("CARGO_BIN_EXE_kv_transfer"),
    env!("CARGO_BIN_EXE_async_echo"),
    env!("CARGO_BIN_EXE_smol_echo"),
    env!("CARGO_BIN_EXE_async_kv"),
    env!("CARGO_BIN_EXE_http_over_rdma"),
    PERF,
];
const PERF: &str = env!("CARGO_BIN_EXE_perf");

/// It takes no peer and no device: clients come to its address.
const P9_SERVER: &str = env!("CARGO_BIN_EXE_p9_server");

/// Its peer has an address of `rdma_cm`.
const NVME_COPY: &str = env!("CARGO_BIN_EXE_nvme_copy");

fn name(program: &str) -> &str {
    program.rsplit('/').next().unwrap()
}

fn run(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap()
}

/// Asserts that it fails. Returns the line of the error.
fn refused(program: &str, words: &[&str]) -> String {
    let Output { status, stderr, .. } = run(program, words);
    let text = String::from_utf8(stderr).unwrap();
    let name = name(program);
    assert_eq!(status.code(), Some(2), "{name} {words:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{name} {words:?}: {text}");
    assert!(text.starts_with(&format!("{name}: ")), "{text}");
    assert!(text.contains("; --help shows the options"), "{text}");
    text
}

#[test]
fn help_is_no_failure_and_an_unknown_option_is_named() {
    for program in PROGRAMS {
        let Output { status, stdout, .. } = run(program, &["--help"]);
        assert!(status.success(), "{}", name(program));
        let text = String::from_utf8(stdout).unwrap();
        assert!(
            text.contains("Usage: ") && text.contains("--ib-dev"),
            "{text}"
        );
        assert!(refused(program, &["--nonsense"]).contains("--nonsense"));
    }
}

/// The options that all programs share.
#[test]
fn invalid_numbers_are_named() {
    for (option, value) in [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--timeout", "0"),
        ("--timeout", "-5"),
        ("--wait", "soon"),
        ("--ib-port", "0"),
        ("--gid-idx", "256"),
    ] {
        let text = refused(PERF, &[option, value]);
        assert!(text.contains(option) && text.contains(value), "{text}");
        assert!(!text.contains("-- "), "{text}");
    }
    assert!(refused(PERF, &["-d"]).contains("--ib-dev"));
}

#[test]
fn missing_arguments_are_named() {
    let refused = |program: &str, words: &[&str]| {
        let program = PROGRAMS.into_iter().find(|it| name(it) == program);
        refused(program.unwrap(), words)
    };
    for program in ["kv_store", "async_kv"] {
        assert!(refused(program, &["there"]).contains("what is to be done?"));
    }
    assert!(refused("async_kv", &[]).contains("which server?"));
    assert!(refused("file_copy", &["there"]).contains("which file?"));
}

#[test]
fn options_without_an_effect_are_named() {
    for (words, option) in [
        (&["--depth", "8", "there"][..], "--depth"),
        (&["--layer", "tcp", "--events", "there"], "--events"),
    ] {
        assert!(refused(PERF, words).contains(option));
    }
}

#[test]
fn options_of_a_mounted_server_are_named() {
    let text = run(P9_SERVER, &["--help"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("mount -t 9p"));
    assert!(refused(P9_SERVER, &[]).contains("--root"));
    for (option, value) in [
        ("--listen", "5640"),
        ("--msize", "4095"),
        ("--msize", "1048577"),
        ("--depth", "0"),
        ("--max-clients", "0"),
        ("--timeout", "-5"),
    ] {
        let text = refused(P9_SERVER, &["--root", "/", option, value]);
        assert!(text.contains(option) && text.contains(value), "{text}");
    }
}

#[test]
fn options_of_an_initiator_are_named() {
    let text = run(NVME_COPY, &["--help"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("nvmet-rdma"));
    assert!(refused(NVME_COPY, &["there"]).contains("<NQN>"));
    let long = "n".repeat(224);
    for (option, value) in [
        ("--depth", "0"),
        ("--depth", "128"),
        ("--size", "0"),
        ("--namespace", "0"),
        ("--timeout", "-5"),
        ("--host-nqn", &long),
    ] {
        let words = ["there", "nqn", "write", "file", option, value];
        let text = refused(NVME_COPY, &words);
        assert!(text.contains(option) && text.contains(value), "{text}");
    }
    let why = refused(NVME_COPY, &["there", "nqn", "erase", "file"]);
    assert!(why.contains("write, read, verify"), "{why}");
}
