//! The messages of sender and receiver over TCP, beside the file itself.

use programs::{Failure, Frames, Hello};
use serde::{Deserialize, Serialize};
use verbs_channel::verbs_core::{QueuePairEndpoint, RemoteMemoryRegion};

/// The longest name of a file: what file systems take, with room for the temporary one.
const MAX_NAME: usize = 240;
/// Blocks are within these bounds, in bytes.
pub(crate) const BLOCK: std::ops::RangeInclusive<u32> = 512..=8 << 20;
/// Blocks that may be in flight.
pub(crate) const WINDOW: std::ops::RangeInclusive<u16> = 1..=256;

pub(crate) fn hello() -> Hello {
    Hello::new("file_copy", 1)
}

/// The file of the sender, and how it is to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Whether to resume an earlier copy.
    pub(crate) resume: bool,
    pub(crate) block: u32,
    pub(crate) window: u16,
}

/// The messages, in this order: an offer, have, start, ready, the file, sent, verified.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The first message of the sender: its file.
    Offer(Offer),
    /// The receiver has the file's first bytes, and this is their SHA-256.
    Have { bytes: u64, digest: String },
    /// The copy begins at this byte: after what the receiver has, or at 0.
    Start {
        from: u64,
        endpoint: QueuePairEndpoint,
    },
    /// The receiver is ready: this is where the blocks go.
    Ready {
        endpoint: QueuePairEndpoint,
        window: RemoteMemoryRegion,
    },
    /// The sender has sent everything: the SHA-256 of the whole file, as it was read.
    Sent { digest: String },
    /// The receiver has the file, whole, under its name.
    Verified,
    /// From either side, at any time: it is still reading what it has.
    Looking,
    /// From either side, at any time: it has failed, for this reason.
    Failed(String),
}

/// Waits for the peer's next message.
pub(crate) fn receive_message(frames: &Frames) -> Result<Message, Failure> {
    loop {
        match frames.receive()? {
            Message::Looking => {}
            Message::Failed(why) => return Err(Failure::new(format!("the peer gave up: {why}"))),
            message => return Ok(message),
        }
    }
}

/// The failure of a peer that sends a message at the wrong time.
pub(crate) fn out_of_order() -> Failure {
    Failure::new("the peer speaks out of order")
}

impl Offer {
    /// Checks the sender's offer: its name is in the receiver's directory, and its window is not too
    /// large.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self {
            name,
            block,
            window,
            ..
        } = self;
        let is_plain = !matches!(name.as_str(), "" | "." | "..")
            && !name.contains(['/', '\0'])
            && name.len() <= MAX_NAME;
        if !is_plain {
            return Err(Failure::new(format!(
                "{name:?} is no plain name of a file of at most {MAX_NAME} bytes"
            )));
        }
        if !BLOCK.contains(block) || !WINDOW.contains(window) {
            return Err(Failure::new(format!(
                "a window of {window} blocks of {block} bytes is not possible"
            )));
        }
        Ok(())
    }

    /// The length of the window in bytes.
    pub(crate) fn window_len(&self) -> Result<usize, Failure> {
        Ok(usize::try_from(self.block)? * usize::from(self.window))
    }
}

/// How a file, from one byte to its end, is cut into blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    from: u64,
    size: u64,
    block: u32,
    window: u16,
}

impl Blocks {
    pub(crate) fn new(offer: &Offer, from: u64) -> Result<Self, Failure> {
        let &Offer {
            size,
            block,
            window,
            ..
        } = offer;
        if from > size {
            return Err(Failure::new(format!(
                "the copy cannot begin at byte {from} of {size}"
            )));
        }
        Ok(Self {
            from,
            size,
            block,
            window,
        })
    }

    /// How many there are.
    pub(crate) const fn count(self) -> u64 {
        (self.size - self.from).div_ceil(self.block as u64)
    }

    /// How many can be in flight.
    pub(crate) const fn window(self) -> u64 {
        self.window as u64
    }

    /// The bytes of a block.
    pub(crate) fn len(self, index: u64) -> Result<usize, Failure> {
        let before = index.saturating_mul(self.block.into());
        let left = (self.size - self.from).saturating_sub(before);
        Ok(usize::try_from(left.min(self.block.into()))?)
    }

    /// Where in the window a block goes.
    pub(crate) fn place(self, index: u64) -> Result<usize, Failure> {
        let place = index % u64::from(self.window) * u64::from(self.block);
        Ok(usize::try_from(place)?)
    }

