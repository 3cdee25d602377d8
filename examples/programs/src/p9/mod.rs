//! A file server of 9P2000.L, the protocol that Linux mounts with `mount -t 9p`, without a transport.
//!
//! A [`Session`] takes the bytes of one request and writes the bytes of its answer; where they come
//! from and go to is up to its caller. It knows what the kernel's client sends, and answers everything
//! else with an error: no extended attributes, no locks, no authentication.
//!
//! Nothing that a client sends is trusted. A name is one component, never `..`, and is resolved with
//! `O_NOFOLLOW` relative to a directory that is open: no request can lead out of the [`Tree`], whatever
//! is renamed or linked meanwhile. Only files and directories are opened. Whatever is done is done as
//! the user that runs the server: a client's user names and numbers are ignored.
//!
//! Three other crates have a server for this protocol: `p9` and `rs9p` resolve names with `..` and
//! slashes in them, and have neither read-only trees nor a codec of their own; `jetstream_9p`
//! brings an RPC framework along.

mod attributes;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod tree;
mod wire;

pub use request::{Names, Request};
pub use session::{Session, Violation};
pub use tree::Tree;
pub use wire::{Data, HEADER, MIN_SIZE, Name, Qid, Text};
