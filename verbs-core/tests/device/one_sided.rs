//! RDMA writes and reads: the peer's program does nothing.

use verbs_core::codes::WcOpcode;
use verbs_core::{
    AccessFlags, ReadWorkRequest, ReceiveWorkRequest, SharedRegion, WriteWorkRequest,
};
use verbs_harness::pair::{End, Pair, pattern};
use verbs_harness::{assert_silent, begin};

fn shared(end: &End, bytes: Vec<u8>) -> SharedRegion<Vec<u8>> {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    end.given(bytes, access)
}

fn bytes(region: &SharedRegion<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs an RDMA device"]
fn write_arrives_at_its_target() {
    let _test = begin!();
    for pair in Pair::everywhere() {
        for len in [1, 7, 4096, 100_001] {
            let from = pair.a.pd().reg_mr(pattern(len, len)).unwrap();
            let target = shared(&pair.b, vec![0xaa; len + 16]);
            let place = target.remote().slice(8..).unwrap();
            let mut list = [from.gather_element(..).unwrap()];
            pair.a
                .post_one(WriteWorkRequest::new(&mut list, &place).unwrap());
            assert_eq!(pair.a.written(&place).opcode(), WcOpcode::RDMA_WRITE);
            let expected = [&[0xaa; 8][..], &from[..], &[0xaa; 8][..]].concat();
            assert!(bytes(&target) == expected, "{len} bytes");
            assert_silent(&pair.b.side.recv_cq);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn write_with_immediate_completes_a_receive_without_writing_its_buffer() {
    let _test = begin!(iwarp lacks "immediates");
    for pair in Pair::everywhere() {
        let from = pair.a.pd().reg_mr(pattern(2, 300)).unwrap();
        let target = shared(&pair.b, vec![0; 300]);
        let mut buffer = pair.b.pd().reg_mr(vec![9_u8; 16]).unwrap();
        let mut list = [buffer.scatter_element(..).unwrap()];
        pair.b.receive(ReceiveWorkRequest::new(&mut list).wr_id(4));
        let mut list = [from.gather_element(..).unwrap()];
        let request = WriteWorkRequest::new(&mut list, &target.remote()).unwrap();
        pair.a.post_one(request.immediate(0xfeed_0001));
        let received = pair.b.received();
        assert_eq!(received.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!(
            (received.imm_data(), received.wr_id()),
            (Some(0xfeed_0001), 4)
        );
        assert_eq!(received.byte_len(), 300);
        pair.a.sent();
        assert!(bytes(&target) == from[..]);
        assert_eq!(buffer[..], [9; 16]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn read_returns_the_peers_bytes() {
    let _test = begin!();
    for pair in Pair::everywhere() {
        for len in [1, 7, 4096, 100_001] {
            let source = shared(&pair.b, pattern(len, len + 3));
            let mut into = pair.a.pd().reg_mr(vec![0_u8; len]).unwrap();
            let mut list = [into.scatter_element(..).unwrap()];
            let place = source.remote().slice(3..).unwrap();
            pair.a
                .post_one(ReadWorkRequest::new(&mut list, &place).unwrap());
            let done = pair.a.sent();
            assert_eq!(done.opcode(), WcOpcode::RDMA_READ);
            assert_eq!(usize::try_from(done.byte_len()).unwrap(), len);
            assert!(into[..] == bytes(&source)[3..], "{len} bytes");
        }
    }
}
