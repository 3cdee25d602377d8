//! Bytes that are being sent are not written to.

use verbs_core::{MemoryRegion, Result};

fn write(region: &mut MemoryRegion<Vec<u8>>) -> Result<u32> {
    let element = region.gather_element(..)?;
    region[0] = 1;
    Ok(element.length())
}

fn main() {}
