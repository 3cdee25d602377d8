//! C's return conventions. Each has a function below, but for those of a post, which is judged in
//! `error/post_error.rs`, and of a poll, in `completion/poll.rs`.
//!
//! | convention | who | on failure |
//! |---|---|---|
//! | pointer | `ibv_alloc_pd`, `ibv_create_*`, `ibv_reg_mr`, `ibv_open_device` | null, `errno` set |
//! | 0 or errno | `ibv_modify_qp`, `ibv_destroy_*`, `ibv_dereg_mr`, `ibv_query_port` … | the errno is the return value |
//! | post | `ibv_post_send`, `ibv_post_recv` | an errno whose sign depends on the driver; some return 0 and still set `bad_wr` |
//! | 0 or -1 | `ibv_get_cq_event`, `ibv_get_async_event`, `ibv_query_gid`, `ibv_query_pkey`, `ibv_close_device` | -1, `errno` set |
//! | count | `ibv_query_gid_table` | the negative errno |
//! | count | `ibv_poll_cq` | negative, the driver's own code |

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::error::errno::{clear_errno, io_error, last_errno};
use crate::error::{Error, Result};

/// For a verb that returns a pointer.
///
/// Some providers return null without setting `errno`: that of an earlier call must not be taken for the
/// reason.
pub(crate) fn non_null<T>(verb: &'static str, call: impl FnOnce() -> *mut T) -> Result<NonNull<T>> {
    clear_errno();
    NonNull::new(call()).ok_or_else(|| from_errno(verb, last_errno()))
}

/// For a verb that returns 0 or an errno.
pub(crate) fn errno(verb: &'static str, ret: c_int) -> Result<()> {
    match ret {
        0 => Ok(()),
        // A few drivers hand the kernel's negative errno through.
        errno => Err(from_errno(verb, errno.saturating_abs())),
    }
}

/// For a verb that returns 0, or -1 with `errno` set.
pub(crate) fn minus_one(verb: &'static str, ret: c_int) -> Result<()> {
    match ret {
        0 => Ok(()),
        _ => Err(from_errno(verb, last_errno())),
    }
}

/// For a call that returns a count, or a negative errno.
pub(crate) fn count(verb: &'static str, ret: isize) -> Result<usize> {
    usize::try_from(ret).map_err(|_negative| {
        let errno = c_int::try_from(ret.unsigned_abs()).unwrap_or(0);
        from_errno(verb, errno)
    })
}

/// The kernel's own numbers for what is not supported, which some drivers let through.
const ENOTSUPP: c_int = 524;
const ENOIOCTLCMD: c_int = 515;

/// The error for a verb and its errno.
pub(crate) fn from_errno(verb: &'static str, errno: c_int) -> Error {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS | ENOTSUPP | ENOIOCTLCMD => Error::Unsupported { verb },
        // Returned by `verbs-sys` with the feature `dlopen`.
        libc::ELIBACC => Error::NoLibrary,
        errno => Error::Verb {
            verb,
            source: io_error(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_missing_library_has_its_own_error() {
        let error = from_errno("ibv_get_device_list", libc::ELIBACC);
        assert!(matches!(error, Error::NoLibrary), "{error}");
        assert!(error.to_string().contains("install rdma-core"));
    }

    #[test]
    fn null_takes_errno() {
        let fails = || assert!(std::fs::File::open("/nonexistent/file").is_err());
        let null = || {
            fails();
            std::ptr::null_mut::<u8>()
        };
        let error = non_null("ibv_alloc_pd", null).unwrap_err();
        assert!(matches!(
            error,
            Error::Verb {
                verb: "ibv_alloc_pd",
                ..
            }
        ));
        assert_eq!(error.errno(), Some(libc::ENOENT));
        // A provider that sets none.
        fails();
        let error = non_null("ibv_alloc_pd", std::ptr::null_mut::<u8>).unwrap_err();
        assert_eq!(error.errno(), None);
        let mut byte = 0_u8;
        assert!(non_null("ibv_alloc_pd", || &raw mut byte).is_ok());
    }

    #[test]
    fn errno_is_the_value_whatever_its_sign() {
        assert!(errno("v", 0).is_ok());
        assert_eq!(
            errno("v", libc::EINVAL).unwrap_err().errno(),
            Some(libc::EINVAL)
        );
        assert_eq!(
            errno("v", -libc::EBUSY).unwrap_err().kind(),
            ErrorKind::InUse
        );
    }

    #[test]
    fn unsupported_has_its_own_error() {
        for code in [libc::EOPNOTSUPP, libc::ENOSYS, ENOTSUPP, ENOIOCTLCMD] {
            let error = errno("ibv_reg_dmabuf_mr", code).unwrap_err();
            assert!(matches!(
                error,
                Error::Unsupported {
                    verb: "ibv_reg_dmabuf_mr"
                }
            ));
        }
    }

    #[test]
    fn counts() {
        assert_eq!(count("v", 3).unwrap(), 3);
        let error = count("v", -isize::try_from(libc::ENOMEM).unwrap()).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOMEM));
    }

    #[test]
    fn minus_one_takes_errno() {
        assert!(minus_one("v", 0).is_ok());
        assert!(std::fs::File::open("/nonexistent/file").is_err());
        assert_eq!(minus_one("v", -1).unwrap_err().errno(), Some(libc::ENOENT));
    }
}
