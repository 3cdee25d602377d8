//! RDMA verbs as RAII types, typed work requests and spin polling.
