//! The wire of a device of the default network, which a test of a program that is built already can spoil.
#![expect(unsafe_code, reason = "a function of C's")]

use std::ffi::{CStr, c_char};
use std::mem::take;
use std::net::Ipv6Addr;
use std::time::Duration;

use super::Host;
use super::link::Direction;
use super::state::Side;

/// Entries of a GID table that a card of the default network may have.
const GIDS: u8 = 2;

/// Faults of packets that a card sends, unless that is up to a link.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) direction: Option<Direction>,
    /// Bits in a second, if not any number.
    rate: Option<f64>,
    /// When the last packet has been sent at this rate.
    free: Duration,
    /// How many packets something has happened to.
    pub(super) disturbed: u64,
    /// The entries of the GID table that are away.
    gids: Vec<Option<Ipv6Addr>>,
}

impl Wire {
    /// When a packet has been sent.
    pub(super) fn after(&mut self, now: Duration, bytes: usize) -> Duration {
        let Some(rate) = self.rate else { return now };
        #[expect(clippy::cast_precision_loss, reason = "a packet has few bytes")]
        let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / rate);
        self.free = self.free.max(now) + takes;
        self.free
    }

    /// Reads what `tc` calls netem: `loss 5% delay 1ms`.
    fn read(words: &str) -> Option<Self> {
        let (mut direction, mut rate) = (Direction::default(), None);
        let mut words = words.split_whitespace();
        while let Some(what) = words.next() {
            let value = words.next()?;
            let number = value.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = &value[number.len()..];
            let number: f64 = number.parse().ok()?;
            // Neither negative nor beyond what a clock can add.
            if !(0.0..=1e6).contains(&number) {
                return None;
            }
            match (what, unit) {
                ("loss", "%") => direction.loss = number / 100.0,
                ("duplicate", "%") => direction.duplication = number / 100.0,
                ("reorder", "%") => direction.reordering = number / 100.0,
                ("corrupt", "%") => direction.corruption = number / 100.0,
                ("delay", "ms") => {
                    direction.delay = Some(Duration::from_secs_f64(number / 1000.0));
                }
                ("rate", "mbit") if number >= 1e-3 => rate = Some(number * 1e6),
                _ => return None,
            }
        }
        let has_words = rate.is_some() || direction != Direction::default();
        Some(Self {
            direction: has_words.then_some(direction),
            rate,
            ..Self::default()
        })
    }
}

impl Side {
    /// Does to its wire what the words say; false if they say nothing.
    fn spoil(&mut self, words: &str) -> bool {
        match words {
            "count" => {}
            "up" | "down" => self.nic.set_port_up(words == "up"),
            "no address" => {
                self.wire.gids = (0..GIDS).map(|index| self.nic.gid(index)).collect();
                (0..GIDS).for_each(|index| self.nic.set_gid(index, None));
            }
            "address" => {
                let gids = (0..).zip(take(&mut self.wire.gids));
                gids.for_each(|(index, gid)| self.nic.set_gid(index, gid));
            }
            netem => {
                let Some(wire) = Wire::read(netem) else {
                    return false;
                };
                (self.wire.direction, self.wire.rate) = (wire.direction, wire.rate);
            }
        }
        true
    }
}

/// Changes what happens to packets that an open device of the default network sends. `words` are those of `tc`'s netem
/// (`loss 5% delay 1ms`), nothing for a wire without faults; `down` and `up` for its link, `no address` and `address` for its
/// GIDs; or `count`, which changes nothing. Returns how many packets something has happened to; -1 if there is no such
/// device, or if the words say nothing.
///
/// # Safety
///
/// Both are strings of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn soft_verbs_wire(device: *const c_char, words: *const c_char) -> i64 {
    // SAFETY: the caller has a string.
    let device = unsafe { CStr::from_ptr(device) };
    // SAFETY: the caller has a string.
    let words = unsafe { CStr::from_ptr(words) };
    let (Ok(device), Ok(words)) = (device.to_str(), words.to_str()) else {
        return -1;
    };
    let host = Host::current();
    let mut cards = (0..).zip(host.cards());
    let Some((_, card)) = cards.find(|(index, _)| device == format!("soft{index}")) else {
        return -1;
    };
    let mut state = card.network.lock();
    let side = &mut state.sides[card.side];
    let count = side.spoil(words).then_some(side.wire.disturbed);
    card.network.run(state);
    count.map_or(-1, u64::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::Wire;
    use std::time::Duration;

    #[test]
    fn words_of_netem_are_read_and_others_are_not() {
        let wire = Wire::read("loss 5% delay 1.5ms rate 400mbit").unwrap();
        let direction = wire.direction.unwrap();
        assert_eq!(direction.loss, 0.05);
        assert_eq!(direction.delay, Some(Duration::from_micros(1500)));
        assert_eq!(wire.rate, Some(4e8));
        assert!(Wire::read("").unwrap().direction.is_none());
        let unread = [
            "loss",
            "loss 5",
            "loss -5%",
            "delay 1s",
            "delay 1e30ms",
            "rate 0mbit",
            "slower 5%",
        ];
        for words in unread {
            assert!(Wire::read(words).is_none(), "{words}");
        }
    }

    #[test]
    fn packets_wait_for_those_before_them_at_a_rate() {
        let mut wire = Wire::read("rate 8mbit").unwrap();
        let at = |micros| Duration::from_micros(micros);
        assert_eq!(wire.after(at(10), 5), at(15));
        assert_eq!(wire.after(at(10), 5), at(20));
        assert_eq!(wire.after(at(30), 5), at(35));
    }
}
