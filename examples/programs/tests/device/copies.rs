//! Files that are copied: whole, to a full disk, and after one side was killed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use verbs_harness::{begin, faults, is_root};

use crate::FILE_COPY;
use verbs_harness::program::{Program, Scratch};

#[test]
#[ignore = "needs an RDMA device"]
fn files_of_all_lengths_arrive() {
    let _test = begin!(iwarp lacks "immediates");
    let block = 1 << 16;
    for len in [0, 1, block - 1, block, block + 1, 9 * block] {
        let scratch = Scratch::new();
        let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
        fs::write(scratch.path("file"), &bytes).unwrap();
        let into = scratch.path("into");
        fs::create_dir(&into).unwrap();
        let server = Program::serve(FILE_COPY, &["--dir", into.to_str().unwrap()]);
        let file = scratch.path("file");
        let client = ["--block", "65536", "--window", "3"];
        let words = [&client[..], &[file.to_str().unwrap()]].concat();
        server.client(FILE_COPY, &words).succeeds();
        server.succeeds();
        assert_eq!(fs::read(into.join("file")).unwrap(), bytes, "{len}");
    }
}

/// A file system of this many bytes, mounted until dropped.
struct Small(String);

impl Small {
    fn mount(at: &Path, bytes: usize) -> Self {
        let small = Self(at.to_str().unwrap().to_owned());
        small.run(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        small
    }

    fn grow(&self, bytes: usize) {
        self.run(&["-o", &format!("remount,size={bytes}")]);
    }

    fn run(&self, words: &[&str]) {
        let status = Command::new("mount").args(words).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").args(["-l", &self.0]).status());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn copy_to_a_disk_that_is_full_is_an_error_at_both_ends() {
    let test = begin!(iwarp lacks "immediates");
    if !is_root() {
        return test.skip("only root can mount a small file system");
    }
    let scratch = Scratch::new();
    let (file, into) = (scratch.path("file"), scratch.path("into"));
    let bytes: Vec<u8> = (0..=250).cycle().take(2 << 20).collect();
    fs::write(&file, &bytes).unwrap();
    fs::create_dir(&into).unwrap();
    let disk = Small::mount(&into, 256 << 10);
    let server = Program::serve(FILE_COPY, &["--dir", into.to_str().unwrap()]);
    let words = ["--block", "65536", file.to_str().unwrap()];
    let client = server.client(FILE_COPY, &words);
    // Programs may take seconds to start.
    let part = into.join(".file.part");
    client.waits_for(|| part.exists());
    let start = Instant::now();
    let client = client.fails();
    let server = server.fails();
    for (layer, why) in [("the receiver", server), ("the sender", client)] {
        let why = why.replace(into.to_str().unwrap(), "/srv");
        // How far the sender was depends on the device.
        let (before, after) = why.split_once("around byte ").unwrap_or((&why, ""));
        let why = match after.split_once(' ') {
            Some((_, after)) => format!("{before}around byte 262144 {after}"),
            None => why.clone(),
        };
        // Before the disk is full, 256 KiB are copied: seconds on an emulated machine.
        let within = faults::setting(start, "at once", Duration::from_secs(5));
        faults::text(faults::DISK, layer, why.trim(), within);
    }
    // With more room, the rest is copied.
    disk.grow(4 << 20);
    let server = Program::serve(FILE_COPY, &["--dir", into.to_str().unwrap()]);
    let output = server.client(FILE_COPY, &["--resume", file.to_str().unwrap()]);
    let output = output.succeeds();
    assert!(output.contains("resuming at byte 262144"), "{output}");
    server.succeeds();
    assert_eq!(fs::read(into.join("file")).unwrap(), bytes);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_copy_whose_sender_or_receiver_is_killed_is_resumed() {
    let _test = begin!(iwarp lacks "immediates");
    let pattern: Vec<u8> = (0..24_001_u32).flat_map(u32::to_le_bytes).collect();
    let bytes = pattern.repeat(250);
    for kill_the_sender in [true, false] {
        let scratch = Scratch::new();
        let (file, into) = (scratch.path("file"), scratch.path("into"));
        fs::write(&file, &bytes).unwrap();
        fs::create_dir(&into).unwrap();
        let (file, part) = (file.to_str().unwrap(), into.join(".file.part"));
        let dir = ["--dir", into.to_str().unwrap()];
        let server = Program::serve(FILE_COPY, &dir);
        let client = server.client(FILE_COPY, &["--block", "65536", file]);
        server.waits_for(|| fs::metadata(&part).is_ok_and(|part| part.len() > 200_000));
        let why = if kill_the_sender {
            client.kill();
            server.fails()
        } else {
            server.kill();
            client.fails()
        };
        assert!(
            why.contains("the peer is gone") && why.contains("--resume"),
            "{why}"
        );
        // The part that was copied stays: it is the beginning of the file.
        let kept = fs::read(&part).unwrap();
        assert!(!kept.is_empty() && bytes.starts_with(&kept));
        // The rest would take long here: it is a shorter file with the same beginning.
        let short = &bytes[..kept.len() + 100_000];
        fs::write(file, short).unwrap();
        let server = Program::serve(FILE_COPY, &dir);
        let output = server.client(FILE_COPY, &["--resume", file]).succeeds();
        assert!(
            output.contains(&format!("resuming at byte {}", kept.len())),
            "{output}"
        );
        assert!(output.contains("100000 bytes sent"), "{output}");
        server.succeeds();
        assert_eq!(fs::read(into.join("file")).unwrap(), short);
    }
}
