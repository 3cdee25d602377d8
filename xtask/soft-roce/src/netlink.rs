//! Requests to the kernel about network links and RDMA devices, as `ip` and `rdma` make them.
//!
//! Spoken here because the guest makes its devices at every start, and each start of a program
//! costs 30 to 60 ms there.

use std::fs;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// How long the kernel may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL_CREATE: u16 = 0x600;
const NLA_TYPE: u16 = 0x3fff;

// linux/rtnetlink.h, linux/if_link.h, linux/veth.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;

// rdma/rdma_netlink.h: client NLDEV (5), its commands and attributes
const NLDEV_GET: u16 = (5 << 10) + 1;
const NLDEV_NEWLINK: u16 = (5 << 10) + 3;
const NLDEV_DELLINK: u16 = (5 << 10) + 4;
const NLDEV_PORT_GET: u16 = (5 << 10) + 5;
const NLDEV_DEV_INDEX: u16 = 1;
const NLDEV_DEV_NAME: u16 = 2;
const NLDEV_PORT_INDEX: u16 = 3;
const NLDEV_NDEV_NAME: u16 = 51;
const NLDEV_LINK_TYPE: u16 = 65;

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Veth {
    pub(crate) name: &'static str,
    pub(crate) mac: [u8; 6],
}

/// Makes a veth pair.
pub(crate) fn add_veth(ends: [Veth; 2], mtu: u32) -> Result<(), Errno> {
    let end = |request: &mut Request, veth: Veth| {
        request.string(IFLA_IFNAME, veth.name);
        request.attribute(IFLA_MTU, &mtu.to_ne_bytes());
        request.attribute(IFLA_ADDRESS, &veth.mac);
    };
    let mut request = Request::new(RTM_NEWLINK, NLM_F_ACK | NLM_F_EXCL_CREATE);
    request.link_header(0, 0);
    end(&mut request, ends[0]);
    request.nest(IFLA_LINKINFO, |request| {
        request.string(IFLA_INFO_KIND, "veth");
        request.nest(IFLA_INFO_DATA, |request| {
            request.nest(VETH_INFO_PEER, |request| {
                request.link_header(0, 0);
                end(request, ends[1]);
            });
        });
    });
    route()?.acknowledged(request)
}

/// Sets a link up, with this MTU if one is given.
pub(crate) fn set_up(name: &str, mtu: Option<u32>) -> Result<(), Errno> {
    let mut request = Request::new(RTM_NEWLINK, NLM_F_ACK);
    request.link_header(index(name)?, IFF_UP);
    if let Some(mtu) = mtu {
        request.attribute(IFLA_MTU, &mtu.to_ne_bytes());
    }
    route()?.acknowledged(request)
}

/// Gives a link an IPv4 address.
pub(crate) fn add_address(name: &str, address: Ipv4Addr, prefix: u8) -> Result<(), Errno> {
    let mut request = Request::new(RTM_NEWADDR, NLM_F_ACK | NLM_F_EXCL_CREATE);
    request.bytes.extend([AF_INET, prefix, 0, 0]);
    request.bytes.extend(index(name)?.to_ne_bytes());
    request.attribute(IFA_LOCAL, &address.octets());
    request.attribute(IFA_ADDRESS, &address.octets());
    route()?.acknowledged(request)
}

/// Removes a link; a veth's other end goes with it.
pub(crate) fn delete_link(name: &str) -> Result<(), Errno> {
    let mut request = Request::new(RTM_DELLINK, NLM_F_ACK);
    request.link_header(index(name)?, 0);
    route()?.acknowledged(request)
}

/// Makes the RDMA device `name` of the type `kind` on the network link `netdev`.
pub(crate) fn add_rdma(kind: &str, name: &str, netdev: &str) -> Result<(), Errno> {
    let mut request = Request::new(NLDEV_NEWLINK, NLM_F_ACK);
    request.string(NLDEV_DEV_NAME, name);
    request.string(NLDEV_LINK_TYPE, kind);
    request.string(NLDEV_NDEV_NAME, netdev);
    rdma()?.acknowledged(request)
}

/// The network link below the first port of the RDMA device `name`, if it has one.
pub(crate) fn rdma_netdev(name: &str) -> Result<Option<String>, Errno> {
    let index = rdma_index(name)?.ok_or(Errno::NODEV)?;
    let mut request = Request::new(NLDEV_PORT_GET, NLM_F_ACK);
    request.attribute(NLDEV_DEV_INDEX, &index.to_ne_bytes());
    request.attribute(NLDEV_PORT_INDEX, &1_u32.to_ne_bytes());
    let mut found = None;
    rdma()?.answers(request, |body| {
        let all = attributes(body);
        let name = all.iter().find(|(kind, _)| *kind == NLDEV_NDEV_NAME);
        let bytes = name.map(|(_, bytes)| bytes.strip_suffix(&[0]).unwrap_or(bytes));
        if let Some(name) = bytes.and_then(|bytes| str::from_utf8(bytes).ok()) {
            found = Some(name.to_owned());
        }
    })?;
    Ok(found)
}

