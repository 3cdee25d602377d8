//! Contexts: opened devices.
#![expect(unsafe_code, reason = "owns an `ibv_context`")]

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use verbs_sys::{ibv_context, ibv_fork_init, ibv_open_device};

use super::Device;
use super::removal::Directory;
use crate::codes::PortState;
use crate::codes::macros::man;
use crate::error::{Error, Result};
use crate::ffi::fd::{self, PollFd};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

/// An opened device: all other objects are created from it.
///
/// Cloning is cheap and shares the context. The device is closed when the last clone, and the last
/// object made from it, has been dropped.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// use verbs_core::Device;
///
/// for device in Device::list()? {
///     let context = device.open()?;
///     println!("{}: {}", device.name(), context.query_device()?.device_cap_flags());
///     for port in context.ports()? {
///         let attr = context.query_port(port)?;
///         println!("port {port}: {}, {}", attr.state(), attr.link_layer());
///         if let Some(mtu) = attr.active_mtu() {
///             println!("path MTU {mtu}");
///         }
///         for entry in context.gid_table(port)? {
///             println!("GID {}: {}, {}", entry.gid_index(), entry.gid(), entry.gid_type());
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_open_device")]
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    context: Handle<ibv_context>,
    poll_fd: PollFd,
    device: Device,
    directory: Option<Directory>,
}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceNode`], with the path, if the device's node is missing or this user may not open
    /// it. Otherwise the errno.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        // SAFETY: `self` keeps the device.
        let call = || unsafe { ibv_open_device(self.as_ptr()) };
        let context = match ret::non_null("ibv_open_device", call) {
            Ok(context) => context,
            Err(Error::Verb { source, .. }) if is_about_the_node(&source) => {
                // libibverbs sets `ENOENT` whatever the reason: ask for it once more.
                let source = self.node_error().unwrap_or(source);
                let path = self.node();
                return Err(Error::DeviceNode { path, source });
            }
            Err(error) => return Err(error),
        };
        // SAFETY: the object is new, and has a reference to the device of its own.
        let context = unsafe { Handle::new(context) };
        let context = Context::new(context, self.clone());
        // Waiting is done by poll(2), with a bound; reading must never block.
        fd::set_nonblocking(context.async_fd())?;
        Ok(context)
    }

    /// Why this process cannot open the device's node; `None` if it can.
    pub(crate) fn node_error(&self) -> Option<io::Error> {
        let opened = File::options().read(true).write(true).open(self.node());
        opened.err()
    }
}

impl Context {
    fn new(context: Handle<ibv_context>, device: Device) -> Self {
        Self {
            inner: Arc::new(Inner {
                context,
                poll_fd: PollFd::default(),
                directory: Directory::of(&device.sysfs_path()),
                device,
            }),
        }
    }

    /// Takes over a context that another library opened, such as `mlx5dv_open_device` or
    /// `ibv_import_device`.
    ///
    /// Its `async_fd` becomes nonblocking.
    ///
    /// # Safety
    ///
    /// - `context` is an open context, by the pointer that C returned.
    /// - Nothing but `destroy` closes it. `destroy` does not panic.
    /// - If `destroy` does not close it, it stays open until `destroy` has been called, and all
    ///   objects made from this one are destroyed by then.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] if its device no longer exists, otherwise the errno. `destroy` is then
    /// dropped without having been called.
    #[doc(alias = "ibv_import_device")]
    pub unsafe fn from_raw(
        context: NonNull<ibv_context>,
        destroy: Destroy<ibv_context>,
    ) -> Result<Self> {
        // SAFETY: the caller has an open context, whose device is not changed.
        let device = unsafe { (*context.as_ptr()).device };
        // SAFETY: an open context keeps its device.
        let device = unsafe { Device::listed(device) }?;
        // SAFETY: the caller has an open context, whose descriptor is not changed.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        // SAFETY: an open context keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // As in `open`. If it fails, `destroy` is not called: nothing was taken over yet.
        fd::set_nonblocking(fd)?;
        // SAFETY: the caller hands it over, with what destroys it.
        let context = unsafe { Handle::foreign(context, destroy) };
        Ok(Self::new(context, device))
    }

    /// The number of the first port that is ACTIVE; `None` if there is none.
    ///
    /// A queue pair prefers a port on which it has an address: see
    /// [`port_num`](crate::queue_pair::QueuePairConfig::port_num).
    ///
    /// # Errors
    ///
    /// The errno of the first port that cannot be queried, if no other is ACTIVE.
    pub fn active_port(&self) -> Result<Option<u8>> {
        let mut refused = None;
        for port in self.ports()? {
            match self.query_port(port) {
                Ok(attr) if attr.state() == PortState::ACTIVE => return Ok(Some(port)),
                Ok(_) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The device that was opened.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// How many interrupt vectors the device has for the events of completion queues.
    ///
    /// See [`CompletionQueueBuilder::comp_vector`](crate::completion::CompletionQueueBuilder::comp_vector).
    #[must_use]
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the handle keeps the context, and the field is not changed.
        let vectors = unsafe { (*self.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(0)
    }

    /// A descriptor to wait on with `poll(2)`, `epoll(7)` or an async runtime: it is readable while
    /// there is a device event, or when the device is gone. The first call creates it.
    ///
    /// It is an `epoll(7)` set that holds the context's own `async_fd`, so a `read(2)` of it fails
    /// with `EINVAL`. Only [`get_async_event`](Self::get_async_event) takes events, since each event
    /// must be acknowledged. The descriptor can be duplicated, and watched level-triggered or
    /// edge-triggered: each event is a new edge.
    ///
    /// # Errors
    ///
    /// The errno, such as `EMFILE`, in the first call only.
    #[doc(alias = "async_fd")]
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.inner.poll_fd.of(self.async_fd())
    }

    /// The context's own descriptor. It stays in this crate: reading it takes an event that is never
    /// acknowledged, and destroying the object of that event then blocks forever.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the handle keeps the context, and the field is not changed.
        let fd = unsafe { (*self.as_ptr()).async_fd };
        // SAFETY: the context keeps it open, and is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The `ibv_context`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.inner.context.as_ptr()
    }

    /// Closes the device and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or objects made from it exist: dropping the last of them closes
    /// the device. Otherwise the errno.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(Inner { context, .. }) => context.close(),
            None => Err(Error::InUse {
                object: "the device context",
            }),
        }
    }

    /// Rejects an object of another context.
    pub(crate) fn must_be(&self, context: *mut ibv_context, child: &'static str) -> Result<()> {
        if context == self.as_ptr() {
            Ok(())
        } else {
            Err(Error::ForeignContext { child })
        }
    }

    /// Whether this and `other` are clones of the same context.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// Removal.
impl Context {
    /// Whether the kernel has removed the device, after it has destroyed all objects of this context: the device
    /// accesses none of the memory that was registered or posted.
    ///
    /// Every verb of a device that is removed fails with `EIO` from then on, or a little earlier, and so do those that
    /// destroy objects. So after an error of those, this tells a removed device from one that may still access memory.
    /// `false` if that is unknown: sysfs cannot be read, or could not be when the device was opened. It reads a
    /// directory.
    ///
    /// The sign is that the device's [directory](crate::Device::sysfs_path) is in sysfs under no name.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        let directory = self.inner.directory.as_ref();
        directory.is_some_and(Directory::is_removed)
    }

    /// Whether this error of a verb is that of a device that is removed, which [`is_removed`](Self::is_removed) may
    /// show a little later.
    #[must_use]
    pub fn may_be_removed(&self, error: &Error) -> bool {
        error.errno() == Some(libc::EIO) && self.inner.directory.is_some()
    }

    /// Waits until the device is [removed](Self::is_removed); `false` if `timeout` passes first.
    #[must_use]
    pub fn wait_removed(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        while !self.is_removed() {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(Duration::from_millis(1)));
        }
        true
    }

    /// The result of destroying an object: what a verb refuses because the device is removed has been done by then.
    pub(crate) fn unless_removed(&self, destroyed: Result<()>) -> Result<()> {
        match destroyed {
            Err(error) if self.may_be_removed(&error) && self.is_removed() => Ok(()),
            destroyed => destroyed,
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context")
            .field(&self.device().name())
            .finish()
    }
}

/// Makes registered memory safe across `fork(2)`; call it before any other verb.
///
/// Without it, on kernels before 5.12, the first write to a page after a fork may copy the page, and the
/// device keeps using the other copy. Since 5.12, the kernel copies such pages when it forks, and this changes
/// nothing.
///
/// On older kernels, a child does not have the pages of registered buffers (`MADV_DONTFORK`): its access to one is
/// a segmentation fault, also to what else is on the first and the last page of a buffer. So register
/// buffers that have their pages to themselves, such as long ones, which the allocator maps one by one.
///
/// With it or without it, a child may drop its parent's objects, and nothing else: see [fork](crate#fork).
///
/// # Errors
///
/// [`Error::Verb`] with `EINVAL` if memory is registered already, [`Error::Unsupported`] if the kernel
/// cannot do it.
#[doc = man!("ibv_fork_init")]
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    // SAFETY: `ibv_fork_init` takes no arguments, and synchronises with other verbs by itself.
    ret::errno("ibv_fork_init", unsafe { ibv_fork_init() })
}

fn is_about_the_node(error: &io::Error) -> bool {
    let about = [
        libc::EACCES,
        libc::EPERM,
        libc::ENOENT,
        libc::ENXIO,
        libc::ENODEV,
    ];
    error
        .raw_os_error()
        .is_some_and(|errno| about.contains(&errno))
}
