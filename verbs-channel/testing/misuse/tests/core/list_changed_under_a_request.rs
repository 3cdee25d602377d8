//! The element list of a request is not changed.

use verbs_core::SendWorkRequest;
use verbs_core::memory::Sge;

fn change() -> u32 {
    let mut list = [Sge::new(0, 8, 1)];
    let request = SendWorkRequest::new(&mut list);
    list[0] = Sge::new(0, 1 << 30, 1);
    drop(request);
    list[0].length()
}

fn main() {}
