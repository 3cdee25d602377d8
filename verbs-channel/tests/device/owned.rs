//! Owned buffers: moved in, and returned with the result, in any order.

use verbs_channel::{Channel, Outgoing, OwnedBuffer, Ticket};
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, filled, given, pair, pattern, works, zeros};

/// The result of an operation that must succeed.
fn done(channel: &mut Channel, ticket: Ticket) -> (u32, Option<u32>, OwnedBuffer) {
    let completed = channel
        .wait(ticket, Some(PATIENCE))
        .unwrap()
        .expect("in time");
    assert_eq!(completed.ticket, ticket);
    assert_eq!(completed.channel, ticket.channel());
    let success = completed.result.unwrap();
    (
        success.byte_len(),
        success.imm_data(),
        completed.buffer.unwrap(),
    )
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_operation_returns_its_buffer() {
    let _test = begin!(iwarp lacks "immediates");
    let (mut a, mut b) = pair();
    let target = given(&b, vec![0_u8; 100]);
    let remote = target.remote();

    let receive = b.start_receive(zeros(&b, 200)).unwrap();
    let send = a.start_send(filled(&a, 1, 100)).unwrap();
    let (_, _, sent) = done(&mut a, send);
    assert!(sent[..] == pattern(1, 100));
    let (len, imm_data, received) = done(&mut b, receive);
    assert_eq!((len, imm_data), (100, None));
    assert!(received[..100] == sent[..] && received[100..] == [0; 100]);

    let receive = b.start_receive(received).unwrap();
    let send = a.start(Outgoing::send(sent).immediate(99)).unwrap();
    let (_, _, buffer) = done(&mut a, send);
    let (len, imm_data, received) = done(&mut b, receive);
    assert_eq!((len, imm_data), (100, Some(99)));

    let write = a.start_write(buffer, remote).unwrap();
    let (_, _, buffer) = done(&mut a, write);
    assert!(bytes(&target) == pattern(1, 100));
    let receive = b.start_receive(received).unwrap();
    let write = a
        .start(Outgoing::write(buffer, remote).immediate(7))
        .unwrap();
    let (_, _, mut buffer) = done(&mut a, write);
    assert_eq!(done(&mut b, receive).1, Some(7));

    target.write(0, &pattern(2, 100)).unwrap();
    buffer.set_range(10..=59).unwrap();
    let read = a.start_read(buffer, remote.slice(20..70).unwrap()).unwrap();
    let (_, _, mut buffer) = done(&mut a, read);
    assert!(buffer[..] == pattern(2, 100)[20..70]);
    buffer.set_range(..).unwrap();
    assert!(buffer[..10] == pattern(1, 100)[..10] && buffer[60..] == pattern(1, 100)[60..]);
    assert_eq!(buffer.into_region().unwrap().len(), 100);
}

#[test]
#[ignore = "needs an RDMA device"]
fn empty_buffers_are_empty_messages() {
    let _test = begin!(iwarp lacks "receives without an element");
    let (mut a, mut b) = pair();
    let receive = b.start_receive(OwnedBuffer::empty()).unwrap();
    let send = a
        .start(Outgoing::send(OwnedBuffer::empty()).immediate(7))
        .unwrap();
    assert_eq!(done(&mut a, send).2.capacity(), 0);
    let (len, imm_data, empty) = done(&mut b, receive);
    assert_eq!((len, imm_data, empty.len()), (0, Some(7), 0));
    let target = given(&b, pattern(1, 8));
    let write = a.start_write(empty, target.remote()).unwrap();
    let (_, _, empty) = done(&mut a, write);
    let read = a.start_read(empty, target.remote()).unwrap();
    drop(done(&mut a, read));
    assert!(bytes(&target) == pattern(1, 8));
    works(&mut a, &mut b, 10);
}
