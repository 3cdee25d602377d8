//! Memory regions and windows: which key reaches which bytes (10.6).

mod registered;
mod window;

use std::ops::Range;

use bitflags::bitflags;

pub use registered::Registered;
use window::Window;
pub use window::WindowKind;

use crate::DomainId;
use crate::error::{self, Refused, invalid, none};
use crate::pool::Pool;
use crate::profile::Profile;
use crate::request::{Element, RemoteAddress};

bitflags! {
    /// Access to a region, through a window, or of the peer of a queue pair; the bits are C's
    /// (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct Access: u32 {
        /// The card may write, for receives and for the answers to reads and atomics.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// Pages are fetched when they are used; to this card all memory is like that.
        const ON_DEMAND = 1 << 6;
        /// The memory is made of huge pages; means nothing here.
        const HUGETLB = 1 << 7;
        /// Writes need not be in order; means nothing here.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
}

/// Why memory may not be accessed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// No key, the wrong domain, not allowed, or out of bounds.
    Denied,
    /// The elements have no room for that.
    TooLong,
    /// Not mapped any more.
    Unmapped,
}

/// The keys of a card, which are those of regions and windows: the index above eight bits of tag, which
/// differs each time that an index is given out.
pub(crate) struct Memory {
    /// The users of a region are the windows that are bound to it.
    keys: Pool<Keyed>,
}

enum Keyed {
    Region(Region),
    Window(Window),
}

/// Registered memory and how it may be used.
struct Region {
    key: u32,
    domain: DomainId,
    memory: Registered,
    iova: u64,
    access: Access,
}

impl Region {
    /// The place of `length` bytes from `address` on, if they are within the region.
    fn offset(&self, address: u64, length: u64) -> Option<usize> {
        let offset = address.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        let is_inside = usize::try_from(end).is_ok_and(|end| end <= self.memory.length);
        is_inside.then(|| usize::try_from(offset).ok()).flatten()
    }
}

/// Who accesses memory, and to do what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) domain: DomainId,
    pub(crate) queue_pair: u32,
    pub(crate) access: Access,
}

impl Memory {
    pub(crate) const fn new() -> Self {
        // 0 is no key.
        Self { keys: Pool::new(1) }
    }

    /// Registers memory; returns its `lkey` and `rkey`, which is 0 if no peer has access.
    pub(crate) fn register(
        &mut self,
        domain: DomainId,
        memory: Registered,
        iova: u64,
        access: Access,
        tag: u8,
        profile: &Profile,
    ) -> error::Result<(u32, u32)> {
        if memory.length == 0 {
            return Err(invalid("a region has at least one byte"));
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(invalid(
                "remote writes and atomics need local write access, too",
            ));
        }
        if access.contains(Access::ON_DEMAND) && !profile.on_demand_paging {
            return Err(invalid("the card has no on-demand paging"));
        }
        let iova = match access.contains(Access::ZERO_BASED) {
            true => 0,
            false => iova,
        };
        let length = u64::try_from(memory.length).unwrap_or(u64::MAX);
        if iova.checked_add(length).is_none() {
            return Err(invalid("the region's addresses wrap"));
        }
        let make = |index| {
            Keyed::Region(Region {
                key: key(index, tag),
                domain,
                memory,
                iova,
                access,
            })
        };
        let index = self.keys.insert(profile.max_keys, make)?;
        let key = key(index, tag);
        let rkey = match access.intersects(Access::REMOTE) {
            true => key,
            false => 0,
        };
        Ok((key, rkey))
    }

    /// Ends the card's access to a region, and returns the domain that it belonged to.
    pub(crate) fn deregister(&mut self, lkey: u32) -> error::Result<DomainId> {
        let domain = self.region(lkey).ok_or(NO_SUCH_KEY)?.domain;
        if self.keys.users(lkey >> 8) > 0 {
            // As rxe; other drivers say EBUSY.
            return Err(invalid("a window is bound to the region"));
        }
        self.keys.remove(lkey >> 8);
        Ok(domain)
    }

    /// The place of an address within the memory that a key is for, wherever that is.
    pub(crate) fn offset(&self, key: u32, address: u64) -> Option<u64> {
        match self.keys.get(key >> 8)? {
            Keyed::Region(region) => Some(address.wrapping_sub(region.iova)),
            Keyed::Window(window) => window.offset(address),
        }
    }

    fn region(&self, key: u32) -> Option<&Region> {
        match self.keys.get(key >> 8)? {
            Keyed::Region(region) if region.key == key => Some(region),
            _ => None,
        }
    }

