//! A network that loses, duplicates, delays and reorders datagrams, as its seed says.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::path::DatagramEndpoint;

/// Numbers that depend on the seed only (Splitmix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(super) fn below<T: TryInto<u64> + TryFrom<u64>>(&mut self, end: T) -> T {
        let end = end.try_into().ok().unwrap();
        T::try_from(self.next() % end).ok().unwrap()
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100_u64) < percent
    }
}

pub(super) struct Packet {
    pub(super) from: DatagramEndpoint,
    pub(super) to: DatagramEndpoint,
    pub(super) bytes: Vec<u8>,
}

/// Messages on their way, by the time of their arrival.
pub(super) struct Network {
    pub(super) numbers: Numbers,
    pub(super) loss: u64,
    on_its_way: BTreeMap<(Duration, u64), Packet>,
    count: u64,
}

impl Network {
    pub(super) fn new(seed: u64, loss: u64) -> Self {
        Self {
            numbers: Numbers(seed),
            loss,
            on_its_way: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn send(&mut self, now: Duration, [from, to]: [DatagramEndpoint; 2], bytes: &[u8]) {
        let copies = if self.numbers.percent(10) { 2 } else { 1 };
        for _ in 0..copies {
            if self.numbers.percent(self.loss) {
                continue;
            }
            // Most arrive soon, and some seconds later, behind many others.
            let delay = match self.numbers.below(20_u64) {
                0 => self.numbers.below(2_000_000_u64),
                1..=4 => self.numbers.below(60_000_u64),
                _ => self.numbers.below(500_u64),
            };
            self.count += 1;
            let at = now + Duration::from_micros(delay);
            let bytes = bytes.to_vec();
            let packet = Packet { from, to, bytes };
            let _none = self.on_its_way.insert((at, self.count), packet);
        }
    }

    pub(super) fn next_arrival(&self) -> Option<Duration> {
        self.on_its_way.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn arrived(&mut self, now: Duration) -> Option<Packet> {
        let next = self.on_its_way.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }
}
