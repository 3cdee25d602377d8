//! This machine's devices as libibverbs sees them, by its C name.
//!
//! ```
//! assert_eq!(foreign_crate::twice(2), 4);
//! ```

use std::ffi::{CStr, c_char, c_int, c_void};

#[link(name = "ibverbs")]
unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    fn ibv_free_device_list(list: *mut *mut c_void);
    fn ibv_get_device_name(device: *mut c_void) -> *const c_char;
}

/// The names of all RDMA devices.
pub fn devices() -> Vec<String> {
    let mut count = 0;
    // SAFETY: `count` can be written to.
    let list = unsafe { ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Vec::new();
    }
    let names = (0..usize::try_from(count).unwrap_or(0)).map(|index| {
        // SAFETY: the list has `count` devices, and is freed below.
        let name = unsafe { ibv_get_device_name(*list.add(index)) };
        // SAFETY: a device's name is a C string that lives as long as the list.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    });
    let names = names.collect();
    // SAFETY: the list is from `ibv_get_device_list`, and used no more.
    unsafe { ibv_free_device_list(list) };
    names
}

/// Something that needs no device.
pub fn twice(number: u32) -> u32 {
    2 * number
}

#[cfg(test)]
mod tests {
    #[test]
    fn plain() {
        assert_eq!(super::twice(21), 42);
    }
}
