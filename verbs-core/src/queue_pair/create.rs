//! The call that creates a queue pair of any type, and the checks before it.
#![expect(unsafe_code, reason = "creates an `ibv_qp`")]

use std::ffi::c_int;
use std::ptr;

use verbs_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_create_qp, ibv_create_qp_ex, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type,
};

use super::{QpCap, SendOpsFlags};
use crate::completion::CompletionQueue;
use crate::device::{Context, DeviceAttr};
use crate::domain::ProtectionDomain;
use crate::error::causes::{self, Call};
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::ffi::ret;
use crate::shared_receive_queue::SharedReceiveQueue;

/// The objects a queue pair is made of.
pub(crate) struct Parents<'b> {
    pub(crate) pd: &'b ProtectionDomain,
    pub(crate) send_cq: &'b CompletionQueue,
    pub(crate) recv_cq: &'b CompletionQueue,
    pub(crate) srq: Option<&'b SharedReceiveQueue>,
}

/// Creates an `ibv_qp` of any type.
pub(crate) fn create(
    qp_type: ibv_qp_type,
    pd: &ProtectionDomain,
    (send_cq, recv_cq, srq): (
        &CompletionQueue,
        &CompletionQueue,
        Option<&SharedReceiveQueue>,
    ),
    cap: QpCap,
    sq_sig_all: bool,
    send_ops_flags: SendOpsFlags,
) -> Result<(Handle<ibv_qp>, QpCap)> {
    let mut init = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        srq: srq.map_or(ptr::null_mut(), SharedReceiveQueue::as_ptr),
        cap: cap.as_raw(),
        qp_type,
        sq_sig_all: c_int::from(sq_sig_all),
    };
    let made = if send_ops_flags.is_empty() {
        // SAFETY: the PD and the queues are alive, and `init` is a local.
        ret::non_null("ibv_create_qp", || unsafe {
            ibv_create_qp(pd.as_ptr(), &raw mut init)
        })
    } else {
        let mut extended = ibv_qp_init_attr_ex {
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD.0 | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
            pd: pd.as_ptr(),
            send_ops_flags: send_ops_flags.bits(),
            ..Default::default()
        };
        // SAFETY: the context, the PD and the queues are alive, and `extended` is a local.
        let made = ret::non_null("ibv_create_qp_ex", || unsafe {
            ibv_create_qp_ex(pd.context().as_ptr(), &raw mut extended)
        });
        init.cap = extended.cap;
        made
    };
    match made {
        Ok(qp) => {
            // SAFETY: the queue pair is new; the caller keeps its parents next to it.
            let qp = unsafe { Handle::new(qp) };
            Ok((qp, QpCap::from_raw(init.cap)))
        }
        // The one capacity whose limit is no attribute: try whether it works without.
        Err(error) => {
            let without = QpCap {
                max_inline_data: 0,
                ..cap
            };
            let works_without = || {
                create(
                    qp_type,
                    pd,
                    (send_cq, recv_cq, srq),
                    without,
                    false,
                    send_ops_flags,
                )
                .is_ok()
            };
            if cap.max_inline_data > 0 && works_without() {
                return Err(Error::Limit {
                    what: "max_inline_data",
                    asked: cap.max_inline_data.into(),
                    max: None,
                });
            }
            let device = pd.context().query_device().ok();
            let call = Call::Create {
                limit: ("max_qp", device.map(|device| device.max_qp())),
                settings: "max_send_wr, max_recv_wr, max_send_sge, max_recv_sge or max_inline_data",
            };
            Err(causes::explain(error, &call))
        }
    }
}

/// Rejects completion queues of another context.
pub(crate) fn check_completion_queues(
    context: &Context,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
) -> Result<()> {
    for (cq, child) in [
        (send_cq, "the send queue's CQ"),
        (recv_cq, "the receive queue's CQ"),
    ] {
        if !cq.context().is(context) {
            return Err(Error::ForeignContext { child });
        }
    }
    Ok(())
}

pub(crate) fn check_capacities(cap: QpCap, device: &DeviceAttr) -> Result<()> {
    let (max_wr, max_sge) = (device.max_qp_wr(), device.max_sge());
    Context::within("max_send_wr", cap.max_send_wr, max_wr)?;
    Context::within("max_recv_wr", cap.max_recv_wr, max_wr)?;
    Context::within("max_send_sge", cap.max_send_sge, max_sge)?;
    Context::within("max_recv_sge", cap.max_recv_sge, max_sge)
}
