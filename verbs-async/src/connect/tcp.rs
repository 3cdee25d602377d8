//! TCP connections on any runtime: nonblocking sockets, which the notifier of a group's events watches.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use verbs_channel::exchange::{Exchange, ExchangeError, Io};

use crate::events::CqEvents;
use crate::notifier::CqNotifier;

/// A TCP connection.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    events: CqEvents,
    readable: Box<dyn CqNotifier>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, events: &CqEvents) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Without it the exchange is only slower.
        drop(stream.set_nodelay(true));
        let clone = stream.try_clone();
        let readable = clone.and_then(|clone| events.another_notifier(clone.into()));
        let readable = readable.inspect_err(|_| {
            // The caller may have a clone: the peer must not wait.
            drop(stream.shutdown(Shutdown::Both));
        })?;
        Ok(Self {
            readable,
            events: events.clone(),
            stream,
        })
    }

    /// Runs an exchange until it is done.
    pub(super) async fn run(&self, exchange: &mut Exchange) -> Result<(), ExchangeError> {
        while let Some(io) = exchange.io()? {
            let (moved, writes) = match io {
                Io::Write(bytes) => ((&self.stream).write(bytes), true),
                Io::Read(buffer) => ((&self.stream).read(buffer), false),
            };
            let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            if !moved.as_ref().is_err_and(would_block) {
                exchange.moved(moved);
                continue;
            }
            let waited = match writes {
                true => writable(&self.stream, &self.events).await,
                false => self.readable.readable().await,
            };
            if let Err(error) = waited {
                exchange.moved(Err(error));
            }
        }
        Ok(())
    }
}

/// Connects to an address.
pub(super) async fn dial(address: SocketAddr, events: &CqEvents) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Err(Errno::INPROGRESS) => {
            writable(&socket, events).await?;
            sockopt::socket_error(&socket)??;
        }
        connected => connected?,
    }
    Ok(socket.into())
}

/// Waits until a socket is connected, or has room. An epoll set that holds it is readable then.
async fn writable(socket: &impl AsFd, events: &CqEvents) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let any = epoll::EventData::new_u64(0);
    epoll::add(&set, socket, any, epoll::EventFlags::OUT)?;
    let notifier = events.another_notifier(set)?;
    // A notifier may report what is not there.
    while poll(
        &mut [PollFd::new(socket, PollFlags::OUT)],
        Some(&Timespec::default()),
    )? == 0
    {
        notifier.readable().await?;
    }
    Ok(())
}
