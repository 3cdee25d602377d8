//! C's structures (`infiniband/verbs.h`), in its order; a test compares them with the header's.

/// Structures as C has them: the fields of one type are in one line, as in `int a, b;`.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$note:meta])* $($field:ident)+: $type:ty;)*
    })*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $($(#[$note])* $(pub(crate) $field: $type,)+)*
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
