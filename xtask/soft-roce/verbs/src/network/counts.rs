//! How often each fault of a network has happened.

/// How often something has happened on a [`Fabric`](crate::Fabric).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets that cards have sent.
    pub sent: u64,
    /// Packets that a link lost by chance.
    pub lost: u64,
    /// Packets that a link delivered twice.
    pub duplicated: u64,
    /// Packets that a link held back, so that later ones could overtake them.
    pub reordered: u64,
    /// Packets in which a link changed a bit.
    pub corrupted: u64,
    /// Packets lost on a link that was cut.
    pub cut: u64,
    /// Packets lost because a host was stopped or dead.
    pub stopped: u64,
    /// Calls of verbs, and requests of posts, that were refused as asked for.
    pub refused: u64,
}
