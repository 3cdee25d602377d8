//! The verbs that query.

use std::ffi::{c_char, c_int};
use std::ptr;

use verbs_core::verbs_sys::{
    __be16, __be64, _compat_ibv_port_attr, IBV_TRANSPORT_IB, ibv_context, ibv_device,
    ibv_device_attr, ibv_gid_entry, ibv_port_attr,
};

use super::{Library, Port, with};

/// Runs a verb that returns 0 or an errno.
pub(super) fn answer(query: impl FnOnce(&mut Library) -> Result<(), c_int>) -> c_int {
    with(query).err().unwrap_or(0)
}

/// Runs a verb that returns 0, or -1 with `errno` set.
pub(super) fn minus_one(query: impl FnOnce(&mut Library) -> Result<(), c_int>) -> c_int {
    with(query).map_or_else(|errno| fail(errno, -1), |()| 0)
}

/// Sets `errno`, and returns this value.
pub(super) fn fail<T>(errno: c_int, value: T) -> T {
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
    value
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = with(|library| {
        library.called("ibv_get_device_list")?;
        Ok((0..library.devices)
            .map(|index| device(index, library))
            .chain([ptr::null_mut()])
            .collect::<Vec<_>>())
    });
    match devices {
        Ok(devices) => {
            // SAFETY: the caller has room for it.
            unsafe { *count = c_int::try_from(devices.len() - 1).unwrap() };
            let first = Box::into_raw(devices.into_boxed_slice()).cast();
            with(|library| library.born("ibv_get_device_list", first, &[]));
            first
        }
        Err(errno) => fail(errno, ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // The devices in the list stay: the real library counts references.
    let _ = with(|library| library.ends("ibv_free_device_list", list));
}

fn device(index: usize, library: &Library) -> *mut ibv_device {
    let mut device = ibv_device {
        transport_type: library.transport.unwrap_or(IBV_TRANSPORT_IB),
        ..ibv_device::default()
    };
    let write = |to: &mut [c_char], text: String| {
        for (to, from) in to.iter_mut().zip(text.bytes()) {
            *to = c_char::from_ne_bytes([from]);
        }
    };
    write(&mut device.name, format!("fake{index}"));
    let node = match library.node {
        Some((of, node)) if of == index => node.to_owned(),
        _ => format!("uverbs-fake{index}"),
    };
    write(&mut device.dev_name, node);
    let path = library.sysfs.join(format!("class/infiniband/fake{index}"));
    write(&mut device.ibdev_path, path.to_str().unwrap().to_owned());
    Box::into_raw(Box::new(device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller has it from the list.
    unsafe { (&raw const (*device).name).cast() }
}

/// The digit at the end of `fakeN`.
unsafe fn number(device: *mut ibv_device) -> u8 {
    // SAFETY: the caller has it from the list.
    let [digit] = unsafe { (*device).name[4] }.to_ne_bytes();
    digit - b'0'
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    // SAFETY: the caller has it from the list.
    let last = unsafe { number(device) };
    __be64((0x5054_00ff_fe00_0000 + u64::from(last)).to_be())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller has it from the list.
    c_int::from(unsafe { number(device) }) + 7
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    answer(|library| {
        library.called("ibv_query_device")?;
        let mut answer = library.attr;
        answer.phys_port_cnt = u8::try_from(library.ports.len()).unwrap();
        // SAFETY: the caller has room for it.
        unsafe { *attr = answer };
        Ok(())
    })
}

/// The real library's function, for providers that know only the beginning of a port's attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    _: *mut ibv_context,
    _port_num: u8,
    _attr: *mut _compat_ibv_port_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn query_port(
    _: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    _len: usize,
) -> c_int {
    answer(|library| {
        library.called("ibv_query_port")?;
        let port = library.port(port_num).ok_or(libc::EINVAL)?;
        // SAFETY: the caller has room for it.
        unsafe { *attr = port.attr };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _flags: u32,
    _entry_size: usize,
) -> isize {
    let filled: Result<Vec<_>, c_int> = with(|library| {
        library.called("ibv_query_gid_table")?;
        let ports = library.ports.iter().zip(1_u32..);
        let entries = ports.flat_map(|(port, port_num)| {
            let of_port = move |entry: &ibv_gid_entry| ibv_gid_entry { port_num, ..*entry };
            port.gids.iter().map(of_port)
        });
        Ok(entries.collect())
    });
    match filled {
        Ok(filled) if filled.len() <= room => {
            for (index, entry) in filled.iter().enumerate() {
                // SAFETY: the caller has room for that many.
                unsafe { entries.add(index).write(*entry) };
            }
            filled.len().cast_signed()
        }
        Ok(_) => -isize::try_from(libc::EINVAL).unwrap(),
        Err(errno) => -isize::try_from(errno).unwrap(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    minus_one(|library| {
        let port = library.port(port_num).ok_or(libc::EINVAL)?;
        let index = usize::try_from(index).map_err(|_negative| libc::EINVAL)?;
        let found = port.pkeys.get(index).ok_or(libc::EINVAL)?;
        // SAFETY: the caller has room for it.
        unsafe { *pkey = __be16(found.to_be()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int {
    let index = with(|library| {
        let pkeys = &library.port(port_num)?.pkeys;
        pkeys.iter().position(|found| found.to_be() == pkey.0)
    });
    index.map_or(-1, |index| c_int::try_from(index).unwrap())
}

impl Library {
    fn port(&self, port_num: u8) -> Option<&Port> {
        self.ports.get(usize::from(port_num).checked_sub(1)?)
    }
}
