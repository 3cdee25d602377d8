//! Completions and the queues that they wait in (10.10, 11.4, 11.6).

use std::collections::VecDeque;
use std::time::Duration;

/// A completion queue, by its number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CompletionQueueId(pub u32);

/// How a request ended, with C's numbers (`ibv_wc_status`; 11.6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(non_camel_case_types, reason = "C's names")]
pub enum Status {
    /// Done.
    SUCCESS = 0,
    /// A message does not fit into its receive, or is longer than any may be.
    LOC_LEN_ERR = 1,
    /// The request is not consistent, or the queue pair cannot carry it out.
    LOC_QP_OP_ERR = 2,
    /// A scatter/gather element's key does not allow the access, or its memory is not mapped any more.
    LOC_PROT_ERR = 4,
    /// The queue pair went to ERR or SQE before the request was carried out.
    WR_FLUSH_ERR = 5,
    /// A memory window cannot be bound like that.
    MW_BIND_ERR = 6,
    /// The responder sent something that is no answer.
    BAD_RESP_ERR = 7,
    /// A write with immediate data was not allowed here.
    LOC_ACCESS_ERR = 8,
    /// The responder refused the request as invalid.
    REM_INV_REQ_ERR = 9,
    /// The responder's memory may not be accessed so.
    REM_ACCESS_ERR = 10,
    /// The responder could not carry out the request.
    REM_OP_ERR = 11,
    /// The peer did not answer.
    RETRY_EXC_ERR = 12,
    /// The peer had no receive posted.
    RNR_RETRY_EXC_ERR = 13,
}

/// The kind of a request that completed, with the number of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletedOpcode {
    /// A send of any kind.
    Send = 0,
    /// A write of any kind.
    Write = 1,
    /// A read.
    Read = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A key was invalidated.
    LocalInvalidate = 6,
    /// A message was received.
    Receive = 128,
    /// A write with immediate data was received.
    ReceiveWriteWithImmediate = 129,
}

/// The end of one request (`ibv_wc`). If it failed, only `wr_id`, `status` and `queue_pair` count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// The request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// Kind of the request.
    pub opcode: CompletedOpcode,
    /// Bytes that moved; a datagram's count the 40 of its GRH.
    pub byte_len: u32,
    /// The queue pair that it was posted to, or that the message came to.
    pub queue_pair: u32,
    /// Queue pair that sent a datagram.
    pub source_queue_pair: u32,
    /// Immediate data, in the order of the network.
    pub immediate: Option<[u8; 4]>,
    /// A key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// Whether a GRH precedes a datagram's payload.
    pub has_grh: bool,
    /// When it came to its queue, by the card's time.
    pub at: Duration,
}

impl Completion {
    pub(crate) const fn new(
        queue_pair: u32,
        wr_id: u64,
        status: Status,
        opcode: CompletedOpcode,
    ) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            queue_pair,
            source_queue_pair: 0,
            immediate: None,
            invalidated: None,
            has_grh: false,
            at: Duration::ZERO,
        }
    }
}

/// Completions that wait to be polled.
#[derive(Default)]
pub(crate) struct CompletionQueue {
    pub(crate) capacity: u32,
    /// Each with the slots of its queue that are free when it was polled.
    pub(crate) entries: VecDeque<(Completion, u32)>,
    pub(crate) armed: Option<Armed>,
    /// Whether an event of an overrun waits to be taken: one is enough.
    pub(crate) has_overrun_event: bool,
}

/// The completions that an armed queue makes an event of.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Armed {
    Next,
    Solicited,
}

impl CompletionQueue {
    /// Asks for one event at the next completion, or the next that is solicited or failed.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // A request for any is not narrowed by one for solicited ones (11.4).
        if self.armed != Some(Armed::Next) {
            self.armed = Some(match solicited_only {
                true => Armed::Solicited,
                false => Armed::Next,
            });
        }
    }

    /// Removes what a queue pair left.
    pub(crate) fn forget(&mut self, queue_pair: u32) {
        self.entries
            .retain(|(entry, _)| entry.queue_pair != queue_pair);
    }
}
