//! Posting receives: what the driver sees.

use fake_libibverbs::{connected, prepared, with};
use verbs_core::memory::Sge;
use verbs_core::{ReceiveWorkRequest, SendWorkRequest};

#[test]
fn many_receives_ring_one_doorbell_and_keep_their_order() {
    let qp = prepared();
    let mut lists = [
        [Sge::new(0x10, 1, 1)],
        [Sge::new(0x20, 2, 2)],
        [Sge::new(0x30, 0, 3)],
    ];
    let ids = 5_u64..;
    let mut chain: Vec<_> = lists
        .iter_mut()
        .zip(ids)
        .map(|(list, wr_id)| ReceiveWorkRequest::new(list).wr_id(wr_id))
        .collect();
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut chain) }.unwrap();
    let posted = with(|library| std::mem::take(&mut library.posted));
    let seen: Vec<_> = posted[0]
        .iter()
        .map(|wr| (wr.wr_id, wr.list.clone()))
        .collect();
    assert_eq!(posted.len(), 1, "one doorbell");
    assert_eq!(
        seen,
        [
            (5, vec![(0x10, 1, 1)]),
            (6, vec![(0x20, 2, 2)]),
            (7, vec![])
        ]
    );
}

#[test]
fn one_request_of_one_element_needs_no_list() {
    let qp = connected();
    let mut room = Sge::new(0x10, 1, 2);
    let mut message = Sge::new(0x20, 3, 4);
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(1)) }.unwrap();
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut ReceiveWorkRequest::empty().wr_id(2)) }.unwrap();
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut SendWorkRequest::new(&mut message).wr_id(3)) }.unwrap();
    let mut many = vec![message; 2];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_send(&mut vec![SendWorkRequest::new(&mut many).wr_id(4)]) }.unwrap();
    let posted = with(|library| std::mem::take(&mut library.posted));
    let seen: Vec<_> = posted
        .iter()
        .flatten()
        .map(|wr| (wr.wr_id, wr.list.clone()))
        .collect();
    let message = (0x20, 3, 4);
    assert_eq!(
        seen,
        [
            (1, vec![(0x10, 1, 2)]),
            (2, vec![]),
            (3, vec![message]),
            (4, vec![message; 2])
        ]
    );
}

#[test]
fn a_receive_is_posted_again_alone() {
    let qp = connected();
    let (mut a, mut b) = ([Sge::new(1, 1, 1)], [Sge::new(2, 2, 2)]);
    let mut chain = [
        ReceiveWorkRequest::new(&mut a),
        ReceiveWorkRequest::new(&mut b),
    ];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut chain) }.unwrap();
    chain[0].set_wr_id(9);
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut chain[..1]) }.unwrap();
    let posted = with(|library| std::mem::take(&mut library.posted));
    assert_eq!(posted.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(posted[1][0].wr_id, 9);
}
