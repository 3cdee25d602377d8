//! Addresses and ports: binding, listening, and finding the card that reaches a peer.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use soft_nic::AddressVector;

use super::{Endpoint, FIRST_EPHEMERAL, Manager, Space, Stage, is_any};
use crate::errno::Errno;
use crate::rdmacm::events::EventKind;
use crate::sockaddr::gid;

impl Manager {
    /// Binds an endpoint to an address, and to the card that has it; the port 0 is any free one.
    pub(crate) fn bind(&mut self, number: u32, address: SocketAddr) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        let (host, space) = (endpoint.host, endpoint.space);
        if endpoint.stage != Stage::Idle {
            return Err(libc::EINVAL);
        }
        let ip = address.ip();
        let side = self.card_with(host, gid(ip));
        if side.is_none() && !is_any(ip) {
            return Err(libc::ENODEV);
        }
        let mut address = address;
        if address.port() == 0 {
            address.set_port(self.free_port(host, space)?);
        } else if self.is_taken(number, address, |_, both_share| !both_share) {
            return Err(libc::EADDRINUSE);
        }
        let endpoint = self.endpoint(number)?;
        endpoint.side = side;
        endpoint.local = Some(address);
        endpoint.stage = Stage::Bound;
        Ok(())
    }

    /// Whether another endpoint of the host that `conflicts` has an address that overlaps.
    fn is_taken(
        &self,
        number: u32,
        address: SocketAddr,
        conflicts: impl Fn(&Endpoint, bool) -> bool,
    ) -> bool {
        let Some(own) = self.endpoints.get(&number) else {
            return false;
        };
        self.endpoints.iter().any(|(other, endpoint)| {
            let Some(local) = endpoint.local else {
                return false;
            };
            let is_other = *other != number && endpoint.listener.is_none();
            let is_apart = local.is_ipv4() != address.is_ipv4()
                && (own.options.is_v6_only || endpoint.options.is_v6_only);
            let [a, b] = [local.ip(), address.ip()];
            let overlaps = is_any(a) || is_any(b) || a == b;
            let both_share = own.options.is_address_shared && endpoint.options.is_address_shared;
            is_other
                && (endpoint.host, endpoint.space) == (own.host, own.space)
                && local.port() == address.port()
                && overlaps
                && !is_apart
                && conflicts(endpoint, both_share)
        })
    }

    fn free_port(&mut self, host: usize, space: Space) -> Result<u16, Errno> {
        let start = (self.random.number() >> 49) as u16;
        (0..FIRST_EPHEMERAL)
            .map(|add| FIRST_EPHEMERAL + (start + add) % FIRST_EPHEMERAL)
            .find(|port| {
                let mut all = self.endpoints.values();
                all.all(|it| {
                    (it.host, it.space) != (host, space)
                        || it.local.is_none_or(|local| local.port() != *port)
                })
            })
            .ok_or(libc::EADDRNOTAVAIL)
    }

    fn card_with(&self, host: usize, gid: Ipv6Addr) -> Option<usize> {
        let mut cards = self.cards.iter();
        cards.position(|card| card.host == host && card.gids.contains(&gid))
    }

    pub(crate) fn listen(&mut self, number: u32, backlog: u32) -> Result<SocketAddr, Errno> {
        const MOST: u32 = 1024;
        if self.endpoint(number)?.stage == Stage::Idle {
            self.bind(number, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
        }
        let endpoint = self.endpoint(number)?;
        let (Stage::Bound, Some(local)) = (endpoint.stage, endpoint.local) else {
            return Err(libc::EINVAL);
        };
        if self.is_taken(number, local, |other, _| other.is_listening()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        self.endpoint(number)?.stage = Stage::Listening {
            backlog: if backlog == 0 {
                MOST
            } else {
                backlog.min(MOST)
            },
            waiting: 0,
        };
        Ok(local)
    }

    /// Finds the card that reaches an address; `found` is where a name of this machine leads. Without neighbours there
    /// are only the cards of this network.
    pub(crate) fn resolve(
        &mut self,
        number: u32,
        to: SocketAddr,
        found: Option<IpAddr>,
        has_neighbours: bool,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint(number)?;
        let (host, stage, side) = (endpoint.host, endpoint.stage, endpoint.side);
        if !matches!(stage, Stage::Idle | Stage::Bound) {
            return Err(libc::EINVAL);
        }
        let own = |side: usize, like: IpAddr| -> Option<IpAddr> {
            let gids = self.cards[side].gids.iter().map(Ipv6Addr::to_canonical);
            let is_like = |ip: &IpAddr| ip.is_ipv4() == like.is_ipv4();
            let local = |ip: IpAddr| gid(ip).is_unicast_link_local();
            let mut all: Vec<IpAddr> = gids.filter(is_like).collect();
            all.sort_by_key(|ip| local(*ip) != local(like));
            all.first().copied()
        };
        let cards = self.cards.iter().enumerate();
        let on_host = cards.filter(|(_, card)| card.host == host);
        let sides: Vec<usize> = on_host.map(|(side, _)| side).collect();
        let destination = match found {
            _ if !is_any(to.ip()) => Some(to.ip()),
            Some(found) => Some(found),
            None => sides.iter().find_map(|side| own(*side, to.ip())),
        };
        let chosen = destination.and_then(|destination| {
            let bound = side.or_else(|| self.card_with(host, gid(destination)));
            let others = sides.into_iter().filter(|_| side.is_none());
            let mut sides = bound.into_iter().chain(others);
            sides.find_map(|side| Some((side, own(side, destination)?, destination)))
        });
        let Some((side, local, destination)) = chosen else {
            return self.announce(number, EventKind::ADDRESS_ERROR, -libc::ENODEV);
        };
        let mut cards = self.cards.iter();
        let is_reached = match has_neighbours {
            true => local.is_loopback() == destination.is_loopback(),
            false => cards.any(|card| card.gids.contains(&gid(destination))),
        };
        if !is_reached && !destination.is_multicast() {
            return Err(libc::ENETUNREACH);
        }
        if stage == Stage::Idle {
            self.bind(number, SocketAddr::new(local, 0))?;
        }
        let endpoint = self.endpoint(number)?;
        endpoint.side = Some(side);
        if let Some(bound) = &mut endpoint.local
            && is_any(bound.ip())
        {
            bound.set_ip(local);
        }
        endpoint.remote = Some(to);
        endpoint.peer.path = AddressVector::to(gid(destination));
        endpoint.stage = Stage::Resolved;
        self.announce(number, EventKind::ADDRESS_RESOLVED, 0)
    }
}
