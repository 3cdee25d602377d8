//! The kinds of requests, in their completions.

use super::macros::open_enum;

open_enum! {
    /// The operation of a successful work request.
    WcOpcode(u32), "ibv_wc_opcode";
    /// A send.
    SEND = IBV_WC_SEND "IBV_WC_SEND",
    /// An RDMA write.
    RDMA_WRITE = IBV_WC_RDMA_WRITE "IBV_WC_RDMA_WRITE",
    /// An RDMA read.
    RDMA_READ = IBV_WC_RDMA_READ "IBV_WC_RDMA_READ",
    /// A compare-and-swap.
    COMP_SWAP = IBV_WC_COMP_SWAP "IBV_WC_COMP_SWAP",
    /// A fetch-and-add.
    FETCH_ADD = IBV_WC_FETCH_ADD "IBV_WC_FETCH_ADD",
    /// A memory window was bound.
    BIND_MW = IBV_WC_BIND_MW "IBV_WC_BIND_MW",
    /// A key was invalidated.
    LOCAL_INV = IBV_WC_LOCAL_INV "IBV_WC_LOCAL_INV",
    /// A segmented send.
    TSO = IBV_WC_TSO "IBV_WC_TSO",
    /// A receive, filled by the peer's send.
    RECV = IBV_WC_RECV "IBV_WC_RECV",
    /// A receive, used up by the peer's write with immediate.
    RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM "IBV_WC_RECV_RDMA_WITH_IMM",
}
