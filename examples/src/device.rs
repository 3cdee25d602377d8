//! Which device a program uses.

use verbs_core::{Context, Device, Result};

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
