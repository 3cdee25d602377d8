//! Which device a program uses.

use verbs_channel::CreateChannel as _;
use verbs_core::{Context, Device};

use crate::{Common, Failure};

/// Opens the device that was asked for, or the first one with an ACTIVE port.
///
/// # Errors
///
/// As [`Device::by_name`] and [`Context::first_active`], which list the devices. Also if the device
/// has no such port or GID: a server would otherwise fail only when its first client connects.
pub fn open(common: &Common) -> Result<Context, Failure> {
    let context = match &common.ib_dev {
        Some(name) => Device::by_name(name)?.open()?,
        None => Context::first_active()?,
    };
    if common.ib_port.is_some() || common.gid_idx.is_some() {
        let pd = context.alloc_pd()?;
        let channel = pd.create_channel().port_num(common.ib_port);
        drop(channel.gid_index(common.gid_idx).build()?);
    }
    Ok(context)
}

/// Opens the devices with these names, or [that](open) of the other options if there are none.
///
/// # Errors
///
/// As [`open`].
pub fn open_each(common: &Common, names: &[String]) -> Result<Vec<Context>, Failure> {
    if names.is_empty() {
        return Ok(vec![open(common)?]);
    }
    let opened = names.iter().map(|name| Device::by_name(name)?.open());
    Ok(opened.collect::<Result<_, _>>()?)
}

/// Checks that a port can send messages of this many bytes.
///
/// # Errors
///
/// The port cannot, or cannot be queried.
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
