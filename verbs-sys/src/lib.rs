//! Bindings to libibverbs, the C library for RDMA, including all inline verbs.
//!
//! This is C's interface and nothing more: no `Result`, no `Drop`, no renaming. It is the lowest layer,
//! for those who write a layer of their own. The next one, `verbs-core`, has objects that free themselves,
//! and typed requests and completions.
//!
//! ```text
//! ibv_device ─ ibv_open_device ─► ibv_context
//!   ├─ ibv_alloc_pd ──► ibv_pd ─┬─ ibv_reg_mr ────► ibv_mr
//!   │                           │
//!   └─ ibv_create_cq ─► ibv_cq ─┴─ ibv_create_qp ─► ibv_qp
//!
//! ibv_post_send(qp), ibv_post_recv(qp) ─► the device ─► ibv_poll_cq(cq)
//! ```
//!
//! # Quick start
//!
//! ```
//! use verbs_sys::{ibv_free_device_list, ibv_get_device_list};
//!
//! let mut count = 0;
//! // `count` is valid for writes.
//! let list = unsafe { ibv_get_device_list(&raw mut count) };
//! if !list.is_null() {
//!     println!("{count} RDMA devices");
//!     // The list came from `ibv_get_device_list`, and is not used again.
//!     unsafe { ibv_free_device_list(list) };
//! }
//! ```
//!
//! # How C is represented
//!
//! - Functions that the library exports are `extern "C"`. Functions that are `static inline` in `verbs.h`, and macros, are
//!   `#[inline]` functions of the same name and cost.
//! - Enums are newtypes over an integer, with C's constants, since a newer library may return a value
//!   that these headers lack. Flags have `|` and `&`. C declares most *fields* for flags as plain
//!   integers. To store a flag in such a field, use its number: `wr.send_flags = IBV_SEND_SIGNALED.0`.
//! - Big-endian numbers are [`__be16`], [`__be32`] and [`__be64`]. Their bytes are in network order:
//!   convert with `u32::from_be(number.0)` and `__be32(number.to_be())`.
//! - Structs are zeroed by `Default`. Objects with an identity, such as [`ibv_qp`], are not `Copy`.
//!
//! # What this crate does not do
//!
//! It does not bind the providers' own interfaces (`mlx5dv` …) or `rsocket.h`, and does not link
//! statically.
//!
//! # Features
//!
//! - `dlopen`: the library is loaded at run time instead of linked, so that one program runs on machines
//!   with and without libibverbs. The build still needs the headers. Without `libibverbs.so.1`, a function
//!   fails as it does in C, with the errno `ELIBACC`. A function that an older library lacks fails with
//!   `EOPNOTSUPP`. The program starts in either case.
//! - `rdmacm`: also bindings to librdmacm, generated in the same way: all of `rdma_cma.h` and
//!   `rdma_verbs.h`. The build needs its headers. With `dlopen`, `librdmacm.so.1` is loaded at run time in
//!   the same way.
//!
//! Items that newer headers add are here if the installed headers have them. The build script of a
//! crate that depends directly on this one can check the environment variables
//! `DEP_IBVERBS_HAS_…`, which the README lists.
//!
//! # Requirements
//!
//! 64-bit Linux with rdma-core 36 or newer, pkg-config, and libclang for the build. The README names
//! the distributions' packages.
//!
//! # Thread safety
//!
//! "By default all verbs objects are safe for multi-threaded access, whether or not a thread domain
//! is specified" (`ibv_alloc_td(3)`). Raw pointers are neither `Send` nor `Sync`, so the layer above has
//! to implement these traits for its own types.
//!
//! # Resource cleanup
//!
//! The caller has to destroy all objects, in the reverse order of their creation.
//!
//! # Further reading
//!
//! The [guide](https://docs.rs/verbs-channel/latest/verbs_channel/guide/), for those who are new to RDMA.
//! The manual pages, `ibv_create_qp(3)` and `ibv_post_send(3)` to begin with, and
//! [rdma-core](https://github.com/linux-rdma/rdma-core).
// The nightly toolchain of docs.rs labels what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
// Where the docs of the crates above link to if this crate's are not beside theirs.
#![doc(html_root_url = "https://docs.rs/verbs-sys/latest")]
#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::c_void;
use core::ptr;

pub use bindings::*;
pub use inline::*;

#[cfg(feature = "dlopen")]
mod dlopen;
mod errno;
mod inline;
mod unions;

mod bindings {
    //! Bindings generated from the installed headers.
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

/// Returned by an allocator of a parent domain to leave the allocation to libibverbs.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
