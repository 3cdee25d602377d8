//! The table of causes: which call failed with which errno, and what that means.
//!
//! A call passes the facts that it can find out, after it has failed. A cause that is certain becomes part of the
//! error's text; what is only possible, and what to do, follows the text of the errno.
#![expect(unsafe_code, reason = "reads the limit on locked memory")]

use std::path::Path;
use std::{fs, io};

use super::errno::{Cause, explained, number};
use super::{Error, groups, mapping};
use crate::codes::{Gid, GidType, PortState};

/// A call that failed, with what is known of it.
pub(crate) enum Call {
    /// Memory is registered.
    Register(Memory),
    /// A queue is created: the limit on their number, with its name, and the settings that may not go together.
    Create {
        limit: (&'static str, Option<u32>),
        settings: &'static str,
    },
    /// A path is used, by a queue pair or an address handle.
    Path(Box<PathFacts>),
    /// Attributes of a queue pair are changed that are of no path.
    Modify,
}

/// Memory to register.
pub(crate) struct Memory {
    /// The address in this program; `None` for a dmabuf.
    pub(crate) start: Option<u64>,
    pub(crate) len: u64,
    pub(crate) iova: u64,
    /// Whether the device may write to it, and whether a peer may.
    pub(crate) local_write: bool,
    pub(crate) remote_write: bool,
    /// The device's limits on the length and the number of regions, if they are known.
    pub(crate) max_mr_size: Option<u64>,
    pub(crate) max_mr: Option<u32>,
}

/// The ends of a path, and the limits of this side's.
#[derive(Default)]
pub(crate) struct PathFacts {
    pub(crate) port_num: u8,
    /// The state of the port, and whether its packets need a GID.
    pub(crate) state: Option<PortState>,
    pub(crate) needs_grh: bool,
    /// The index of this side's GID, the entry at it, and the peer's GID; `None` without a GRH.
    pub(crate) sgid_index: Option<u8>,
    pub(crate) local: Option<(Gid, GidType)>,
    pub(crate) remote: Option<Gid>,
    /// The index of a GID of the same kind as the peer's.
    pub(crate) alike: Option<u8>,
    /// The P_Key that the queue pair has, and its index.
    pub(crate) pkey: Option<(u16, u16)>,
    /// Numbers that were asked for, with the limits on them and their names.
    pub(crate) limits: Vec<(&'static str, u32, &'static str, u32)>,
}

/// Explains why huge pages could not be reserved, if that is because of a control group.
pub(crate) fn huge_pages_reserved(source: io::Error, len: u64, page_size: u64) -> io::Error {
    match groups::limit_of_huge_pages(page_size, "rsvd.") {
        Some((group, limit)) if number(&source) == Some(libc::ENOMEM) && limit < len => {
            explained(source, Cause::Found(limited_by(&group, limit)))
        }
        _ => source,
    }
}

fn limited_by(group: &Path, limit: u64) -> String {
    let group = group.display();
    format!("the control group of this process may have {limit} bytes of them: raise {group}")
}

/// Explains why huge pages that were free could not be provided.
pub(crate) fn huge_pages(source: io::Error, page_size: u64) -> io::Error {
    let found = match (number(&source), groups::limit_of_huge_pages(page_size, "")) {
        (Some(libc::EHWPOISON), _) => "a page has a memory error: see `dmesg`".into(),
        (Some(libc::EFAULT | libc::ENOMEM), Some((group, limit))) => limited_by(&group, limit),
        (Some(libc::EFAULT), None) => {
            "a control group above that of this process limits them (hugetlb.*.max in /sys/fs/cgroup): raise its limit, \
             or that of the container or pod"
                .into()
        }
        _ => "the kernel could not provide them: see `dmesg`".into(),
    };
    explained(source, Cause::Found(found))
}

/// Explains the error of a call.
pub(crate) fn explain(error: Error, call: &Call) -> Error {
    match (error, call) {
        (Error::Verb { source, .. }, Call::Register(memory)) => {
            let len = memory.len;
            // Memory of other devices is not locked.
            match memory.start.and_then(|_| memlock_limit(&source)) {
                Some(limit) => Error::Memlock { len, limit, source },
                None => Error::Registration {
                    len,
                    source: with_cause(source, call),
                },
            }
        }
        (Error::Verb { verb, source }, _) => Error::Verb {
            verb,
            source: with_cause(source, call),
        },
        (error, _) => error,
    }
}

/// An errno with its cause, if the table has one.
fn with_cause(source: io::Error, call: &Call) -> io::Error {
    match number(&source).and_then(|errno| cause(errno, call)) {
        Some(cause) => explained(source, cause),
        None => source,
    }
}

/// An errno of a rejected change of state, with its cause, if the facts have one.
pub(crate) fn with_fact(source: io::Error, path: &PathFacts) -> io::Error {
    let is_invalid = number(&source) == Some(libc::EINVAL);
    match is_invalid.then(|| path.obstacle()).flatten() {
        Some(fact) => explained(source, Cause::Found(fact)),
        None => source,
    }
}

/// The error of a queue pair for whose reads and atomics nothing is left of what the device has for all.
pub(crate) fn no_depth_left(refused: Error, depth: u8, max_res_rd_atom: u32) -> Error {
    let found = |source| {
        let fact = format!(
            "max_dest_rd_atomic {depth} exceeds what is left of this device's max_res_rd_atom {max_res_rd_atom}, \
             which all its queue pairs share: build this one and others with a smaller max_dest_rd_atomic"
        );
        explained(source, Cause::Found(fact))
    };
    match refused {
        Error::Transition {
            from,
            to,
            missing,
            extra,
            path,
            source,
        } => Error::Transition {
            from,
            to,
            missing,
            extra,
            path,
            source: found(source),
        },
        Error::Verb { verb, source } => Error::Verb {
            verb,
            source: found(source),
        },
        error => error,
    }
}

/// The table.
fn cause(errno: i32, call: &Call) -> Option<Cause> {
    let found = match (errno, call) {
        (libc::EFAULT, Call::Register(memory)) => memory.unmappable(),
        (libc::EINVAL, Call::Register(memory)) => memory.invalid(),
        (libc::EINVAL, Call::Path(path)) => path.obstacle(),
        _ => None,
    };
    if let Some(found) = found {
        return Some(Cause::Found(found));
    }
    Some(Cause::Hint(match (errno, call) {
        (libc::ENOMEM, Call::Register(Memory { max_mr, .. })) => format!(
            "the machine or the control group of this process has not enough memory to pin, or the device has no \
             more regions (max_mr{}): `rdma resource show` counts them",
            number_of(*max_mr)
        ),
        (libc::EFAULT, Call::Register(_)) => {
            "the kernel could not pin a page of it: a file that was truncated under its mapping, or a page with a \
             memory error"
                .into()
        }
        (libc::EINVAL, Call::Register(_)) => {
            "the driver does not take these access flags, or this length, for this memory".into()
        }
        (libc::ENOMEM, Call::Create { limit, .. }) => {
            let (name, max) = (limit.0, number_of(limit.1));
            format!(
                "queues take locked memory, which `ulimit -l` limits; or the device has no more of them \
                 ({name}{max}): `rdma resource show` counts them"
            )
        }
        (libc::EINVAL, Call::Create { settings, .. }) => format!(
            "each capacity is within its limit, but the driver does not take all of them together: lower {settings}"
        ),
        (libc::EAGAIN, Call::Create { .. } | Call::Register(_)) => {
            "the control group of this process or container limits RDMA objects: compare `rdma.current` and \
             `rdma.max` of the group in /sys/fs/cgroup"
                .into()
        }
        (libc::ENOMEM, Call::Path(_) | Call::Modify) => {
            "the kernel or the device has no memory for it: close other queue pairs and address handles".into()
        }
        // The text of the error has both ends of the path, or the attributes that were wrong.
        (libc::EINVAL, Call::Modify) => return None,
        (libc::EINVAL, Call::Path(_)) => {
            "the port, the GID index or another value of the address vector is not valid for this device".into()
        }
        _ => of_any_call(errno)?.into(),
    }))
}

/// The rows for all calls.
fn of_any_call(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EIO | libc::ENODEV | libc::ENXIO => {
            "the device has failed or was removed: see `dmesg`, and open it again"
        }
        libc::EPERM | libc::EACCES => {
            "this process lacks a capability, or a security module or a control group forbids it"
        }
        libc::EMFILE | libc::ENFILE => "no file descriptors are left: `ulimit -n` shows the limit",
        libc::ENOSPC => {
            "the device has no room for another object: destroy others, also those of other programs"
        }
        libc::EBUSY => "another object still uses it",
        libc::EAGAIN | libc::EINTR => "the kernel could not do it at this moment: try again",
        libc::E2BIG | libc::EOVERFLOW | libc::ERANGE => "a number is too large for the driver",
        libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "there is no answer from the peer's address, or from the device's firmware"
        }
        // The kernel's own numbers are explained already.
        512.. => return None,
        _ => "the driver gave this reason: `dmesg` may have more",
    })
}

