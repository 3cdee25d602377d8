//! A chain does not outlive the memory of its elements.

use verbs_core::{ProtectionDomain, ReceiveWorkRequest, Result};
use verbs_core::work_request::RequestChain;

fn escape(pd: &ProtectionDomain) -> Result<RequestChain<ReceiveWorkRequest<'static>>> {
    let mut region = pd.reg_mr(vec![0_u8; 8])?;
    let mut chain = RequestChain::receives(1, 1)?;
    chain.set(0, region.scatter_element(..)?)?;
    Ok(chain)
}

fn main() {}
