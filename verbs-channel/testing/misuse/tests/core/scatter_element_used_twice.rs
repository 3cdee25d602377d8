//! A scatter element is in one request at a time.

use verbs_core::{MemoryRegion, Result, ScatterElement};

fn twice(region: &mut MemoryRegion<Vec<u8>>) -> Result<[ScatterElement<'_>; 2]> {
    let element = region.scatter_element(..)?;
    Ok([element, element])
}

fn main() {}
