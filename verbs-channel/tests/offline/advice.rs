//! Advice in the texts of failures: it is for the operation that was posted, in whichever way.

use fake_libibverbs::with;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR,
    ibv_wc_status,
};
use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_channel::verbs_core::{WorkError, WriteWorkRequest};
use verbs_channel::{
    Channel, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedRequest, RejectReason, ScopeError,
    Ticket, TransportError,
};

use crate::fake_device::{
    channel, connected, ends, flushes, forget_the_past, pd, posted, region, remote, succeeds,
};

const STATUSES: [ibv_wc_status; 4] = [
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_LOC_QP_OP_ERR,
];

const OPCODES: [WcOpcode; 5] = [
    WcOpcode::SEND,
    WcOpcode::RDMA_WRITE,
    WcOpcode::RDMA_READ,
    WcOpcode::COMP_SWAP,
    WcOpcode::FETCH_ADD,
];

/// A request of this kind for 8 bytes.
fn request(channel: &Channel, opcode: WcOpcode) -> OwnedRequest {
    let mut buffer = OwnedBuffer::from(region(channel));
    buffer.set_range(..8).unwrap();
    match opcode {
        WcOpcode::SEND => Outgoing::send(buffer).immediate(1).into(),
        WcOpcode::RDMA_WRITE => Outgoing::write(buffer, remote()).into(),
        WcOpcode::RDMA_READ => Incoming::read(buffer, remote()).into(),
        WcOpcode::COMP_SWAP => Incoming::compare_and_swap(buffer, remote(), 1, 2).into(),
        _ => Incoming::fetch_and_add(buffer, remote(), 1).into(),
    }
}

fn requests(channel: &Channel, opcodes: &[WcOpcode]) -> Vec<OwnedRequest> {
    let opcodes = opcodes.iter();
    opcodes.map(|opcode| request(channel, *opcode)).collect()
}

/// The request at this place of the last post fails; those behind it are flushed.
fn fails(at: usize, status: ibv_wc_status) {
    let last = with(|library| library.posted.last().unwrap().clone());
    let mut wr_ids = last.iter().map(|posted| posted.wr_id).skip(at);
    ends(wr_ids.next().unwrap(), status);
    wr_ids.for_each(flushes);
}

