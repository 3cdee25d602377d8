//! A scatter element is in one place only: two requests cannot have it.

use verbs_core::{MemoryRegion, Result, ScatterElement};

fn twice(region: &mut MemoryRegion<Vec<u8>>) -> Result<[ScatterElement<'_>; 2]> {
    let element = region.scatter_element(..)?;
    Ok([element, element])
}

fn main() {}
