//! Requests and chains of them borrow their elements, and are posted with `unsafe`.

use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::PostError;
use verbs_core::memory::Sge;
use verbs_core::path::{AddressHandle, QKey};
use verbs_core::work_request::{AtomicWorkRequest, DatagramWorkRequest, RequestChain, WorkRequest};
use verbs_core::{
    GatherElement, MemoryRegion, ProtectionDomain, QueuePair, ReadWorkRequest, ReceiveWorkRequest,
    RemoteMemoryRegion, Result, SendWorkRequest, WriteWorkRequest,
};

/// A work request does not outlive its list of elements.
fn request_outlives_its_list() -> SendWorkRequest<'static> {
    let mut list = [Sge::new(0, 8, 1)];
    SendWorkRequest::new(&mut list)
}

/// The element list of a request is not changed.
fn list_changed_under_a_request() -> u32 {
    let mut list = [Sge::new(0, 8, 1)];
    let request = SendWorkRequest::new(&mut list);
    list[0] = Sge::new(0, 1 << 30, 1);
    drop(request);
    list[0].length()
}

/// An atomic request does not outlive its element.
fn atomic_outlives_its_element(remote: &RemoteMemoryRegion) -> Result<AtomicWorkRequest<'static>> {
    let mut before = Sge::new(0, 8, 1);
    AtomicWorkRequest::fetch_and_add(&mut before, remote, 1)
}

/// A datagram borrows its address handle until it is posted.
fn datagram_outlives_its_handle(ah: AddressHandle) {
    let mut list = [Sge::new(0, 8, 1)];
    let mut request = DatagramWorkRequest::new(&mut list, &ah, 7, QKey::MAX);
    drop(ah);
    request.set_wr_id(1);
}

/// A gather element is not received into.
fn gather_element_to_receive_into(region: &MemoryRegion<Vec<u8>>) -> Result<()> {
    let mut list = [region.gather_element(..)?];
    let _request = ReceiveWorkRequest::new(&mut list);
    Ok(())
}

/// A chain does not outlive the memory of its elements.
fn chain_outlives_its_region(
    pd: &ProtectionDomain,
) -> Result<RequestChain<ReceiveWorkRequest<'static>>> {
    let mut region = pd.reg_mr(vec![0_u8; 8])?;
    let mut chain = RequestChain::receives(1, 1)?;
    chain.set(0, region.scatter_element(..)?)?;
    Ok(chain)
}

/// The memory of a chain's elements stays borrowed while the chain lives.
fn region_written_under_a_chain(region: &mut MemoryRegion<Vec<u8>>) -> Result<usize> {
    let mut chain = RequestChain::sends(1, 1)?;
    chain.set(0, region.gather_element(..)?)?;
    region[0] = 1;
    Ok(chain.len())
}

/// A gather element is not received into, nor read into, by a chain.
fn chain_receives_into_a_gather_element<'a>(
    chain: &mut RequestChain<ReceiveWorkRequest<'a>>,
    element: GatherElement<'a>,
) -> Result<()> {
    chain.set(0, element)
}

fn chain_reads_into_a_gather_element<'a>(
    chain: &mut RequestChain<ReadWorkRequest<'a>>,
    element: GatherElement<'a>,
    remote: &RemoteMemoryRegion,
) -> Result<()> {
    chain.set_list(0, [element], remote)
}

/// Posting a chain takes `unsafe`, and a chain goes to the queue that its requests are for.
fn chain_of_sends_without_unsafe(
    qp: &QueuePair,
    chain: &mut RequestChain<SendWorkRequest<'_>>,
) -> Result<(), PostError> {
    qp.post_chain(chain, ..)
}

fn chain_of_receives_without_unsafe(
    qp: &QueuePair,
    chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
) -> Result<(), PostError> {
    qp.post_receive_chain(chain, ..)
}

fn chain_on_the_other_queue(
    qp: &QueuePair,
    chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
) -> Result<(), PostError> {
    unsafe { qp.post_chain(chain, ..) }
}

/// Posting takes `unsafe`: the caller promises to keep the buffers.
fn any_without_unsafe(qp: &QueuePair, request: WorkRequest<'_>) -> Result<(), PostError> {
    qp.post(&mut [request])
}

fn send_without_unsafe(qp: &QueuePair, request: SendWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_send(&mut [request])
}

fn write_without_unsafe(qp: &QueuePair, request: WriteWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_write(&mut [request])
}

fn read_without_unsafe(qp: &QueuePair, request: ReadWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_read(&mut [request])
}

fn atomic_without_unsafe(qp: &QueuePair, request: AtomicWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_atomic(&mut [request])
}

fn receive_without_unsafe(
    qp: &QueuePair,
    request: ReceiveWorkRequest<'_>,
) -> Result<(), PostError> {
    qp.post_receive(&mut [request])
}

/// A queue pair for datagrams takes no request that has no address handle, nor the other way round.
fn send_without_a_handle_is_no_datagram(qp: &DatagramQueuePair, request: &mut SendWorkRequest<'_>) {
    // SAFETY: it does not compile.
    let _ = unsafe { qp.post_send(request) };
}

fn datagram_with_a_handle_is_no_send(qp: &QueuePair, request: &mut DatagramWorkRequest<'_>) {
    // SAFETY: it does not compile.
    let _ = unsafe { qp.post_send(request) };
}

fn main() {}
