//! What is checked before the driver gets a request: lengths in 64 bits, and what was granted.

use verbs_channel::verbs_core::{
    AccessFlags, GatherElement, MemoryRegion, QueuePairEndpoint, RemoteMemoryRegion, ScatterElement,
};
use verbs_channel::{
    Channel, Error, Incoming, Outgoing, OwnedBuffer, OwnedWork, Refusal, Ticket, TransportError,
};

use crate::card::{channel, connected, forget_the_past, pd, region};
use crate::library::with;

/// As a list of 32 it is 4 GiB long: 0 bytes, for those who count in 32 bits.
const LONG: usize = 128 << 20;
const TOTAL: u64 = 4 << 30;
/// Of this library's ports.
const MAX_MSG_SZ: u32 = 1 << 30;

const TOO_LONG: Refusal = Refusal::MessageTooLong {
    len: TOTAL,
    max: MAX_MSG_SZ,
};

/// Never touched, so never more than addresses.
fn long(channel: &Channel) -> MemoryRegion<Vec<u8>> {
    channel.pd().reg_mr(vec![0_u8; LONG]).unwrap()
}

fn list(region: &MemoryRegion<Vec<u8>>) -> Vec<GatherElement<'_>> {
    vec![region.gather_element(..).unwrap(); 32]
}

fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x1000, 1 << 40, 7).unwrap()
}

/// A channel whose requests can have as many elements as any here has.
fn wide() -> Channel {
    let builder = Channel::builder(&pd()).max_send_sge(32).max_recv_sge(32);
    with(|library| library.attr.max_sge = 32);
    let sized = builder.max_send_wr(4).max_recv_wr(4);
    connected(sized.max_inline_data(64).build().unwrap())
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Refused(refusal) => refusal,
        other => panic!("{other}"),
    }
}

/// The channel is as it was, and the driver saw nothing.
fn nothing_was_posted(channel: &Channel) {
    assert!(with(|library| library.posted.is_empty()));
    assert!(channel.is_idle() && !channel.is_down());
}

#[test]
fn a_list_of_4_gib_is_not_0_bytes_long_in_a_call() {
    let mut channel = wide();
    let from = long(&channel);
    let sends = [
        (Outgoing::send(list(&from)), TOO_LONG),
        (Outgoing::send(list(&from)).inline(), TOO_LONG),
        (Outgoing::write(list(&from), remote()), TOO_LONG),
        (Outgoing::write(list(&from), remote()).inline(), TOO_LONG),
    ];
    for (send, why) in sends {
        assert_eq!(refusal(channel.run(send).unwrap_err()), why);
        nothing_was_posted(&channel);
    }
    let batch = [Outgoing::send(list(&from)), Outgoing::send(Vec::new())];
    assert_eq!(refusal(channel.run_batch(batch).unwrap_err()), TOO_LONG);
    nothing_was_posted(&channel);
}

#[test]
fn what_is_inline_is_no_longer_than_what_was_granted() {
    let mut channel = wide();
    let from = region(&channel);
    let more = channel.pd().reg_mr(vec![0_u8; 65]).unwrap();
    let (fits, too_long) = (
        from.gather_element(..).unwrap(),
        more.gather_element(..).unwrap(),
    );
    let why = Refusal::InlineTooLong { len: 65, max: 64 };
    let inline = |element| Outgoing::send(element).inline();
    assert_eq!(refusal(channel.run(inline(too_long)).unwrap_err()), why);
    let together = Outgoing::write([fits, more.gather_element(..1).unwrap()], remote());
    assert_eq!(refusal(channel.run(together.inline()).unwrap_err()), why);
    let batch = [inline(fits), inline(too_long)];
    assert_eq!(refusal(channel.run_batch(batch).unwrap_err()), why);
    let owned = OwnedBuffer::from(channel.pd().reg_mr(vec![0_u8; 65]).unwrap());
    let rejected = channel.start(Outgoing::send(owned).inline()).unwrap_err();
    assert_eq!(rejected.refusal(), why);
    let works = vec![rejected.into_given()];
    let rejected = channel.start_batch(works).unwrap_err();
    assert_eq!(rejected.refusal(), why);
    assert_eq!(rejected.into_given()[0].buffer().len(), 65, "it comes back");
    nothing_was_posted(&channel);
    // SAFETY: nothing is posted, or the channel goes before `from` does.
    let posted = unsafe { channel.post_unpolled(inline(fits)) };
    let _ticket = posted.unwrap();
    assert_eq!(with(|library| library.posted.len()), 1);
    drop(channel);
}

