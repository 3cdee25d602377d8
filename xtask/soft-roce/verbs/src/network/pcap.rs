//! Files of packets, which Wireshark opens.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use soft_nic::Route;

/// A file with times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Raw IP, of either version.
const LINK_TYPE: u32 = 101;

/// A file that packets are written to as they are sent, so that it is whole even if the process dies.
pub(super) struct Pcap(File);

impl Pcap {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let words = [MAGIC, 0x0004_0002, 0, 0, 0xffff, LINK_TYPE];
        file.write_all(&words.map(u32::to_le_bytes).concat())?;
        Ok(Self(file))
    }

    pub(super) fn write(&mut self, now: Duration, route: &Route, packet: &[u8]) -> io::Result<()> {
        let headers = route.headers(u16::try_from(packet.len()).unwrap_or(u16::MAX));
        let length = u32::try_from(headers.len() + packet.len()).unwrap_or(u32::MAX);
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let words = [seconds, now.subsec_nanos(), length, length];
        let mut record = words.map(u32::to_le_bytes).concat();
        record.extend(headers);
        record.extend(packet);
        self.0.write_all(&record)
    }
}
