//! Profiles: limits and manners of devices, each with its source.

use std::time::Duration;

use crate::completion::Status;

/// Limits and manners of a device. The default is soft-RoCE's, as in Linux 6.1, except where a field says
/// otherwise.
///
/// Sources: *rxe* is the kernel's driver (`drivers/infiniband/sw/rxe`), read or tried; numbers are sections of
/// the specification, volume 1; what *cards* do was seen on them, or read in their drivers.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Queue pairs. rxe: 2<sup>20</sup> − 16.
    pub max_queue_pairs: u32,
    /// Completion queues. rxe: 2<sup>20</sup>.
    pub max_completion_queues: u32,
    /// Shared receive queues. rxe: 2<sup>20</sup> − 0x20001.
    pub max_shared_receive_queues: u32,
    /// Protection domains. rxe: 2<sup>20</sup>.
    pub max_domains: u32,
    /// Regions and windows together. rxe: 2<sup>20</sup>.
    pub max_keys: u32,
    /// Requests of one send or receive queue. rxe: 2<sup>20</sup>.
    pub max_qp_wr: u32,
    /// Requests of a shared receive queue. rxe: 2<sup>20</sup>.
    pub max_srq_wr: u32,
    /// Elements of a request. rxe: 32.
    pub max_sge: u32,
    /// Elements of a receive in a shared queue. rxe: 27.
    pub max_srq_sge: u32,
    /// Inline bytes. rxe: 512.
    pub max_inline_data: u32,
    /// Completions of one queue. rxe: 32,767.
    pub max_cqe: u32,
    /// Bytes of a message. rxe: 8 MiB; not more than 2<sup>30</sup> here, so that its packets can be ordered.
    pub max_message: u32,
    /// Largest `max_rd_atomic` and `max_dest_rd_atomic`. rxe: 128.
    pub max_qp_rd_atom: u8,
    /// Sum of `max_dest_rd_atomic` over all queue pairs. rxe: 0x3f000, not checked. Cards check it: mlx4 and
    /// mlx5 share a pool.
    pub max_res_rd_atom: u32,
    /// Largest payload of a packet: 256, 512, 1024, 2048 or 4096. rxe: by the network's device, at most 4096.
    pub max_mtu: u32,
    /// Multicast groups. rxe: 8192.
    pub max_multicast_groups: usize,
    /// Queue pairs of a multicast group. rxe: 56.
    pub max_multicast_attached: usize,
    /// Packets that may be unacknowledged. rxe: 128.
    pub max_unacknowledged: u16,
    /// An acknowledgement is asked for after this number of packets at the latest. rxe: 64.
    pub packets_per_ack: u16,
    /// UDP port that packets are sent from. rxe: one for each queue pair; here one, for a socket has one.
    pub source_port: u16,

    /// Whether capacities become 2<sup>k</sup> − 1. rxe: yes; asked for 4, there is room for 7.
    pub rounds_up: bool,
    /// Whether a slot of a queue is free again only when its completion, or a later one of the same queue, was
    /// polled. rxe: no, when the request has completed. mlx5 and others: yes, so that a program that never asks
    /// for a completion finds its send queue full for ever.
    pub holds_slots: bool,
    /// Whether regions may have on-demand paging, which to this card is as any other memory. rxe: since Linux
    /// 6.15, not 6.1, where `ON_DEMAND` is `EINVAL`; yes here.
    pub on_demand_paging: bool,
    /// Whether there are thread domains, and parent domains with them: not on soft-RoCE, but on mlx5.
    pub thread_domains: bool,
    /// Whether completions have time stamps, of the card's clock and of the wall's. rxe: no. mlx5: yes.
    pub completion_timestamps: bool,
    /// Whether a receive may be posted in RESET. rxe: yes, because its user-space part does not look. 10.3.1:
    /// no.
    pub receives_in_reset: bool,
    /// Whether a `retry_cnt` of 7 is for ever. rxe: yes. 9.9.2: no, seven times.
    pub retries_seven_for_ever: bool,
    /// Status of a request whose own elements may not be accessed. rxe: `LOC_QP_OP_ERR`. 10.6.3:
    /// `LOC_PROT_ERR`. Memory that is not mapped any more is `LOC_PROT_ERR` in all profiles.
    pub local_fault: Status,
    /// Whether a message that is longer than its receive is an operational error: `LOC_QP_OP_ERR` here and
    /// `REM_OP_ERR` there, as in rxe; or else `LOC_LEN_ERR` and `REM_INV_REQ_ERR`, as in 9.9.3 and cards.
    pub long_message_is_operational: bool,
    /// Whether a datagram that is longer than its receive breaks the queue pair. rxe: yes in Linux 6.1, no in
    /// 6.12, where it is dropped.
    pub long_datagram_breaks: bool,
    /// Whether an error of a UC or UD send stops only the send queue (SQE). rxe: no, the queue pair goes to
    /// ERR. 10.3.1: yes.
    pub has_send_queue_error: bool,
    /// How long after the queue pair went to ERR its requests are flushed. rxe: at once. Cards: microseconds
    /// to milliseconds.
    pub flush_delay: Duration,
    /// Whether a lost completion breaks its queue pair. rxe: no. Cards: yes (10.10).
    pub overrun_breaks: bool,
    /// Whether `QP_LAST_WQE_REACHED` is sent. rxe: not in Linux 6.1; from 6.12 on, and here, yes (11.6.3).
    pub last_wqe_reached: bool,
    /// Whether `COMM_EST` is sent. rxe: no. Cards: yes.
    pub communication_established: bool,
    /// Whether `QP_REQ_ERR` and `QP_ACCESS_ERR` are sent. rxe: not in Linux 6.1; cards do.
    pub request_error_events: bool,
    /// Whether a queue pair's completions vanish when it is destroyed. rxe: no. mlx5: yes.
    pub destroy_removes_completions: bool,
    /// The first 20 bytes of the GRH of IPv4, which are undefined. rxe: 0.
    pub grh_padding: u8,
    /// Whether the IPv4 header in a GRH has its checksum. rxe: yes. Some cards: 0.
    pub grh_checksum: bool,
    /// Whether `MigReq` is set in packets. rxe: no. `ConnectX` cards: yes.
    pub is_migrated: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            max_queue_pairs: (1 << 20) - 16,
            max_completion_queues: 1 << 20,
            max_shared_receive_queues: (1 << 20) - 0x20001,
            max_domains: 1 << 20,
            max_keys: 1 << 20,
            max_qp_wr: 1 << 20,
            max_srq_wr: 1 << 20,
            max_sge: 32,
            max_srq_sge: 27,
            max_inline_data: 512,
            max_cqe: 32_767,
            max_message: 8 << 20,
            max_qp_rd_atom: 128,
            max_res_rd_atom: 0x3f000,
            max_mtu: 4096,
            max_multicast_groups: 8192,
            max_multicast_attached: 56,
            max_unacknowledged: 128,
            packets_per_ack: 64,
            source_port: crate::packet::ROCE_PORT,
            rounds_up: true,
            holds_slots: false,
            on_demand_paging: true,
            thread_domains: false,
            completion_timestamps: false,
            receives_in_reset: true,
            retries_seven_for_ever: true,
            local_fault: Status::LOC_QP_OP_ERR,
            long_message_is_operational: true,
            long_datagram_breaks: true,
            has_send_queue_error: false,
            flush_delay: Duration::ZERO,
            overrun_breaks: false,
            last_wqe_reached: true,
            communication_established: false,
            request_error_events: false,
            destroy_removes_completions: false,
            grh_padding: 0,
            grh_checksum: true,
            is_migrated: false,
        }
    }
}

