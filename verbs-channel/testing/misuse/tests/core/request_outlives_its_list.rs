//! A work request does not outlive its list of elements.

use verbs_core::SendWorkRequest;
use verbs_core::memory::Sge;

fn escape() -> SendWorkRequest<'static> {
    let mut list = [Sge::new(0, 8, 1)];
    SendWorkRequest::new(&mut list)
}

fn main() {}
