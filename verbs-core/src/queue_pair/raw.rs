//! The state and the attributes of an `ibv_qp` of any type: reading and changing them.
#![expect(unsafe_code, reason = "queries and modifies an `ibv_qp`")]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use verbs_sys::{ibv_modify_qp, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_type, ibv_query_qp};

use super::attr::QpAttr;
use crate::codes::{QpAttrMask, QpState, qp_state};
use crate::device::Context;
use crate::error::causes::{self, Call, PathFacts};
use crate::error::errno::number;
use crate::error::{Error, GidPath, Result, is_unreachable};
use crate::ffi::handle::Handle;
use crate::ffi::ret;

/// An `ibv_qp`, its type, and the context it belongs to: for the time of a call.
#[derive(Clone, Copy)]
pub(crate) struct RawQp<'q> {
    pub(crate) qp: &'q Handle<ibv_qp>,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) context: &'q Context,
}

impl RawQp<'_> {
    pub(crate) fn number(self) -> u32 {
        // SAFETY: the handle keeps the queue pair, and the field is not changed.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    pub(crate) fn modify(self, attr: &QpAttr) -> Result<()> {
        let modified = self.modify_plainly(attr);
        modified.map_err(|error| self.explain(error, attr))
    }

    /// The same without an explanation of its error, which is allocated: layers above move a queue pair to `ERR`
    /// where no allocator may run.
    pub(crate) fn modify_plainly(self, attr: &QpAttr) -> Result<()> {
        let mut raw = *attr.as_raw();
        let mask = c_int::try_from(attr.mask().bits()).unwrap_or(c_int::MAX);
        // SAFETY: the handle keeps the queue pair, and `raw` is a local.
        let ret = unsafe { ibv_modify_qp(self.qp.as_ptr(), &raw mut raw, mask) };
        ret::errno("ibv_modify_qp", ret)
    }

    /// Names the attributes that were wrong, if that is what `EINVAL` meant, and the ends of the path,
    /// if there is one.
    fn explain(self, error: Error, attr: &QpAttr) -> Error {
        let Error::Verb { verb, source } = error else {
            return error;
        };
        let path = self.gid_path(attr);
        let of_path = path.is_some() && is_unreachable(&source);
        let of_attributes = number(&source) == Some(libc::EINVAL);
        let from = match self.state() {
            Ok(from) if of_path || of_attributes => from,
            _ => return causes::explain(Error::Verb { verb, source }, &Call::Modify),
        };
        let changes = attr.mask().contains(QpAttrMask::STATE);
        let to = if changes { attr.qp_state() } else { from };
        let (missing, extra) = qp_state::diagnose(self.qp_type, from, to, attr.mask());
        let is_complete = missing.is_empty() && extra.is_empty();
        let source = match is_complete.then(|| self.facts(attr)) {
            Some(facts) => causes::with_fact(source, &facts),
            None => source,
        };
        Error::Transition {
            from,
            to,
            missing,
            extra,
            path,
            source,
        }
    }

    /// Facts about the values of these attributes.
    fn facts(self, attr: &QpAttr) -> PathFacts {
        let (context, mask) = (self.context, attr.mask());
        let mut facts = match mask.contains(QpAttrMask::AV) {
            true => context.path_facts(&attr.ah_attr()),
            false => PathFacts::default(),
        };
        let port_num = match facts.port_num {
            0 => attr.port_num(),
            port_num => port_num,
        };
        if mask.contains(QpAttrMask::PKEY_INDEX) {
            let index = attr.pkey_index();
            let pkey = context.query_pkey(port_num, index);
            facts.pkey = pkey.ok().map(|pkey| (pkey, index));
        }
        if mask.contains(QpAttrMask::PATH_MTU)
            && let (Some(mtu), Ok(port)) = (attr.path_mtu(), context.query_port(port_num))
            && let Some(max) = port.active_mtu()
        {
            let (asked, max) = (mtu.bytes(), max.bytes());
            facts.limits.push(("path_mtu", asked, "active MTU", max));
        }
        if let Ok(device) = context.query_device() {
            let (ask, serve) = (device.max_qp_init_rd_atom(), device.max_qp_rd_atom());
            if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
                let asked = attr.max_rd_atomic().into();
                facts
                    .limits
                    .push(("max_rd_atomic", asked, "max_qp_init_rd_atom", ask));
            }
            if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
                let asked = attr.max_dest_rd_atomic().into();
                facts
                    .limits
                    .push(("max_dest_rd_atomic", asked, "max_qp_rd_atom", serve));
            }
        }
        facts
    }

    /// The GIDs between which the attributes have a path.
    fn gid_path(self, attr: &QpAttr) -> Option<GidPath> {
        let path = attr.ah_attr();
        if !attr.mask().contains(QpAttrMask::AV) {
            return None;
        }
        let (remote, sgid_index) = path.gids()?;
        let port_num = path.as_raw().port_num;
        let local = self.context.query_gid(port_num, sgid_index);
        Some(GidPath {
            local: local.ok().map(|entry| entry.gid()),
            sgid_index,
            remote,
        })
    }

    pub(crate) fn state(self) -> Result<QpState> {
        Ok(self.query()?.qp_state())
    }

    pub(crate) fn query(self) -> Result<QpAttr> {
        let mut attr = ibv_qp_attr::default();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::uninit();
        let mask = QpAttrMask::KNOWN;
        let bits = c_int::try_from(mask.bits()).unwrap_or(c_int::MAX);
        // SAFETY: the handle keeps the queue pair, and both structs are locals.
        let ret = unsafe { ibv_query_qp(self.qp.as_ptr(), &raw mut attr, bits, init.as_mut_ptr()) };
        ret::errno("ibv_query_qp", ret)?;
        Ok(QpAttr::from_raw(attr, mask))
    }
}
