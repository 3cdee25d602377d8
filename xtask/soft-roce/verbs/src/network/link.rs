//! Links between hosts, and what they do to packets.
#![expect(
    clippy::must_use_candidate,
    reason = "changes return what they were made on, for the next one"
)]

use std::sync::Arc;
use std::time::Duration;

use super::Network;

/// Packets from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Direction {
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) reordering: f64,
    pub(super) corruption: f64,
    pub(super) delay: Option<Duration>,
    pub(super) is_cut: bool,
}

/// The way between two hosts, from [`Fabric::link`](crate::Fabric::link), or one direction of it, from
/// [`Fabric::one_way`](crate::Fabric::one_way).
///
/// Links lose nothing, and keep the order, until they are told otherwise. Each change is made at once, or at a
/// [step](Self::at_step). Probabilities are those of each packet, from 0 to 1.
///
/// ```
/// # let fabric = soft_verbs::Fabric::seeded(1);
/// # let (a, b) = (fabric.host("a"), fabric.host("b"));
/// fabric.link(&a, &b).loss(0.01).duplication(0.01);
/// fabric.one_way(&a, &b).at_step(300).cut();
/// fabric.one_way(&a, &b).at_step(500).mend();
/// ```
#[derive(Clone, Debug)]
pub struct Link {
    network: Arc<Network>,
    /// From one host to another.
    ends: Vec<(usize, usize)>,
    at_step: Option<u64>,
}

impl Link {
    pub(super) fn new(network: &Arc<Network>, ends: &[(usize, usize)]) -> Self {
        Self {
            network: Arc::clone(network),
            ends: ends.to_vec(),
            at_step: None,
        }
    }

    /// The same link, to be changed when the fabric has done this number of [steps](crate::Fabric::steps).
    #[must_use]
    pub fn at_step(&self, step: u64) -> Self {
        Self {
            at_step: Some(step),
            ..self.clone()
        }
    }

    /// Loses packets.
    pub fn loss(&self, probability: f64) -> &Self {
        self.change(move |direction| direction.loss = probability)
    }

    /// Delivers packets twice.
    pub fn duplication(&self, probability: f64) -> &Self {
        self.change(move |direction| direction.duplication = probability)
    }

    /// Holds packets back for up to sixteen times the delay, so that others overtake them.
    pub fn reordering(&self, probability: f64) -> &Self {
        self.change(move |direction| direction.reordering = probability)
    }

    /// Changes a bit of packets, which the receiving card notices by their checksum, and drops them.
    pub fn corruption(&self, probability: f64) -> &Self {
        self.change(move |direction| direction.corruption = probability)
    }

    /// Takes this time to deliver a packet: 1 µs unless it is set, or none if the fabric's time is real.
    pub fn delay(&self, delay: Duration) -> &Self {
        self.change(move |direction| direction.delay = Some(delay))
    }

    /// Loses all packets that are sent from now on; those on their way arrive.
    pub fn cut(&self) -> &Self {
        self.change(|direction| direction.is_cut = true)
    }

    /// Ends a [cut](Self::cut).
    pub fn mend(&self) -> &Self {
        self.change(|direction| direction.is_cut = false)
    }

    fn change(&self, change: impl Fn(&mut Direction) + Send + 'static) -> &Self {
        let ends = self.ends.clone();
        self.network.change(self.at_step, move |state| {
            for end in ends {
                change(state.directions.entry(end).or_default());
            }
        });
        self
    }
}
