//! Memory regions.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod copy;
pub(crate) mod window;

use std::ffi::{c_int, c_uint, c_void};

use soft_nic::{Access, Registered};

use crate::abi::object::{ibv_mr, ibv_pd};
use crate::abi::request::ibv_sge;
use crate::device::destroy;
use crate::errno::{Errno, code, fail, refused};
use crate::network::Locked;
use crate::protection_domain::ProtectionDomain;

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const OPTIONAL: u32 = 0x3ff << 20;

/// The smallest page of all processors.
const PAGE: u64 = 4096;

/// C's region, and the arguments of its registration that C's structure does not have.
#[repr(C)]
struct MemoryRegion {
    mr: ibv_mr,
    iova: u64,
    access: c_uint,
}

impl MemoryRegion {
    /// Registers memory with a card.
    fn new(
        locked: &mut Locked<'_>,
        domain: &ProtectionDomain,
        (addr, length): (*mut c_void, usize),
        iova: u64,
        access: c_uint,
    ) -> Result<Self, Errno> {
        let flags = Access::from_bits(access & !OPTIONAL).ok_or(libc::EINVAL)?;
        // The kernel asks for the same place within a page, and pins the pages, unless they are fetched on demand.
        if !(addr.addr() as u64 ^ iova).is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        if !flags.contains(Access::ON_DEMAND) && !copy::is_mapped(addr.addr(), length) {
            return Err(libc::EFAULT);
        }
        copy::prepare();
        // SAFETY: a program that registers memory leaves it to the device as the man page of `ibv_reg_mr` says,
        // and the copy notices memory that is not mapped.
        let memory = unsafe { Registered::with_copy(addr.cast(), length, copy::copy) };
        let registered = locked.nic.reg_mr(domain.id(), memory, iova, flags);
        let (lkey, rkey) = registered.map_err(refused)?;
        let mr = ibv_mr {
            context: domain.pd.context,
            pd: domain.as_ptr(),
            addr,
            length,
            handle: lkey,
            lkey,
            rkey,
        };
        Ok(Self { mr, iova, access })
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: &ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut MemoryRegion {
    pd.pd.context.make("ibv_reg_mr", |locked| {
        MemoryRegion::new(locked, pd, (addr, length), iova, access)
    })
}

/// Registers the memory anew, with what the flags name changed, and then ends the registration before: it stays if one of
/// both is refused. The keys change.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    own: &mut MemoryRegion,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const DOMAIN: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    const ERR_INPUT: c_int = -1;
    const ERR_CMD: c_int = -4;
    let is_set = |flag| flags & flag != 0;
    if flags & !(TRANSLATION | DOMAIN | ACCESS) != 0
        || is_set(TRANSLATION) && (addr.is_null() || length == 0)
        || is_set(DOMAIN) && pd.is_null()
    {
        return fail(libc::EINVAL, ERR_INPUT);
    }
    let context = own.mr.context;
    let (memory, iova) = match is_set(TRANSLATION) {
        true => ((addr, length), addr.expose_provenance() as u64),
        false => ((own.mr.addr, own.mr.length), own.iova),
    };
    let pd = if is_set(DOMAIN) { pd } else { own.mr.pd };
    // SAFETY: the caller has a domain that is alive, and so is the one of a region that is.
    let domain = unsafe { &*pd.cast::<ProtectionDomain>() };
    let access = match is_set(ACCESS) {
        true => access.cast_unsigned(),
        false => own.access,
    };
    let result = context.card.verb("ibv_rereg_mr", |locked| {
        let new = MemoryRegion::new(locked, domain, memory, iova, access)?;
        let ended = locked.nic.dereg_mr(own.mr.handle);
        if ended.is_err() {
            locked.nic.dereg_mr(new.mr.handle).map_err(refused)?;
        }
        ended.map_err(refused).map(|()| *own = new)
    });
    result.map_or_else(|errno| fail(errno, ERR_CMD), |()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: &ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut MemoryRegion {
    ibv_reg_mr_iova(pd, addr, length, addr.expose_provenance() as u64, access)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: &ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut MemoryRegion {
    ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned())
}

/// All memory is fetched on demand, so there is nothing to be done ahead.
pub(crate) extern "C" fn advise_mr(
    pd: &ProtectionDomain,
    advice: u32,
    flags: u32,
    _list: *mut ibv_sge,
    _count: u32,
) -> c_int {
    const LAST_ADVICE: u32 = 2;
    const FLUSH: u32 = 1;
    code(pd.pd.context.card.verb("ibv_advise_mr", |locked| {
        match locked.nic.profile().on_demand_paging {
            false => Err(libc::EOPNOTSUPP),
            true if advice > LAST_ADVICE || flags & !FLUSH != 0 => Err(libc::EINVAL),
            true => Ok(()),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut MemoryRegion) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &MemoryRegion| {
        locked.nic.dereg_mr(own.mr.handle).map_err(refused)?;
        Ok(None)
    };
    // SAFETY: `ibv_reg_mr` made it, and the caller does not use it again.
    unsafe { destroy("ibv_dereg_mr", mr, end) }
}