    /// The immediate data of a block or its credit: the low 32 bits of its number.
    pub(crate) const fn mark(index: u64) -> u32 {
        let [a, b, c, d, ..] = index.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use programs::{Listener, Peer};
    use std::time::Duration;

    fn offer(name: &str, size: u64, block: u32, window: u16) -> Offer {
        Offer {
            name: name.to_owned(),
            size,
            resume: false,
            block,
            window,
        }
    }

    #[test]
    fn names_outside_the_directory_are_rejected() {
        let check = |name: &str| offer(name, 0, 4096, 4).check();
        for good in ["a", "…", ".hidden", "a b", "..x"] {
            check(good).unwrap();
        }
        let long = "x".repeat(MAX_NAME + 1);
        for bad in [
            "",
            ".",
            "..",
            "/",
            "a/b",
            "../a",
            "/etc/passwd",
            "a\0b",
            &long,
        ] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains("no plain name"), "{error}");
        }
    }

    #[test]
    fn windows_are_bounded() {
        let check = |block, window| offer("a", 0, block, window).check();
        check(512, 1).unwrap();
        check(8 << 20, 256).unwrap();
        for (block, window) in [(0, 1), (511, 1), (u32::MAX, 1), (512, 0), (512, 257)] {
            assert!(check(block, window).is_err(), "{window} of {block}");
        }
    }

    #[test]
    fn blocks_cover_each_byte_once() {
        for (size, from) in [(0, 0), (1, 0), (1, 1), (1000, 0), (1024, 512), (5000, 7)] {
            let blocks = Blocks::new(&offer("a", size, 512, 3), from).unwrap();
            let lens = (0..blocks.count()).map(|index| blocks.len(index).unwrap());
            assert!(lens.clone().all(|len| len > 0));
            assert_eq!(lens.sum::<usize>() as u64, size - from);
            assert_eq!(blocks.len(blocks.count()).unwrap(), 0);
        }
        assert!(Blocks::new(&offer("a", 1, 512, 3), 2).is_err());
    }

    #[test]
    fn files_may_be_longer_than_4_gib() {
        let size = (9 << 40) + 1;
        let blocks = Blocks::new(&offer("a", size, 1 << 20, 8), 0).unwrap();
        assert_eq!(blocks.count(), (9 << 20) + 1);
        let last = blocks.count() - 1;
        assert_eq!(blocks.len(last).unwrap(), 1);
        assert_eq!(blocks.place(last).unwrap(), 0);
        assert_eq!(blocks.place(last - 1).unwrap(), 7 << 20);
        assert_eq!(Blocks::mark((7 << 32) + 3), 3);
        assert_eq!(blocks.len(u64::MAX).unwrap(), 0);
    }

    #[test]
    fn long_reads_do_not_time_out_and_failures_are_received() {
        let second = Duration::from_secs(1);
        let listener = Listener::bind(0).unwrap();
        let sender = Peer::connect("127.0.0.1", listener.port(), second).unwrap();
        let receiver = listener.accept(second, second).unwrap();
        let greeting = std::thread::spawn(move || Frames::greet(sender, &hello()).unwrap());
        let receiver = Frames::greet(receiver, &hello()).unwrap();
        let sender = greeting.join().unwrap();
        let all = [Message::Looking, Message::Looking, Message::Verified];
        for message in &all {
            sender.send(message).unwrap();
        }
        sender.send(&Message::Failed("no disk".to_owned())).unwrap();
        assert!(matches!(
            receive_message(&receiver).unwrap(),
            Message::Verified
        ));
        let error = receive_message(&receiver).unwrap_err().to_string();
        assert_eq!(error, "the peer gave up: no disk");
    }

    #[test]
    fn invalid_message_is_refused() {
        let bytes = "{\"Have\":{\"bytes\":-1,\"digest\":\"\"}}";
        let offer = "{\"Offer\":{\"name\":\"a\"}}";
        let start = "{\"Start\":{\"from\":0,\"endpoint\":0}}";
        for bad in [
            "",
            "{}",
            "[]",
            "\"Other\"",
            "{\"Failed\":1}",
            bytes,
            offer,
            start,
        ] {
            assert!(serde_json::from_str::<Message>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Message>("\"Looking\"").is_ok());
    }
}