    /// The memory that a peer's request is for, if the key allows all of it.
    fn remote(&self, by: Accessor, at: RemoteAddress, length: u64) -> Option<(&Registered, usize)> {
        let (region, address) = match self.keys.get(at.rkey >> 8)? {
            Keyed::Region(region) => {
                let is_right = region.key == at.rkey && region.domain == by.domain;
                let is_allowed = is_right && region.access.contains(by.access);
                (is_allowed.then_some(region)?, at.address)
            }
            Keyed::Window(window) => {
                let (region, address) = window.reach(by, at, length)?;
                match self.keys.get(region)? {
                    Keyed::Region(region) => (region, address),
                    Keyed::Window(_) => return None,
                }
            }
        };
        Some((&region.memory, region.offset(address, length)?))
    }

    /// Whether a peer's request may access this memory. No bytes need no key (9.7.4).
    pub(crate) fn check(&self, by: Accessor, at: RemoteAddress, length: u64) -> Result<(), Fault> {
        if length == 0 {
            return Ok(());
        }
        self.remote(by, at, length).map(drop).ok_or(Fault::Denied)
    }

    /// Reads for a peer.
    pub(crate) fn read(&self, by: Accessor, at: RemoteAddress, to: &mut [u8]) -> Result<(), Fault> {
        if to.is_empty() {
            return Ok(());
        }
        let (memory, offset) = self.remote(by, at, length(to)).ok_or(Fault::Denied)?;
        memory.read(offset, to)
    }

    /// Writes for a peer.
    pub(crate) fn write(&self, by: Accessor, at: RemoteAddress, from: &[u8]) -> Result<(), Fault> {
        if from.is_empty() {
            return Ok(());
        }
        let (memory, offset) = self.remote(by, at, length(from)).ok_or(Fault::Denied)?;
        memory.write(offset, from)
    }

    /// Changes eight bytes for a peer, and returns what they were.
    pub(crate) fn change(
        &self,
        by: Accessor,
        at: RemoteAddress,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Fault> {
        let (memory, offset) = self.remote(by, at, 8).ok_or(Fault::Denied)?;
        let mut bytes = [0; 8];
        memory.read(offset, &mut bytes)?;
        // Atomic operations are in the order of the host's bytes (9.4.5).
        let before = u64::from_ne_bytes(bytes);
        memory.write(offset, &change(before).to_ne_bytes())?;
        Ok(before)
    }

    /// Copies out of elements, from `skip` bytes after their beginning on.
    pub(crate) fn gather(
        &self,
        domain: DomainId,
        elements: &[Element],
        skip: u64,
        to: &mut [u8],
    ) -> Result<(), Fault> {
        let length = to.len();
        let copy = |memory: &Registered, at, part: Range<usize>| memory.read(at, &mut to[part]);
        self.each(domain, elements, skip, length, Access::empty(), copy)
    }

    /// Copies into elements, from `skip` bytes after their beginning on.
    pub(crate) fn scatter(
        &self,
        domain: DomainId,
        elements: &[Element],
        skip: u64,
        from: &[u8],
    ) -> Result<(), Fault> {
        let copy = |memory: &Registered, at, part: Range<usize>| memory.write(at, &from[part]);
        self.each(
            domain,
            elements,
            skip,
            from.len(),
            Access::LOCAL_WRITE,
            copy,
        )
    }

    /// Copies `length` bytes from or to elements: each call has memory, a place in it, and the part of the bytes.
    fn each(
        &self,
        domain: DomainId,
        elements: &[Element],
        mut skip: u64,
        length: usize,
        access: Access,
        mut copy: impl FnMut(&Registered, usize, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        for element in elements {
            if done == length {
                break;
            }
            let own = u64::from(element.length);
            if skip >= own {
                skip -= own;
                continue;
            }
            let room = usize::try_from(own - skip).unwrap_or(usize::MAX);
            let end = length.min(done.saturating_add(room));
            let (memory, at) = self.local(domain, element, skip, access)?;
            copy(memory, at, done..end)?;
            (done, skip) = (end, 0);
        }
        (done == length).then_some(()).ok_or(Fault::TooLong)
    }

    /// The memory of an element, all of which has to be within its region.
    fn local(
        &self,
        domain: DomainId,
        element: &Element,
        skip: u64,
        access: Access,
    ) -> Result<(&Registered, usize), Fault> {
        let region = self.region(element.lkey).ok_or(Fault::Denied)?;
        if region.domain != domain || !region.access.contains(access) {
            return Err(Fault::Denied);
        }
        let offset = region
            .offset(element.address, u64::from(element.length))
            .ok_or(Fault::Denied)?;
        let skip = usize::try_from(skip).ok().ok_or(Fault::Denied)?;
        Ok((&region.memory, offset + skip))
    }
}

const fn key(index: u32, tag: u8) -> u32 {
    index << 8 | tag as u32
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

const NO_SUCH_KEY: Refused = none("no region or window has this key");
