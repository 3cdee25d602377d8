//! A region is not deregistered while an element of it lives.

use verbs_core::{MemoryRegion, Result};

fn deregister(region: MemoryRegion<Vec<u8>>) -> Result<u32> {
    let element = region.gather_element(..)?;
    region.dereg()?;
    Ok(element.length())
}

fn main() {}
