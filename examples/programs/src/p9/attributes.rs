//! Attributes, as the protocol has them.

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, makedev};
use rustix::io::Errno;

use super::request::Request;
use super::tree::{Changes, Node, Tree};
use super::wire::Writer;

/// `Getattr`'s answer: all that `stat(2)` has, whatever was asked for.
pub(super) fn put_attributes(tree: &Tree, node: &Node, to: &mut Writer<'_>) -> Result<(), Errno> {
    let about = node.attributes()?;
    to.put(&0x7ff_u64)?;
    to.put(&tree.qid(&about))?;
    for number in [about.stx_mode.into(), about.stx_uid, about.stx_gid] {
        to.put(&number)?;
    }
    let device = makedev(about.stx_rdev_major, about.stx_rdev_minor);
    let block = u64::from(about.stx_blksize);
    for number in [
        about.stx_nlink.into(),
        device,
        about.stx_size,
        block,
        about.stx_blocks,
    ] {
        to.put(&number)?;
    }
    for time in [
        about.stx_atime,
        about.stx_mtime,
        about.stx_ctime,
        about.stx_btime,
    ] {
        to.put(&time.tv_sec.cast_unsigned())?;
        to.put(&u64::from(time.tv_nsec))?;
    }
    // A generation and a version of the data are not known.
    to.put(&0_u64)?;
    to.put(&0_u64)
}

pub(super) fn put_file_system(node: &Node, to: &mut Writer<'_>) -> Result<(), Errno> {
    let about = node.file_system()?;
    let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    to.put(&MAGIC)?;
    to.put(&short(about.f_bsize))?;
    for number in [
        about.f_blocks,
        about.f_bfree,
        about.f_bavail,
        about.f_files,
        about.f_ffree,
        about.f_fsid,
    ] {
        to.put(&number)?;
    }
    to.put(&short(about.f_namemax))
}

/// The changes that `Setattr` asks for.
pub(super) fn changes(request: &Request<'_>) -> Result<Changes, Errno> {
    let &Request::Setattr {
        valid,
        mode,
        uid,
        gid,
        size,
        atime_sec,
        atime_nsec,
        mtime_sec,
        mtime_nsec,
        ..
    } = request
    else {
        return Err(Errno::INVAL);
    };
    let has = |bit: u32| valid & bit != 0;
    let time = |bit, set_bit, seconds: u64, nanoseconds: u64| {
        let (tv_sec, tv_nsec) = match (has(bit), has(set_bit)) {
            (false, _) => (0, UTIME_OMIT),
            (true, false) => (0, UTIME_NOW),
            (true, true) => {
                let nanoseconds = i64::try_from(nanoseconds).ok();
                let valid = nanoseconds.filter(|count| (0..1_000_000_000).contains(count));
                (seconds.cast_signed(), valid.ok_or(Errno::INVAL)?)
            }
        };
        Ok(Timespec { tv_sec, tv_nsec })
    };
    let times = Timestamps {
        last_access: time(0x10, 0x80, atime_sec, atime_nsec)?,
        last_modification: time(0x20, 0x100, mtime_sec, mtime_nsec)?,
    };
    Ok(Changes {
        mode: has(0x1).then_some(mode),
        uid: has(0x2).then_some(uid),
        gid: has(0x4).then_some(gid),
        size: has(0x8).then_some(size),
        times: (has(0x10) || has(0x20)).then_some(times),
    })
}

/// `V9FS_MAGIC`: what `statfs(2)` shows as the type.
const MAGIC: u32 = 0x0102_1997;
