//! How an object that another library made is destroyed.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// How an object that another library made is destroyed: an argument of every `from_raw`.
///
/// `T` is the C struct: `ibv_qp`, `ibv_cq`. See
/// [objects made by other libraries](crate#objects-made-by-other-libraries).
pub struct Destroy<T> {
    // Nothing stands for the verb of the type.
    by: Option<By<T>>,
}

type By<T> = Box<dyn FnOnce(NonNull<T>) -> Result<()> + Send + Sync>;

impl<T> Destroy<T> {
    /// The object is destroyed by the verb of its type, such as `ibv_destroy_qp`.
    ///
    /// This is right for most objects, those of `mlx5dv_create_qp` and `efadv_create_cq` included.
    #[must_use]
    pub const fn by_verb() -> Self {
        Self { by: None }
    }

    /// The object is destroyed by a function, such as one that calls `ibv_unimport_pd`.
    ///
    /// The function is called once, by `close` or by the drop, when everything that was made from the object is
    /// gone. Its error is what `close` returns; a drop logs it, and the object is leaked. It must not
    /// panic: each `from_raw` is unsafe for that reason, too.
    #[must_use]
    pub fn by(function: impl FnOnce(NonNull<T>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let by = |object| {
            let verb = "the function that destroys the object";
            function(object).map_err(|source| Error::Verb { verb, source })
        };
        Self {
            by: Some(Box::new(by)),
        }
    }

    /// The object is not destroyed: it has another owner, which `owner` keeps alive.
    ///
    /// `owner` is dropped when the object would be destroyed. If the other owner lives until the program
    /// ends, `owner` can be `()`.
    #[must_use]
    pub fn by_owner(owner: impl Send + Sync + 'static) -> Self {
        let by = move |_| {
            drop(owner);
            Ok(())
        };
        Self {
            by: Some(Box::new(by)),
        }
    }

    /// The function; `None` for the verb of the type.
    pub(crate) fn take(&mut self) -> Option<By<T>> {
        self.by.take()
    }
}

impl<T> fmt::Debug for Destroy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by.is_some() {
            "function"
        } else {
            "verb"
        };
        f.debug_tuple("Destroy").field(&by).finish()
    }
}