/// Removes the RDMA device `name`; the kernel waits while a process has it open.
pub(crate) fn delete_rdma(name: &str) -> Result<(), Errno> {
    let index = rdma_index(name)?.ok_or(Errno::NODEV)?;
    let mut request = Request::new(NLDEV_DELLINK, NLM_F_ACK);
    request.attribute(NLDEV_DEV_INDEX, &index.to_ne_bytes());
    rdma()?.acknowledged(request)
}

fn rdma_index(name: &str) -> Result<Option<u32>, Errno> {
    let mut found = None;
    rdma()?.answers(Request::new(NLDEV_GET, NLM_F_DUMP), |body| {
        let all = attributes(body);
        let value = |kind| all.iter().find(|(known, _)| *known == kind);
        let named = value(NLDEV_DEV_NAME)
            .is_some_and(|(_, bytes)| bytes.strip_suffix(&[0]).unwrap_or(bytes) == name.as_bytes());
        let index = value(NLDEV_DEV_INDEX).and_then(|(_, bytes)| (*bytes).try_into().ok());
        if named && let Some(index) = index {
            found = Some(u32::from_ne_bytes(index));
        }
    })?;
    Ok(found)
}

fn index(name: &str) -> Result<u32, Errno> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    let text = text.map_err(|_gone| Errno::NODEV)?;
    text.trim().parse().map_err(|_odd| Errno::NODEV)
}

/// A message that grows.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
}

impl Request {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 4]; // its length, known at the end
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([0; 8]); // sequence and port: each socket here asks once
        Self { bytes }
    }

    /// `struct ifinfomsg`, with the flags to set.
    fn link_header(&mut self, index: u32, flags: u32) {
        self.bytes.extend([0; 4]);
        self.bytes.extend(index.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |request| request.bytes.extend(value));
    }

    fn string(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat());
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }
}

/// A netlink socket.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
}

fn route() -> Result<Socket, Errno> {
    Socket::open(None)
}

fn rdma() -> Result<Socket, Errno> {
    Socket::open(Some(netlink::RDMA))
}

impl Socket {
    fn open(protocol: Option<rustix::net::Protocol>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER))?;
        Ok(Self { fd })
    }

    fn acknowledged(&self, request: Request) -> Result<(), Errno> {
        self.answers(request, |_| ())
    }

    /// Sends `request`, and gives the body of each answer to `each` until the last one.
    fn answers(&self, request: Request, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
        send(&self.fd, &request.finish(), SendFlags::empty())?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); 32 * 1024];
        loop {
            let ((received, _), _) = recv(&self.fd, &mut buffer[..], RecvFlags::empty())?;
            let mut rest: &[u8] = received;
            while let Some((kind, body, next)) = message(rest) {
                match kind {
                    NLMSG_ERROR => return errno(body),
                    NLMSG_DONE => return Ok(()),
                    _ => each(body),
                }
                rest = next;
            }
        }
    }
}

/// The first message of `bytes`: its kind, its body, what follows.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let len = usize::try_from(len).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(16..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, next))
}

/// An acknowledgement's errno, negative or 0.
fn errno(body: &[u8]) -> Result<(), Errno> {
    let code = body.get(..4).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(code.saturating_neg())),
        None => Err(Errno::BADMSG),
    }
}

fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let Some((header, _)) = bytes.split_at_checked(4) {
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE;
        let Some(value) = bytes.get(4..len) else {
            break;
        };
        all.push((kind, value));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{NLM_F_ACK, NLMSG_ERROR, Request, attributes, errno, index, message};
    use rustix::io::Errno;

    #[test]
    fn attributes_are_padded_and_nested() {
        let mut request = Request::new(16, NLM_F_ACK);
        request.string(3, "lo");
        request.nest(18, |request| request.attribute(1, b"veth"));
        let bytes = request.finish();
        let (kind, body, rest) = message(&bytes).unwrap();
        assert_eq!((kind, rest.len()), (16, 0));
        let all = attributes(body);
        assert_eq!(all[0], (3, &b"lo\0"[..]));
        assert_eq!(attributes(all[1].1), [(1, &b"veth"[..])]);
    }

    #[test]
    fn an_errno_comes_out_of_an_answer() {
        assert_eq!(errno(&0_i32.to_ne_bytes()), Ok(()));
        assert_eq!(errno(&(-17_i32).to_ne_bytes()), Err(Errno::EXIST));
        assert_eq!(errno(&[]), Err(Errno::BADMSG));
        assert_eq!(NLMSG_ERROR, 2);
    }

    #[test]
    fn cut_answers_are_no_panic() {
        let mut request = Request::new(16, 0);
        request.string(2, "rxe0");
        let bytes = request.finish();
        for len in 0..bytes.len() {
            assert!(message(&bytes[..len]).is_none());
            assert!(attributes(&bytes[len..]).len() <= bytes.len());
        }
    }

    #[test]
    fn an_unknown_link_is_no_device() {
        assert_eq!(index("no-such-link"), Err(Errno::NODEV));
    }
}
