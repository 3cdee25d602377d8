//! Posting takes `unsafe`: the caller promises to keep the buffers.

use verbs_core::{QueuePair, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use verbs_core::error::PostError;
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};

fn any(qp: &QueuePair, request: WorkRequest<'_>) -> Result<(), PostError> {
    qp.post(&mut [request])
}

fn send(qp: &QueuePair, request: SendWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_send(&mut [request])
}

fn write(qp: &QueuePair, request: WriteWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_write(&mut [request])
}

fn read(qp: &QueuePair, request: ReadWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_read(&mut [request])
}

fn atomic(qp: &QueuePair, request: AtomicWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_atomic(&mut [request])
}

fn receive(qp: &QueuePair, request: ReceiveWorkRequest<'_>) -> Result<(), PostError> {
    qp.post_receive(&mut [request])
}

fn main() {}
