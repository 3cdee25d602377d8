//! `p9_server` over TCP, for which no device is needed: how it takes what a client sends, and how it ends.
#![cfg(test)]

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use programs::p9::{Name, Names, Request, Text};
use rustix::process::{Pid, Signal, kill_process};

struct Server {
    child: Child,
    addr: String,
    root: PathBuf,
}

impl Server {
    fn start(name: &str, words: &[&str]) -> Self {
        let name = format!("verbs-examples-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("file"), "contents").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_p9_server"))
            .args(["--tcp", "--listen", "127.0.0.1:0", "--root"])
            .arg(&root)
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let (_, addr) = line.trim_end().split_once(" over TCP at ").unwrap();
        let addr = addr.to_owned();
        // The rest is read, so that the server can go on.
        let _reader = std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        Self { child, addr, root }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.addr).unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        Client(stream)
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.root));
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, request: &Request<'_>) {
        let mut bytes = [0; 512];
        let len = request.encode(5, &mut bytes).unwrap();
        self.0.write_all(&bytes[..len]).unwrap();
    }

    /// The answer, from its type on.
    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut size = [0; 4];
        self.0.read_exact(&mut size)?;
        let len = usize::try_from(u32::from_le_bytes(size)).unwrap();
        let mut rest = vec![0; len - 4];
        self.0.read_exact(&mut rest)?;
        Ok(rest)
    }

    fn begin(&mut self) {
        let version = Text(b"9P2000.L");
        let msize = 8192;
        self.send(&Request::Version { msize, version });
        self.send(&Request::Attach {
            fid: 0,
            afid: u32::MAX,
            uname: Text(b""),
            aname: Text(b""),
            n_uname: 0,
        });
        assert_eq!(self.receive().unwrap()[0], 101);
        assert_eq!(self.receive().unwrap()[0], 105);
    }
}

#[test]
fn messages_that_come_together_are_answered_in_turn() {
    let server = Server::start("turn", &[]);
    let [mut client, mut other] = [server.client(), server.client()];
    client.begin();
    other.begin();
    let names = Names::new(&[Name::new(b"file").unwrap()]).unwrap();
    let (fid, new_fid) = (0, 1);
    client.send(&Request::Walk {
        fid,
        new_fid,
        names,
    });
    let (fid, flags, offset, count) = (1, 0, 0, 100);
    client.send(&Request::Lopen { fid, flags });
    client.send(&Request::Read { fid, offset, count });
    assert_eq!(client.receive().unwrap()[0], 111);
    assert_eq!(client.receive().unwrap()[0], 13);
    assert_eq!(client.receive().unwrap(), b"\x75\x05\0\x08\0\0\0contents");
    // The other's fids are its own.
    other.send(&Request::Read { fid, offset, count });
    assert_eq!(other.receive().unwrap(), [7, 5, 0, 9, 0, 0, 0]);
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn a_client_that_sends_no_messages_is_left_alone() {
    let server = Server::start("noise", &["--max-clients", "4"]);
    let mut good = server.client();
    good.begin();
    // A size that is too small, one that is too large, and one above what was agreed.
    for noise in [&b"\x06\0\0\0\x64\0\0"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut bad = server.client();
        bad.0.write_all(noise).unwrap();
        assert!(bad.receive().is_err());
    }
    let mut bad = server.client();
    bad.begin();
    let mut long = vec![0; 8193];
    long[..4].copy_from_slice(&8193_u32.to_le_bytes());
    bad.0.write_all(&long).unwrap();
    assert!(bad.receive().is_err());
    good.send(&Request::Clunk { fid: 0 });
    assert_eq!(good.receive().unwrap(), [121, 5, 0]);
    assert!(server.end(Signal::INT).success());
    assert!(good.receive().is_err());
}

#[test]
fn clients_are_bounded() {
    let server = Server::start("bound", &["--max-clients", "1"]);
    let mut first = server.client();
    first.begin();
    assert!(server.client().receive().is_err());
    drop(first);
    // Its place is free when it has left, which takes a moment.
    let begun = (0..1000).any(|_| {
        let mut next = server.client();
        let version = Text(b"9P2000.L");
        next.send(&Request::Version {
            msize: 8192,
            version,
        });
        next.receive().is_ok()
    });
    assert!(begun);
}

#[test]
fn a_server_that_cannot_start_fails_with_one_line() {
    for (words, expected) in [
        (&["--root", "/nowhere"][..], "/nowhere: No such file"),
        (&["--root", "/", "--listen", "192.0.2.1:1"], "cannot listen"),
    ] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_p9_server"));
        let output = server.arg("--tcp").args(words).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("p9_server: ") && error.contains(expected),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
