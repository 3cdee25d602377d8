//! Unreliable connections (UC).

use verbs_core::PreparedQueuePair;
use verbs_core::codes::QpType;
use verbs_harness::begin;
use verbs_harness::pair::{Pair, Side, works};

fn prepared(side: &Side) -> PreparedQueuePair {
    side.builder().qp_type(QpType::Uc).build().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_of_many_packets_arrive_both_ways() {
    let _test = begin!(iwarp lacks "unreliable connections");
    for pair in [
        Pair::of(prepared),
        Pair::between(Side::here(), Side::here(), prepared),
    ] {
        assert_eq!(pair.a.qp.qp_type(), QpType::Uc);
        assert_eq!(pair.a.qp.max_rd_atomic(), 0);
        works(&pair.a, &pair.b);
        works(&pair.b, &pair.a);
    }
}
