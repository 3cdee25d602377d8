//! Messages, fids and what the server does not have.

use std::fs;

use rustix::io::Errno;

use super::{Client, Files, NO_FID, ROOT, name};
use crate::p9::{Data, MIN_SIZE, Names, Request, Text, Tree, Violation};

#[test]
fn bytes_are_those_of_the_protocol() {
    let mut buffer = [0; 64];
    let version = Request::Version {
        msize: 131_072,
        version: Text(b"9P2000.L"),
    };
    let len = version.encode(0xffff, &mut buffer).unwrap();
    let expected = b"\x15\0\0\0\x64\xff\xff\0\0\x02\0\x08\x009P2000.L";
    assert_eq!(&buffer[..len], expected);
    let names = Names::new(&[name("a"), name("bc")]).unwrap();
    let walk = Request::Walk {
        fid: 1,
        new_fid: 0x0203,
        names,
    };
    let len = walk.encode(4, &mut buffer).unwrap();
    let expected = b"\x18\0\0\0\x6e\x04\0\x01\0\0\0\x03\x02\0\0\x02\0\x01\0a\x02\0bc";
    assert_eq!(&buffer[..len], expected);
}

#[test]
fn messages_have_the_length_that_was_agreed() {
    let files = Files::new();
    let mut client = Client::before_version(&files.root(), false);
    let version = |msize, version| Request::Version {
        msize,
        version: Text(version),
    };
    let getattr = Request::Getattr { fid: ROOT, mask: 0 };
    assert_eq!(client.ask(&getattr), Err(Errno::PROTO));
    assert_eq!(
        client.ask(&version(MIN_SIZE - 1, b"9P2000.L")),
        Err(Errno::INVAL)
    );
    let answer = client.ask(&version(u32::MAX, b"9P2000.u")).unwrap();
    assert_eq!(answer, b"\0\x40\0\0\x07\0unknown");
    assert_eq!(client.ask(&getattr), Err(Errno::PROTO));
    let answer = client.ask(&version(u32::MAX, b"9P2000.L")).unwrap();
    assert_eq!(answer, b"\0\x40\0\0\x08\x009P2000.L");
    client.begin();
    fs::write(files.root().join("file"), vec![b'x'; 100_000]).unwrap();
    client.open(1, &["file"], 2).unwrap();
    for count in [16_373, 16_374, u32::MAX] {
        assert_eq!(client.read(1, 0, count).unwrap().len(), 16_373);
    }
    let message = &mut vec![0; 32_768];
    let mut write = |client: &mut Client, len: usize| {
        let data = Data(&[b'y'; 20_000][..len]);
        let (fid, offset) = (1, 0);
        let request = Request::Write { fid, offset, data };
        let len = request.encode(3, message).unwrap();
        client
            .session
            .answer(&message[..len], &mut client.buffers[1])
    };
    assert_eq!(write(&mut client, 16_384 - 23), Ok(11));
    assert_eq!(write(&mut client, 16_384 - 22), Err(Violation::TooLong));
    let short = client
        .session
        .answer(b"\x07\0\0\0\x6c\x01\0", &mut [0; 100]);
    assert_eq!(short, Err(Violation::NoRoom));
    for wrong in [&b""[..], b"\x06\0\0\0\x6c\x01", b"\x08\0\0\0\x6c\x01\0"] {
        let answer = client.session.answer(wrong, &mut client.buffers[1]);
        assert_eq!(answer, Err(Violation::Size));
    }
}

#[test]
fn fids_are_bounded_and_end_with_the_version() {
    let files = Files::new();
    let mut client = files.client();
    for fid in 1..4096 {
        client.walk(ROOT, fid, &[]).unwrap();
    }
    assert_eq!(client.walk(ROOT, 4096, &[]), Err(Errno::NFILE));
    assert_eq!(client.walk(ROOT, 1, &[]), Err(Errno::INVAL));
    assert_eq!(client.walk(5000, 4096, &[]), Err(Errno::BADF));
    client.clunk(4095);
    assert_eq!(client.ask(&Request::Clunk { fid: 4095 }), Err(Errno::BADF));
    assert_eq!(client.walk(ROOT, NO_FID, &[]), Err(Errno::INVAL));
    // Only a walk to the end has a new fid.
    assert_eq!(client.walk(ROOT, 4095, &["dir", "none", "x"]), Ok(1));
    assert_eq!(client.walk(ROOT, 4095, &["none"]), Err(Errno::NOENT));
    assert_eq!(client.walk(4095, 4096, &[]), Err(Errno::BADF));
    // An open one goes nowhere else, and is opened once.
    client.walk(1, 1, &["dir", "inner"]).unwrap();
    client.ask(&Request::Lopen { fid: 1, flags: 0 }).unwrap();
    assert_eq!(client.walk(1, 1, &[]), Err(Errno::INVAL));
    let again = client.ask(&Request::Lopen { fid: 1, flags: 0 });
    assert_eq!(again, Err(Errno::INVAL));
    // Another one of the same file is not open.
    client.walk(1, 4095, &[]).unwrap();
    assert_eq!(client.read(4095, 0, 1), Err(Errno::BADF));
    assert_eq!(client.session.fids(), 4096);
    client.begin();
    assert_eq!(client.session.fids(), 1);
}

#[test]
fn unknown_message_is_answered_with_an_error() {
    let files = Files::new();
    let mut client = files.client();
    client.ask(&Request::Flush { old_tag: 12 }).unwrap();
    for number in [6, 20, 30, 32, 52, 54, 102, 112, 255] {
        let mut answer = [0; 16_384];
        let message = [7, 0, 0, 0, number, 9, 0];
        let len = client.session.answer(&message, &mut answer).unwrap();
        assert_eq!(answer[..len], [11, 0, 0, 0, 7, 9, 0, 95, 0, 0, 0]);
    }
    let attach = |afid, aname| Request::Attach {
        fid: 1,
        afid,
        uname: Text(b"root"),
        aname: Text(aname),
        n_uname: 0,
    };
    assert_eq!(client.ask(&attach(2, b"")), Err(Errno::OPNOTSUPP));
    assert_eq!(client.ask(&attach(NO_FID, b"/etc")), Err(Errno::NOENT));
    client.ask(&attach(NO_FID, b"/")).unwrap();
    let nowhere = Tree::open(&files.root().join("none"), false);
    assert_eq!(nowhere.err(), Some(Errno::NOENT));
    let file = Tree::open(&files.root().join("file"), false);
    assert_eq!(file.err(), Some(Errno::NOTDIR));
}
