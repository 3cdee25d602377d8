//! An element does not outlive its region.

use verbs_core::{GatherElement, ProtectionDomain, Result};

fn escape(pd: &ProtectionDomain) -> Result<GatherElement<'_>> {
    let region = pd.reg_mr(vec![0_u8; 8])?;
    region.gather_element(..)
}

fn main() {}
