//! Posting to the send queue: what the driver sees.

use fake_libibverbs::{Posted, assert_all_is_well, connected, with};
use verbs_core::memory::Sge;
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{
    MemoryRegion, ReadWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
};

const FENCE: u32 = 1;
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const INLINE: u32 = 8;

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
fn chain_keeps_its_order_and_rings_one_doorbell() {
    let qp = connected();
    let mut lists = [
        [Sge::new(1, 1, 1)],
        [Sge::new(2, 2, 2)],
        [Sge::new(3, 3, 3)],
    ];
    let [a, b, c] = &mut lists;
    let mut chain = [
        SendWorkRequest::new(a).wr_id(10),
        SendWorkRequest::new(b).wr_id(11),
        SendWorkRequest::new(c).wr_id(12),
    ];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut chain) }.unwrap();
    let posted = posted();
    assert_eq!(wr_ids(&posted), [[10, 11, 12]]);
    assert_eq!(posted[0][2].list, [(3, 3, 3)]);
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
    assert_eq!(
        wr_ids(&posted()),
        [vec![1, 2], vec![1], vec![2, 1], vec![1, 2]]
    );
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
fn every_kind_has_its_opcode_and_its_fields() {
    let qp = connected();
    let of = || [Sge::new(0x1000, 8, 5)];
    let (mut a, mut b, mut c, mut d, mut e) = (of(), of(), of(), of(), of());
    let (mut f, mut g) = (Sge::new(0x1000, 8, 5), Sge::new(0x1008, 8, 5));
    let part = remote().slice(8..24).unwrap();
    let mut chain: [WorkRequest<'_>; 7] = [
        SendWorkRequest::new(&mut a).inline().into(),
        SendWorkRequest::new(&mut b)
            .immediate(0x0102_0304)
            .unsignaled()
            .into(),
        WriteWorkRequest::new(&mut c, &remote()).unwrap().into(),
        WriteWorkRequest::new(&mut d, &part)
            .unwrap()
            .immediate(0xff00_0001)
            .solicited()
            .into(),
        ReadWorkRequest::new(&mut e, &part).unwrap().fence().into(),
        AtomicWorkRequest::compare_and_swap(&mut f, &part, 3, 4)
            .unwrap()
            .into(),
        AtomicWorkRequest::fetch_and_add(&mut g, &part, 5)
            .unwrap()
            .fence()
            .into(),
    ];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post(&mut chain) }.unwrap();
    let posted = posted();
    assert_eq!(posted.len(), 1, "one doorbell");
    let facts: Vec<_> = posted[0]
        .iter()
        .map(|wr| (wr.opcode, wr.send_flags, wr.remote_addr, wr.rkey))
        .collect();
    assert_eq!(
        facts,
        [
            (2, SIGNALED | INLINE, 0, 0),
            (3, 0, 0, 0),
            (0, SIGNALED, 0x7000, 0x99),
            (1, SIGNALED | SOLICITED, 0x7008, 0x99),
            (4, SIGNALED | FENCE, 0x7008, 0x99),
            (5, SIGNALED, 0x7008, 0x99),
            (6, SIGNALED | FENCE, 0x7008, 0x99),
        ]
    );
    // The most significant byte comes first on the wire.
    assert_eq!(posted[0][1].imm_data, [1, 2, 3, 4]);
    assert_eq!(posted[0][3].imm_data, [0xff, 0, 0, 1]);
    assert_eq!((posted[0][5].compare_add, posted[0][5].swap), (3, 4));
    assert_eq!((posted[0][6].compare_add, posted[0][6].swap), (5, 0));
}

#[test]
fn element_has_the_address_of_its_bytes() {
    let qp = connected();
    let mut region: MemoryRegion<_> = qp.pd().reg_mr(vec![0_u8; 64]).unwrap();
    let lkey = region.lkey();
    let base = region[..].as_ptr() as u64;
    let (head, tail) = region
        .scatter_element(8..)
        .unwrap()
        .split_at_mut(16)
        .unwrap();
    let mut sources = [head.into_gather()];
    let mut sinks = [tail];
    let mut chain: [WorkRequest<'_>; 2] = [
        SendWorkRequest::new(&mut sources).into(),
        ReadWorkRequest::new(&mut sinks, &remote()).unwrap().into(),
    ];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post(&mut chain) }.unwrap();
    let posted = posted().remove(0);
    assert_eq!(posted[0].list, [(base + 8, 16, lkey)]);
    assert_eq!(posted[1].list, [(base + 24, 40, lkey)]);
    drop((region, qp));
    assert_all_is_well();
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
