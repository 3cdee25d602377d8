//! Bytes of a scatter element are not sent from.

use verbs_core::{MemoryRegion, Result};

fn both(region: &mut MemoryRegion<Vec<u8>>) -> Result<u32> {
    let into = region.scatter_element(..)?;
    let from = region.gather_element(..)?;
    Ok(into.length() + from.length())
}

fn main() {}