fn work_error(error: TransportError) -> WorkError {
    match error {
        TransportError::Work { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

/// The failure of an operation, and that of its channel.
fn failure(channel: &mut Channel, ticket: Ticket) -> WorkError {
    let ended = channel.poll(ticket).unwrap().unwrap();
    let error = work_error(ended.result.unwrap_err());
    let Some(DownReason::Work { error: first, .. }) = channel.down_reason() else {
        panic!("an operation has failed");
    };
    assert_eq!(error.to_string(), first.to_string());
    error
}

/// The failure of a batch that is posted in a scope of a new channel.
fn failure_in_scope<const N: usize>(
    opcodes: [WcOpcode; N],
    at: usize,
    status: ibv_wc_status,
) -> WorkError {
    let mut channel = channel();
    let from = region(&channel);
    let element = from.gather_element(..8).unwrap();
    let mut into = [(); N].map(|()| region(&channel));
    let into = into
        .each_mut()
        .map(|into| into.scatter_element(..8).unwrap());
    let ended = channel.scope(|scope| {
        if opcodes[0] == WcOpcode::SEND || opcodes[0] == WcOpcode::RDMA_WRITE {
            let posted = scope.post_batch(opcodes.map(|opcode| match opcode {
                WcOpcode::SEND => Outgoing::send(element),
                _ => Outgoing::write(element, remote()),
            }));
            drop(posted?);
        } else {
            let mut opcodes = opcodes.into_iter();
            let posted = scope.post_batch(into.map(|element| match opcodes.next() {
                Some(WcOpcode::RDMA_READ) => Incoming::read(element, remote()),
                Some(WcOpcode::COMP_SWAP) => Incoming::compare_and_swap(element, remote(), 1, 2),
                _ => Incoming::fetch_and_add(element, remote(), 1),
            }));
            drop(posted?);
        }
        fails(at, status);
        Ok::<_, RejectReason>(())
    });
    let Err(ScopeError::AutoPollError(error)) = ended else {
        panic!("a request has failed");
    };
    work_error(error)
}

#[track_caller]
fn is_for(error: &WorkError, opcode: Option<WcOpcode>) {
    let advice = match opcode {
        Some(opcode) => error.status.advice_for(opcode),
        None => error.status.advice(),
    };
    let text = error.to_string();
    assert!(text.ends_with(&format!(": {advice}")), "{opcode:?}: {text}");
}

#[test]
fn advice_is_for_the_opcode_in_each_way_to_post() {
    for status in STATUSES {
        for opcode in OPCODES {
            let opcodes = [opcode; 3];
            is_for(&failure_in_scope([opcode], 0, status), Some(opcode));
            for at in 0..3 {
                is_for(&failure_in_scope(opcodes, at, status), Some(opcode));
                let mut batched = channel();
                let batch = requests(&batched, &opcodes);
                let ticket = batched.start_batch(batch).unwrap();
                fails(at, status);
                is_for(&failure(&mut batched, ticket), Some(opcode));
            }
            let mut started = channel();
            let one = request(&started, opcode);
            let ticket = started.start(one).unwrap();
            fails(0, status);
            is_for(&failure(&mut started, ticket), Some(opcode));
        }
        let mut unpolled = channel();
        let mut writes: RequestChain<WriteWorkRequest<'_>> = RequestChain::writes(2, 1).unwrap();
        // SAFETY: the requests name no memory.
        let ticket = unsafe { unpolled.post_chain_unpolled(&mut writes, ..) }.unwrap();
        fails(1, status);
        is_for(&failure(&mut unpolled, ticket), Some(WcOpcode::RDMA_WRITE));
        let mut receiving = channel();
        let ticket = receiving.start_receive(region(&receiving)).unwrap();
        fails(0, status);
        is_for(&failure(&mut receiving, ticket), Some(WcOpcode::RECV));
    }
}

#[test]
fn each_request_of_a_chain_has_its_own_advice() {
    for (at, opcode) in OPCODES.into_iter().enumerate().skip(1) {
        let builder = Channel::builder(&pd()).max_send_wr(8);
        let mut channel = connected(builder.build().unwrap());
        let mut chain = OwnedChain::new(requests(&channel, &OPCODES)).unwrap();
        chain.set_range(1..).unwrap();
        let ticket = channel.start_chain(chain).unwrap();
        fails(at - 1, IBV_WC_REM_INV_REQ_ERR);
        is_for(&failure(&mut channel, ticket), Some(opcode));
    }
}

#[test]
fn slot_that_is_used_again_has_the_advice_for_its_new_operation() {
    for last in OPCODES {
        let mut channel = channel();
        for before in OPCODES {
            let request = request(&channel, before);
            let ticket = channel.start(request).unwrap();
            posted().into_iter().for_each(succeeds);
            channel.poll(ticket).unwrap().unwrap().result.unwrap();
            let batch = requests(&channel, &[before, last]);
            let ticket = channel.start_batch(batch).unwrap();
            succeeds(*posted().last().unwrap());
            channel.poll(ticket).unwrap().unwrap().result.unwrap();
            let receive = channel.start_receive(region(&channel)).unwrap();
            succeeds(*posted().last().unwrap());
            channel.poll(receive).unwrap().unwrap().result.unwrap();
            forget_the_past();
        }
        let request = request(&channel, last);
        let ticket = channel.start(request).unwrap();
        fails(0, IBV_WC_REM_INV_REQ_ERR);
        is_for(&failure(&mut channel, ticket), Some(last));
    }
}

#[test]
fn batch_of_several_kinds_has_the_advice_for_any_kind() {
    let mixed = [WcOpcode::SEND, WcOpcode::RDMA_WRITE];
    for at in 0..2 {
        is_for(&failure_in_scope(mixed, at, IBV_WC_REM_INV_REQ_ERR), None);
    }
    let reads = [WcOpcode::RDMA_READ, WcOpcode::FETCH_ADD];
    is_for(&failure_in_scope(reads, 1, IBV_WC_REM_INV_REQ_ERR), None);
    // Those have the same causes.
    let atomics = [WcOpcode::COMP_SWAP, WcOpcode::FETCH_ADD];
    let error = failure_in_scope(atomics, 1, IBV_WC_REM_INV_REQ_ERR);
    is_for(&error, Some(WcOpcode::FETCH_ADD));
    // The last has a number of its own.
    for (at, expected) in [(0, None), (1, None), (2, Some(WcOpcode::RDMA_READ))] {
        let mut channel = channel();
        let opcodes = [WcOpcode::RDMA_WRITE, WcOpcode::SEND, WcOpcode::RDMA_READ];
        let batch = requests(&channel, &opcodes);
        let ticket = channel.start_batch(batch).unwrap();
        fails(at, IBV_WC_REM_INV_REQ_ERR);
        is_for(&failure(&mut channel, ticket), expected);
    }
}
