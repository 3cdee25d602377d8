//! Requests that must not reach a device: no byte is sent, and the channel still works.

use verbs_channel::verbs_core::{GatherElement, MemoryRegion};
use verbs_channel::{Channel, Error, Outgoing, RejectReason};
use verbs_harness::{PATIENCE, begin};

use super::ends::{given, pair_of, works};

/// A list of 32 such elements is 4 GiB long: 0 bytes for a driver that adds up lengths in 32 bits.
const LONG: usize = 128 << 20;

fn list(region: &MemoryRegion<Vec<u8>>) -> Vec<GatherElement<'_>> {
    vec![region.gather_element(..).unwrap(); 32]
}

fn too_long(ended: Result<(), Error>) {
    let Err(Error::Rejected(RejectReason::MessageTooLong { len, max })) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(len, 4 << 30);
    assert!(max > 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn list_of_4_gib_is_rejected() {
    let _test = begin!(iwarp lacks "requests of 32 elements");
    let (mut a, mut b) = pair_of(|pd| {
        Channel::builder(pd)
            .max_send_sge(32)
            .max_inline_data(64)
            .timeout(PATIENCE)
            .build()
            .unwrap()
    });
    let from = a.pd().reg_mr(vec![0_u8; LONG]).unwrap();
    let there = given(&b, vec![1; 64]);
    too_long(a.send(list(&from)));
    too_long(a.write(list(&from), there.remote()));
    too_long(a.run(Outgoing::send(list(&from)).inline()).map(drop));
    let batch = [Outgoing::send(list(&from)).inline()];
    too_long(a.run_batch(batch));
    let ended = a.scope(|scope| {
        let reason = scope.post_send(list(&from)).unwrap_err();
        assert!(matches!(reason, RejectReason::MessageTooLong { .. }));
        Ok::<_, Error>(())
    });
    ended.unwrap();
    works(&mut a, &mut b, 64);
}

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
