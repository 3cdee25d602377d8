//! A gather element is not received into, nor read into, by a chain.

use verbs_core::{GatherElement, ReceiveWorkRequest, ReadWorkRequest, RemoteMemoryRegion};
use verbs_core::Result;
use verbs_core::work_request::RequestChain;

fn receive<'a>(
    chain: &mut RequestChain<ReceiveWorkRequest<'a>>,
    element: GatherElement<'a>,
) -> Result<()> {
    chain.set(0, element)
}

fn read<'a>(
    chain: &mut RequestChain<ReadWorkRequest<'a>>,
    element: GatherElement<'a>,
    remote: &RemoteMemoryRegion,
) -> Result<()> {
    chain.set_list(0, [element], remote)
}

fn main() {}
