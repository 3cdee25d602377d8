//! Devices: their names, and the list of them.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod context;
mod port;
mod query;

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;

pub(crate) use context::{Context, destroy, ibv_close_device, ibv_open_device};
pub(crate) use port::mtu;
pub(crate) use query::nanoseconds;

use crate::abi::object::ibv_device;
use crate::network::{Card, Host};

/// C's device, which is the beginning of a [`Card`].
#[repr(C)]
pub(crate) struct Device {
    device: ibv_device,
    guid: u64,
}

// SAFETY: the only pointers, `ops`, are null.
unsafe impl Send for Device {}

// SAFETY: nothing changes a device, and its only pointers, `ops`, are null.
unsafe impl Sync for Device {}

impl Device {
    /// A device with a name, and a GUID with this number in it.
    pub(crate) fn new(name: &str, number: u64) -> Self {
        const FIRST_GUID: u64 = 0x5054_00ff_fe00_0001;
        Self {
            device: ibv_device {
                ops: [ptr::null_mut(); 2],
                // IBV_NODE_CA, IBV_TRANSPORT_IB.
                node_type: 1,
                transport_type: 0,
                name: text(name),
                dev_name: text(&format!("uverbs-{name}")),
                dev_path: text(&format!("/nonexistent/infiniband_verbs/uverbs-{name}")),
                ibdev_path: text(&format!("/nonexistent/infiniband/{name}")),
            },
            guid: FIRST_GUID.wrapping_add(number).to_be(),
        }
    }
}

/// A text that C can read, cut where it would not fit.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    bytes
}

/// The list has a share of each card, so that its devices live as long as it does.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: Option<&mut c_int>) -> *mut *const Card {
    let host = Host::current();
    let cards = host.cards().iter();
    list(cards.map(|card| Arc::into_raw(Arc::clone(card))), count)
}

/// A list for C, which ends with a null.
pub(crate) fn list<T>(
    items: impl Iterator<Item = *const T>,
    count: Option<&mut c_int>,
) -> *mut *const T {
    let list: Box<[*const T]> = items.chain([ptr::null()]).collect();
    if let Some(count) = count {
        *count = c_int::try_from(list.len() - 1).unwrap_or(c_int::MAX);
    }
    Box::into_raw(list).cast()
}

/// The box of such a list.
///
/// # Safety
///
/// `list` made it, and the caller does not use it again.
pub(crate) unsafe fn boxed_list<T>(list: *mut *const T) -> Box<[*const T]> {
    let mut len = 1;
    // SAFETY: a null is at the end of the list, which this has not come to yet.
    while unsafe { !list.wrapping_add(len - 1).read().is_null() } {
        len += 1;
    }
    // SAFETY: the caller's box has this length.
    unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *const Card) {
    if list.is_null() {
        return;
    }
    // SAFETY: `ibv_get_device_list` made it, and the caller does not use it again.
    let list = unsafe { boxed_list(list) };
    for card in list.into_iter().filter(|card| !card.is_null()) {
        // SAFETY: each is a share of the card, which `ibv_get_device_list` made.
        drop(unsafe { Arc::from_raw(card) });
    }
}

#[unsafe(no_mangle)]
const extern "C" fn ibv_get_device_name(card: &Card) -> *const c_char {
    card.device.device.name.as_ptr()
}

/// The number that the kernel would have for it.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(card: &Card) -> c_int {
    c_int::try_from(u64::from_be(card.device.guid) & 0xff_ffff).unwrap_or(-1) - 1
}

#[unsafe(no_mangle)]
const extern "C" fn ibv_get_device_guid(card: &Card) -> u64 {
    card.device.guid
}
