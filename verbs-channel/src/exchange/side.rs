//! The two sides of a stream.

/// How a side came to the stream of its exchange, which decides who listens on iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Side {
    /// It has connected the stream: it connects by `rdma_cm`, too.
    Connects,
    /// Either role, or neither.
    Either,
    /// It has accepted the stream: it listens, and never connects to an address of the peer's choice.
    Accepts,
}
