//! Posting a prebuilt chain, on any queue.
#![expect(unsafe_code, reason = "sees C's requests as ours")]

use std::ffi::c_int;
use std::ops::{Range, RangeBounds};
use std::{mem, ptr};

use verbs_sys::{ibv_recv_wr, ibv_send_wr};

#[cfg(debug_assertions)]
use super::check_domain;
use crate::domain::ProtectionDomain;
use crate::error::PostError;
use crate::error::post_error::{Queue, Reason, accepted};
use crate::memory::indices;
use crate::work_request::{Block, ChainRequest, ReceiveWorkRequest, RequestChain, WorkRequest};

/// Posts a range of a chain by `post`, which gets the first request and the place for `bad_wr`;
/// `refused` finds out why it failed.
///
/// Nothing is done for each request, but for a check of their domain in debug builds.
#[inline]
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "no check"))]
pub(crate) fn post_part<R: ChainRequest>(
    pd: &ProtectionDomain,
    queue: Queue,
    chain: &mut RequestChain<R>,
    range: impl RangeBounds<usize>,
    post: impl FnOnce(*mut R::Wr, *mut *mut R::Wr) -> c_int,
    refused: impl FnOnce(c_int, &mut Block<R::Wr>, Range<usize>) -> PostError,
) -> Result<(), PostError> {
    let (start, end) = indices(chain.len(), range);
    let block = chain.block();
    if start >= end || end > block.len() {
        return nothing(queue, start.max(end), block.len());
    }
    #[cfg(debug_assertions)]
    // SAFETY: the block, which is borrowed mutably, has the requests from `start` to `end`, with
    // their lists.
    unsafe { check_domain::check(pd, queue, block.at(start), end - start) }?;
    let ret = block.post_to(end, |block| post(block.at(start), block.bad()));
    if accepted(ret, *block.bad_wr()) {
        return Ok(());
    }
    Err(refused(ret, block, start..end))
}

/// The request that C named after a post that failed, and the requests of that post. The next one can
/// begin.
pub(crate) fn sent<'b>(
    block: &'b mut Block<ibv_send_wr>,
    range: &Range<usize>,
) -> (*mut ibv_send_wr, &'b [WorkRequest<'b>]) {
    let bad = mem::replace(block.bad_wr(), ptr::null_mut());
    let requests = ptr::slice_from_raw_parts(block.at(range.start).cast(), range.len());
    // SAFETY: a `WorkRequest` is laid out as an `ibv_send_wr`, and the block, which stays borrowed,
    // has this range.
    (bad, unsafe { &*requests })
}

/// As [`sent`], for receives.
pub(crate) fn received<'b>(
    block: &'b mut Block<ibv_recv_wr>,
    range: &Range<usize>,
) -> (*mut ibv_recv_wr, &'b [ReceiveWorkRequest<'b>]) {
    let bad = mem::replace(block.bad_wr(), ptr::null_mut());
    let requests = ptr::slice_from_raw_parts(block.at(range.start).cast(), range.len());
    // SAFETY: a `ReceiveWorkRequest` is laid out as an `ibv_recv_wr`, and the block, which stays
    // borrowed, has this range.
    (bad, unsafe { &*requests })
}

/// The result of a post of no requests: of an empty range up to `end`, or of one that the chain does
/// not have.
#[cold]
#[inline(never)]
fn nothing(queue: Queue, end: usize, len: usize) -> Result<(), PostError> {
    if end <= len {
        return Ok(());
    }
    let max = u32::try_from(len).unwrap_or(u32::MAX);
    let reason = (end as u64, max, Reason::NoRequest);
    Err(PostError::new(queue, 0, 0, reason))
}
