//! The memory of a chain's elements stays borrowed while the chain lives.

use verbs_core::{MemoryRegion, Result};
use verbs_core::work_request::RequestChain;

fn write(region: &mut MemoryRegion<Vec<u8>>) -> Result<usize> {
    let mut chain = RequestChain::sends(1, 1)?;
    chain.set(0, region.gather_element(..)?)?;
    region[0] = 1;
    Ok(chain.len())
}

fn main() {}
