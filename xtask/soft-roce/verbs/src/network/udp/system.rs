//! System calls: packets in batches, waits, and what the standard library does not set on a socket.
#![expect(unsafe_code, reason = "system calls")]

use std::array;
use std::ffi::{CStr, c_int, c_uint};
use std::fs;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr;
use std::time::Duration;

use libc::{cmsghdr, iovec, mmsghdr, pollfd, socklen_t};
use soft_nic::packet::ROCE_PORT;

use super::super::interpose::real_poll;
use crate::errno::{Errno, last};
use crate::sockaddr::{self, Name, gid};

/// Messages of one system call; the kernel may make several packets of one, and one of several.
pub(super) const BATCH: usize = 32;

/// Room for one packet: the largest has 4096 bytes of payload, and 52 of headers, padding and checksum.
pub(super) const LARGEST: usize = 4224;

/// Room for all that a message may have.
const ROOM: usize = 1 << 16;

/// How long a send may wait for room on its way out of this host; then the packet is lost.
const LONGEST_SEND: Duration = Duration::from_millis(10);

/// Memory that a socket asks the kernel for, in each direction.
const BUFFER: c_int = 4 << 20;

/// The sender of packets that have none.
const NOBODY: SocketAddrV6 = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);

/// Packets that have come together, with the address that they name as their sender's.
pub(crate) struct Incoming {
    pub(super) source: Ipv6Addr,
    pub(super) source_port: u16,
    /// Bytes of each packet but the last, and of all.
    each: usize,
    length: usize,
    bytes: Box<[u8]>,
}

/// Packets for the card at an address: bytes of each but the last, and of all.
pub(super) struct Outgoing {
    pub(super) to: Ipv6Addr,
    pub(super) each: usize,
    pub(super) length: usize,
}

impl Incoming {
    pub(super) fn empty() -> Self {
        Self {
            source: Ipv6Addr::UNSPECIFIED,
            source_port: 0,
            each: 0,
            length: 0,
            bytes: vec![0; ROOM].into_boxed_slice(),
        }
    }

    /// All that UDP carried, of each packet; none that is longer than any packet of RoCE.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = self.bytes.get(..self.length).unwrap_or_default();
        let packets = bytes.chunks(self.each.max(1));
        packets.filter(|packet| packet.len() <= LARGEST)
    }
}

/// A word of control data beside a message, as C's macros lay it out: the length of its packets.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    head: cmsghdr,
    value: [u8; 8],
}

impl Control {
    fn none() -> Self {
        // SAFETY: zeros are valid for numbers.
        unsafe { zeroed() }
    }

    /// Has the kernel make packets of `each` bytes.
    fn parting(each: usize) -> Self {
        let mut control = Self::none();
        let length = u16::try_from(each).unwrap_or(0).to_ne_bytes();
        control.head = cmsghdr {
            cmsg_len: size_of::<cmsghdr>() + length.len(),
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        };
        control.value[..length.len()].copy_from_slice(&length);
        control
    }

    /// How long the packets are that the kernel has put together, if it has.
    fn parts(&self) -> Option<usize> {
        let [a, b, c, d, ..] = self.value;
        let is_it = (self.head.cmsg_level, self.head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
        let length = is_it.then(|| u32::from_ne_bytes([a, b, c, d]));
        length.and_then(|length| usize::try_from(length).ok())
    }
}

/// Headers of messages, each with its address and one piece of memory.
fn headers<const N: usize>(
    names: &mut [(Name, socklen_t); N],
    pieces: &mut [iovec; N],
) -> [mmsghdr; N] {
    let mut parts = names.iter_mut().zip(pieces);
    array::from_fn(|_| {
        // SAFETY: zeros are valid for numbers and pointers.
        let mut header: mmsghdr = unsafe { zeroed() };
        if let Some(((name, length), piece)) = parts.next() {
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = *length;
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        header
    })
}

/// Takes messages that have come, at most `N`, without waiting; returns how many.
pub(super) fn receive<const N: usize>(socket: &UdpSocket, room: &mut [Incoming]) -> usize {
    let mut names = [(Name::none(), Name::LENGTH); N];
    let mut free = room.iter_mut();
    let mut pieces = array::from_fn(|_| piece(free.next().map(|message| &mut *message.bytes)));
    let mut controls = [Control::none(); N];
    let mut headers: [mmsghdr; N] = headers(&mut names, &mut pieces);
    for (header, control) in headers.iter_mut().zip(&mut controls) {
        add(header, control);
    }
    let (fd, none) = (socket.as_raw_fd(), ptr::null_mut());
    let batch = c_uint::try_from(N.min(room.len())).unwrap_or(0);
    // SAFETY: each header has an address, memory and control data of this frame and of `room`, with their lengths.
    let count =
        unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), batch, libc::MSG_DONTWAIT, none) };
    let count = usize::try_from(count).unwrap_or(0);
    let parts = headers.iter().zip(&names).zip(&controls).take(count);
    for (message, ((header, (name, _)), control)) in room.iter_mut().zip(parts) {
        message.length = header.msg_len as usize;
        message.each = control.parts().unwrap_or(message.length);
        let source = name.read().unwrap_or(SocketAddr::V6(NOBODY));
        (message.source, message.source_port) = (gid(source.ip()), source.port());
    }
    count
}

