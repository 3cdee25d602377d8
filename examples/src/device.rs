//! Which device a program uses.

use verbs_core::{Context, Device, Result};

use crate::Failure;

/// Opens the device of this name, or the first one with an ACTIVE port.
///
/// # Errors
///
/// As [`Device::by_name`] and [`Context::first_active`], which say what there is instead.
pub fn open(name: Option<&str>) -> Result<Context> {
    match name {
        Some(name) => Device::by_name(name)?.open(),
        None => Context::first_active(),
    }
}

/// Checks that a port can send messages of this many bytes.
///
/// # Errors
///
/// It cannot, or it cannot be asked.
pub fn check_size(context: &Context, port_num: u8, bytes: u64) -> Result<(), Failure> {
    let max = context.query_port(port_num)?.max_msg_sz();
    if bytes <= max.into() {
        return Ok(());
    }
    let device = context.device().name();
    Err(Failure::new(format!(
        "a message of {bytes} bytes is too long: port {port_num} of {device} sends {max} at most"
    )))
}
