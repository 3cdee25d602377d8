//! Files, directories and attributes, as a client uses them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;

use super::{Files, ROOT, name};
use crate::p9::wire::{Field as _, Reader};
use crate::p9::{Qid, Request, Text};

#[test]
fn files_are_created_written_and_read() {
    let files = Files::new();
    let mut client = files.client();
    client.create(1, "new", 2, 0o640).unwrap();
    let about = fs::metadata(files.root().join("new")).unwrap();
    assert_eq!(about.mode() & 0o7717, 0o600);
    assert_eq!(client.write(1, 3, b"hello"), Ok(5));
    assert_eq!(client.read(1, 0, 100).unwrap(), b"\0\0\0hello");
    assert_eq!(client.read(1, 8, 100).unwrap(), b"");
    client
        .ask(&Request::Fsync {
            fid: 1,
            datasync: 0,
        })
        .unwrap();
    client
        .ask(&Request::Fsync {
            fid: 1,
            datasync: 1,
        })
        .unwrap();
    client.clunk(1);
    assert_eq!(client.create(1, "new", 0o201, 0o600), Err(Errno::EXIST));
    client.create(1, "new", 1, 0o600).unwrap();
    assert_eq!(client.read(1, 0, 1), Err(Errno::BADF));
    client.clunk(1);
    client.open(1, &["dir", "inner"], 0o1002).unwrap();
    assert_eq!(fs::read(files.root().join("dir/inner")).unwrap(), b"");
    client.clunk(1);
    client.open(1, &["file"], 0o2001).unwrap();
    client.write(1, 0, b"ab").unwrap();
    let text = fs::read(files.root().join("file")).unwrap();
    assert_eq!(text, b"0123456789ab");
}

#[test]
fn directories_are_listed_in_pieces_of_any_length() {
    let files = Files::new();
    let mut expected: Vec<_> = (0..300).map(|number| format!("file-{number}")).collect();
    for name in &expected {
        fs::write(files.root().join("dir").join(name), "").unwrap();
    }
    expected.extend(["inner", ".", ".."].map(str::to_owned));
    expected.sort_unstable();
    let mut client = files.client();
    client.open(1, &["dir"], 0o20_0000).unwrap();
    for count in [40, 100, 1000, u32::MAX >> 1] {
        let mut names = client.list(1, count).unwrap();
        names.sort_unstable();
        assert_eq!(names, expected, "{count}");
    }
    // Not even one fits: that is no end.
    assert_eq!(client.list(1, 20), Err(Errno::INVAL));
    assert_eq!(client.read(1, 0, 10), Err(Errno::ISDIR));
    client.open(2, &["file"], 0).unwrap();
    assert_eq!(client.list(2, 100), Err(Errno::NOTDIR));
}

