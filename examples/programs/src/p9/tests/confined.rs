//! Files that a client can't reach or change, whatever it asks for.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::io::Errno;

use super::{Files, ROOT, changing, name};
use crate::p9::{HEADER, Name, Names, Request};

#[test]
fn programs_with_other_rights_are_not_created() {
    let files = Files::new();
    let mut client = files.client();
    assert_eq!(client.create(1, "suid", 1, 0o4755), Err(Errno::PERM));
    assert_eq!(client.create(1, "sgid", 1, 0o2755), Err(Errno::PERM));
    client.walk(ROOT, 1, &["file"]).unwrap();
    assert_eq!(client.set(1, 1, 0o4755, 0), Err(Errno::PERM));
    client.walk(ROOT, 2, &["dir"]).unwrap();
    assert_eq!(client.set(2, 1, 0o2755, 0), Ok(()));
    for kind in [0o2_0000, 0o6_0000] {
        let device = Request::Mknod {
            dfid: ROOT,
            name: name("device"),
            mode: kind | 0o600,
            major: 1,
            minor: 3,
            gid: 0,
        };
        assert_eq!(client.ask(&device), Err(Errno::PERM));
    }
    assert_eq!(fs::read_dir(files.root()).unwrap().count(), 2);
}

#[test]
fn no_name_leads_out_of_the_tree() {
    let long = [b'x'; 256];
    let bad: [&[u8]; 7] = [b"", b".", b"..", b"a/b", b"/etc", b"a\0", b"../outside"];
    for bad in bad {
        assert_eq!(Name::new(bad), Err(Errno::INVAL));
    }
    assert_eq!(Name::new(&long), Err(Errno::NAMETOOLONG));
    // As a session takes them, in each place that a request has for a name.
    let files = Files::new();
    let mut client = files.client();
    client.walk(ROOT, 1, &["file"]).unwrap();
    let mut bytes = [0; 256];
    let walk = Request::Walk {
        fid: ROOT,
        new_fid: 9,
        names: Names::new(&[name("file")]).unwrap(),
    };
    for request in changing(ROOT, 1).iter().take(7).chain([&walk]) {
        let len = request.encode(1, &mut bytes).unwrap();
        let message = &mut bytes[..len];
        let mut found = 0;
        for at in HEADER..len.saturating_sub(2) {
            let old: [u8; 3] = message[at..at + 3].try_into().unwrap();
            // The only name of three letters, and the first of those of four.
            if &old == b"new" || &old == b"fil" {
                message[at..at + 3].copy_from_slice(b"a/b");
                let mut answer = [0; 16_384];
                let len = client.session.answer(message, &mut answer).unwrap();
                assert_eq!(answer[4..len], [7, 1, 0, 22, 0, 0, 0], "{request:?}");
                message[at..at + 3].copy_from_slice(&old);
                found += 1;
            }
        }
        assert!(found >= 1, "{request:?}");
    }
}