impl Memory {
    fn unmappable(&self) -> Option<String> {
        mapping::obstacle(self.start?, self.len, self.local_write || self.remote_write)
    }

    fn invalid(&self) -> Option<String> {
        let (len, iova) = (self.len, self.iova);
        if let Some(max) = self.max_mr_size.filter(|max| *max > 0 && len > *max) {
            return Some(format!("this device's max_mr_size is {max} bytes"));
        }
        if self.remote_write && !self.local_write {
            return Some("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE, too".into());
        }
        // Within a page of the smallest size.
        let start = self.start.filter(|start| start % 4096 != iova % 4096)?;
        Some(format!(
            "the iova {iova:#x} and the address {start:#x} are not at the same place within a page"
        ))
    }
}

impl PathFacts {
    fn obstacle(&self) -> Option<String> {
        let port = self.port_num;
        if let Some(state) = self.state.filter(|state| *state != PortState::ACTIVE) {
            return Some(format!(
                "port {port} is in {state:?}, not in IBV_PORT_ACTIVE"
            ));
        }
        if self.needs_grh && self.sgid_index.is_none() {
            return Some(format!(
                "packets of port {port} need a GID, and the path has none"
            ));
        }
        if let (Some((local, gid_type)), Some(remote)) = (self.local, self.remote)
            && gid_type != GidType::IB
            && local.is_ipv4() != remote.is_ipv4()
        {
            let kind = |gid: Gid| if gid.is_ipv4() { "IPv4" } else { "IPv6" };
            let (ours, theirs) = (kind(local), kind(remote));
            let advice = match self.alike {
                Some(index) => {
                    format!("set gid_index to {index}, and the peer's to one of {theirs}")
                }
                None => format!("give this side an address of {theirs}, or the peer one of {ours}"),
            };
            return Some(format!(
                "this side's GID {local} is of {ours}, and the peer's GID {remote} of {theirs}: {advice}"
            ));
        }
        if let Some((pkey, index)) = self.pkey.filter(|(pkey, _)| pkey & 0x7fff == 0) {
            return Some(format!(
                "the P_Key {pkey:#06x} at index {index} of port {port} is of no partition: set another pkey_index"
            ));
        }
        let mut exceeded = self.limits.iter().filter(|(_, asked, _, max)| asked > max);
        let (what, asked, limit, max) = exceeded.next()?;
        Some(format!(
            "{what} {asked} exceeds this device's {limit} {max}"
        ))
    }
}

