//! The lessons on an RDMA device.
#![cfg(test)]

mod lessons;
mod two_hosts;
