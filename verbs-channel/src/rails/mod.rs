//! Rails: several channels to one peer, most often on several devices, that carry out one transfer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use verbs_core::{Error as CoreError, RemoteMemoryRegion};

use crate::channel::Channel;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Result};
use crate::waiting::{AbortHandle, Aborts};
use connector::Connector;
use rail::Rail;

mod connector;
mod rail;
mod run;

/// Channels to one peer, most often on several devices, that carry out one [`Transfer`](crate::Transfer) together.
///
/// Operations that were added with the [id](Self::id) of the rails go over any of them: over the one with the
/// fewest bytes in flight, and the first of several such. So pass the rail that is nearest to the memory first:
/// [`Device::near_node`](verbs_core::Device::near_node) and [`near_pci`](verbs_core::Device::near_pci) sort devices.
/// Operations that were added with the id of one of the channels go over that one. None is split over rails.
///
/// The memory of operations on any rail is registered in the domains of all, as a
/// [`SharedMemory`](crate::SharedMemory) is. The peer's memory has a key for each rail: [`add_remote`](Self::add_remote)
/// makes one region of them. There is no order between operations on different rails, and fences do not reach across them.
///
/// # Rails that go down
///
/// A rail whose channel goes down gets no more operations. Its operations end as those of a channel that is down: each of
/// them when the device is done with its memory; after the drain timeout and up to 200 ms, the queue pair is destroyed. Then the other rails carry out
///
/// - those that were not posted,
/// - reads, and writes without an immediate, that were in flight.
///
/// Other operations that were in flight fail, since the peer may have got them: atomics, sends, and writes with an immediate; and
/// receives, of which this side may have got a part. So does an operation that is the cause of the failure, such as a write without permission: it would take down the other rails, too.
/// If there is no other rail, an operation that was in flight ends as it did there, and the others are
/// [rejected](crate::TransportError::Rejected).
///
/// A rail whose driver refuses a post stays up, and gets no more operations of the transfer while another rail takes them. The
/// operation that was refused is tried once more.
///
/// A rail whose device answers, but does nothing, does not go down by itself: its operations are aborted at the deadline of the
/// transfer, or after the timeout of the first channel if there is none. An [`AbortHandle`] of the channel takes
/// the rail down before that, and the others go on. One of [all rails](Self::abort_handle) ends the transfer.
///
/// A network may deliver a packet of a write late, after another rail has carried the write out. So before the peer uses the
/// memory for something else, it ends its channel of the rail that went down.
///
/// A rail comes back when the program puts another channel in its [place](Self::channel_mut), between transfers, or by the
/// function that [`reconnect_with`](Self::reconnect_with) takes, also within a transfer.
///
/// The guide has an [example](crate::guide::memory#several-cards).
pub struct Rails {
    id: ChannelId,
    rails: Vec<Rail>,
    // The regions of each memory of the peer, one for each rail, by the key of the first. They do not overlap.
    remotes: HashMap<u32, Vec<Vec<RemoteMemoryRegion>>>,
    connector: Option<Connector>,
    aborts: Arc<Aborts>,
}

impl Rails {
    /// Rails over these channels, the nearest first.
    pub fn new(channels: impl IntoIterator<Item = Channel>) -> Self {
        Self {
            id: ChannelId::of_rails(),
            rails: channels.into_iter().map(Rail::new).collect(),
            remotes: HashMap::new(),
            connector: None,
            aborts: Arc::default(),
        }
    }

