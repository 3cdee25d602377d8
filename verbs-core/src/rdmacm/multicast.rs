//! Multicast groups of datagrams.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use verbs_sys::{rdma_join_multicast, rdma_leave_multicast};

use super::address;
use super::datagrams::DatagramConnector;
use super::event::DatagramPath;
use super::id::{Id, failed, with_a_device};
use super::pending::{Pending, sealed};
use crate::codes::cm_event_type::CmEventType;
use crate::codes::{Gid, MaximumTransferUnit};
use crate::datagram::{Attachment, DatagramQueuePair};
use crate::device::Context;
use crate::error::Result;
use crate::ffi::{log, ret};
use crate::path::{AhAttr, DatagramEndpoint, QKey};

/// The membership of a port in a multicast group. Dropping it leaves the group.
///
/// [`attach`](Self::attach) makes a queue pair receive the group's datagrams. To send to the group,
/// make an address handle from [`ah_attr`](Self::ah_attr), and send to [`qp_num`](Self::qp_num)
/// with the [`qkey`](Self::qkey): all members use that key, so build the receivers' queue pairs
/// with it.
///
/// On InfiniBand the subnet manager can end a membership: see [`poll_ended`](Self::poll_ended). The descriptor
/// ([`AsFd`]) is readable then.
///
/// ```no_run
/// use std::net::IpAddr;
/// use std::time::Duration;
/// use verbs_core::rdmacm::MulticastGroup;
/// use verbs_core::{CompletionQueue, Device};
/// use verbs_core::datagram::DatagramQueuePair;
///
/// # fn join(here: IpAddr) -> Result<(), Box<dyn std::error::Error>> {
/// let group = MulticastGroup::join(here, "239.1.2.3".parse()?)?.wait(Some(Duration::from_secs(5)))?;
/// let context = Device::by_name(&group.device_name())?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, CompletionQueue::create(&context, 16)?);
/// let qp = DatagramQueuePair::builder(&pd, &cq, &cq)
///     .port_num(group.port_num())
///     .qkey(group.qkey())
///     .build()?;
/// let attachment = group.attach(&qp)?;
/// let everyone = pd.create_ah(&group.ah_attr())?;
/// # drop((attachment, everyone));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
pub struct MulticastGroup {
    id: Membership,
    joined: DatagramPath,
    is_ended: bool,
}

/// A membership that has been asked for: it is left when it is dropped.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Membership {
    id: Id,
    group: SocketAddr,
}

impl DatagramConnector {
    /// Begins to join a multicast group, as [`MulticastGroup::join`] does, with the port of the device whose
    /// address it is [bound](Self::bind) to.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if it is not bound to an address of a device.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(self, group: IpAddr) -> Result<Pending<MulticastGroup>> {
        let Self { id } = self;
        let group = SocketAddr::from((group, 0));
        let mut addr = address::to_c(group);
        let addr = (&raw mut addr).cast();
        // SAFETY: the identifier is alive, and the address a local.
        let ret = unsafe { rdma_join_multicast(id.as_ptr(), addr, ptr::null_mut()) };
        ret::minus_one("rdma_join_multicast", ret)?;
        Ok(Pending::new(Membership { id, group }))
    }
}

impl MulticastGroup {
    /// Begins to join a group, with the port of the RDMA device that has the address `local`.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRNOTAVAIL` or `ENODEV` if `local` is no address of an RDMA device.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(local: IpAddr, group: IpAddr) -> Result<Pending<Self>> {
        let mut connector = DatagramConnector::new()?;
        connector.bind((local, 0).into())?;
        connector.join(group)
    }

    /// Whether the membership has ended by itself: on InfiniBand because the port has another LID or the subnet
    /// manager has started anew, and everywhere because the device was removed. It does not wait.
    ///
    /// Datagrams to the group may not arrive any more. Drop this, and join again.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    pub fn poll_ended(&mut self) -> Result<bool> {
        while !self.is_ended {
            let Some(event) = self.id.id.next_event()? else {
                break;
            };
            self.is_ended = matches!(
                event.kind,
                CmEventType::MULTICAST_ERROR | CmEventType::DEVICE_REMOVAL
            );
        }
        Ok(self.is_ended)
    }

    /// The endpoint that stands for all members, to send to them.
    ///
    /// It is for this side only: its numbers are those of no queue pair and of no port, so a peer that is sent
    /// [its bytes](DatagramEndpoint::to_bytes) rejects them.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        let gid = self.joined.ah_attr.gids().map(|(gid, _)| gid);
        let lid = self.joined.ah_attr.as_raw().dlid;
        DatagramEndpoint::chosen(
            (self.joined.qp_num, self.qkey()),
            (lid, gid),
            MaximumTransferUnit::Mtu4096,
        )
    }

    /// The group's GID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        let gids = self.joined.ah_attr.gids();
        gids.map_or(Gid::new([0; 16]), |(gid, _)| gid)
    }

    /// Attributes of an address handle to the group.
    #[must_use]
    pub const fn ah_attr(&self) -> AhAttr {
        self.joined.ah_attr
    }

    /// The queue pair number to send to: the one that stands for all members.
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.joined.qp_num
    }

    /// The key of the group's datagrams.
    ///
    /// librdmacm uses the same key for all groups of IP addresses.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "checked when it was joined")]
    pub fn qkey(&self) -> QKey {
        QKey::new(self.joined.qkey).expect("it was checked when the group was joined")
    }

    /// Makes a queue pair receive the datagrams of the group.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if the queue pair is of another device,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if it has another key than the group, otherwise the
    /// errno.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach<'q>(&self, queue_pair: &'q DatagramQueuePair) -> Result<Attachment<'q>> {
        self.id.id.check_is_on(queue_pair.pd().context())?;
        queue_pair.qkey().check_is(self.qkey())?;
        queue_pair.attach_mcast(self.gid(), self.joined.ah_attr.as_raw().dlid)
    }

    /// Detaches a queue pair whose attachment to the group was [kept](Attachment::keep).
    ///
    /// # Errors
    ///
    /// Those of [`DatagramQueuePair::detach_mcast`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, queue_pair: &DatagramQueuePair) -> Result<()> {
        queue_pair.detach_mcast(self.gid(), self.joined.ah_attr.as_raw().dlid)
    }
}

with_a_device! { MulticastGroup.id }

impl sealed::Step for MulticastGroup {
    type State = Membership;

    const NAME: &'static str = "joining the multicast group";

    fn advance(mut state: Membership) -> Result<Result<Self, Membership>> {
        let Some(event) = state.id.next_event()? else {
            return Ok(Err(state));
        };
        match event.datagrams {
            Some(joined)
                if event.kind == CmEventType::MULTICAST_JOIN
                    && event.status == 0
                    && QKey::new(joined.qkey).is_ok() =>
            {
                Ok(Ok(Self {
                    id: state,
                    joined,
                    is_ended: false,
                }))
            }
            _ => Err(failed(Self::NAME, &event)),
        }
    }
}

impl AsFd for MulticastGroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.id.check_process().is_err() {
            return;
        }
        let mut addr = address::to_c(self.group);
        // SAFETY: the identifier is alive, and the address a local, the one that was joined.
        let ret = unsafe { rdma_leave_multicast(self.id.as_ptr(), (&raw mut addr).cast()) };
        if let Err(error) = ret::minus_one("rdma_leave_multicast", ret) {
            log::error(format_args!(
                "a port stays in multicast group {}: {error}",
                self.group.ip()
            ));
        }
    }
}