#[test]
fn a_list_of_4_gib_is_not_0_bytes_long_in_a_scope_nor_below_it() {
    let mut channel = wide();
    let from = long(&channel);
    let ended: Result<(), _> = channel.scope(|scope| {
        assert_eq!(scope.post_send(list(&from)).unwrap_err(), TOO_LONG);
        let write = Outgoing::write(list(&from), remote());
        let rejected = scope.try_post(write).unwrap_err();
        assert_eq!(rejected.refusal(), TOO_LONG);
        let rejected = scope.try_lend(rejected.into_given().inline()).unwrap_err();
        assert_eq!(rejected.refusal(), TOO_LONG);
        let short = vec![from.gather_element(..65).unwrap(); 2];
        let inline = Outgoing::send(short).inline();
        let batch = scope.try_post_batch([Outgoing::send(Vec::new()), inline]);
        let why = Refusal::InlineTooLong { len: 130, max: 64 };
        assert_eq!(batch.unwrap_err().refusal(), why);
        Ok::<_, Error>(())
    });
    ended.unwrap();
    nothing_was_posted(&channel);
    // SAFETY: nothing is posted.
    let rejected = unsafe { channel.post_unpolled(Outgoing::send(list(&from))) };
    assert_eq!(rejected.unwrap_err().refusal(), TOO_LONG);
    nothing_was_posted(&channel);
}

#[test]
fn what_comes_in_is_checked_too() {
    let mut channel = wide();
    let mut into = long(&channel);
    let whole = into.scatter_element(..).unwrap();
    let parts: Vec<_> = whole.chunks_mut(LONG / 8).unwrap().take(4).collect();
    let region = channel.pd();
    let region = region.reg_shared(vec![0_u8; LONG], AccessFlags::LOCAL_WRITE);
    let region = region.unwrap();
    let shared = vec![region.element(..).unwrap(); 32];
    let read = Incoming::read(shared.clone(), remote());
    assert_eq!(refusal(channel.run(read).unwrap_err()), TOO_LONG);
    let error = channel.receive(shared).unwrap_err();
    assert_eq!(refusal(error), Refusal::ReceiveTooLong { len: TOTAL });
    nothing_was_posted(&channel);
    // A receive may have room for more than the port can send.
    let ticket = unsafe_receive(&mut channel, parts);
    assert_eq!(with(|library| library.posted.len()), 1);
    channel.abort();
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert!(matches!(
        ended.result.unwrap_err(),
        TransportError::Aborted(_)
    ));
}

/// Posts a receive whose memory outlives the channel's work.
fn unsafe_receive(channel: &mut Channel, list: Vec<ScatterElement<'_>>) -> Ticket {
    // SAFETY: the only caller takes the result before the memory goes.
    unsafe { channel.post_receive_unpolled(list) }.unwrap()
}

#[test]
fn more_elements_than_were_granted_are_not_posted_and_empty_ones_do_not_count() {
    let mut channel = channel();
    let from = region(&channel);
    let (full, empty) = (
        from.gather_element(..1).unwrap(),
        from.gather_element(..0).unwrap(),
    );
    let granted = 4;
    let why = Refusal::TooManyElements {
        count: granted + 1,
        max: 4,
    };
    let error = channel.send(vec![full; granted + 1]).unwrap_err();
    assert_eq!(refusal(error), why);
    nothing_was_posted(&channel);
    let mut mixed = vec![full; granted];
    mixed.extend([empty; 10]);
    channel.set_timeout(Some(std::time::Duration::ZERO));
    let error = channel.send(mixed).unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "it was posted");
}

#[test]
fn memory_that_others_write_to_is_not_sent_inline() {
    let mut channel = channel();
    let shared = channel
        .pd()
        .reg_shared(vec![0_u8; 64], AccessFlags::LOCAL_WRITE)
        .unwrap();
    let element = shared.element(..8).unwrap();
    let error = channel.run(Outgoing::send(element).inline()).unwrap_err();
    assert_eq!(refusal(error), Refusal::SharedInline);
    let batch = [Outgoing::write([element; 2], remote()).inline()];
    let error = channel.run_batch(batch).unwrap_err();
    assert_eq!(refusal(error), Refusal::SharedInline);
    nothing_was_posted(&channel);
}

#[test]
fn a_read_that_could_never_begin_is_not_posted() {
    let pd = pd();
    let prepared = Channel::builder(&pd).build().unwrap();
    let ours = prepared.endpoint();
    let serves_none = QueuePairEndpoint::builder(ours.qp_num(), ours.psn())
        .port_num(ours.port_num())
        .path_mtu(ours.path_mtu())
        .maybe_gid(ours.gid())
        .max_dest_rd_atomic(0)
        .build()
        .unwrap();
    let mut channel = prepared.handshake(&serves_none).unwrap();
    forget_the_past();
    let mut into = region(&channel);
    let error = channel.read(into.scatter_element(..).unwrap(), remote());
    assert_eq!(refusal(error.unwrap_err()), Refusal::NoReads);
    let before = into.scatter_element(..8).unwrap();
    let error = channel.fetch_add(before, remote(), 1).unwrap_err();
    assert_eq!(refusal(error), Refusal::NoReads);
    let owned = region(&channel);
    let rejected = channel.start_read(owned, remote()).unwrap_err();
    assert_eq!(rejected.refusal(), Refusal::NoReads);
    let works = vec![OwnedWork::from(Incoming::read(
        rejected.into_given(),
        remote(),
    ))];
    let rejected = channel.start_batch(works).unwrap_err();
    assert_eq!(rejected.refusal(), Refusal::NoReads);
    nothing_was_posted(&channel);
    // Writes and sends go.
    let _ticket = channel.start_write(region(&channel), remote()).unwrap();
}
