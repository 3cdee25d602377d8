//! The libraries, looked for at run time: the feature `dlopen`.
//!
//! Each function of a library is looked up when it is called first. One that the program itself
//! defines comes before the library's, as it does when the library is linked. Without the library, or if
//! it is too old to have the function, the function fails as its kind does in C.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::errno::set_errno;

/// A library, which is opened when a function of it is called first.
pub(crate) struct Library {
    name: &'static CStr,
    handle: AtomicPtr<c_void>,
}

/// libibverbs has a single ABI version.
pub(crate) static IBVERBS: Library = Library::new(c"libibverbs.so.1");
#[cfg(feature = "rdmacm")]
pub(crate) static RDMACM: Library = Library::new(c"librdmacm.so.1");

/// The errno of every function if there is no library: "cannot access a needed shared library".
const NO_LIBRARY: c_int = libc::ELIBACC;

/// The errno of a function that the library does not have, as of a verb that the device does not have.
const NO_FUNCTION: c_int = libc::EOPNOTSUPP;

/// An exported function, and its address once it was called.
pub(crate) struct Symbol {
    library: &'static Library,
    name: &'static CStr,
    /// The program's own function, whatever its type, or a null pointer.
    own: &'static Option<unsafe extern "C" fn()>,
    address: AtomicPtr<c_void>,
}

/// The [`Symbol`] of the function with this name, which C's literal repeats.
///
/// The program's own function is found by a weak reference: the linker sets it to null if there is
/// none. Rust has no stable word for one, so it is data of the assembler. `dlsym` would not find the
/// function: a linker makes a program's symbols dynamic only for the libraries that it links.
macro_rules! symbol {
    ($library:ident, $name:literal, $c_name:literal) => {{
        // A module, as this macro has no place among statements.
        mod own {
            core::arch::global_asm!(
                ".pushsection .data.rel.ro,\"aw\"",
                ".balign 8",
                concat!(".weak ", $name),
                concat!(".globl verbs_sys_own_", $name),
                concat!(".hidden verbs_sys_own_", $name),
                concat!("verbs_sys_own_", $name, ":"),
                concat!(".quad ", $name),
                ".popsection",
            );
        }
        // Safe: it is the pointer above, which nothing writes to.
        unsafe extern "C" {
            #[link_name = concat!("verbs_sys_own_", $name)]
            safe static OWN: Option<unsafe extern "C" fn()>;
        }
        crate::dlopen::Symbol::new(&crate::dlopen::$library, $c_name, &OWN)
    }};
}
pub(crate) use symbol;

impl Symbol {
    pub(crate) const fn new(
        library: &'static Library,
        name: &'static CStr,
        own: &'static Option<unsafe extern "C" fn()>,
    ) -> Self {
        Self {
            library,
            name,
            own,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The function's address, or the errno if it has none.
    #[inline]
    pub(crate) fn get(&self) -> Result<*mut c_void, c_int> {
        // Acquire: the library was loaded, and initialised, before its address was stored.
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            return self.look_up();
        }
        Ok(address)
    }

    /// A failure is not kept: the library may be installed later.
    #[cold]
    fn look_up(&self) -> Result<*mut c_void, c_int> {
        let address = match *self.own {
            Some(own) => own as *mut c_void,
            None => self.of_library()?,
        };
        self.address.store(address, Ordering::Release);
        Ok(address)
    }

    /// The address of the library's function.
    fn of_library(&self) -> Result<*mut c_void, c_int> {
        let library = self.library.open()?;
        // SAFETY: the library is open, and never closed; the name ends with a zero. This finds the
        // default version, the newest, as the linker does.
        let address = unsafe { libc::dlsym(library, self.name.as_ptr()) };
        if address.is_null() {
            return Err(NO_FUNCTION);
        }
        Ok(address)
    }
}

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            handle: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The open library.
    fn open(&self) -> Result<*mut c_void, c_int> {
        let opened = self.handle.load(Ordering::Acquire);
        if !opened.is_null() {
            return Ok(opened);
        }
        // SAFETY: the libraries may be loaded at any time, in any thread.
        let opened = unsafe { libc::dlopen(self.name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if opened.is_null() {
            return Err(NO_LIBRARY);
        }
        // Two threads may both open it: they get the same handle, which is counted, and never closed.
        self.handle.store(opened, Ordering::Release);
        Ok(opened)
    }
}

// How a function fails, by what it returns.

pub(crate) fn nothing(errno: c_int) {
    set_errno(errno);
}

pub(crate) fn errno(errno: c_int) -> c_int {
    set_errno(errno);
    errno
}

pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

pub(crate) fn minus_errno(errno: c_int) -> isize {
    set_errno(errno);
    // A small number.
    -(errno as isize)
}

pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

pub(crate) fn null_const<T>(errno: c_int) -> *const T {
    null::<T>(errno)
}

/// For numbers and enumerations, which have no value for a failure.
///
/// # Safety
///
/// All bits of a `T` may be zero.
pub(crate) unsafe fn zero<T>(errno: c_int) -> T {
    set_errno(errno);
    // SAFETY: the caller promises that all bits of a `T` may be zero.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
