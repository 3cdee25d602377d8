//! A client of a session, and what it may and may not do.

mod bounds;
mod confined;
mod files;
mod random;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::wire::{Field as _, Reader};
use super::{Data, HEADER, Name, Names, Qid, Request, Session, Text, Tree};

const SIZE: u32 = 16_384;
const NO_FID: u32 = u32::MAX;
const ROOT: u32 = 0;

/// A directory with a tree in `root`, and a secret beside it.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbs-examples-p9-{}-{number}", std::process::id());
        let files = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(files.root().join("dir")).unwrap();
        fs::create_dir(files.0.join("outside")).unwrap();
        fs::write(files.secret(), "secret").unwrap();
        fs::write(files.root().join("file"), "0123456789").unwrap();
        fs::write(files.root().join("dir/inner"), "inner").unwrap();
        files
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    fn secret(&self) -> PathBuf {
        self.0.join("outside/inner")
    }

    fn client(&self) -> Client {
        self.client_of(false)
    }

    fn client_of(&self, read_only: bool) -> Client {
        let mut client = Client::before_version(&self.root(), read_only);
        client.begin();
        client
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

struct Client {
    session: Session,
    buffers: [Vec<u8>; 2],
}

impl Client {
    fn before_version(root: &Path, read_only: bool) -> Self {
        let tree = Tree::open(root, read_only).unwrap();
        Self {
            session: Session::new(Arc::new(tree), SIZE),
            buffers: [vec![0; 65_536], vec![0; 65_536]],
        }
    }

    fn begin(&mut self) {
        let version = Text(b"9P2000.L");
        let msize = SIZE;
        self.ask(&Request::Version { msize, version }).unwrap();
        let (afid, n_uname, nothing) = (NO_FID, 0, Text(b""));
        self.ask(&Request::Attach {
            fid: ROOT,
            afid,
            uname: nothing,
            aname: nothing,
            n_uname,
        })
        .unwrap();
    }

    /// The fields of the answer.
    fn ask(&mut self, request: &Request<'_>) -> Result<&[u8], Errno> {
        let [message, answer] = &mut self.buffers;
        let len = request.encode(7, message).unwrap();
        let len = self.session.answer(&message[..len], answer).unwrap();
        let answer = &answer[..len];
        let mut reader = Reader::new(answer);
        assert_eq!(u32::get(&mut reader), Ok(u32::try_from(len).unwrap()));
        let number = u8::get(&mut reader).unwrap();
        assert_eq!(u16::get(&mut reader), Ok(7));
        if number == 7 {
            let code = u32::get(&mut reader).unwrap();
            reader.end().unwrap();
            return Err(Errno::from_raw_os_error(code.try_into().unwrap()));
        }
        assert_eq!(number, request.number() + 1);
        Ok(&answer[HEADER..])
    }

    /// How many of the names were found.
    fn walk(&mut self, fid: u32, new_fid: u32, names: &[&str]) -> Result<u16, Errno> {
        let names: Vec<_> = names.iter().copied().map(name).collect();
        let names = Names::new(&names).unwrap();
        let answer = self.ask(&Request::Walk {
            fid,
            new_fid,
            names,
        })?;
        u16::get(&mut Reader::new(answer))
    }

    /// Walks from the root to a new fid, and opens it.
    fn open(&mut self, fid: u32, names: &[&str], flags: u32) -> Result<(), Errno> {
        let found = self.walk(ROOT, fid, names)?;
        if usize::from(found) < names.len() {
            return Err(Errno::NOENT);
        }
        let opened = self.ask(&Request::Lopen { fid, flags }).map(drop);
        if opened.is_err() {
            self.clunk(fid);
        }
        opened
    }

    fn create(&mut self, fid: u32, it: &str, flags: u32, mode: u32) -> Result<(), Errno> {
        self.walk(ROOT, fid, &[]).unwrap();
        let (name, gid) = (name(it), 0);
        let created = self.ask(&Request::Lcreate {
            fid,
            name,
            flags,
            mode,
            gid,
        });
        let created = created.map(drop);
        if created.is_err() {
            self.clunk(fid);
        }
        created
    }

    fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let answer = self.ask(&Request::Read { fid, offset, count })?;
        let data = Data::get(&mut Reader::new(answer))?;
        Ok(data.0.to_vec())
    }

    fn write(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let data = Data(bytes);
        let answer = self.ask(&Request::Write { fid, offset, data })?;
        u32::get(&mut Reader::new(answer))
    }

    fn clunk(&mut self, fid: u32) {
        self.ask(&Request::Clunk { fid }).unwrap();
    }

    /// The names in an open directory, in pieces of at most `count` bytes.
    fn list(&mut self, fid: u32, count: u32) -> Result<Vec<String>, Errno> {
        let (mut offset, mut names) = (0, Vec::new());
        loop {
            let answer = self.ask(&Request::Readdir { fid, offset, count })?;
            let data = Data::get(&mut Reader::new(answer))?.0;
            assert!(data.len() <= usize::try_from(count).unwrap());
            if data.is_empty() {
                return Ok(names);
            }
            let mut reader = Reader::new(data);
            while reader.end().is_err() {
                Qid::get(&mut reader)?;
                offset = u64::get(&mut reader)?;
                u8::get(&mut reader)?;
                let name = Text::get(&mut reader)?.0;
                names.push(String::from_utf8(name.to_vec()).unwrap());
            }
        }
    }

    fn set(&mut self, fid: u32, valid: u32, mode: u32, size: u64) -> Result<(), Errno> {
        let request = Request::Setattr {
            fid,
            valid,
            mode,
            uid: 0,
            gid: 0,
            size,
            atime_sec: 1_000_000_000,
            atime_nsec: 5,
            mtime_sec: 2_000_000_000,
            mtime_nsec: 6,
        };
        self.ask(&request).map(drop)
    }
}

fn name(it: &str) -> Name<'_> {
    Name::new(it.as_bytes()).unwrap()
}

/// One of each request that changes something, on these fids.
fn changing(dir: u32, file: u32) -> [Request<'static>; 10] {
    let (new, old, target) = (name("new"), name("file"), Text(b"x"));
    let (dfid, mode, gid) = (dir, 0o644, 0);
    [
        Request::Lcreate {
            fid: dir,
            name: new,
            flags: 0,
            mode,
            gid,
        },
        Request::Symlink {
            dfid,
            name: new,
            target,
            gid,
        },
        Request::Mknod {
            dfid,
            name: new,
            mode: mode | 0o10_0000,
            major: 0,
            minor: 0,
            gid,
        },
        Request::Mkdir {
            dfid,
            name: new,
            mode,
            gid,
        },
        Request::Link {
            dfid,
            fid: file,
            name: new,
        },
        Request::Renameat {
            old_dfid: dfid,
            old_name: old,
            new_dfid: dfid,
            new_name: new,
        },
        Request::Unlinkat {
            dfid,
            name: old,
            flags: 0,
        },
        Request::Setattr {
            fid: file,
            valid: 1,
            mode,
            uid: 0,
            gid,
            size: 0,
            atime_sec: 0,
            atime_nsec: 0,
            mtime_sec: 0,
            mtime_nsec: 0,
        },
        Request::Lopen {
            fid: file,
            flags: 1,
        },
        Request::Lopen {
            fid: file,
            flags: 0o1000,
        },
    ]
}