#[test]
fn names_are_made_moved_and_removed() {
    let files = Files::new();
    let (mut client, root) = (files.client(), files.root());
    let (dfid, gid) = (ROOT, 0);
    client
        .ask(&Request::Mkdir {
            dfid,
            name: name("sub"),
            mode: 0o755,
            gid,
        })
        .unwrap();
    client
        .ask(&Request::Symlink {
            dfid,
            name: name("link"),
            target: Text(b"/etc/passwd"),
            gid,
        })
        .unwrap();
    client.walk(ROOT, 1, &["link"]).unwrap();
    let answer = client.ask(&Request::Readlink { fid: 1 }).unwrap();
    assert_eq!(answer, b"\x0b\0/etc/passwd");
    client.walk(ROOT, 2, &["sub"]).unwrap();
    client.walk(ROOT, 3, &["file"]).unwrap();
    assert_eq!(client.ask(&Request::Readlink { fid: 3 }), Err(Errno::INVAL));
    client
        .ask(&Request::Link {
            dfid: 2,
            fid: 3,
            name: name("second"),
        })
        .unwrap();
    client
        .ask(&Request::Renameat {
            old_dfid: ROOT,
            old_name: name("file"),
            new_dfid: 2,
            new_name: name("moved"),
        })
        .unwrap();
    let inode = |path| fs::metadata(root.join(path)).unwrap().ino();
    assert_eq!(inode("sub/moved"), inode("sub/second"));
    // The fid stands for the file, and not for its name.
    client.ask(&Request::Lopen { fid: 3, flags: 0 }).unwrap();
    assert_eq!(client.read(3, 0, 3).unwrap(), b"012");
    let unlink = |it, flags| Request::Unlinkat {
        dfid,
        name: name(it),
        flags,
    };
    assert_eq!(client.ask(&unlink("link", 0x200)), Err(Errno::NOTDIR));
    assert_eq!(client.ask(&unlink("link", 0x400)), Err(Errno::INVAL));
    client.ask(&unlink("link", 0)).unwrap();
    assert_eq!(client.ask(&unlink("sub", 0x200)), Err(Errno::NOTEMPTY));
    assert!(!root.join("link").exists() && !root.join("file").exists());
    // Its name is not known: the kernel removes by directory and name.
    assert_eq!(
        client.ask(&Request::Remove { fid: 3 }),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(client.read(3, 0, 3), Err(Errno::BADF));
    assert!(root.join("sub/moved").exists());
}

#[test]
fn attributes_are_shown_and_changed() {
    let files = Files::new();
    let path = files.root().join("file");
    let mut client = files.client();
    client.walk(ROOT, 1, &["file"]).unwrap();
    client.set(1, 0x1 | 0x8 | 0x1f0, 0o604, 4).unwrap();
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.mode() & 0o7777, about.len()), (0o604, 4));
    assert_eq!((about.atime(), about.atime_nsec()), (1_000_000_000, 5));
    assert_eq!((about.mtime(), about.mtime_nsec()), (2_000_000_000, 6));
    let answer = client.ask(&Request::Getattr {
        fid: 1,
        mask: 0x7ff,
    });
    let mut reader = Reader::new(answer.unwrap());
    assert_eq!(u64::get(&mut reader), Ok(0x7ff));
    let qid = Qid::get(&mut reader).unwrap();
    assert_eq!((qid.kind, qid.path), (0, about.ino()));
    for expected in [about.mode(), about.uid(), about.gid()] {
        assert_eq!(u32::get(&mut reader), Ok(expected));
    }
    let numbers = [
        about.nlink(),
        about.rdev(),
        4,
        about.blksize(),
        about.blocks(),
    ];
    for expected in numbers {
        assert_eq!(u64::get(&mut reader), Ok(expected));
    }
    for expected in [1_000_000_000, 5, 2_000_000_000, 6] {
        assert_eq!(u64::get(&mut reader), Ok(expected));
    }
    assert_eq!(u64::get(&mut reader), Ok(about.ctime().cast_unsigned()));
    reader.bytes(8 + 16 + 16).unwrap();
    reader.end().unwrap();
    // The time of now, and only one of two.
    client.set(1, 0x20, 0, 0).unwrap();
    let about = fs::metadata(&path).unwrap();
    assert_eq!(about.atime(), 1_000_000_000);
    assert_ne!(about.mtime(), 2_000_000_000);
    // A file that is open for writing is truncated, whatever its permissions are.
    client.create(2, "new", 2, 0o400).unwrap();
    client.set(2, 0x8, 0, 12).unwrap();
    assert_eq!(fs::metadata(files.root().join("new")).unwrap().len(), 12);
    let answer = client.ask(&Request::Statfs { fid: ROOT }).unwrap();
    assert_eq!(answer.len(), 4 + 4 + 6 * 8 + 4);
}

#[test]
fn the_contents_of_a_file_have_a_version() {
    let files = Files::new();
    let mut client = files.client();
    let mut version = || {
        client.walk(ROOT, 1, &["file"]).unwrap();
        let answer = client.ask(&Request::Getattr { fid: 1, mask: 0 }).unwrap();
        let mut reader = Reader::new(&answer[8..]);
        let qid = Qid::get(&mut reader).unwrap();
        client.clunk(1);
        (qid.path, qid.version)
    };
    let before = version();
    assert_eq!(version(), before);
    fs::write(files.root().join("file"), "something else").unwrap();
    let after = version();
    assert!(before.0 == after.0 && before.1 != after.1);
}
