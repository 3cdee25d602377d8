//! The files of one directory, which no name leads out of.

use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, StatVfs, Statx, StatxFlags,
    Timestamps, Uid, chmodat, chownat, fdatasync, fstatvfs, fsync, ftruncate, linkat, mkdirat,
    mknodat, openat, readlinkat_raw, renameat, seek, statx, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::path::DecInt;

use super::wire::{Name, Qid, Text, Writer};

/// A directory that is served, with all that is in it.
#[derive(Debug)]
pub struct Tree {
    root: Arc<Node>,
    // `/proc/self/fd`: what a descriptor stands for is opened again, changed or linked by its name there.
    descriptors: OwnedFd,
    device: (u32, u32),
    read_only: bool,
}

/// Something in the tree. The descriptor stands for it wherever it is moved, and for nothing else.
#[derive(Debug)]
pub(super) struct Node {
    fd: OwnedFd,
    kind: FileType,
}

/// Attributes to change.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) times: Option<Timestamps>,
}

impl Tree {
    /// Serves this directory. Read-only, it answers every request for a change with `EROFS`.
    ///
    /// # Errors
    ///
    /// It is no directory, or may not be opened; or `/proc` is missing.
    pub fn open(dir: &Path, read_only: bool) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Node::new(openat(CWD, dir, flags, Mode::empty())?)?;
        let descriptors = openat(CWD, "/proc/self/fd", flags, Mode::empty())?;
        let device = device(&root.attributes()?);
        Ok(Self {
            root: Arc::new(root),
            descriptors,
            device,
            read_only,
        })
    }

    pub(super) fn root(&self) -> Arc<Node> {
        Arc::clone(&self.root)
    }

    /// Finds an entry of a directory. A symbolic link is found itself.
    pub(super) fn find(&self, dir: &Node, name: Name<'_>) -> Result<Node, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Node::new(openat(&dir.fd, name.bytes(), flags, Mode::empty())?)
    }

    /// Opens a file or a directory.
    pub(super) fn open_again(&self, node: &Node, flags: u32) -> Result<Node, Errno> {
        let flags = open_flags(flags)?;
        match node.kind {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP),
            // It would be one of the server's devices; a client has its own.
            _ => return Err(Errno::ACCESS),
        }
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.check_writable()?;
        }
        let fd = openat(
            &self.descriptors,
            node.number().as_c_str(),
            flags,
            Mode::empty(),
        )?;
        let kind = node.kind;
        Ok(Node { fd, kind })
    }

    /// Creates and opens a file, or opens the one that is there.
    pub(super) fn create(
        &self,
        dir: &Node,
        name: Name<'_>,
        flags: u32,
        mode: u32,
    ) -> Result<Node, Errno> {
        self.check_writable()?;
        // Nothing that is there is opened by its name: it could be a device, or a link that leads
        // elsewhere.
        let create = open_flags(flags)? | OFlags::CREATE | OFlags::EXCL;
        match openat(&dir.fd, name.bytes(), create, permissions(mode, false)?) {
            Err(Errno::EXIST) if flags & EXCL == 0 => {
                self.open_again(&self.find(dir, name)?, flags)
            }
            created => Node::new(created?),
        }
    }

    pub(super) fn mkdir(&self, dir: &Node, name: Name<'_>, mode: u32) -> Result<Node, Errno> {
        self.check_writable()?;
        mkdirat(&dir.fd, name.bytes(), permissions(mode, true)?)?;
        self.find(dir, name)
    }

    pub(super) fn symlink(
        &self,
        dir: &Node,
        name: Name<'_>,
        target: Text<'_>,
    ) -> Result<Node, Errno> {
        self.check_writable()?;
        symlinkat(target.0, &dir.fd, name.bytes())?;
        self.find(dir, name)
    }

    /// Creates an empty file, a FIFO or a socket. Devices are the server's, and not created.
    pub(super) fn mknod(&self, dir: &Node, name: Name<'_>, mode: u32) -> Result<Node, Errno> {
        self.check_writable()?;
        let kind = FileType::from_raw_mode(mode);
        if !matches!(
            kind,
            FileType::RegularFile | FileType::Fifo | FileType::Socket
        ) {
            return Err(Errno::PERM);
        }
        let permissions = permissions(mode, false)?;
        mknodat(&dir.fd, name.bytes(), kind, permissions, 0)?;
        self.find(dir, name)
    }

    pub(super) fn link(&self, node: &Node, dir: &Node, name: Name<'_>) -> Result<(), Errno> {
        self.check_writable()?;
        let follow = AtFlags::SYMLINK_FOLLOW;
        linkat(
            &self.descriptors,
            node.number().as_c_str(),
            &dir.fd,
            name.bytes(),
            follow,
        )
    }

    pub(super) fn rename(
        &self,
        (from, old): (&Node, Name<'_>),
        (to, new): (&Node, Name<'_>),
    ) -> Result<(), Errno> {
        self.check_writable()?;
        renameat(&from.fd, old.bytes(), &to.fd, new.bytes())
    }

    pub(super) fn unlink(&self, dir: &Node, name: Name<'_>, flags: u32) -> Result<(), Errno> {
        self.check_writable()?;
        let flags = match flags {
            0 => AtFlags::empty(),
            REMOVE_DIR => AtFlags::REMOVEDIR,
            _ => return Err(Errno::INVAL),
        };
        unlinkat(&dir.fd, name.bytes(), flags)
    }

    /// Changes attributes: of a symbolic link its own.
    pub(super) fn change(&self, node: &Node, changes: &Changes) -> Result<(), Errno> {
        self.check_writable()?;
        let at = &self.descriptors;
        let (uid, gid) = (
            changes.uid.map(Uid::from_raw),
            changes.gid.map(Gid::from_raw),
        );
        if uid.is_some() || gid.is_some() {
            chownat(at, node.number().as_c_str(), uid, gid, AtFlags::empty())?;
        }
        if let Some(mode) = changes.mode {
            let permissions = permissions(mode, node.kind == FileType::Directory)?;
            chmodat(at, node.number().as_c_str(), permissions, AtFlags::empty())?;
        }
        if let Some(size) = changes.size {
            match ftruncate(&node.fd, size) {
                // It is not open for writing.
                Err(Errno::BADF | Errno::INVAL) => {
                    ftruncate(self.open_again(node, WRITE_ONLY)?.fd, size)?;
                }
                truncated => truncated?,
            }
        }
        if let Some(times) = &changes.times {
            utimensat(at, node.number().as_c_str(), times, AtFlags::empty())?;
        }
        Ok(())
    }

    pub(super) fn qid(&self, about: &Statx) -> Qid {
        let changed = about.stx_mtime.tv_sec.cast_unsigned() ^ (about.stx_size << 8);
        let changed = u32::try_from(changed & u64::from(u32::MAX)).unwrap_or_default();
        Qid {
            kind: qid_kind(FileType::from_raw_mode(about.stx_mode.into())),
            version: changed ^ about.stx_mtime.tv_nsec,
            path: about.stx_ino ^ self.upper_bits(about),
        }
    }

    /// Inodes have numbers of their own on each device: those of other devices than the root's get
    /// other upper bits.
    fn upper_bits(&self, about: &Statx) -> u64 {
        let (major, minor) = device(about);
        let (own_major, own_minor) = self.device;
        u64::from(major ^ own_major).rotate_left(52) ^ u64::from(minor ^ own_minor).rotate_left(40)
    }

    /// Puts the entries from this offset on that fit into the buffer. Returns their length.
    pub(super) fn entries(
        &self,
        dir: &Node,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        if dir.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let upper = self.upper_bits(&dir.attributes()?);
        let _offset = seek(&dir.fd, SeekFrom::Start(offset))?;
        let mut space = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(dir.fd.as_fd(), &mut space);
        let mut writer = Writer::new(buffer);
        while let Some(entry) = entries.next() {
            let (entry, start) = (entry?, writer.len());
            let kind = entry.file_type();
            let qid = Qid {
                kind: qid_kind(kind),
                version: 0,
                path: entry.ino() ^ upper,
            };
            let put = |writer: &mut Writer<'_>| {
                writer.put(&qid)?;
                writer.put(&entry.next_entry_cookie())?;
                writer.put(&dirent_kind(kind))?;
                writer.put(&Text(entry.file_name().to_bytes()))
            };
            if put(&mut writer).is_err() {
                // Nothing would be the end of the directory.
                return if start == 0 {
                    Err(Errno::INVAL)
                } else {
                    Ok(start)
                };
            }
        }
        Ok(writer.len())
    }

    fn check_writable(&self) -> Result<(), Errno> {
        if self.read_only {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }
}

impl Node {
    fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let mode = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?.stx_mode;
        let kind = FileType::from_raw_mode(mode.into());
        Ok(Self { fd, kind })
    }

    /// Its name in `/proc/self/fd`.
    fn number(&self) -> DecInt {
        DecInt::from_fd(&self.fd)
    }

    pub(super) fn attributes(&self) -> Result<Statx, Errno> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        statx(&self.fd, "", AtFlags::EMPTY_PATH, mask)
    }

    pub(super) fn file_system(&self) -> Result<StatVfs, Errno> {
        fstatvfs(&self.fd)
    }

    /// Reads the target of a symbolic link: `None` if it is longer than the buffer.
    pub(super) fn target<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, Errno> {
        if self.kind != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let len = readlinkat_raw(&self.fd, "", &mut *buffer)?;
        Ok((len < buffer.len()).then_some(&buffer[..len]))
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        retry_on_intr(|| pread(&self.fd, &mut *buffer, offset))
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        retry_on_intr(|| pwrite(&self.fd, bytes, offset))
    }

    pub(super) fn sync(&self, only_data: bool) -> Result<(), Errno> {
        if only_data {
            fdatasync(&self.fd)
        } else {
            fsync(&self.fd)
        }
    }
}

