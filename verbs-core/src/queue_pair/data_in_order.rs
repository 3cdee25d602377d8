//! Whether data arrives in order.
#![expect(unsafe_code, reason = "queries an `ibv_qp`")]

use verbs_sys::{ibv_query_qp_data_in_order, ibv_wr_opcode};

use super::QueuePair;
use crate::codes::macros::{flags_as_text, man, open_enum};

open_enum! {
    /// The opcode of a work request, for [`QueuePair::query_data_in_order`].
    WrOpcode(u32), "ibv_wr_opcode";
    /// A write.
    RDMA_WRITE = IBV_WR_RDMA_WRITE "IBV_WR_RDMA_WRITE",
    /// A write with immediate data.
    RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM "IBV_WR_RDMA_WRITE_WITH_IMM",
    /// A send.
    SEND = IBV_WR_SEND "IBV_WR_SEND",
    /// A send with immediate data.
    SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM "IBV_WR_SEND_WITH_IMM",
    /// A read.
    RDMA_READ = IBV_WR_RDMA_READ "IBV_WR_RDMA_READ",
}

bitflags::bitflags! {
    /// The order in which a message is written to this side's memory, from
    /// [`QueuePair::query_data_in_order`].
    ///
    /// The flags print and parse as C's names without their prefix: `WHOLE_MSG`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_query_qp_data_in_order_caps")]
    pub struct DataInOrder: u32 {
        /// All bytes are written in ascending order of their addresses: once the last byte of a message is
        /// there, all of it is.
        #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG")]
        const WHOLE_MSG = 1 << 0;
        /// The bytes of each block of 128 bytes, at an address divisible by 128, are written in ascending
        /// order.
        #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES")]
        const ALIGNED_128_BYTES = 1 << 1;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

flags_as_text!(DataInOrder(u32), "IBV_QUERY_QP_DATA_IN_ORDER_");

/// C's flag, which headers before rdma-core 46 lack.
const RETURN_CAPS: u32 = 1;

impl<R> QueuePair<R> {
    /// The order in which the data of this kind of request is written to this side's memory.
    ///
    /// The request may be one of this side or of the peer.
    ///
    /// It is empty if no order is promised, as on most devices, on soft-RoCE, and on processors
    /// other than `x86`. Then only a completion shows that data has arrived.
    ///
    /// This order is a property of the device and the host. It does not hold for a region with
    /// [`RELAXED_ORDERING`](crate::AccessFlags::RELAXED_ORDERING).
    #[doc = man!("ibv_query_qp_data_in_order")]
    #[must_use]
    #[doc(alias = "ibv_query_qp_data_in_order")]
    #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS")]
    pub fn query_data_in_order(&self, opcode: WrOpcode) -> DataInOrder {
        let query = |flags| {
            let opcode = ibv_wr_opcode(opcode.as_raw());
            // SAFETY: the queue pair is alive.
            let answer = unsafe { ibv_query_qp_data_in_order(self.as_ptr(), opcode, flags) };
            u32::try_from(answer).unwrap_or(0)
        };
        let answer = DataInOrder::from_bits_retain(query(RETURN_CAPS));
        // A library before rdma-core 46 takes no flags, and answers yes or no to the whole message.
        if answer.contains(DataInOrder::WHOLE_MSG) || answer.is_empty() && query(0) != 0 {
            return answer | DataInOrder::WHOLE_MSG | DataInOrder::ALIGNED_128_BYTES;
        }
        answer
    }
}
