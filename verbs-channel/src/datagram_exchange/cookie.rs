//! Cookies: a client that returns one receives what is sent to its endpoint.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use verbs_core::path::DatagramEndpoint;

/// How long a cookie is valid, at least; at most twice as long.
const LIFE: Duration = Duration::from_secs(10);

/// Makes cookies, and recognizes them without having kept them.
#[derive(Debug)]
pub(super) struct Cookies {
    // Part of all that is hashed.
    secret: [u64; 2],
    since: Instant,
}

impl Cookies {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            secret: [
                verbs_core::__private::random(),
                verbs_core::__private::random(),
            ],
            since: now,
        }
    }

    /// The cookie for this client.
    pub(super) fn make(&self, from: &DatagramEndpoint, client: u64, now: Instant) -> u64 {
        self.of(from, client, self.age(now))
    }

    /// Whether this cookie was made for this client, not long ago.
    pub(super) fn is_ours(
        &self,
        cookie: u64,
        from: &DatagramEndpoint,
        client: u64,
        now: Instant,
    ) -> bool {
        let age = self.age(now);
        let before = age.checked_sub(1);
        [Some(age), before]
            .into_iter()
            .flatten()
            .any(|age| self.of(from, client, age) == cookie)
    }

    fn age(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs() / LIFE.as_secs()
    }

    fn of(&self, from: &DatagramEndpoint, client: u64, age: u64) -> u64 {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        hasher.hash_one((self.secret, from, client, age))
    }
}