    /// Stands for any of the rails in [`Transfer::add`](crate::Transfer::add).
    #[must_use]
    pub const fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds memory of the peer, by its region on each of the rails. Returns the region that stands for it: with its
    /// slices, operations go over any rail.
    ///
    /// It has the length of the shortest. It replaces memory whose first region had the same key and overlaps with this
    /// one, and stays until it is [removed](Self::remove_remote).
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](CoreError::OutOfRange): there is not one region for each rail, or there are no rails.
    pub fn add_remote(
        &mut self,
        regions: impl IntoIterator<Item = RemoteMemoryRegion>,
    ) -> Result<RemoteMemoryRegion> {
        let regions: Vec<_> = regions.into_iter().collect();
        let shortest = regions.iter().map(RemoteMemoryRegion::len).min();
        let (Some(first), Some(len)) = (regions.first(), shortest) else {
            return Err(self.other_number(0));
        };
        if regions.len() != self.rails.len() {
            return Err(self.other_number(regions.len()));
        }
        let whole = first.slice(..len)?;
        self.remove_remote(whole);
        self.remotes.entry(whole.rkey()).or_default().push(regions);
        Ok(whole)
    }

    /// Forgets memory of the peer that was [added](Self::add_remote), such as a lease that the peer has ended, by the region that
    /// stands for it, or a slice of that. Operations on it are [rejected](crate::RejectReason::UnknownRemote) from now on.
    pub fn remove_remote(&mut self, region: RemoteMemoryRegion) {
        if let Entry::Occupied(mut parts) = self.remotes.entry(region.rkey()) {
            let is_other = |part: &Vec<_>| !part.first().is_some_and(|part| overlap(part, &region));
            parts.get_mut().retain(is_other);
            if parts.get().is_empty() {
                parts.remove();
            }
        }
    }

    fn other_number(&self, regions: usize) -> crate::Error {
        let rails = self.rails.len() as u64;
        let (what, value, min, max) = match rails {
            0 => ("the number of rails", 0, 1, u64::MAX),
            _ => (
                "the number of regions of the rails",
                regions as u64,
                rails,
                rails,
            ),
        };
        crate::Error::Core(CoreError::OutOfRange {
            what,
            value,
            min,
            max,
        })
    }

    /// The channels, in their order.
    #[must_use]
    pub fn channels(&self) -> impl ExactSizeIterator<Item = &Channel> {
        self.rails.iter().map(|rail| &rail.channel)
    }

    /// The channel of one of the rails, for operations without a transfer, or to put another one in its place.
    ///
    /// The keys of the peer's memory are those of the place: if the peer has others for the new channel, the memory has to be
    /// [added](Self::add_remote) again. Operations that were added with the id of the channel before are
    /// [rejected](crate::RejectReason::UnknownChannel).
    pub fn channel_mut(&mut self, rail: usize) -> Option<&mut Channel> {
        self.rails.get_mut(rail).map(|rail| &mut rail.channel)
    }

    /// Connects rails that go down, in the background: `connect` gets the number of the rail. It is called again if it fails or
    /// panics, and if the new channel goes down; for each rail, 100 ms after the last call at the earliest.
    ///
    /// A rail takes its new channel at the next transfer, or within one: a transfer does not fail while there is no rail
    /// that is up, but waits until [all are aborted](Self::abort_handle) or its deadline has passed. Operations that no
    /// rail took by then are rejected as [timed out](crate::RejectReason::TimedOut). The new channel is on the same
    /// domain, and the peer's keys are those that it had, unless the memory is [added](Self::add_remote) again.
    ///
    /// `connect` runs on one thread for all rails, which ends when the rails are dropped and the last
    /// call returns: give the call a bound. Failures and panics are logged.
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub fn reconnect_with<E: Into<Box<dyn Error + Send + Sync>>>(
        &mut self,
        mut connect: impl FnMut(usize) -> Result<Channel, E> + Send + 'static,
    ) -> io::Result<()> {
        let connect = Box::new(move |rail| connect(rail).map_err(Into::into));
        self.connector = Some(Connector::new(connect)?);
        self.rails.iter_mut().for_each(|rail| rail.is_asked = false);
        self.rejoin();
        Ok(())
    }

    /// A handle with which any thread can abort all rails, while this one is within a [transfer](Self::transfer).
    ///
    /// The transfer ends at once, also one that waits for a rail to be [connected anew](Self::reconnect_with): operations
    /// in flight end as by [`Channel::abort`], on all rails together, and the others are rejected. If there is no
    /// transfer, the next one ends so. All rails are down then, and come back as after any failure. Other operations on
    /// [one](Self::channel_mut) of the channels see it in the next transfer: that channel has a
    /// [handle](Channel::abort_handle) of its own.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::clone(&self.aborts), self.id)
    }

    /// Takes all rails down if a handle has asked for that. Returns whether it has.
    fn end_if_aborted(&mut self) -> bool {
        if !self.aborts.are_asked() || self.aborts.take().is_empty() {
            return false;
        }
        for rail in &mut self.rails {
            let id = rail.channel.id();
            // It is the engine's only one.
            let _flushed = rail.poller().engine.flush(id, DownReason::Closed);
        }
        true
    }

    /// The region on this rail of the memory that a region stands for.
    fn remote_on(&self, at: usize, remote: RemoteMemoryRegion) -> Option<RemoteMemoryRegion> {
        self.remotes.get(&remote.rkey())?.iter().find_map(|part| {
            let start = remote.addr().checked_sub(part.first()?.addr())?;
            let end = start.checked_add(remote.len())?;
            part.get(at)?.slice(start..end).ok()
        })
    }

    /// Takes channels that were connected anew, and asks for those of rails that are down.
    fn rejoin(&mut self) {
        let Some(connector) = &mut self.connector else {
            return;
        };
        while let Some((at, channel)) = connector.next() {
            if let Some(rail) = self.rails.get_mut(at) {
                rail.is_asked = false;
                rail.next = Some(channel);
            }
        }
        for (at, rail) in self.rails.iter_mut().enumerate() {
            if !rail.channel.is_down() {
                // The program has put one there.
                rail.next = None;
            } else if rail.is_idle() {
                if let Some(channel) = rail.next.take() {
                    rail.channel = channel;
                } else if !rail.is_asked {
                    rail.is_asked = true;
                    connector.ask(at);
                }
            }
        }
    }
}

/// Whether two regions with one key begin at the same byte, or have bytes in common.
const fn overlap(one: &RemoteMemoryRegion, other: &RemoteMemoryRegion) -> bool {
    let (first, second) = (one.addr(), other.addr());
    first == second
        || first.saturating_sub(second) < other.len() && second.saturating_sub(first) < one.len()
}

impl fmt::Debug for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.channels()).finish()
    }
}
