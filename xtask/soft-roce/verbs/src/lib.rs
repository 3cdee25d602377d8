//! libibverbs and librdmacm on network cards in software, for tests on machines that have no RDMA device.
//!
//! It is for tests of programs that use libibverbs, whichever binding they use: the `ibv_*` functions of this crate
//! take the place of the shared library's in a program that links it, and with the feature `rdmacm` the `rdma_*` functions. They are thin: the card is
//! [`soft_nic`], whose page says how it follows the specification and the kernel's soft-RoCE. A program that wants a
//! card without libibverbs uses that crate.
//!
//! ```text
//!   a program's ibv_* calls ──▶ objects as C has them: context, PD, MR, CQ, QP, SRQ, AH
//!                                  │                                  ▲
//!                                  ▼ one lock                         │ descriptors of events
//!   Fabric ── Host ── card (soft_nic) ◀── packets ──▶ card (soft_nic) ── Host
//! ```
//!
//! # Quick start
//!
//! ```toml
//! [dev-dependencies]
//! soft-verbs = "0.1"
//! ```
//!
//! And in each test target:
//!
//! ```
//! use soft_verbs as _;
//! ```
//!
//! There are two devices then, `soft0` and `soft1`, each with one port, on a network that loses nothing. The first entry
//! of their GID tables is a link-local address of IPv6, the second one of IPv4; both are RoCE v2. A test that needs
//! hosts, faults, or runs that repeat makes a [`Fabric`].
//!
//! # What there is
//!
//! - Devices, ports, GID tables: lists, queries, extended ones too.
//! - Protection domains; thread and parent domains, if the profile has them; memory regions with all access flags, any
//!   `iova` and on-demand paging, which can be registered anew (the keys change); memory windows.
//! - Completion queues, plain and extended, which can be resized, with completion channels; time stamps of completions, and the
//!   clock that they are of, if the profile has them.
//! - Queue pairs of RC, UC and UD, plain and extended (`ibv_wr_*`, all of a batch or nothing); all states and attributes.
//! - Shared receive queues with limits; address handles, from completions too; multicast groups.
//! - With the feature `rdmacm`, librdmacm, with the messages of the specification: connections, datagram services, multicast groups, and the
//!   functions that make queue pairs and endpoints. An address is one of a card's; 0.0.0.0 is any, and 127.0.0.1 finds the
//!   process that listens at the port, or is this one.
//! - Asynchronous events. Descriptors of channels and contexts work with poll, epoll and blocking calls. An event that a program
//!   has got and not acknowledged holds up the end of its object, as in C.
//!
//! The limits and manners are those of a [`Profile`].
//!
//! # How it runs
//!
//! One lock guards a network; no code of the program runs under it. Each call carries all packets that are due, runs all
//! timers that are due, and delivers events, for all cards of the network: an operation without loss is complete when the
//! post returns. While a device of a network in real time is open, a thread sleeps until the next timer, so that a program
//! that sleeps on a descriptor is woken.
//!
//! # Over UDP
//!
//! A process is alone on the default network, unless `SOFT_VERBS_ADDRESS` says otherwise:
//!
//! | `SOFT_VERBS_ADDRESS` | cards |
//! |---|---|
//! | `process` | `soft0` and `soft1`, on a network of this process: so if it is not set |
//! | `loopback` | `soft0` and `soft1`, each at an address of 127.0.0.0/8 that no other process has: so if it is not set, with the [shared library](#as-a-shared-library) |
//! | `192.0.2.7` | `soft0` at this address of an interface, of IPv4 or IPv6 |
//! | `192.0.2.7,192.0.2.8` | one card at each of the addresses |
//!
//! GIDs 0 and 1 of such a card are its address (programs ask for 1 where the kernel's soft-RoCE is), and its packets are
//! those of RoCE v2, on UDP port 4791: peers in other processes, containers and hosts are reached by the GID that they send
//! with their queue pair's number, whatever way it is sent. A program that tells its peer these by TCP may do so over
//! 127.0.0.1. The MTU is that of the address's interface. While a device is open, a thread serves peers, so that one-sided
//! operations need no call at the far end; polls that find nothing take packets, too.
//!
//! The kernel's soft-RoCE has port 4791 of its whole network namespace for itself. Then there is no device, and a line on
//! the standard error that names a way on, such as a namespace of its own.
//!
//! Anybody who can send to the address can send packets. Those that are not whole, by their checksum, or that come from
//! another address than a queue pair's peer, are dropped, and nothing is remembered of them; RoCE has no other protection.
//! Over IPv4 a socket hides the identification, which the checksum covers: half of it is left to check with.
//!
//! Not carried over UDP: multicast between processes, link-local addresses of IPv6, traffic classes, flow labels and
//! hop limits.
//!
//! # As a shared library
//!
//! `cargo soft-roce run --user -- CMD` builds this crate as a `libibverbs.so.1`, and `librdmacm.so.1`, with the versions of
//! rdma-core's symbols, and runs a program with it that is built already, C's too. Its devices are on loopback addresses unless
//! `SOFT_VERBS_ADDRESS` is set, and its log goes to the standard error: errors, or from the level that `SOFT_VERBS_LOG`
//! names on (`warn`, `debug`). Programs that are linked with a provider's library find its private functions
//! (`IBVERBS_PRIVATE_…`), as stubs. A test of such a program spoils its process's wire by `soft_verbs_wire`, which `dlsym` finds:
//! the device's name, and words of netem (`loss 5% delay 1ms`), `down`, `up`, `no address`, `address`, or `count`; it returns
//! how many packets something has happened to, and -1 for words that say nothing. A program finds hardware or the kernel's soft-RoCE if it runs without that, by the
//! libibverbs of the system.
//!
//! Seen with it: `ibv_devinfo`, the four ping-pongs, `rping`, `ucmatose`, `udaddy`, `rdma_client` and `rdma_server`, perftest, and rdma-core 44's own
//! tests in Python (`cargo soft-roce run --user -- python3 tests/run_tests.py`): 84 of the 85 that pass on soft-RoCE of Linux
//! 6.1 pass here. The other one wants a receive in RESET to be refused.
//!
//! Seen, too, with other libraries in Rust and their examples, unmodified: `ibverbs` 0.9 (`cargo soft-roce run --user -- cargo run --example loopback`; it
//! also runs linked with this crate, by one line, `use soft_verbs as _`), and `sideway` 0.4, which looks its functions up at run time, so
//! that it needs the shared library (`rc_pingpong -g 1`, and `rc_pingpong -g 1 127.0.0.1`).
//!
//! # Time
//!
//! The default network, and [`Fabric::real_time`], have the system's time. A network of [`Fabric::seeded`] has a virtual one,
//! which moves to the next packet or timer when a call finds nothing to do (an empty poll, the get of an event), by
//! [`Fabric::step`], or by [`Fabric::block_on`] while a future waits. Async code waits for descriptors by a
//! [`FabricNotifier`]. On a thread that has entered one of its hosts, the monotonic clock, sleeping, polling a descriptor of
//! this library, and random bytes of the system are the network's, too: this crate has `clock_gettime`, `nanosleep`,
//! `clock_nanosleep`, `poll` and `getrandom` of its own, which call the kernel on all other threads.
//!
//! Waits that the kernel carries out by other calls, such as those of a condition variable or of epoll, take real time, or
//! none. An instant of one clock says nothing on the other. If several threads use a virtual network, each moves its time,
//! and a run cannot be repeated.
//!
//! # Faults
//!
//! A [`Link`] loses, repeats, reorders, delays and spoils packets, or is cut. A [`Host`] is stopped, or dies; calls of its verbs
//! are refused, posts in the middle of a chain, or [held up](Host::before); queue pairs, completion queues and the device break with their events,
//! and with the feature `rdmacm` its connection manager reports what no peer in software sends. All of
//! it happens at once, or at a [step](Fabric::steps) of the network, and is [counted](FaultCounts).
//!
//! # Environment
//!
//! For the default network: `SOFT_VERBS_PROFILE` is `default` or `hostile`, which has all that is legal and unusual;
//! `SOFT_VERBS_SEED` is a number, from which keys and the like come. If one cannot be read, a line on standard error says so,
//! and there is no device.
//!
//! # Memory
//!
//! Memory that is not mapped any more is a failed operation, not a crash: on x86-64, a handler of SIGSEGV and SIGBUS ends a copy
//! that meets it, and passes on all other faults to the handler that was there before. It is installed with the first
//! region; a program that replaces it, or blocks these signals, is on its own. On other processors the kernel
//! copies, which costs a system call for each packet and side. A device that pins pages would go on with what was there.
//! `cargo bench` prints the speed.
//!
//! # How it differs
//!
//! - The folders in sysfs and the nodes in `/dev` that a device names do not exist. There is one P_Key, 0xffff, and one
//!   completion vector.
//! - Objects that are left at `ibv_close_device` can be destroyed later. As in C, its queue pairs are in ERR by then.
//! - Packets to a multicast group come to all cards of the network, without an announcement by IGMP.
//! - Nobody ends the connections of a process that is killed: with `rdma_cm`, the kernel tells its peers.
//! - An address is not looked up: an address handle, or a queue pair in RTR, to nobody is not refused, and its packets are
//!   lost.
//! - A child of `fork` has a copy of the network with nobody else in it, and no thread for timers. It must not use objects of
//!   its parent, as with libibverbs; if it was forked while another thread had the network locked, all its calls hang.
//!   Programs that fork open devices in the child. `ibv_fork_init` has nothing to do: no page is pinned.
//!
//! # What this crate does not do
//!
//! Not there yet: importing objects, dmabuf, device memory, completion counters, XRC, raw packets,
//! work queues, flow steering, counters, ECE; of librdmacm, sockets (`rsocket`), XRC, and the events
//! `ADDR_CHANGE`, `DEVICE_REMOVAL` and `TIMEWAIT_EXIT`.
//! A verb that is not there fails with `EOPNOTSUPP`, and a warning in the [`log`] names it.
//!
//! # Features
//!
//! - `rdmacm`: the functions of librdmacm. Without it a program's own librdmacm, if it has one, finds no device. The shared library has
//!   the feature.
//!
//! # Requirements
//!
//! Rust 1.88; 64-bit Linux. A binding that links the system's libibverbs needs it to be there, but calls this one. With the
//! feature `dlopen` of verbs-sys, it need not be there. Another binding that looks functions up at run time finds the
//! system's, unless it looks for the program's own first. This crate depends on no package with `links`.
//!
//! # Thread safety
//!
//! As in libibverbs, all functions can be called by any thread.
//!
//! # Resource cleanup
//!
//! Verbs free what they destroy; what others use is `EBUSY`.
//!
//! # Further reading
//!
//! `man ibv_post_send` and its siblings; [`soft_nic`].

mod abi;
mod address;
mod completion_queue;
mod device;
mod errno;
mod event;
mod fork;
mod later;
mod lock;
mod memory;
mod missing;
mod network;
mod protection_domain;
mod queue_pair;
#[cfg_attr(
    not(feature = "rdmacm"),
    expect(dead_code, reason = "nothing calls it then")
)]
mod rdmacm;
mod shared;
mod shared_receive;
mod sockaddr;
mod texts;

pub use network::{Fabric, FabricNotifier, FaultCounts, Host, Link};
pub use soft_nic::Profile;

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
