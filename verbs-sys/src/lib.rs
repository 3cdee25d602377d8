//! Bindings to libibverbs, every inline verb included.
#![no_std]
#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::c_void;
use core::ptr;

pub use bindings::*;
pub use inline::*;

mod inline;
mod unions;

mod bindings {
    //! What bindgen made of the installed headers.
    #![allow(
        warnings,
        unsafe_op_in_unsafe_fn,
        clippy::all,
        clippy::pedantic,
        clippy::nursery,
        clippy::restriction,
        reason = "generated"
    )]

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

/// What an allocator of a parent domain returns to leave the allocation to libibverbs.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);
