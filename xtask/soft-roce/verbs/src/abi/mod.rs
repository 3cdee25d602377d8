//! C's structures (`infiniband/verbs.h`), in its order; a test compares them with the header's.
#![expect(unsafe_code, reason = "zeros are valid for C's structures")]

/// Structures as C has them, after the traits to derive: the fields of one type are in one line, as in `int a, b;`.
/// Their default is zeros.
macro_rules! structures {
    ($derives:tt $($(#[$about:meta])* $name:ident {
        $($(#[$note:meta])* $($field:ident)+: $type:ty;)*
    })*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive $derives]
        pub(crate) struct $name {
            $($(#[$note])* $(pub(crate) $field: $type,)+)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: zeros are valid for the types of all fields: numbers, pointers, addresses, and a mutex and a
                // condition, which are initialized by them.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

pub(crate) mod attributes;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod extended;
pub(crate) mod object;
pub(crate) mod request;
#[cfg(test)]
mod tests;
