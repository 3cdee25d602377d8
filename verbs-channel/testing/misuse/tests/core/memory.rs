//! Memory that is registered: what it is, and who reaches it.

use std::ptr::NonNull;
use std::rc::Rc;

use verbs_core::memory::{Buffer, Sge, SharedElement};
use verbs_core::{AccessFlags, MemoryRegion, ProtectionDomain, SharedRegion};

/// A registered buffer is owned by the region, or borrowed mutably.
fn region_of_a_shared_slice(pd: &ProtectionDomain, bytes: &[u8]) {
    let _ = pd.reg_mr(bytes);
}

/// Only plain numbers are registered: a device could write an invalid reference.
fn region_of_references(pd: &ProtectionDomain, names: Vec<&'static str>) {
    let _ = pd.reg_mr(names);
}

struct Local(Box<[u8]>, Rc<()>);

unsafe impl Buffer for Local {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut *self.0)
    }
}

fn send<T: Send>(_: T) {}

/// A region is `Send` only if its buffer is.
fn region_is_as_send_as_its_buffer(region: MemoryRegion<Local>) {
    send(region);
}

/// Memory that a peer may write to is owned: a borrow can end while the peer still writes.
fn shared_region_borrows_its_buffer(pd: &ProtectionDomain) {
    let mut buffer = [0_u8; 8];
    let region = pd.reg_shared(&mut buffer, AccessFlags::REMOTE_WRITE);
    drop(region);
}

/// Memory that a peer may write to is never a slice.
fn shared_region_as_slice(region: &SharedRegion<Vec<u8>>) -> &[u8] {
    &region[..]
}

fn shared_region_borrowed_as_slice(region: &SharedRegion<Vec<u8>>) -> &[u8] {
    region
}

/// An element of a shared region is never a slice.
fn shared_element_as_slice(element: SharedElement<'_>) -> u8 {
    element[0]
}

/// An element of shared memory cannot become one of other memory.
fn shared_element_overwritten(element: &mut SharedElement<'_>, other: Sge) {
    let list: &mut [Sge] = AsMut::as_mut(element);
    list[0] = other;
}

fn main() {}