impl Profile {
    /// All that is legal and unusual: a program that runs with this and with the default makes few
    /// assumptions about devices.
    #[must_use]
    pub fn hostile() -> Self {
        Self {
            max_sge: 4,
            max_srq_sge: 3,
            max_inline_data: 60,
            max_qp_rd_atom: 4,
            max_res_rd_atom: 64,
            max_unacknowledged: 16,
            packets_per_ack: 4,
            rounds_up: false,
            holds_slots: true,
            receives_in_reset: false,
            retries_seven_for_ever: false,
            local_fault: Status::LOC_PROT_ERR,
            long_message_is_operational: false,
            long_datagram_breaks: false,
            has_send_queue_error: true,
            flush_delay: Duration::from_millis(5),
            overrun_breaks: true,
            communication_established: true,
            request_error_events: true,
            destroy_removes_completions: true,
            grh_padding: 0xa5,
            grh_checksum: false,
            is_migrated: true,
            thread_domains: true,
            completion_timestamps: true,
            ..Self::default()
        }
    }

    /// A capacity that was asked for, as this device makes it.
    pub(crate) fn capacity(&self, asked: u32) -> u32 {
        let above = asked.saturating_add(1).checked_next_power_of_two();
        match self.rounds_up {
            true => above.unwrap_or(1 << 31) - 1,
            false => asked,
        }
    }
}
