//! Memory windows of type 1 and 2: bound, invalidated, and checked by their own bounds (10.6).

use super::{Access, Accessor, Keyed, Memory, NO_SUCH_KEY, Region, key};
use crate::DomainId;
use crate::error::Result;
use crate::request::{Bind, RemoteAddress};

/// The type of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowKind {
    /// Type 1: for any queue pair of its protection domain; bound again at will.
    Type1,
    /// Type 2B: for the queue pair that bound it; invalidated before it is bound again.
    Type2,
}

pub(super) struct Window {
    key: u32,
    pub(super) domain: DomainId,
    kind: WindowKind,
    binding: Option<Binding>,
}

/// The part of a region that a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Binding {
    /// Index of the region.
    region: u32,
    address: u64,
    length: u64,
    access: Access,
    queue_pair: u32,
}

impl Window {
    /// The index of the region, and the address there, that a peer's request reaches.
    pub(super) fn reach(&self, by: Accessor, at: RemoteAddress, length: u64) -> Option<(u32, u64)> {
        let binding = self.binding?;
        let is_own = self.kind == WindowKind::Type1 || binding.queue_pair == by.queue_pair;
        let is_right = self.key == at.rkey && self.domain == by.domain && is_own;
        if !is_right || !binding.access.contains(by.access) {
            return None;
        }
        // rxe checks the region's bounds only; the specification asks for the window's (C10-75).
        let offset = self.offset(at.address)?;
        let is_inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= binding.length);
        is_inside.then_some((binding.region, binding.address.checked_add(offset)?))
    }

    /// Whether it is of type 2, and this queue pair has bound it.
    fn is_of(&self, queue_pair: u32) -> bool {
        let is_bound = |binding: Binding| binding.queue_pair == queue_pair;
        self.kind == WindowKind::Type2 && self.binding.is_some_and(is_bound)
    }

    /// The place of an address within the window, if that is not below it.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        let binding = self.binding?;
        match binding.access.contains(Access::ZERO_BASED) {
            true => Some(address),
            false => address.checked_sub(binding.address),
        }
    }
}

impl Memory {
    /// Allocates a window, and returns its key.
    pub(crate) fn allocate_window(
        &mut self,
        domain: DomainId,
        kind: WindowKind,
        tag: u8,
        max: u32,
    ) -> Result<u32> {
        let make = |index| {
            Keyed::Window(Window {
                key: key(index, tag),
                domain,
                kind,
                binding: None,
            })
        };
        let index = self.keys.insert(max, make)?;
        Ok(key(index, tag))
    }

    /// Frees a window, and returns the domain that it belonged to.
    pub(crate) fn deallocate_window(&mut self, rkey: u32) -> Result<DomainId> {
        let index = rkey >> 8;
        let domain = self.window_mut(index).ok_or(NO_SUCH_KEY)?.domain;
        self.unbind(index);
        self.keys.remove(index);
        Ok(domain)
    }

    /// Binds a window for a queue pair; nothing if that is not allowed.
    pub(crate) fn bind(&mut self, domain: DomainId, queue_pair: u32, bind: &Bind) -> Option<()> {
        let index = bind.window >> 8;
        let window = self.window_mut(index)?;
        if (window.key, window.domain) != (bind.window, domain) {
            return None;
        }
        match window.kind {
            // o10-36.2.2: no window of type 1 counts its addresses from 0.
            WindowKind::Type1 if bind.access.contains(Access::ZERO_BASED) => return None,
            WindowKind::Type1 => {}
            // o10-37.2.30 and o10-37.2.40: free before it is bound, and bound to something.
            WindowKind::Type2 if window.binding.is_some() || bind.length == 0 => return None,
            WindowKind::Type2 => {}
        }
        let binding = match bind.length {
            0 => None,
            _ => {
                let region = self.region(bind.lkey)?;
                is_bindable(region, domain, bind).then_some(())?;
                Some(Binding {
                    region: bind.lkey >> 8,
                    address: bind.address,
                    length: bind.length,
                    access: bind.access,
                    queue_pair,
                })
            }
        };
        self.unbind(index);
        if let Some(binding) = binding {
            self.keys.count(binding.region, 1);
        }
        let window = self.window_mut(index)?;
        window.key = window.key & !0xff | bind.rkey & 0xff;
        window.binding = binding;
        Some(())
    }

    /// Invalidates a window of type 2 for the queue pair that bound it; false if that is not allowed.
    pub(crate) fn invalidate(&mut self, domain: DomainId, queue_pair: u32, rkey: u32) -> bool {
        let is_own = self.window_mut(rkey >> 8).is_some_and(|window| {
            (window.key, window.domain) == (rkey, domain) && window.is_of(queue_pair)
        });
        if is_own {
            self.unbind(rkey >> 8);
        }
        is_own
    }

    /// Invalidates all windows of type 2 that a queue pair has bound, because it is reset or destroyed.
    pub(crate) fn invalidate_all_of(&mut self, queue_pair: u32) {
        for index in self.keys.numbers().collect::<Vec<_>>() {
            let window = self.window_mut(index);
            if window.is_some_and(|window| window.is_of(queue_pair)) {
                self.unbind(index);
            }
        }
    }

    fn unbind(&mut self, index: u32) {
        let window = self.window_mut(index);
        if let Some(binding) = window.and_then(|window| window.binding.take()) {
            self.keys.count(binding.region, -1);
        }
    }

    fn window_mut(&mut self, index: u32) -> Option<&mut Window> {
        match self.keys.get_mut(index)? {
            Keyed::Window(window) => Some(window),
            Keyed::Region(_) => None,
        }
    }
}

/// C10-72 to C10-75: domain, bind access, local write access, bounds.
fn is_bindable(region: &Region, domain: DomainId, bind: &Bind) -> bool {
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let may_write = region.access.contains(Access::LOCAL_WRITE) || !bind.access.intersects(writes);
    region.domain == domain
        && region.access.contains(Access::MW_BIND)
        && !region.access.contains(Access::ZERO_BASED)
        && may_write
        && region.offset(bind.address, bind.length).is_some()
}
