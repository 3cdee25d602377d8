//! The opcode of a request with its options, and what the request needs of a queue pair.

use std::mem::MaybeUninit;

use verbs_core::__private::set_options;
use verbs_core::codes::WcOpcode;
use verbs_core::memory::Sge;
use verbs_core::verbs_sys::{IBV_SEND_INLINE, IBV_SEND_SIGNALED};
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest};

use crate::error::{Queue, RejectReason};

/// The opcode of a request, and its options.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Op {
    kind: Kind,
    extra: Extra,
    // The flags of C, and that of its opcode.
    flags: u32,
}

/// A number that the peer gets with the request.
#[derive(Clone, Copy, Debug)]
enum Extra {
    None,
    Immediate(u32),
    /// The key that a send invalidates.
    Invalidate(u32),
}

/// The opcode of a request, with the remote memory and the numbers that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Send,
    Write(RemoteMemoryRegion),
    Read(RemoteMemoryRegion),
    CompareAndSwap(RemoteMemoryRegion, u64, u64),
    FetchAndAdd(RemoteMemoryRegion, u64),
    Receive,
}

impl Op {
    pub(crate) const RECEIVE: Self = Self::new(Kind::Receive);

    #[inline(always)]
    pub(crate) const fn new(kind: Kind) -> Self {
        let flags = match kind {
            Kind::Send => opcode_flag(WcOpcode::SEND),
            Kind::Write(_) => opcode_flag(WcOpcode::RDMA_WRITE),
            Kind::Read(_) => opcode_flag(WcOpcode::RDMA_READ),
            Kind::CompareAndSwap(..) | Kind::FetchAndAdd(..) => opcode_flag(WcOpcode::COMP_SWAP),
            Kind::Receive => 0,
        };
        Self {
            kind,
            extra: Extra::None,
            flags,
        }
    }

    #[inline(always)]
    pub(crate) const fn with_immediate(mut self, imm_data: u32) -> Self {
        self.extra = Extra::Immediate(imm_data);
        self
    }

    /// The same with a flag of C.
    #[inline(always)]
    pub(crate) const fn with_flag(mut self, flag: u32) -> Self {
        self.flags |= flag;
        self
    }

    /// The same that invalidates a key of the peer.
    #[inline(always)]
    pub(crate) const fn with_invalidate(mut self, rkey: u32) -> Self {
        self.extra = Extra::Invalidate(rkey);
        self
    }

    /// The part of a write or a read over `len` bytes from `start` on, if it can be split. Its immediate is with the
    /// last.
    pub(crate) fn part(mut self, start: u64, len: u64, is_last: bool) -> Option<Self> {
        let (Kind::Write(remote) | Kind::Read(remote)) = &mut self.kind else {
            return None;
        };
        *remote = remote.slice(start..start.checked_add(len)?).ok()?;
        if !is_last {
            self.extra = Extra::None;
        }
        Some(self)
    }

    /// The memory of the peer that it accesses.
    pub(crate) const fn remote_mut(&mut self) -> Option<&mut RemoteMemoryRegion> {
        match &mut self.kind {
            Kind::Send | Kind::Receive => None,
            Kind::Write(remote)
            | Kind::Read(remote)
            | Kind::CompareAndSwap(remote, ..)
            | Kind::FetchAndAdd(remote, _) => Some(remote),
        }
    }

    /// Whether it does no more when it is carried out twice: a read, or a write of which the peer gets no completion.
    pub(crate) const fn is_repeatable(&self) -> bool {
        matches!(
            (self.kind, self.extra),
            (Kind::Read(_), _) | (Kind::Write(_), Extra::None)
        )
    }

