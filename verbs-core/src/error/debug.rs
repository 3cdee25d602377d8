//! `Debug` of errors: the text, because `main` and `unwrap` print it.

use std::error::Error;
use std::fmt;

use super::chain::ErrorChain;

/// An error whose `Debug` is its text and that of its sources, followed by the variant in brackets.
///
/// A `main` that returns an error prints its `Debug`: `Error: no RDMA device found: … [NoDevice]`.
/// Implemented by [`error_debug!`](crate::error_debug), here and in the crates above.
pub trait ErrorDebug: Error + Sized + 'static {
    /// Writes the name of the variant, with that of the error in it: `Rejected(Down(PeerClosed))`.
    ///
    /// # Errors
    ///
    /// The formatter's.
    fn write_variant(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Writes the whole: for `Debug`.
    ///
    /// # Errors
    ///
    /// The formatter's.
    fn write_debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [", ErrorChain::new(self))?;
        self.write_variant(f)?;
        f.write_str("]")
    }
}

impl<E: ErrorDebug> ErrorDebug for Box<E> {
    fn write_variant(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).write_variant(f)
    }
}

/// Implements `Debug` for an error type, by [`ErrorDebug`].
///
/// An enum lists its variants; one that is missing does not compile. `Variant(error)` also prints the
/// variant of the error in it. A struct prints its own name.
#[doc(hidden)]
#[macro_export]
macro_rules! error_debug {
    ($error:ident { $($(#[$cfg:meta])? $variant:ident $(($inner:ident))?),+ $(,)? }) => {
        $crate::error_debug!(@ $error |this, f| {
            match this {
                $($(#[$cfg])? $error::$variant { $(0: $inner,)? .. } => {
                    f.write_str(stringify!($variant))?;
                    $(
                        f.write_str("(")?;
                        $crate::__private::ErrorDebug::write_variant($inner, f)?;
                        f.write_str(")")?;
                    )?
                    Ok(())
                })+
            }
        });
    };
    ($error:ident) => {
        $crate::error_debug!(@ $error |_this, f| f.write_str(stringify!($error)));
    };
    (@ $error:ident |$this:ident, $f:ident| $body:expr) => {
        impl $crate::__private::ErrorDebug for $error {
            fn write_variant(&self, $f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $this = self;
                $body
            }
        }

        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::__private::ErrorDebug::write_debug(self, f)
            }
        }
    };
}
