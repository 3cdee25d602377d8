//! Posting to the send queue: what the driver sees.

use fake_libibverbs::{Posted, connected, with};
use verbs_core::memory::Sge;
use verbs_core::work_request::AtomicWorkRequest;
use verbs_core::{ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest};

fn posted() -> Vec<Vec<Posted>> {
    with(|library| std::mem::take(&mut library.posted))
}

fn wr_ids(posted: &[Vec<Posted>]) -> Vec<Vec<u64>> {
    let ids = |chain: &Vec<Posted>| chain.iter().map(|request| request.wr_id).collect();
    posted.iter().map(ids).collect()
}

fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x7000, 64, 0x99).unwrap()
}

#[test]
fn empty_post_rings_no_doorbell() {
    let qp = connected();
    // SAFETY: nothing is posted.
    unsafe { qp.post(&mut []) }.unwrap();
    // SAFETY: nothing is posted.
    unsafe { qp.post_receive(&mut []) }.unwrap();
    assert_eq!(posted(), [[]; 0]);
}

#[test]
fn a_request_that_was_in_a_chain_is_posted_alone() {
    let qp = connected();
    let (mut a, mut b) = ([Sge::new(1, 1, 1)], [Sge::new(2, 2, 2)]);
    let mut chain = [
        SendWorkRequest::new(&mut a).wr_id(1),
        SendWorkRequest::new(&mut b).wr_id(2),
    ];
    for requests in [&mut chain[..], &mut [], &mut []] {
        // SAFETY: the library touches no buffer.
        unsafe { qp.post_send(requests) }.unwrap();
    }
    // Its link to the second one is stale now.
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut chain[..1]) }.unwrap();
    chain.swap(0, 1);
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut chain) }.unwrap();
    let [first, second] = chain;
    // Links that point to where the requests were.
    let mut moved = [second, first];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut moved) }.unwrap();
    let posted = posted();
    let ids = wr_ids(&posted);
    assert_eq!(ids, [vec![1, 2], vec![1], vec![2, 1], vec![1, 2]]);
    assert_eq!(posted[3][1].list, [(2, 2, 2)]);
}

#[test]
fn empty_elements_are_left_out() {
    let qp = connected();
    let of = |length| Sge::new(0x1000, length, 1);
    let (mut mixed, mut empty) = ([of(0), of(3), of(0), of(5)], [of(0), of(0)]);
    let mut chain = [
        SendWorkRequest::new(&mut mixed),
        SendWorkRequest::new(&mut empty),
        SendWorkRequest::empty(),
    ];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut chain) }.unwrap();
    let posted = posted().remove(0);
    assert_eq!(posted[0].list, [(0x1000, 3, 1), (0x1000, 5, 1)]);
    assert_eq!(
        (&posted[1].list[..], &posted[2].list[..]),
        (&[][..], &[][..])
    );
}

#[test]
fn remote_region_bounds_are_checked() {
    let mut list = [Sge::new(0, 60, 1), Sge::new(0, 5, 1)];
    let error = WriteWorkRequest::new(&mut list, &remote()).unwrap_err();
    let words = "65 local bytes do not fit into the remote region's 64 bytes";
    assert_eq!(error.to_string(), words);
    assert_eq!(
        ReadWorkRequest::new(&mut list, &remote())
            .unwrap_err()
            .to_string(),
        words
    );
    assert!(WriteWorkRequest::new(&mut list[..1], &remote()).is_ok());
}

#[test]
fn an_atomic_is_8_bytes_on_an_8_byte_boundary() {
    let mut eight = Sge::new(0, 8, 1);
    let mut seven = Sge::new(0, 7, 1);
    let odd = remote().slice(4..12).unwrap();
    let short = remote().slice(..7).unwrap();
    let error = |before: &mut Sge, at| {
        AtomicWorkRequest::fetch_and_add(before, &at, 1)
            .unwrap_err()
            .to_string()
    };
    assert!(error(&mut seven, remote()).contains("not on 7 bytes"));
    assert!(error(&mut eight, odd).contains("0x7004"));
    assert!(error(&mut eight, short).contains("7 bytes"));
}
