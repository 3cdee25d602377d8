//! Texts for C's numbers, and numbers of rates.
#![expect(unsafe_code, reason = "C's functions")]

use std::ffi::{CStr, c_char, c_int};

/// A function from a number to a text.
macro_rules! texts {
    ($($verb:ident [$($text:literal),* $(,)?] or $other:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $verb(number: c_int) -> *const c_char {
                const TEXTS: &[&CStr] = &[$($text),*];
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                TEXTS.get(index).copied().unwrap_or($other).as_ptr()
            }
        )*
    };
}

texts! {
    ibv_wc_status_str [
        c"success", c"local length error", c"local QP operation error", c"local EE context operation error",
        c"local protection error", c"Work Request Flushed Error", c"memory management operation error",
        c"bad response error", c"local access error", c"remote invalid request error", c"remote access error",
        c"remote operation error", c"transport retry counter exceeded", c"RNR retry counter exceeded",
        c"local RDD violation error", c"remote invalid RD request", c"aborted error", c"invalid EE context number",
        c"invalid EE context state", c"fatal error", c"response timeout error", c"general error",
        c"TM error", c"TM software rendezvous",
    ] or c"unknown";
    ibv_node_type_str [
        c"unknown", c"InfiniBand channel adapter", c"InfiniBand switch", c"InfiniBand router", c"iWARP NIC",
        c"usNIC", c"usNIC UDP", c"unspecified",
    ] or c"unknown";
    ibv_port_state_str [
        c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer",
    ] or c"unknown";
    ibv_event_type_str [
        c"CQ error", c"local work queue catastrophic error", c"invalid request local work queue error",
        c"local access violation work queue error", c"communication established", c"send queue drained",
        c"path migrated", c"path migration request error", c"local catastrophic error", c"port active",
        c"port error", c"LID change", c"P_Key change", c"SM change", c"SRQ catastrophic error",
        c"SRQ limit reached", c"last WQE reached", c"client reregistration", c"GID table change",
        c"WQ fatal error",
    ] or c"unknown";
}

#[cfg(feature = "rdmacm")]
texts! {
    rdma_event_str [
        c"RDMA_CM_EVENT_ADDR_RESOLVED", c"RDMA_CM_EVENT_ADDR_ERROR", c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR", c"RDMA_CM_EVENT_CONNECT_REQUEST", c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR", c"RDMA_CM_EVENT_UNREACHABLE", c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED", c"RDMA_CM_EVENT_DISCONNECTED", c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN", c"RDMA_CM_EVENT_MULTICAST_ERROR", c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ] or c"UNKNOWN EVENT";
}

/// Multiples of 2.5 Gbit/s of the rates (`ibv_rate`) from C's number 2 on; 0 for one that is none.
const MULTIPLES: [c_int; 23] = [
    1, 4, 12, 2, 8, 16, 24, 32, 48, 0, 0, 0, 0, 10, 40, 80, 120, 11, 20, 160, 240, 320, 480,
];
/// Mbit/s of the same.
const MBPS: [c_int; 23] = [
    2500, 10_000, 30_000, 5000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_062, 56_250, 112_500,
    168_750, 25_781, 103_125, 206_250, 309_375, 28_125, 50_000, 400_000, 600_000, 800_000,
    1_200_000,
];

/// The value of a rate, or -1.
fn value(table: &[c_int], rate: c_int) -> c_int {
    let found = (2..).zip(table).find(|(number, _)| *number == rate);
    found.map_or(-1, |(_, value)| if *value > 0 { *value } else { -1 })
}

/// The rate of a value, or 0.
fn rate(table: &[c_int], value: c_int) -> c_int {
    let found = (2..)
        .zip(table)
        .find(|(_, known)| **known == value && value > 0);
    found.map_or(0, |(number, _)| number)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(number: c_int) -> c_int {
    value(&MULTIPLES, number)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    rate(&MULTIPLES, multiple)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(number: c_int) -> c_int {
    value(&MBPS, number)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    rate(&MBPS, mbps)
}
