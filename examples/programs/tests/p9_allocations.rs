//! A session of `p9_server` allocates only for the nodes that its fids stand for.
#![cfg(test)]

use std::fs;
use std::sync::Arc;

use programs::p9::{Data, Name, Names, Request, Session, Text, Tree};
use verbs_harness::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FILE: u32 = 1;
const DIR: u32 = 2;
const OTHER: u32 = 3;

struct Client {
    session: Session,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    /// How many allocations a request takes, which succeeds.
    fn costs(&mut self, request: &Request<'_>) -> usize {
        let len = request.encode(1, &mut self.message).unwrap();
        let before = allocations();
        let answered = self.session.answer(&self.message[..len], &mut self.answer);
        let cost = allocations() - before;
        assert_ne!(self.answer[4], 7, "{request:?}");
        assert!(answered.is_ok());
        cost
    }
}

fn walk<'a>(new_fid: u32, names: &[Name<'a>]) -> Request<'a> {
    let names = Names::new(names).unwrap();
    let fid = 0;
    Request::Walk {
        fid,
        new_fid,
        names,
    }
}

#[test]
fn requests_on_open_files_allocate_nothing() {
    let name = format!("verbs-examples-allocations-{}", std::process::id());
    let root = std::env::temp_dir().join(name);
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("file"), [7; 9000]).unwrap();
    let tree = Arc::new(Tree::open(&root, false).unwrap());
    let mut client = Client {
        session: Session::new(tree, 65_536),
        message: vec![0; 65_536],
        answer: vec![0; 65_536],
    };
    let version = Text(b"9P2000.L");
    let attach = Request::Attach {
        fid: 0,
        afid: u32::MAX,
        uname: Text(b""),
        aname: Text(b""),
        n_uname: 0,
    };
    let file = Name::new(b"file").unwrap();
    for request in [
        Request::Version {
            msize: 65_536,
            version,
        },
        attach,
        walk(FILE, &[file]),
        Request::Lopen {
            fid: FILE,
            flags: 2,
        },
        walk(DIR, &[]),
        Request::Lopen { fid: DIR, flags: 0 },
    ] {
        client.costs(&request);
    }
    let (fid, offset, count) = (FILE, 0, 60_000);
    let data = Data(&[1; 8192]);
    for request in [
        Request::Read { fid, offset, count },
        Request::Write { fid, offset, data },
        Request::Getattr { fid, mask: 0x7ff },
        Request::Fsync { fid, datasync: 0 },
        Request::Statfs { fid },
        Request::Readdir {
            fid: DIR,
            offset,
            count,
        },
        Request::Flush { old_tag: 1 },
    ] {
        assert_eq!(client.costs(&request), 0, "{request:?}");
    }
    // A fid that comes and goes, as for each `stat`: one for its node.
    for _ in 0..3 {
        assert_eq!(client.costs(&walk(OTHER, &[file])), 1);
        assert_eq!(client.costs(&Request::Clunk { fid: OTHER }), 0);
    }
    drop(client);
    fs::remove_dir_all(root).unwrap();
}
