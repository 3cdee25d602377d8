//! A gather element is not received into.

use verbs_core::{MemoryRegion, ReceiveWorkRequest, Result};

fn receive(region: &MemoryRegion<Vec<u8>>) -> Result<()> {
    let mut list = [region.gather_element(..)?];
    let _request = ReceiveWorkRequest::new(&mut list);
    Ok(())
}

fn main() {}
