//! A region is `Send` only if its buffer is.

use std::ptr::NonNull;
use std::rc::Rc;

use verbs_core::MemoryRegion;
use verbs_core::memory::Buffer;

struct Local(Box<[u8]>, Rc<()>);

unsafe impl Buffer for Local {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut *self.0)
    }
}

fn send<T: Send>(_: T) {}

fn region(region: MemoryRegion<Local>) {
    send(region);
}

fn main() {}
