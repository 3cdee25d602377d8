//! A client's session: its fids, and an answer to each of its requests.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use super::attributes::{changes, put_attributes, put_file_system};
use super::request::{Names, Request};
use super::tree::{Node, Tree};
use super::wire::{Field as _, HEADER, MIN_SIZE, Reader, Text, Writer};

/// The protocol.
const VERSION: &[u8] = b"9P2000.L";
/// The most fids of a session: each is a descriptor of the server at most.
const MAX_FIDS: usize = 4096;
/// The type of an answer that is an error.
const ERROR: u8 = 7;
/// No fid.
const NO_FID: u32 = u32::MAX;

/// A session with one client: what its fids stand for.
///
/// When it is dropped, all its files are closed.
#[derive(Debug)]
pub struct Session {
    tree: Arc<Tree>,
    // The longest message, which the client has agreed to. Zero until then.
    max_size: u32,
    size: u32,
    fids: HashMap<u32, Fid>,
}

#[derive(Debug)]
struct Fid {
    node: Arc<Node>,
    is_open: bool,
}

/// The bytes are no message of this session: there is nothing to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Its length is not the size in its header.
    Size,
    /// It is longer than client and server have agreed.
    TooLong,
    /// The buffer for the answer is shorter than that.
    NoRoom,
}

impl Session {
    /// Begins a session in which messages have at most this many bytes, or fewer if the client wants so.
    #[must_use]
    pub fn new(tree: Arc<Tree>, max_size: u32) -> Self {
        Self {
            tree,
            max_size: max_size.max(MIN_SIZE),
            size: 0,
            fids: HashMap::new(),
        }
    }

    /// The fids in use.
    #[must_use]
    pub fn fids(&self) -> usize {
        self.fids.len()
    }

    /// Does what a message asks for, and writes the answer into `answer`. Returns the answer's length.
    ///
    /// `answer` has room for the longest message of the session. A request that fails is answered
    /// with its error.
    ///
    /// # Errors
    ///
    /// The bytes are no message: the connection is of no use any more.
    pub fn answer(&mut self, message: &[u8], answer: &mut [u8]) -> Result<usize, Violation> {
        let (size, number, tag) = header(message).ok_or(Violation::Size)?;
        if usize::try_from(size) != Ok(message.len()) {
            return Err(Violation::Size);
        }
        // The first message has to fit before anything is agreed.
        let max = match self.size {
            0 => self.max_size,
            agreed => agreed,
        };
        if size > max {
            return Err(Violation::TooLong);
        }
        let max = usize::try_from(max).ok();
        let room = max.and_then(|max| answer.get_mut(..max));
        let mut to = Writer::new(room.ok_or(Violation::NoRoom)?);
        let fields = message.get(HEADER..).unwrap_or_default();
        let written = to.begin().and_then(|()| {
            let request = Request::decode(number, fields)?;
            self.run(&request, &mut to)?;
            Ok(request.number() + 1)
        });
        let finished = match written {
            Ok(number) => to.finish(number, tag),
            Err(error) => to
                .begin()
                .and_then(|()| to.put(&error.raw_os_error().unsigned_abs()))
                .and_then(|()| to.finish(ERROR, tag)),
        };
        finished.or(Err(Violation::NoRoom))
    }

    /// Runs a request, and writes the fields of its answer.
    fn run(&mut self, request: &Request<'_>, to: &mut Writer<'_>) -> Result<(), Errno> {
        use Request as T;
        let tree = Arc::clone(&self.tree);
        match *request {
            T::Version { msize, version } => self.version(msize, version, to),
            _ if self.size == 0 => Err(Errno::PROTO),
            // Requests are answered in their order: the answer to that one has been sent.
            T::Flush { .. } => Ok(()),
            T::Attach {
                fid, afid, aname, ..
            } => {
                // There is no authentication, and one tree.
                if afid != NO_FID {
                    return Err(Errno::OPNOTSUPP);
                } else if !matches!(aname.0, b"" | b"/") {
                    return Err(Errno::NOENT);
                }
                to.put(&tree.qid(&tree.root().attributes()?))?;
                self.insert(fid, tree.root())
            }
            T::Walk {
                fid,
                new_fid,
                names,
            } => self.walk(fid, new_fid, &names, to),
            T::Clunk { fid } => self.fids.remove(&fid).map(drop).ok_or(Errno::BADF),
            T::Remove { fid } => {
                // A file can have several names: it is one of them that is removed, by `Unlinkat`.
                let removed = self.fids.remove(&fid).map(drop);
                removed.ok_or(Errno::BADF).and(Err(Errno::OPNOTSUPP))
            }
            T::Lopen { fid, flags } => {
                let found = self.fid(fid)?;
                if found.is_open {
                    return Err(Errno::INVAL);
                }
                let node = tree.open_again(&found.node, flags)?;
                self.opened(fid, node, to)
            }
            T::Lcreate {
                fid,
                name,
                flags,
                mode,
                ..
            } => {
                let found = self.fid(fid)?;
                if found.is_open {
                    return Err(Errno::INVAL);
                }
                let node = tree.create(&found.node, name, flags, mode)?;
                self.opened(fid, node, to)
            }
            T::Read { fid, offset, count } => {
                let node = self.open(fid)?;
                to.data(count, |room| node.read(offset, room))
            }
            T::Write { fid, offset, data } => {
                let written = self.open(fid)?.write(offset, data.0)?;
                to.put(&u32::try_from(written).or(Err(Errno::IO))?)
            }
            T::Readdir { fid, offset, count } => {
                let dir = self.open(fid)?;
                to.data(count, |room| tree.entries(dir, offset, room))
            }
            T::Fsync { fid, datasync } => self.open(fid)?.sync(datasync != 0),
            T::Mkdir {
                dfid, name, mode, ..
            } => to.put(&tree.qid(&tree.mkdir(self.node(dfid)?, name, mode)?.attributes()?)),
            T::Symlink {
                dfid, name, target, ..
            } => {
                let node = tree.symlink(self.node(dfid)?, name, target)?;
                to.put(&tree.qid(&node.attributes()?))
            }
            T::Mknod {
                dfid, name, mode, ..
            } => to.put(&tree.qid(&tree.mknod(self.node(dfid)?, name, mode)?.attributes()?)),
            T::Readlink { fid } => {
                let mut target = [0; MAX_TARGET];
                let target = self.node(fid)?.target(&mut target)?;
                to.put(&Text(target.ok_or(Errno::NAMETOOLONG)?))
            }
            T::Link { dfid, fid, name } => tree.link(self.node(fid)?, self.node(dfid)?, name),
            T::Renameat {
                old_dfid,
                old_name,
                new_dfid,
                new_name,
            } => tree.rename(
                (self.node(old_dfid)?, old_name),
                (self.node(new_dfid)?, new_name),
            ),
            T::Unlinkat { dfid, name, flags } => tree.unlink(self.node(dfid)?, name, flags),
            T::Getattr { fid, .. } => put_attributes(&tree, self.node(fid)?, to),
            T::Setattr { fid, .. } => tree.change(self.node(fid)?, &changes(request)?),
            T::Statfs { fid } => put_file_system(self.node(fid)?, to),
        }
    }

