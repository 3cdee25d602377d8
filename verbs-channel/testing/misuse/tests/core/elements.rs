//! Elements borrow their region, and say what the device does with their bytes.

use verbs_core::memory::Part;
use verbs_core::{GatherElement, MemoryRegion, ProtectionDomain, Result, ScatterElement};

/// An element does not outlive its region.
fn gather_element_outlives_its_region(pd: &ProtectionDomain) -> Result<GatherElement<'_>> {
    let region = pd.reg_mr(vec![0_u8; 8])?;
    region.gather_element(..)
}

/// A region is not deregistered while an element of it lives.
fn region_deregistered_under_an_element(region: MemoryRegion<Vec<u8>>) -> Result<u32> {
    let element = region.gather_element(..)?;
    region.dereg()?;
    Ok(element.length())
}

/// Bytes that are being sent are not written to.
fn region_written_under_a_gather_element(region: &mut MemoryRegion<Vec<u8>>) -> Result<u32> {
    let element = region.gather_element(..)?;
    region[0] = 1;
    Ok(element.length())
}

/// Bytes that are being received are not read.
fn region_read_under_a_scatter_element(region: &mut MemoryRegion<Vec<u8>>) -> Result<u8> {
    let element = region.scatter_element(..)?;
    let byte = region[0];
    drop(element);
    Ok(byte)
}

/// Bytes of a scatter element are not sent from.
fn gather_and_scatter_at_once(region: &mut MemoryRegion<Vec<u8>>) -> Result<u32> {
    let into = region.scatter_element(..)?;
    let from = region.gather_element(..)?;
    Ok(into.length() + from.length())
}

/// A region has one scatter element at a time; two are made by splitting it.
fn two_scatter_elements_of_one_region(
    region: &mut MemoryRegion<Vec<u8>>,
) -> Result<[ScatterElement<'_>; 2]> {
    let first = region.scatter_element(..8)?;
    let second = region.scatter_element(4..)?;
    Ok([first, second])
}

/// A scatter element is in one request at a time.
fn scatter_element_used_twice(
    region: &mut MemoryRegion<Vec<u8>>,
) -> Result<[ScatterElement<'_>; 2]> {
    let element = region.scatter_element(..)?;
    Ok([element, element])
}

/// A scatter element lent as a gather element is not written to meanwhile.
fn scatter_element_written_while_it_is_sent_from(mut element: ScatterElement<'_>) -> u32 {
    let gather = element.as_gather();
    element[0] = 1;
    gather.length()
}

/// Parts of an element that may overlap take `unsafe`; `split_at_mut` and `chunks_mut` do not.
fn element_part_without_unsafe<'a>(element: &ScatterElement<'a>) -> [ScatterElement<'a>; 2] {
    [element.sub(0, 8), element.sub(4, 8)]
}

fn main() {}
