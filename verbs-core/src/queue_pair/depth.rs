//! Depths: how many reads and atomics are served, or in flight, at once.

use std::iter;

use ::log::Level;

use super::Qp;
use super::attr::QpAttr;
use super::endpoint::QueuePairEndpoint;
use super::raw::RawQp;
use crate::codes::QpAttrMask;
use crate::device::Context;
use crate::error::{Error, Result, causes};
use crate::ffi::log;

/// How many reads and atomics at once: what was asked for, within the device's limit, or the limit.
pub(super) fn depth(what: &'static str, asked: Option<u8>, max: u32) -> Result<u8> {
    match asked {
        Some(asked) => Context::within(what, asked.into(), max).map(|()| asked),
        None => Ok(u8::try_from(max).unwrap_or(u8::MAX)),
    }
}

impl Qp {
    /// Moves it to `RTR`, for a peer. Returns how many of the peer's reads and atomics it serves.
    pub(super) fn receive_from(&self, attr: &QpAttr, remote: &QueuePairEndpoint) -> Result<u8> {
        let asked = remote.max_rd_atomic().min(attr.max_dest_rd_atomic());
        let served = self.receive(attr, asked)?;
        if served < asked {
            log::log(
                Level::Warn,
                format_args!(
                    "{self:?} serves {served} reads and atomics at once, and its peer may have {asked} in flight: \
                     the device has no more left for all its queue pairs; set max_rd_atomic on both sides"
                ),
            );
        }
        Ok(served)
    }

    /// Moves it to `RTR`, for a peer that has at most `asked` reads and atomics in flight. Returns how many it
    /// serves.
    pub(super) fn receive(&self, attr: &QpAttr, asked: u8) -> Result<u8> {
        let depth = attr.max_dest_rd_atomic();
        if !attr.mask().contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            return self.modify(attr).map(|()| depth);
        }
        let asked = asked.min(depth);
        let least = match self.config.is_served_as_set {
            true => depth,
            false => asked.min(1),
        };
        self.raw().modify_serving(attr, (depth, asked), least)
    }
}

impl RawQp<'_> {
    /// Changes the state with this `max_dest_rd_atomic`, and returns it. Where the queue pairs of a device share what
    /// it has for those, and too little is left: with the largest smaller one that the device takes, but at least
    /// `least`. The first is `asked`, which is all that the peer uses.
    pub(super) fn modify_serving(
        self,
        attr: &QpAttr,
        (depth, asked): (u8, u8),
        least: u8,
    ) -> Result<u8> {
        let with = |depth| self.modify(&attr.with_max_dest_rd_atomic(depth));
        let refused = match with(depth) {
            Ok(()) => return Ok(depth),
            Err(error) => error,
        };
        let Some(shared) = self.shared_rd_atomic(&refused).filter(|_| depth > 0) else {
            return Err(refused);
        };
        let first = if asked < depth { asked } else { depth / 2 };
        let mut less =
            iter::successors(Some(first), |less| Some(less / 2).filter(|less| *less > 0));
        if let Some(less) = less.find(|less| *less >= least && with(*less).is_ok()) {
            return Ok(less);
        }
        // If it is not the depth, none works either. The queue pair is of no use with 0: this is the way to know.
        Err(match with(0) {
            Ok(()) => causes::no_depth_left(refused, depth, shared),
            Err(_) => refused,
        })
    }

    /// The device's `max_res_rd_atom`, if its queue pairs share it and the error can be of that.
    fn shared_rd_atomic(self, refused: &Error) -> Option<u32> {
        let device = self.context.query_device().ok()?;
        let all = device.max_qp_rd_atom().saturating_mul(device.max_qp());
        let shared = device.max_res_rd_atom();
        let is_shared = shared > 0 && (shared < all || device.max_qp() == 0);
        let can_be = [libc::EINVAL, libc::ENOMEM, libc::ENOSPC, libc::EAGAIN];
        let can_be = refused.errno().is_some_and(|errno| can_be.contains(&errno));
        (is_shared && can_be).then_some(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_bounded_by_the_device() {
        assert_eq!(depth("max_rd_atomic", None, 128).unwrap(), 128);
        assert_eq!(depth("max_rd_atomic", None, 1000).unwrap(), 255);
        assert_eq!(depth("max_rd_atomic", Some(4), 16).unwrap(), 4);
        let error = depth("max_rd_atomic", Some(17), 16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "max_rd_atomic 17 exceeds this device's 16"
        );
    }
}