    fn version(&mut self, msize: u32, version: Text<'_>, to: &mut Writer<'_>) -> Result<(), Errno> {
        // All that was before ends.
        self.fids.clear();
        self.size = 0;
        if msize < MIN_SIZE {
            return Err(Errno::INVAL);
        }
        let size = msize.min(self.max_size);
        to.put(&size)?;
        if version.0 != VERSION {
            return to.put(&Text(b"unknown"));
        }
        self.size = size;
        to.put(&Text(VERSION))
    }

    /// Walks as far as the names are found. Only a whole walk makes the new fid stand for something.
    fn walk(
        &mut self,
        fid: u32,
        new_fid: u32,
        names: &Names<'_>,
        to: &mut Writer<'_>,
    ) -> Result<(), Errno> {
        let from = self.fid(fid)?;
        if from.is_open && fid == new_fid {
            return Err(Errno::INVAL);
        }
        let mut node = Arc::clone(&from.node);
        let at = to.len();
        let mut found = 0_u16;
        to.put(&found)?;
        for name in names.iter() {
            let next = self.tree.find(&node, name);
            let next = next.and_then(|next| Ok((self.tree.qid(&next.attributes()?), next)));
            match next {
                Ok((qid, next)) => {
                    to.put(&qid)?;
                    node = Arc::new(next);
                }
                Err(error) if found == 0 => return Err(error),
                Err(_missing) => return Ok(()),
            }
            found += 1;
            to.patch(at..at + 2, &found.to_le_bytes())?;
        }
        if fid == new_fid {
            let is_open = false;
            drop(self.fids.insert(fid, Fid { node, is_open }));
            return Ok(());
        }
        self.insert(new_fid, node)
    }

    /// Makes a fid stand for a node. It stands for nothing so far.
    fn insert(&mut self, fid: u32, node: Arc<Node>) -> Result<(), Errno> {
        if fid == NO_FID || self.fids.contains_key(&fid) {
            return Err(Errno::INVAL);
        } else if self.fids.len() >= MAX_FIDS {
            return Err(Errno::NFILE);
        }
        let is_open = false;
        drop(self.fids.insert(fid, Fid { node, is_open }));
        Ok(())
    }

    /// Makes a fid stand for what was opened.
    fn opened(&mut self, fid: u32, node: Node, to: &mut Writer<'_>) -> Result<(), Errno> {
        to.put(&self.tree.qid(&node.attributes()?))?;
        // As much at once as fits in a message.
        to.put(&0_u32)?;
        let (node, is_open) = (Arc::new(node), true);
        drop(self.fids.insert(fid, Fid { node, is_open }));
        Ok(())
    }

    fn fid(&self, fid: u32) -> Result<&Fid, Errno> {
        self.fids.get(&fid).ok_or(Errno::BADF)
    }

    fn node(&self, fid: u32) -> Result<&Node, Errno> {
        self.fid(fid).map(|found| &*found.node)
    }

    fn open(&self, fid: u32) -> Result<&Node, Errno> {
        let found = self.fid(fid)?;
        found.is_open.then_some(&*found.node).ok_or(Errno::BADF)
    }
}

fn header(message: &[u8]) -> Option<(u32, u8, u16)> {
    let mut reader = Reader::new(message);
    Some((
        u32::get(&mut reader).ok()?,
        u8::get(&mut reader).ok()?,
        u16::get(&mut reader).ok()?,
    ))
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "a message has not the length in its header",
            Self::TooLong => "a message is longer than was agreed",
            Self::NoRoom => "the buffer for an answer is too short",
        })
    }
}

impl std::error::Error for Violation {}

/// The longest target of a symbolic link, and a byte to notice a longer one.
const MAX_TARGET: usize = 4096;
