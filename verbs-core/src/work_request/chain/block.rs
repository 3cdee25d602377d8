//! A chain's memory: requests and their elements at fixed addresses, in one allocation.
#![expect(
    unsafe_code,
    reason = "owns requests that point to one another and to their elements"
)]

use std::ffi::c_int;
use std::mem;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::{self, NonNull};

use verbs_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge};

use crate::error::{Error, Result};
use crate::work_request::SIGNALED;

/// C's request, as far as a chain needs it.
///
/// # Safety
///
/// All of its bytes may be 0.
pub(crate) unsafe trait Linked: Sized {
    fn next(&mut self) -> &mut *mut Self;
    fn wr_id(&mut self) -> &mut u64;
    fn list(&mut self) -> (&mut *mut ibv_sge, &mut c_int);
    /// C's flags, which a receive does not have.
    fn flags(&mut self) -> Option<&mut u32>;
}

macro_rules! linked {
    ($($wr:ident |$this:ident| $flags:expr;)*) => {$(
        // SAFETY: numbers and pointers.
        unsafe impl Linked for $wr {
            #[inline]
            fn next(&mut self) -> &mut *mut Self {
                &mut self.next
            }

            #[inline]
            fn wr_id(&mut self) -> &mut u64 {
                &mut self.wr_id
            }

            #[inline]
            fn list(&mut self) -> (&mut *mut ibv_sge, &mut c_int) {
                (&mut self.sg_list, &mut self.num_sge)
            }

            #[inline]
            fn flags(&mut self) -> Option<&mut u32> {
                let $this = self;
                $flags
            }
        }

        const _: () = assert!(align_of::<$wr>() <= FIRST);
    )*};
}

linked! {
    ibv_send_wr |wr| Some(&mut wr.send_flags);
    ibv_recv_wr |_wr| None;
}

/// The unit of the allocation.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

/// Where the first request begins. The `bad_wr` of posts is before it.
///
/// The 56 of a send's 128 bytes that drivers read are then in one cache line.
const FIRST: usize = 8;

/// The requests of a chain, linked in their order, and room for the elements of each.
///
/// References to them are made from `start` and end with the call that made them, as the pointers
/// in the requests are made from `start` too.
pub(crate) struct Block<W> {
    start: NonNull<Line>,
    lines: usize,
    first: *mut W,
    len: NonZeroUsize,
    max_sge: u32,
}

// SAFETY: a `Block` owns its memory as a `Box` does; what the requests point to is in it, or is
// never accessed through them by this program.
unsafe impl<W> Send for Block<W> {}
// SAFETY: nothing changes through `&self`, and the requests point into this block only.
unsafe impl<W> Sync for Block<W> {}

impl<W: Linked> Block<W> {
    /// Requests whose bytes are 0, but for their links.
    pub(super) fn new(len: usize, max_sge: u32) -> Result<Self> {
        // A `PostError` can count these, which are far more than devices take.
        let (max_len, most_sge) = (1 << 24, 1 << 16);
        let range = |what, value, max| Error::OutOfRange {
            what,
            value,
            min: 1,
            max,
        };
        let value = len as u64;
        let len = NonZeroUsize::new(len).filter(|_| value <= max_len);
        let len = len.ok_or_else(|| range("length of a chain", value, max_len))?;
        if max_sge == 0 || max_sge > most_sge {
            return Err(range("max_sge", max_sge.into(), most_sge.into()));
        }
        let (requests, list) = (len.get() * size_of::<W>(), max_sge as usize);
        // Elements begin at a multiple of 16.
        let elements = (FIRST + requests).next_multiple_of(size_of::<ibv_sge>());
        let bytes = elements + len.get() * list * size_of::<ibv_sge>();
        let lines = bytes.div_ceil(size_of::<Line>());
        let memory = vec![Line([0; size_of::<Line>()]); lines].into_boxed_slice();
        let start = NonNull::from(Box::leak(memory)).cast::<Line>();
        let first = start.as_ptr().wrapping_byte_add(FIRST).cast::<W>();
        let mut block = Self {
            start,
            lines,
            first,
            len,
            max_sge,
        };
        let mut sg_list: *mut ibv_sge = start.as_ptr().wrapping_byte_add(elements).cast();
        for index in 0..len.get() {
            let next = match index + 1 < len.get() {
                true => block.at(index + 1),
                false => ptr::null_mut(),
            };
            let Some(request) = block.get(index) else {
                break;
            };
            *request.next() = next;
            *request.list().0 = sg_list;
            sg_list = sg_list.wrapping_add(list);
        }
        Ok(block)
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len.get()
    }

