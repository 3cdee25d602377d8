//! Chains of requests on owned buffers: built once, started again and again.

use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{RemoteMemoryRegion, SharedRegion};
use verbs_channel::{
    BufferPool, Channel, Completed, Incoming, Outgoing, OwnedBuffer, OwnedRequest, SharedMemory,
};
use verbs_harness::allocations::allocations;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, given, pair, pattern};

const PAGE: usize = 256;
const PAGES: usize = 16;

/// A page of the peer's memory.
fn place(remote: RemoteMemoryRegion, page: usize) -> RemoteMemoryRegion {
    let start = (page * PAGE) as u64;
    remote.slice(start..start + PAGE as u64).unwrap()
}

/// The chain, and its outcome.
fn run(channel: &mut Channel, chain: OwnedChain) -> Completed {
    let ticket = channel.start_chain(chain).unwrap();
    channel.wait(ticket, Some(PATIENCE)).unwrap().unwrap()
}

/// Memory of the peer that it may use in every way, and slices of memory here.
fn memories(a: &Channel, b: &Channel, seed: usize) -> (SharedMemory, SharedRegion<Vec<u8>>) {
    let ours = SharedMemory::new([given(a, pattern(seed, 2 * PAGES * PAGE))]);
    (ours, given(b, vec![0; PAGES * PAGE]))
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_are_written_and_announced_again_and_again() {
    let _test = begin!(iwarp lacks "receives without an element");
    let (mut a, mut b) = pair();
    let (ours, theirs) = memories(&a, &b, 3);
    let expected = pattern(3, 2 * PAGES * PAGE);
    let page = |page: usize| ours.slice(page * PAGE..(page + 1) * PAGE).unwrap();
    let remote = theirs.remote();
    let writes = (0..PAGES).map(|at| Outgoing::write(page(at), place(remote, at)).into());
    let announce = Outgoing::send(OwnedBuffer::empty()).immediate(7).into();
    let requests = writes.chain([announce]).collect();
    let mut chain = OwnedChain::new(requests).unwrap();
    for first in 0..PAGES {
        // Number of pages that were replaced.
        let receive = b.start_receive(OwnedBuffer::empty()).unwrap();
        let before = allocations();
        let ended = run(&mut a, chain);
        ended.result.unwrap();
        chain = ended.chain.unwrap();
        assert_eq!(chain.done(), PAGES + 1);
        let announced = b.wait(receive, Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(announced.result.unwrap().imm_data(), Some(7));
        assert_eq!(allocations() - before, 0, "round {first}");
        let (newer, older) = (bytes(&theirs), &expected[..]);
        let at = first * PAGE;
        assert!(newer[..at] == older[PAGES * PAGE..][..at], "round {first}");
        assert!(newer[at..] == older[at..PAGES * PAGE], "round {first}");
        let write = Outgoing::write(page(PAGES + first), place(remote, first));
        let replaced = chain.set(first, write).unwrap().into_shared().unwrap();
        assert_eq!(replaced.offset(), first * PAGE);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn chain_of_each_kind_of_request_is_carried_out_in_order() {
    let _test = begin!(iwarp lacks "immediates");
    let (mut a, b) = pair();
    let pool = BufferPool::new(a.pd(), 8, 8).unwrap();
    let number = given(&b, 5_u64.to_ne_bytes().to_vec());
    let remote = number.remote();
    let block = |value: u64| pool.take_with(&value.to_ne_bytes()).unwrap().unwrap();
    let requests: Vec<OwnedRequest> = vec![
        Incoming::fetch_and_add(block(0), remote, 2).into(),
        Incoming::compare_and_swap(block(0), remote, 7, 9).into(),
        Incoming::read(block(0), remote).into(),
        Outgoing::write(block(5), remote).fence().into(),
    ];
    let mut chain = OwnedChain::new(requests).unwrap();
    for _ in 0..3 {
        let ended = run(&mut a, chain);
        ended.result.unwrap();
        chain = ended.chain.unwrap();
        let value = |index: usize| {
            let bytes = chain.request(index).unwrap().buffer()[..].try_into();
            u64::from_ne_bytes(bytes.unwrap())
        };
        assert_eq!([0, 1, 2].map(value), [5, 7, 9]);
        assert_eq!(bytes(&number), 5_u64.to_ne_bytes());
        chain.bytes_mut(0).unwrap().fill(0);
    }
}