#[test]
fn links_are_not_followed() {
    let files = Files::new();
    let root = files.root();
    symlink("/", root.join("slash")).unwrap();
    symlink("../outside", root.join("up")).unwrap();
    symlink(files.secret(), root.join("secret")).unwrap();
    symlink("file", root.join("near")).unwrap();
    let before = fs::metadata(files.secret()).unwrap();
    let mut client = files.client();
    for link in ["slash", "up", "near"] {
        // The link is found, and nothing below it.
        assert_eq!(client.walk(ROOT, 1, &[link, "inner"]), Ok(1), "{link}");
        client.walk(ROOT, 1, &[link]).unwrap();
        assert_eq!(client.walk(1, 2, &["inner"]), Err(Errno::NOTDIR), "{link}");
        for request in &changing(1, 1)[..7] {
            assert!(client.ask(request).is_err(), "{link} {request:?}");
        }
        client.clunk(1);
    }
    for link in ["slash", "up", "near", "secret"] {
        for flags in [0, 1, 2, 0o1001, 0o20_0000] {
            assert_eq!(client.open(1, &[link], flags), Err(Errno::LOOP), "{link}");
        }
        for flags in [1, 0o1001, 0o201] {
            let error = client.create(1, link, flags, 0o600).unwrap_err();
            assert!(matches!(error, Errno::LOOP | Errno::EXIST), "{link}");
        }
        client.walk(ROOT, 1, &[link]).unwrap();
        // Its own attributes are changed, or none.
        assert!(client.set(1, 0x1, 0o777, 0).is_err(), "{link}");
        assert_eq!(client.set(1, 0x8, 0, 0), Err(Errno::LOOP), "{link}");
        client.set(1, 0x1f0, 0, 0).unwrap();
        client.clunk(1);
        let about = fs::symlink_metadata(root.join(link)).unwrap();
        assert_eq!(about.mtime(), 2_000_000_000, "{link}");
    }
    client.walk(ROOT, 1, &["secret"]).unwrap();
    let hard = Request::Link {
        dfid: ROOT,
        fid: 1,
        name: name("hard"),
    };
    client.ask(&hard).unwrap();
    assert!(
        fs::symlink_metadata(root.join("hard"))
            .unwrap()
            .is_symlink()
    );
    let after = fs::metadata(files.secret()).unwrap();
    assert_eq!(fs::read(files.secret()).unwrap(), b"secret");
    assert_eq!((after.mtime(), after.nlink()), (before.mtime(), 1));
    assert_eq!(after.permissions().mode(), before.permissions().mode());
    assert_eq!(fs::read(root.join("file")).unwrap(), b"0123456789");
}

#[test]
fn names_that_change_meanwhile_lead_nowhere_else() {
    // A directory and a link to one outside take turns under one name, and so do a file and a link.
    let files = Files::new();
    let root = files.root();
    symlink("../outside", root.join("link")).unwrap();
    symlink("../outside/inner", root.join("link-to-file")).unwrap();
    let stop = AtomicBool::new(false);
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let swap = |one: &str, other: &str| {
                let (one, other) = (root.join(one), root.join(other));
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            };
            while !stop.load(Ordering::Relaxed) {
                swap("dir", "link");
                swap("file", "link-to-file");
            }
        });
        let mut client = files.client();
        let (mut inside, mut stopped) = (0, 0);
        for _ in 0..20_000 {
            for names in [&["dir", "inner"][..], &["file"]] {
                match client.open(1, names, 0) {
                    Ok(()) => {
                        let text = client.read(1, 0, 20).unwrap();
                        assert!(text == b"inner" || text == b"0123456789");
                        client.clunk(1);
                        inside += 1;
                    }
                    Err(_a_link) => stopped += 1,
                }
                if client.create(1, "file", 0o1001, 0o600).is_ok() {
                    client.write(1, 0, b"0123456789").unwrap();
                    client.clunk(1);
                }
            }
            if inside > 100 && stopped > 100 {
                break;
            }
        }
        assert!(inside > 0 && stopped > 0, "{inside} {stopped}");
    });
    assert_eq!(fs::read(files.secret()).unwrap(), b"secret");
}

#[test]
fn a_read_only_tree_stays_as_it_is() {
    let files = Files::new();
    let mut client = files.client_of(true);
    client.walk(ROOT, 1, &["file"]).unwrap();
    for request in changing(ROOT, 1) {
        assert_eq!(client.ask(&request), Err(Errno::ROFS), "{request:?}");
    }
    client.ask(&Request::Lopen { fid: 1, flags: 0 }).unwrap();
    assert_eq!(client.write(1, 0, b"x"), Err(Errno::BADF));
    assert_eq!(client.set(1, 0x8, 0, 0), Err(Errno::ROFS));
    assert_eq!(client.read(1, 2, 3).unwrap(), b"234");
    assert_eq!(fs::read_dir(files.root()).unwrap().count(), 2);
    assert_eq!(fs::read(files.root().join("file")).unwrap(), b"0123456789");
}

#[test]
fn special_files_are_not_opened() {
    let files = Files::new();
    let fifo = files.root().join("fifo");
    mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut client = files.client();
    for flags in 0..3 {
        assert_eq!(client.open(1, &["fifo"], flags), Err(Errno::ACCESS));
    }
    assert_eq!(client.create(1, "fifo", 1, 0o600), Err(Errno::ACCESS));
    assert_eq!(client.open(1, &["file"], 3), Err(Errno::INVAL));
}
