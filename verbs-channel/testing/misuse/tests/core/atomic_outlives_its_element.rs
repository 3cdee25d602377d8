//! An atomic request does not outlive its element.

use verbs_core::{RemoteMemoryRegion, Result};
use verbs_core::memory::Sge;
use verbs_core::work_request::AtomicWorkRequest;

fn escape(remote: &RemoteMemoryRegion) -> Result<AtomicWorkRequest<'static>> {
    let mut before = Sge::new(0, 8, 1);
    AtomicWorkRequest::fetch_and_add(&mut before, remote, 1)
}

fn main() {}
