//! Accepting a TCP connection before a deadline.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;

use super::attempts::RETRY;
use super::deadline::Deadline;
use crate::exchange::ExchangeError;

/// Accepts one connection.
///
/// The listener keeps its mode and its options, which other threads' calls of `accept` see, too. There is
/// no `accept(2)` with a timeout or a flag of its own: this waits in `poll(2)`, and accepts when there is a
/// connection. If a call that is not of this file takes that connection in between, and the listener
/// blocks, this waits for the next one, beyond the deadline. The alternatives are worse: a mode or a
/// timeout (`SO_RCVTIMEO`) that is set for a moment fails the other's call.
pub(crate) fn accept(
    listener: &TcpListener,
    deadline: Deadline,
) -> Result<TcpStream, ExchangeError> {
    let what = "accept";
    let tcp = |source| ExchangeError::Tcp { what, source };
    let socket = fstat(listener).map_err(|error| tcp(error.into()))?.st_ino;
    loop {
        match accept_now(listener, socket) {
            Ok(stream) => return Ok(stream),
            // None has come, or another thread accepts it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The connection that it concerned is gone.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => return Err(tcp(error)),
        }
        match deadline.left() {
            Some(left) => thread::sleep(RETRY.min(left)),
            None => {
                return Err(ExchangeError::TimedOut {
                    what: "connect",
                    after: Some(deadline.timeout()),
                });
            }
        }
    }
}

/// Whether an error of `accept(2)` concerns one connection only, so that accepting can continue: Linux passes on the
/// network errors of the new connection.
#[must_use]
pub fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NONET
        )
    )
}

/// Accepts a connection if there is one. `socket` is the number of the listener's inode.
fn accept_now(listener: &TcpListener, socket: u64) -> io::Result<TcpStream> {
    // Several threads may accept on one socket: none may take a connection that another was promised.
    static ACCEPTING: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let accepting = || ACCEPTING.lock().unwrap_or_else(PoisonError::into_inner);
    {
        let mut accepting = accepting();
        if accepting.contains(&socket) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        accepting.push(socket);
    }
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    let accepted = match poll(&mut ready, Some(&Timespec::default())) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(_) => listener.accept(),
        Err(error) => Err(error.into()),
    };
    accepting().retain(|other| *other != socket);
    accepted.map(|(stream, _)| stream)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::tcp::tests::listener;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn errors_of_one_connection_are_told_from_those_of_the_listener() {
        let is = |error: Errno| is_of_one_connection(&error.into());
        let of_one = [
            Errno::CONNABORTED,
            Errno::CONNRESET,
            Errno::INTR,
            Errno::PROTO,
            Errno::NETDOWN,
            Errno::HOSTUNREACH,
        ];
        assert!(of_one.into_iter().all(is));
        let of_the_listener = [Errno::MFILE, Errno::NOBUFS, Errno::INVAL, Errno::AGAIN];
        assert!(!of_the_listener.into_iter().any(is));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn several_threads_accept_on_one_listener_with_deadlines_of_their_own() {
        let (listener, address) = listener();
        let (done, ends) = mpsc::channel();
        for _ in 0..3 {
            let (listener, done) = (listener.try_clone().unwrap(), done.clone());
            thread::spawn(move || {
                let accepted = accept(&listener, Deadline::after(SECOND / 2));
                done.send(accepted.is_ok()).unwrap();
            });
        }
        thread::sleep(SECOND / 10);
        let _stream = TcpStream::connect(address).unwrap();
        let mut ended = [(); 3].map(|()| ends.recv_timeout(5 * SECOND).expect("it hangs"));
        ended.sort_unstable();
        assert_eq!(ended, [false, false, true]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn blocking_accept_of_another_thread_waits_as_before() {
        let (listener, address) = listener();
        let (done, ends) = mpsc::channel();
        let blocking = listener.try_clone().unwrap();
        let blocks = move || (0..2000).all(|_| blocking.accept().is_ok());
        // Each call of the one begins while the other waits or accepts.
        let both_accept = move || {
            let blocks = thread::spawn(blocks);
            let mut accepted = 0;
            while !blocks.is_finished() {
                accepted += u32::from(accept(&listener, Deadline::after(SECOND / 100)).is_ok());
            }
            done.send((blocks.join().unwrap(), accepted)).unwrap();
        };
        thread::spawn(both_accept);
        // Until the listener is closed.
        thread::spawn(move || while TcpStream::connect(address).is_ok() {});
        let (is_well, accepted) = ends.recv_timeout(60 * SECOND).expect("it hangs");
        assert!(is_well, "an error of a blocking accept");
        assert!(accepted > 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn listener_keeps_its_mode_while_a_call_waits() {
        for is_nonblocking in [false, true] {
            let (listener, _) = listener();
            listener.set_nonblocking(is_nonblocking).unwrap();
            let other = listener.try_clone().unwrap();
            let waits = thread::spawn(move || {
                accept(&other, Deadline::after(SECOND / 5)).unwrap_err();
            });
            while !waits.is_finished() {
                let flags = rustix::fs::fcntl_getfl(&listener).unwrap();
                let now = flags.contains(rustix::fs::OFlags::NONBLOCK);
                assert_eq!(now, is_nonblocking);
            }
            waits.join().unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn each_of_two_listeners_is_accepted_on_while_the_other_waits() {
        let [(one, _), (two, address)] = [listener(), listener()];
        let waits = thread::spawn(move || accept(&one, Deadline::after(SECOND)).is_err());
        let _stream = TcpStream::connect(address).unwrap();
        accept(&two, Deadline::after(SECOND)).unwrap();
        assert!(waits.join().unwrap());
    }
}
