//! Bindings to libibverbs, every inline verb included.
#![expect(unsafe_code, reason = "foreign functions")]

pub use bindings::*;

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
