//! In debug builds: rejects requests whose memory is registered in another protection domain.
#![expect(unsafe_code, reason = "reads requests as C does")]

use crate::domain::ProtectionDomain;
use crate::error::PostError;
use crate::error::post_error::Queue;
use crate::memory::is_of_another;
use crate::work_request::{INLINE, Linked};

/// Checks requests that are about to be posted to a queue of this domain.
///
/// # Safety
///
/// - `first` points to `count` contiguous requests, each with a valid list of elements.
pub(crate) unsafe fn check<W: Linked>(
    pd: &ProtectionDomain,
    queue: Queue,
    first: *mut W,
    count: usize,
) -> Result<(), PostError> {
    for at in 0..count {
        // SAFETY: the caller promises `count` contiguous requests, and `at` is below `count`.
        let request = unsafe { &mut *first.wrapping_add(at) };
        if request.flags().is_some_and(|flags| *flags & INLINE != 0) {
            // Its keys are not used.
            continue;
        }
        let (list, len) = request.list();
        let (list, len) = (*list, *len);
        if len <= 0 {
            continue;
        }
        let list = std::ptr::slice_from_raw_parts(list, len.unsigned_abs() as usize);
        // SAFETY: the caller promises that each request has `len` elements at `list`.
        if is_of_another(pd, unsafe { &*list }) {
            return Err(PostError::other_domain(queue, at));
        }
    }
    Ok(())
}