fn piece(bytes: Option<&mut [u8]>) -> iovec {
    let bytes = bytes.unwrap_or_default();
    iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Lets a message have control data.
fn add(message: &mut mmsghdr, control: &mut Control) {
    message.msg_hdr.msg_control = ptr::from_mut(control).cast();
    message.msg_hdr.msg_controllen = size_of::<Control>();
}

/// Sends messages whose bytes are one after the other, at most a batch; returns how many, of which there is at least one.
pub(super) fn send(
    socket: &UdpSocket,
    messages: &[Outgoing],
    bytes: &[u8],
) -> Result<usize, Errno> {
    match messages.len() {
        1 => send_some::<1>(socket, messages, bytes),
        _ => send_some::<BATCH>(socket, messages, bytes),
    }
}

fn send_some<const N: usize>(
    socket: &UdpSocket,
    messages: &[Outgoing],
    mut bytes: &[u8],
) -> Result<usize, Errno> {
    let count = messages.len().min(N);
    let mut names = [(Name::none(), 0); N];
    let mut pieces = [piece(None); N];
    for ((message, name), piece) in messages.iter().zip(&mut names).zip(&mut pieces) {
        let (own, others) = bytes.split_at(message.length);
        *name = Name::of((message.to.to_canonical(), ROCE_PORT).into());
        piece.iov_base = own.as_ptr().cast_mut().cast();
        piece.iov_len = own.len();
        bytes = others;
    }
    let mut controls = [Control::none(); N];
    let mut headers = headers(&mut names, &mut pieces);
    let parts = headers.iter_mut().zip(&mut controls);
    for (message, (header, control)) in messages.iter().zip(parts) {
        if message.length > message.each {
            *control = Control::parting(message.each);
            add(header, control);
        }
    }
    let (fd, batch) = (socket.as_raw_fd(), c_uint::try_from(count).unwrap_or(0));
    // SAFETY: the first `count` headers have addresses and control data of this frame and parts of `bytes`, with their
    // lengths; the kernel only reads the bytes.
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), batch, 0) };
    usize::try_from(sent).map_err(|_negative| last())
}

/// Whether the kernel makes packets of what is longer, since Linux 4.18; then it may also put together those that come.
pub(super) fn has_segments(socket: &UdpSocket) -> bool {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1) && set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
}

/// Prepares a socket for packets: they are never fragmented, and a send waits only briefly. Returns how much memory the
/// kernel has given it for what has come.
pub(super) fn prepare(socket: &UdpSocket, is_v4: bool) -> usize {
    let (level, option) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    // IP_PMTUDISC_DO, and IPv6's: don't fragment.
    set(socket, level, option, 2);
    let sides = [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ];
    for (forced, asked) in sides {
        // Root may have more than others.
        if !set(socket, libc::SOL_SOCKET, forced, BUFFER) {
            set(socket, libc::SOL_SOCKET, asked, BUFFER);
        }
    }
    // That a send may wait for ever would be worse than none.
    if socket.set_write_timeout(Some(LONGEST_SEND)).is_err() {
        log::warn!("a socket of soft-verbs takes no timeout");
    }
    let (mut room, mut length): (c_int, socklen_t) = (0, 4);
    let to = (&raw mut room).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: room for an int, and its length.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, to, &raw mut length) };
    usize::try_from(room).unwrap_or(0)
}

fn set(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> bool {
    let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: an int of this frame.
    unsafe { libc::setsockopt(fd, level, option, from, 4) == 0 }
}

/// Waits until one of these descriptors can be read, or the time is over.
pub(super) fn wait(fds: impl Iterator<Item = RawFd>, time: Option<Duration>) {
    let entry = |fd| pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<pollfd> = fds.map(entry).collect();
    real_poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, time);
}

/// The largest packet of IP on the interface that has an address; nothing if none has it, as with most of 127.0.0.0/8.
pub(super) fn interface_mtu(address: IpAddr) -> Option<u32> {
    let mut list = ptr::null_mut();
    // SAFETY: a local for the list's beginning.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let (mut next, mut found) = (list, None);
    // SAFETY: the list lives until it is freed below, and ends with a null.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the list's, or null.
        if unsafe { sockaddr::read(entry.ifa_addr) }.is_some_and(|it| it.ip() == address) {
            // SAFETY: each entry has a name.
            found = Some(unsafe { CStr::from_ptr(entry.ifa_name) });
        }
        next = entry.ifa_next;
    }
    let mtu = found.and_then(|name| {
        let path = format!("/sys/class/net/{}/mtu", name.to_str().ok()?);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    });
    // SAFETY: it came from `getifaddrs`, and nothing of it is used again.
    unsafe { libc::freeifaddrs(list) };
    mtu
}