fn device(about: &Statx) -> (u32, u32) {
    (about.stx_dev_major, about.stx_dev_minor)
}

const fn qid_kind(kind: FileType) -> u8 {
    match kind {
        FileType::Directory => 0x80,
        FileType::Symlink => 0x02,
        _ => 0,
    }
}

/// As in `d_type` of `readdir(3)`.
fn dirent_kind(kind: FileType) -> u8 {
    match kind {
        FileType::Unknown => 0,
        // `IFTODT`
        known => u8::try_from(known.as_raw_mode() >> 12 & 0xf).unwrap_or_default(),
    }
}

/// The protocol's flags, which are those of x86, as this system's.
fn open_flags(flags: u32) -> Result<OFlags, Errno> {
    let mut own = match flags & 3 {
        0 => OFlags::RDONLY,
        WRITE_ONLY => OFlags::WRONLY,
        2 => OFlags::RDWR,
        _ => return Err(Errno::INVAL),
    };
    for (flag, theirs) in [
        (OFlags::TRUNC, 0o1000),
        (OFlags::APPEND, 0o2000),
        (OFlags::DSYNC, 0o1_0000),
        (OFlags::DIRECTORY, 0o20_0000),
        (OFlags::SYNC, 0o400_0000),
    ] {
        own.set(flag, flags & theirs != 0 || own.contains(flag));
    }
    // A file can't become a FIFO, which would have to wait, but this costs nothing.
    Ok(own | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)
}

/// The permissions of a mode. A client can't create programs that run as the server's user: for those
/// bits, `EPERM`. A directory's make its entries have its group.
fn permissions(mode: u32, is_dir: bool) -> Result<Mode, Errno> {
    let special = if is_dir {
        Mode::SUID
    } else {
        Mode::SUID | Mode::SGID
    };
    // The upper bits are the type.
    let permissions = Mode::from_raw_mode(mode & 0o7777);
    if permissions.intersects(special) {
        return Err(Errno::PERM);
    }
    Ok(permissions)
}

const WRITE_ONLY: u32 = 1;
const EXCL: u32 = 0o200;
const REMOVE_DIR: u32 = 0x200;
