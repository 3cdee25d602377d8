//! A region has one scatter element at a time; two are made by splitting it.

use verbs_core::{MemoryRegion, Result, ScatterElement};

fn overlap(region: &mut MemoryRegion<Vec<u8>>) -> Result<[ScatterElement<'_>; 2]> {
    let first = region.scatter_element(..8)?;
    let second = region.scatter_element(4..)?;
    Ok([first, second])
}

fn main() {}