/// A limit after its name, if the device reports it.
fn number_of(max: Option<u32>) -> String {
    let max = max.filter(|max| *max > 0);
    max.map(|max| format!(" {max}")).unwrap_or_default()
}

/// `RLIMIT_MEMLOCK` in bytes, if the kernel refused because of it; `None` if there is no limit.
fn memlock_limit(refused: &io::Error) -> Option<u64> {
    let of_limit = matches!(number(refused), Some(libc::ENOMEM | libc::EPERM));
    of_limit.then(current_memlock_limit).flatten()
}

/// `RLIMIT_MEMLOCK` in bytes; `None` if it does not apply to this process.
fn current_memlock_limit() -> Option<u64> {
    if has_cap_ipc_lock() {
        return None;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a local that the call fills in.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Whether the limit does not apply to this process: it has `CAP_IPC_LOCK`, and not only in a user namespace of a
/// container.
fn has_cap_ipc_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    // There is no such file if the kernel has no user namespaces.
    let ids = fs::read_to_string("/proc/self/uid_map");
    if ids.is_ok_and(|ids| !ids.split_whitespace().eq(["0", "0", "4294967295"])) {
        return false;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let caps = caps.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    caps.is_some_and(|caps| caps & (1 << CAP_IPC_LOCK) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorChain;
    use crate::ffi::ret::from_errno;

    fn memory() -> Memory {
        Memory {
            start: Some(0x1000),
            len: 4096,
            iova: 0x1000,
            local_write: true,
            remote_write: false,
            max_mr_size: Some(1 << 40),
            max_mr: Some(7),
        }
    }

    fn calls() -> [(&'static str, Call); 4] {
        let create = Call::Create {
            limit: ("max_cq", Some(9)),
            settings: "the capacity",
        };
        [
            ("ibv_reg_mr", Call::Register(memory())),
            ("ibv_create_cq", create),
            ("ibv_create_ah", Call::Path(Box::default())),
            ("ibv_modify_qp", Call::Modify),
        ]
    }

    #[test]
    fn no_errno_of_any_call_is_bare() {
        for (verb, call) in calls() {
            for errno in (1..134).chain([512, 517, 524, 531]) {
                let bare = ErrorChain::new(&from_errno(verb, errno)).to_string();
                let text = ErrorChain::new(&explain(from_errno(verb, errno), &call)).to_string();
                let is_explained = text.len() > bare.len()
                    || bare.contains("is not supported")
                    || bare.contains("dmesg")
                    || matches!((errno, &call), (libc::EINVAL, Call::Modify))
                    || text.contains("limit on locked memory")
                    || errno == libc::ELIBACC;
                assert!(is_explained, "{text}");
                assert!(!text.contains("Unknown error 524"), "{text}");
            }
        }
    }

    #[test]
    fn registration_error_names_the_invalid_argument() {
        let text = |memory| {
            let error = from_errno("ibv_reg_mr", libc::EINVAL);
            explain(error, &Call::Register(memory)).to_string()
        };
        let head = "registering 4096 bytes of memory failed: ";
        for (memory, words) in [
            (
                Memory {
                    max_mr_size: Some(4095),
                    ..memory()
                },
                "this device's max_mr_size is 4095 bytes",
            ),
            (
                Memory {
                    local_write: false,
                    remote_write: true,
                    ..memory()
                },
                "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE, too",
            ),
            (
                Memory {
                    iova: 0x10,
                    ..memory()
                },
                "the iova 0x10 and the address 0x1000 are not at the same place within a page",
            ),
        ] {
            assert_eq!(text(memory), format!("{head}{words}"));
        }
        assert_eq!(text(memory()), "registering 4096 bytes of memory failed");
    }

    #[test]
    fn a_path_is_rejected_for_what_is_wrong_with_it() {
        let text = |path| {
            let error = from_errno("ibv_create_ah", libc::EINVAL);
            explain(error, &Call::Path(Box::new(path))).to_string()
        };
        let facts = || PathFacts {
            port_num: 1,
            sgid_index: Some(3),
            ..PathFacts::default()
        };
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        for (path, words) in [
            (
                PathFacts {
                    state: Some(PortState::DOWN),
                    ..facts()
                },
                ": port 1 is in IBV_PORT_DOWN, not in IBV_PORT_ACTIVE",
            ),
            (
                PathFacts {
                    needs_grh: true,
                    sgid_index: None,
                    ..facts()
                },
                ": packets of port 1 need a GID, and the path has none",
            ),
            (
                PathFacts {
                    local: Some((gid("2001:db8::1"), GidType::ROCE_V2)),
                    remote: Some(gid("::ffff:10.0.0.2")),
                    alike: Some(5),
                    ..facts()
                },
                ": this side's GID 2001:db8::1 is of IPv6, and the peer's GID ::ffff:10.0.0.2 of IPv4: set gid_index \
                 to 5, and the peer's to one of IPv4",
            ),
            (
                PathFacts {
                    pkey: Some((0x8000, 2)),
                    ..facts()
                },
                ": the P_Key 0x8000 at index 2 of port 1 is of no partition: set another pkey_index",
            ),
            (facts(), ""),
        ] {
            assert_eq!(text(path), format!("ibv_create_ah failed{words}"));
        }
    }
}
