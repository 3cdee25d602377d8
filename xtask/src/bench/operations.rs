//! The operations that are measured, and what each may take.

/// A loop of ours, and one in C that does the same work.
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// The loop in C.
    pub(super) c: &'static str,
    /// Ours.
    pub(super) ours: Ours,
    /// The most that ours may take, on x86-64.
    pub(super) budget: Budget,
}

/// The budget of our operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Budget {
    /// At most this number of instructions.
    Most(f64),
    /// At most a tenth more than another row takes.
    TenthAbove(&'static str),
    /// Any number. It is no work of a data path, and may allocate.
    Any,
    /// At most a hundredth more than another row takes. It may allocate, too.
    HundredthAbove(&'static str),
}

/// Which of our programs has a loop: its package and bench target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ours {
    Core,
    Channel,
    Async,
}

impl Ours {
    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Core => ("verbs-core", "data_path"),
            Self::Channel => ("verbs-channel", "channel"),
            Self::Async => ("verbs-async", "operations"),
        }
    }
}

/// All of them, in the order of the table.
pub(super) const OPERATIONS: [Operation; 37] = [
    Operation {
        name: "send1",
        what: "post a send, poll its completion",
        c: "send1",
        ours: Ours::Core,
        budget: Budget::Most(46.0),
    },
    Operation {
        name: "send1_reuse",
        what: "the same, built once: a chain of one",
        c: "send1_reuse",
        ours: Ours::Core,
        budget: Budget::Most(34.0),
    },
    Operation {
        name: "send1_again",
        what: "the same, a request that is posted again",
        c: "send1_reuse",
        ours: Ours::Core,
        budget: Budget::Most(37.0),
    },
    Operation {
        name: "recv1",
        what: "post a receive, poll it",
        c: "recv1",
        ours: Ours::Core,
        budget: Budget::Most(43.0),
    },
    Operation {
        name: "recv1_reuse",
        what: "the same, built once: a chain of one",
        c: "recv1_reuse",
        ours: Ours::Core,
        budget: Budget::Most(34.0),
    },
    Operation {
        name: "recv1_again",
        what: "the same, a request that is posted again",
        c: "recv1_reuse",
        ours: Ours::Core,
        budget: Budget::Most(37.0),
    },
    Operation {
        name: "srq1",
        what: "post a receive to a shared queue, poll it",
        c: "srq1",
        ours: Ours::Core,
        budget: Budget::Most(42.0),
    },
    Operation {
        name: "ud_send1",
        what: "post a datagram, poll it",
        c: "ud_send1",
        ours: Ours::Core,
        budget: Budget::Most(54.0),
    },
    Operation {
        name: "ud_recv1",
        what: "post a receive for a datagram, poll it",
        c: "ud_recv1",
        ours: Ours::Core,
        budget: Budget::Most(43.0),
    },
    Operation {
        name: "batch16",
        what: "16 sends chained, one doorbell",
        c: "batch16",
        ours: Ours::Core,
        budget: Budget::Most(420.0),
    },
    Operation {
        name: "sep16",
        what: "16 sends, one post each",
        c: "sep16",
        ours: Ours::Core,
        budget: Budget::Most(610.0),
    },
    Operation {
        name: "chain16",
        what: "a chain of 16 sends, built once",
        c: "chain16",
        ours: Ours::Core,
        budget: Budget::Most(215.0),
    },
    Operation {
        name: "quiet16",
        what: "the same, with one completion",
        c: "quiet16",
        ours: Ours::Core,
        budget: Budget::Most(36.0),
    },
    Operation {
        name: "chain64",
        what: "a chain of 64 writes, each patched",
        c: "chain64",
        ours: Ours::Core,
        budget: Budget::Most(1460.0),
    },
    Operation {
        name: "poll0",
        what: "poll an empty queue",
        c: "poll0",
        ours: Ours::Core,
        budget: Budget::Most(10.0),
    },
    Operation {
        name: "channel_send1",
        what: "channel: a blocking send",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(100.0),
    },
    Operation {
        name: "channel_scope16",
        what: "channel: a scope of 16 sends",
        c: "sep16",
        ours: Ours::Channel,
        budget: Budget::Most(1640.0),
    },
    Operation {
        name: "channel_handles16",
        what: "channel: the same, each polled by its handle",
        c: "sep16",
        ours: Ours::Channel,
        budget: Budget::Most(2070.0),
    },
    Operation {
        name: "channel_batch16",
        what: "channel: a batch of 16 sends",
        c: "batch16",
        ours: Ours::Channel,
        budget: Budget::Most(700.0),
    },
    Operation {
        name: "channel_owned1",
        what: "channel: a send of an owned buffer",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(175.0),
    },
    Operation {
        name: "channel_pooled1",
        what: "channel: a block from the pool, dropped back",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(240.0),
    },
    Operation {
        name: "channel_owned16",
        what: "channel: a batch of 16, owned",
        c: "batch16",
        ours: Ours::Channel,
        budget: Budget::Most(1320.0),
    },
    Operation {
        name: "channel_chain4",
        what: "channel: a chain of 4 sends, built once",
        c: "quiet4",
        ours: Ours::Channel,
        budget: Budget::Most(402.0),
    },
    Operation {
        name: "channel_chain16",
        what: "channel: the same of 16",
        c: "quiet16",
        ours: Ours::Channel,
        budget: Budget::Most(486.0),
    },
    Operation {
        name: "channel_chain64",
        what: "channel: a chain of 64 writes, each replaced",
        c: "chain64",
        ours: Ours::Channel,
        budget: Budget::Most(11750.0),
    },
    Operation {
        name: "channel_pages1",
        what: "channel: a chain of 1 page, replaced",
        c: "patched1",
        ours: Ours::Channel,
        budget: Budget::Most(1000.0),
    },
    Operation {
        name: "channel_pages4",
        what: "channel: of 4 pages, each replaced",
        c: "patched4",
        ours: Ours::Channel,
        budget: Budget::Most(1875.0),
    },
    Operation {
        name: "channel_pages16",
        what: "channel: of 16 pages, each replaced",
        c: "patched16",
        ours: Ours::Channel,
        budget: Budget::Most(6325.0),
    },
    Operation {
        name: "group1",
        what: "group: a send, on 1 channel",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(520.0),
    },
    Operation {
        name: "group4096",
        what: "group: the same, on 4,096 in turn",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::TenthAbove("group1"),
    },
    Operation {
        name: "group_two",
        what: "group: two sends in flight, each",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(454.0),
    },
    Operation {
        name: "group_budget",
        what: "group: the same, half of them beyond the share",
        c: "send1",
        ours: Ours::Channel,
        budget: Budget::Most(700.0),
    },
    Operation {
        name: "rejoin64",
        what: "group: join and close, 64 in flight",
        c: "connect1",
        ours: Ours::Channel,
        budget: Budget::Any,
    },
    Operation {
        name: "rejoin64000",
        what: "group: the same, 64,000 in flight",
        c: "connect1",
        ours: Ours::Channel,
        budget: Budget::HundredthAbove("rejoin64"),
    },
    Operation {
        name: "async_send1",
        what: "async: a send that is done at once",
        c: "send1",
        ours: Ours::Async,
        budget: Budget::Most(245.0),
    },
    Operation {
        name: "async_sep16",
        what: "async: 16 sends in flight",
        c: "sep16",
        ours: Ours::Async,
        budget: Budget::Most(3815.0),
    },
    Operation {
        name: "async_batch16",
        what: "async: a batch of 16 sends",
        c: "batch16",
        ours: Ours::Async,
        budget: Budget::Most(1670.0),
    },
];