    /// The queue that it is posted to.
    #[inline(always)]
    pub(crate) const fn queue(&self) -> Queue {
        match self.kind {
            Kind::Receive => Queue::Receive,
            _ => Queue::Send,
        }
    }

    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }

    /// The flags of C, and that of its opcode.
    #[inline(always)]
    pub(crate) const fn flags(&self) -> u32 {
        self.flags
    }

    /// The flags of C of a request that has a completion.
    #[inline(always)]
    pub(crate) const fn signaled(&self) -> u32 {
        self.unsignaled() | IBV_SEND_SIGNALED.0
    }

    #[inline(always)]
    const fn unsignaled(&self) -> u32 {
        self.flags & (OPCODES - 1)
    }

    /// Requirements of a request over these elements on a queue pair.
    #[inline(always)]
    pub(crate) fn needs(&self, elements: &[Sge], is_shared: bool) -> Needs {
        Needs {
            len: elements.iter().map(|sge| u64::from(sge.length())).sum(),
            elements: elements.iter().filter(|sge| sge.length() > 0).count(),
            is_shared,
            is_read: !matches!(self.kind, Kind::Send | Kind::Write(_) | Kind::Receive),
            flags: self.flags,
        }
    }

    /// Builds the request for the send queue in its place, without a completion.
    #[inline(always)]
    pub(crate) fn build<'p, 'l>(
        &self,
        elements: &'l mut [Sge],
        wr_id: u64,
        place: &'p mut MaybeUninit<WorkRequest<'l>>,
    ) -> Result<&'p mut WorkRequest<'l>, RejectReason> {
        // Written in each arm: after the match, the request would be copied.
        let request = match (&self.kind, elements) {
            (Kind::Send, elements) => {
                let mut request = SendWorkRequest::new(elements);
                match self.extra {
                    Extra::None => {}
                    Extra::Immediate(imm_data) => request = request.immediate(imm_data),
                    Extra::Invalidate(rkey) => request = request.invalidate(rkey),
                }
                place.write(request.into())
            }
            (Kind::Write(remote), elements) => {
                let mut request = WriteWorkRequest::new(elements, remote).map_err(reason)?;
                match self.extra {
                    Extra::None => {}
                    Extra::Immediate(imm_data) => request = request.immediate(imm_data),
                    Extra::Invalidate(_) => return Err(RejectReason::InvalidatingWrite),
                }
                place.write(request.into())
            }
            (Kind::Read(remote), elements) => place.write(
                ReadWorkRequest::new(elements, remote)
                    .map_err(reason)?
                    .into(),
            ),
            (Kind::CompareAndSwap(remote, compare, swap), [before]) => {
                let request = AtomicWorkRequest::compare_and_swap(before, remote, *compare, *swap);
                place.write(request.map_err(reason)?.into())
            }
            (Kind::FetchAndAdd(remote, add), [before]) => {
                let request = AtomicWorkRequest::fetch_and_add(before, remote, *add);
                place.write(request.map_err(reason)?.into())
            }
            (Kind::CompareAndSwap(remote, ..) | Kind::FetchAndAdd(remote, _), []) => {
                return Err(RejectReason::Misaligned {
                    addr: remote.addr(),
                    len: 0,
                });
            }
            (Kind::CompareAndSwap(..) | Kind::FetchAndAdd(..), several) => {
                return Err(RejectReason::TooManyElements {
                    count: several.len(),
                    max: 1,
                });
            }
            (Kind::Receive, _) => return Err(RejectReason::ReceiveInBatch),
        };
        set_options(request, wr_id, self.unsignaled());
        Ok(request)
    }
}

#[cold]
fn reason(error: verbs_core::Error) -> RejectReason {
    RejectReason::from_core(&error)
}

/// Requirements of one or more requests on a queue pair.
///
/// The numbers of several requests are combined by bitwise or, which is cheaper than the maximum and
/// never less. So if the combination passes the checks, each request does. If not, they are checked
/// one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// The length of the message, in bytes.
    pub(crate) len: u64,
    /// Elements that are not empty.
    pub(crate) elements: usize,
    /// A peer or another thread may write to the memory while it is sent.
    pub(crate) is_shared: bool,
    // Not by its flag: the compiler knows of most requests whether they are.
    pub(crate) is_read: bool,
    /// Their flags, and their [opcodes](opcode_flag).
    pub(crate) flags: u32,
}

impl Needs {
    /// Adds those of another request.
    #[inline(always)]
    pub(crate) const fn add(&mut self, other: &Self) {
        self.len |= other.len;
        self.elements |= other.elements;
        self.is_shared |= other.is_shared;
        self.is_read |= other.is_read;
        self.flags |= other.flags;
    }

    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }
}

/// The first flag of an opcode, above those of C.
const OPCODES: u32 = 1 << 16;

/// A flag for the opcode of a request. Both atomics have the same, since their failures have the same causes.
#[inline(always)]
pub(crate) const fn opcode_flag(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::FETCH_ADD => opcode_flag(WcOpcode::COMP_SWAP),
        opcode => OPCODES << opcode.as_raw(),
    }
}

/// The opcode of requests with these flags, if all have the same.
pub(crate) fn opcode_in(flags: u32) -> Option<WcOpcode> {
    let opcodes = flags / OPCODES;
    let is_one = opcodes.is_power_of_two();
    is_one.then(|| WcOpcode::from_raw(opcodes.trailing_zeros()))
}
