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

/// Arguments that are refused, with what the error names.
#[test]
fn invalid_arguments_are_named() {
    let long = ["n"; 224].concat();
    let mut refusals = vec![
        // The options that all programs share, and those of one alone.
        (PERF, "", "--port 65536", ""),
        (PERF, "", "--port -1", ""),
        (PERF, "", "--timeout 0", ""),
        (PERF, "", "--wait soon", ""),
        (PERF, "", "--ib-port 0", ""),
        (PERF, "", "--gid-idx 256", ""),
        (PERF, "", "-d", "--ib-dev"),
        (P9_SERVER, "--root /", "--listen 5640", ""),
        (P9_SERVER, "--root /", "--msize 4095", ""),
        (P9_SERVER, "--root /", "--msize 1048577", ""),
        (P9_SERVER, "--root /", "--depth 0", ""),
        (P9_SERVER, "--root /", "--max-clients 0", ""),
        (NVME_COPY, "there nqn write file", "--depth 0", ""),
        (NVME_COPY, "there nqn write file", "--depth 128", ""),
        (NVME_COPY, "there nqn write file", "--size 0", ""),
        (NVME_COPY, "there nqn write file", "--namespace 0", ""),
        // Missing ones.
        (P9_SERVER, "", "", "--root"),
        (NVME_COPY, "there", "", "<NQN>"),
        (NVME_COPY, "there nqn erase file", "", "write, read, verify"),
        (
            env!("CARGO_BIN_EXE_kv_store"),
            "there",
            "",
            "what is to be done?",
        ),
        (
            env!("CARGO_BIN_EXE_async_kv"),
            "there",
            "",
            "what is to be done?",
        ),
        (env!("CARGO_BIN_EXE_async_kv"), "", "", "which server?"),
        (env!("CARGO_BIN_EXE_file_copy"), "there", "", "which file?"),
        // Those without an effect.
        (PERF, "--depth 8 there", "", "--depth"),
        (PERF, "--layer tcp --events there", "", "--events"),
    ];
    let host = format!("--host-nqn {long}");
    refusals.push((NVME_COPY, "there nqn write file", &host, ""));
    for (program, before, wrong, named) in refusals {
        let words = before.split(' ').chain(wrong.split(' '));
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let text = refused(program, &words);
        let mut names = wrong.split(' ').filter(|_| named.is_empty());
        assert!(names.all(|name| text.contains(name)), "{text}");
        assert!(text.contains(named) && !text.contains("-- "), "{text}");
    }
}

#[test]
fn help_of_a_server_and_an_initiator_shows_their_peer() {
    for (program, peer) in [(P9_SERVER, "mount -t 9p"), (NVME_COPY, "nvmet-rdma")] {
        let text = run(program, &["--help"]).stdout;
        assert!(String::from_utf8(text).unwrap().contains(peer));
    }
}
