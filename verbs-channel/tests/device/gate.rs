//! Requests that must not reach a device: no byte is sent, and the channel still works.

use verbs_channel::{Channel, Error, Outgoing, RejectReason};
use verbs_harness::{PATIENCE, begin};

use super::ends::{pair_of, works};

#[test]
#[ignore = "needs an RDMA device"]
fn inline_data_is_limited_to_what_was_granted() {
    let _test = begin!();
    let (mut a, mut b) = pair_of(|pd| {
        let builder = Channel::builder(pd).max_inline_data(64);
        builder.timeout(PATIENCE).build().unwrap()
    });
    // A driver may grant more than it was asked for.
    let from = a.pd().reg_mr(vec![7_u8; 1 << 20]).unwrap();
    let whole = Outgoing::send(from.gather_element(..).unwrap()).inline();
    let Err(Error::Rejected(RejectReason::InlineTooLong { max, .. })) = a.run(whole) else {
        panic!("it was posted");
    };
    assert!(max >= 64);
    let granted = max as usize;
    let mut into = b.pd().reg_mr(vec![0_u8; 1 << 20]).unwrap();
    let ended = b.scope(|theirs| {
        let receive = theirs.post_receive(into.scatter_element(..)?)?;
        let most = Outgoing::send(from.gather_element(..granted)?).inline();
        a.run(most)?;
        Ok::<_, Error>(receive.spin_poll()?.byte_len())
    });
    assert_eq!(ended.unwrap() as usize, granted);
    assert!(into[..granted] == from[..granted]);
    works(&mut a, &mut b, 64);
}