    #[inline]
    pub(super) const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Where a request is, for C.
    #[inline]
    pub(crate) const fn at(&self, index: usize) -> *mut W {
        self.first.wrapping_add(index)
    }

    #[inline]
    pub(crate) fn get(&mut self, index: usize) -> Option<&mut W> {
        // SAFETY: the request is in this block, which is borrowed mutably, and its bytes were 0 or
        // a valid request ever since.
        (index < self.len.get()).then(|| unsafe { &mut *self.at(index) })
    }

    /// The requests of a range; none if it reaches past the end.
    #[inline]
    pub(super) fn range(&mut self, part: Range<usize>) -> &mut [W] {
        let all = ptr::slice_from_raw_parts_mut(self.first, self.len.get());
        // SAFETY: they are in this block, which is borrowed mutably, and the bytes of each were 0 or a
        // valid request ever since.
        let all = unsafe { &mut *all };
        all.get_mut(part).unwrap_or_default()
    }

    /// A request, and its first element.
    #[inline]
    pub(super) fn with_first(&mut self, index: usize) -> Option<(&mut W, &mut ibv_sge)> {
        let request = self.get(index)?;
        let first = *request.list().0;
        // SAFETY: `new` gave each request room for at least one element in this block, all of whose
        // bytes were 0; it is borrowed mutably.
        Some((request, unsafe { &mut *first }))
    }

    /// A request, and room for its elements.
    #[inline]
    pub(super) fn with_room(&mut self, index: usize) -> Option<(&mut W, &mut [ibv_sge])> {
        let count = self.max_sge as usize;
        let request = self.get(index)?;
        let list = ptr::slice_from_raw_parts_mut(*request.list().0, count);
        // SAFETY: `new` gave each request room for `max_sge` elements in this block, all of whose
        // bytes were 0; it is borrowed mutably.
        Some((request, unsafe { &mut *list }))
    }

    /// Where C stores the request that it did not accept. It is null before each post.
    ///
    /// It is here and not on the stack, so that a post does not have to set it.
    #[inline]
    pub(crate) const fn bad(&self) -> *mut *mut W {
        self.start.as_ptr().cast()
    }

    /// Ends the chain before `end`, and runs `post` on it. The last request of the shortened chain
    /// is signalled.
    #[inline]
    pub(crate) fn post_to(&mut self, end: usize, post: impl FnOnce(&Self) -> c_int) -> c_int {
        // Nothing is done for the whole chain, whose end this is.
        let cut =
            (end < self.len()).then(|| self.link(end, ptr::null_mut(), |flags| flags | SIGNALED));
        let ret = post(self);
        if let Some(flags) = cut {
            self.link(end, self.at(end), |_| flags);
        }
        ret
    }

    /// Links the request before `end` to `next`, and changes its flags; returns those it had.
    #[inline]
    fn link(&mut self, end: usize, next: *mut W, change: impl FnOnce(u32) -> u32) -> u32 {
        let last = self.get(end.wrapping_sub(1));
        last.map_or(0, |last| {
            *last.next() = next;
            let change = |old: &mut u32| mem::replace(old, change(*old));
            last.flags().map_or(0, change)
        })
    }

    /// The request that a post did not accept, if C named one. The next post needs null there.
    #[inline]
    pub(crate) fn bad_wr(&mut self) -> &mut *mut W {
        // SAFETY: the block begins with it, and is borrowed mutably.
        unsafe { &mut *self.bad() }
    }
}

impl<W> Drop for Block<W> {
    fn drop(&mut self) {
        let memory = ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.lines);
        // SAFETY: `memory` is from `Box::leak`, and nothing borrows it.
        drop(unsafe { Box::from_raw(memory) });
    }
}
