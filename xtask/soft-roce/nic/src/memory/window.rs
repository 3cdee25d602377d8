//! Memory windows of type 1 and 2: bound, invalidated, and checked by their own bounds (10.6).

use super::{Access, Accessor, Keyed, Memory, NO_SUCH_KEY, Region, key};
use crate::DomainId;
use crate::error::Result;
use crate::profile::Profile;
use crate::request::{Bind, RemoteAddress};

/// The type of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowKind {
    /// Type 1: for any queue pair of its protection domain; bound again at will.
    Type1,
    /// Type 2B: for the queue pair that bound it; invalidated before it is bound again.
    Type2,
}

#[derive(Debug)]
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
        profile: &Profile,
    ) -> Result<u32> {
        let make = |index| {
            Keyed::Window(Window {
                key: key(index, tag),
                domain,
                kind,
                binding: None,
            })
        };
        let index = self.keys.insert(profile.max_keys, make)?;
        Ok(key(index, tag))
    }

    /// Frees a window.
    pub(crate) fn deallocate_window(&mut self, rkey: u32) -> Result<()> {
        self.window_mut(rkey).ok_or(NO_SUCH_KEY)?;
        self.unbind(rkey);
        self.keys.remove(rkey >> 8);
        Ok(())
    }

    /// The key that a window has now, whatever the tag of this one.
    pub(crate) fn window_key(&self, rkey: u32) -> Option<u32> {
        match self.keys.get(rkey >> 8)? {
            Keyed::Window(window) => Some(window.key),
            Keyed::Region(_) => None,
        }
    }

    /// Binds a window for a queue pair; nothing if that is not allowed.
    pub(crate) fn bind(&mut self, domain: DomainId, queue_pair: u32, bind: &Bind) -> Option<()> {
        let window = self.window_mut(bind.window)?;
        if window.domain != domain {
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
        self.unbind(bind.window);
        if let Some(binding) = binding
            && let Some(Keyed::Region(region)) = self.keys.get_mut(binding.region)
        {
            region.windows += 1;
        }
        let window = self.window_mut(bind.window)?;
        window.key = window.key & !0xff | bind.rkey & 0xff;
        window.binding = binding;
        Some(())
    }

    /// Invalidates a window of type 2 for the queue pair that bound it; false if that is not allowed.
    pub(crate) fn invalidate(&mut self, domain: DomainId, queue_pair: u32, rkey: u32) -> bool {
        let is_own = self.window_mut(rkey).is_some_and(|window| {
            let binding = window.binding.as_ref();
            let is_bound_here = binding.is_some_and(|binding| binding.queue_pair == queue_pair);
            window.kind == WindowKind::Type2 && window.domain == domain && is_bound_here
        });
        if is_own {
            self.unbind(rkey);
        }
        is_own
    }

    /// Invalidates all windows of type 2 that a queue pair has bound, because it is reset or destroyed.
    pub(crate) fn invalidate_all_of(&mut self, queue_pair: u32) {
        let mut keys = Vec::new();
        for keyed in self.keys.iter_mut() {
            if let Keyed::Window(window) = keyed
                && window.kind == WindowKind::Type2
                && window
                    .binding
                    .is_some_and(|binding| binding.queue_pair == queue_pair)
            {
                keys.push(window.key);
            }
        }
        for key in keys {
            self.unbind(key);
        }
    }

    fn unbind(&mut self, rkey: u32) {
        let binding = self
            .window_mut(rkey)
            .and_then(|window| window.binding.take());
        if let Some(binding) = binding
            && let Some(Keyed::Region(region)) = self.keys.get_mut(binding.region)
        {
            region.windows -= 1;
        }
    }

    fn window_mut(&mut self, rkey: u32) -> Option<&mut Window> {
        match self.keys.get_mut(rkey >> 8)? {
            Keyed::Window(window) if window.key == rkey => Some(window),
            _ => None,
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
