//! Bytes that are being received are not read.

use verbs_core::{MemoryRegion, Result};

fn read(region: &mut MemoryRegion<Vec<u8>>) -> Result<u8> {
    let element = region.scatter_element(..)?;
    let byte = region[0];
    drop(element);
    Ok(byte)
}

fn main() {}
