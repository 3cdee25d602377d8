//! The bytes of endpoints: numbers are written and read, and checked.

use crate::codes::Gid;
use crate::error::{ENDPOINT_VERSION, EndpointError};

/// The bytes of an endpoint, once their version and their length are right.
///
/// The version comes first: another one may have another length. Text is no version.
pub(crate) fn version_of<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], EndpointError> {
    let length = EndpointError::Length {
        len: bytes.len(),
        expected: N,
    };
    let (version, _) = bytes.split_first_chunk().ok_or(length)?;
    let version = u32::from_be_bytes(*version);
    if bytes.len() != N && version > u16::MAX.into() {
        return Err(length);
    }
    check_version(version)?;
    bytes.try_into().map_err(|_other| length)
}

pub(crate) fn check_version(version: u32) -> Result<(), EndpointError> {
    if version == ENDPOINT_VERSION {
        Ok(())
    } else {
        Err(EndpointError::Version { version })
    }
}

/// Rejects numbers that are those of no queue pair and of no port.
pub(crate) fn check_address(qp_num: u32, lid: u16, gid: Option<Gid>) -> Result<(), EndpointError> {
    // 0 and 1 are for management, and all ones for multicast.
    within("qp_num", qp_num.into(), 2, 0xff_fffe)?;
    // Beyond are multicast LIDs, and the permissive one; a multicast GID begins with 0xff.
    within("lid", lid.into(), 0, 0xbfff)?;
    let names_no_port = |gid: Gid| gid.is_zero() || gid.raw()[0] == 0xff;
    if gid.map_or(lid == 0, names_no_port) {
        return Err(EndpointError::NoAddress);
    }
    Ok(())
}

pub(crate) fn within(
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), EndpointError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(EndpointError::Number {
            what,
            value,
            min,
            max,
        })
    }
}

/// The next bytes of what is long enough.
pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk() {
        Some((head, tail)) => {
            *rest = tail;
            *head
        }
        None => [0; N],
    }
}

/// Writes a field at the front of what is left.
pub(crate) fn put(rest: &mut &mut [u8], field: &[u8]) {
    let (head, tail) = std::mem::take(rest).split_at_mut(field.len());
    head.copy_from_slice(field);
    *rest = tail;
}
