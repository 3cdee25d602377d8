//! Commands and answers of NVMe over Fabrics, and the messages of its connections, as bytes.

use verbs_channel::verbs_core::RemoteMemoryRegion;

use crate::status::Status;

/// Lengths in bytes.
pub(crate) const COMMAND: usize = 64;
pub(crate) const ANSWER: usize = 16;
pub(crate) const IDENTIFY: usize = 4096;
/// The longest name of a host or a subsystem (NQN).
pub(crate) const MAX_NQN: usize = 223;

/// Properties of a controller.
pub(crate) const CAP: u32 = 0x00;
pub(crate) const CC: u32 = 0x14;
pub(crate) const CSTS: u32 = 0x1c;

/// The value of `CC` that enables a controller, with entries of 64 and 16 bytes.
pub(crate) const ENABLE: u64 = (4 << 20) | (6 << 16) | 1;

/// The controller of a connection that asks for a new one.
pub(crate) const ANY_CONTROLLER: u16 = 0xffff;

/// Opcodes of transfers.
pub(crate) const WRITE: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;

/// The opcode of commands that have a type.
const FABRICS: u8 = 0x7f;

/// The type of a data block descriptor with a key, and its subtype if the target is to invalidate that.
const KEYED: u8 = 0x40;
const INVALIDATE: u8 = 0x0f;

/// A command (SQE): what it does, and the memory of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) bytes: [u8; COMMAND],
}

impl Command {
    fn new(name: &'static str, opcode: u8) -> Self {
        // Data by descriptors (PSDT); without data, that of no bytes.
        let bytes = [0; COMMAND];
        let this = Self { name, bytes };
        this.with(0, [opcode, 0x40]).with(39, [KEYED])
    }

    fn with<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Self {
        self.bytes[at..at + N].copy_from_slice(&bytes);
        self
    }

    /// Makes the connection a queue of a controller.
    pub(crate) fn connect(queue: u16, entries: u16) -> Self {
        let this = Self::new("Connect", FABRICS).with(4, [0x01]);
        this.with(42, queue.to_le_bytes())
            .with(44, (entries - 1).to_le_bytes())
    }

    pub(crate) fn property_get(property: u32) -> Self {
        let this = Self::new("Property Get", FABRICS).with(4, [0x04]);
        // This one has eight bytes, others have four.
        this.with(40, [u8::from(property == CAP)])
            .with(44, property.to_le_bytes())
    }

    pub(crate) fn property_set(property: u32, value: u64) -> Self {
        let this = Self::new("Property Set", FABRICS).with(4, [0x00]);
        this.with(44, property.to_le_bytes())
            .with(48, value.to_le_bytes())
    }

    /// Asks for the description of a namespace, or with 0 of the controller.
    pub(crate) fn identify(namespace: u32) -> Self {
        let this = Self::new("Identify", 0x06).with(4, namespace.to_le_bytes());
        this.with(40, [u8::from(namespace == 0)])
    }

    /// Asks for one queue beside that of the administrator.
    pub(crate) fn one_queue() -> Self {
        Self::new("Set Features", 0x09).with(40, [7])
    }

    /// [`READ`] or [`WRITE`] of blocks.
    pub(crate) fn transfer(opcode: u8, namespace: u32, first: u64, blocks: u16) -> Self {
        let name = if opcode == WRITE { "Write" } else { "Read" };
        let this = Self::new(name, opcode).with(4, namespace.to_le_bytes());
        this.with(40, first.to_le_bytes())
            .with(48, (blocks - 1).to_le_bytes())
    }

    pub(crate) fn flush(namespace: u32) -> Self {
        Self::new("Flush", 0x00).with(4, namespace.to_le_bytes())
    }

    pub(crate) fn numbered(self, number: u16) -> Self {
        self.with(2, number.to_le_bytes())
    }

    /// Its data is there, with this key, which the target is to invalidate or not.
    pub(crate) fn with_data(self, data: &RemoteMemoryRegion, invalidates: bool) -> Self {
        let [a, b, c, ..] = data.len().to_le_bytes();
        let subtype = if invalidates { INVALIDATE } else { 0 };
        self.with(24, data.addr().to_le_bytes())
            .with(32, [a, b, c])
            .with(35, data.rkey().to_le_bytes())
            .with(39, [KEYED | subtype])
    }
}

/// An answer (CQE) to the command of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: u64,
    pub(crate) number: u16,
    pub(crate) status: Status,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == ANSWER).then_some(())?;
        Some(Self {
            result: u64::from_le_bytes(at(bytes, 0)?),
            number: u16::from_le_bytes(at(bytes, 12)?),
            // Without the phase, which means nothing here.
            status: Status(u16::from_le_bytes(at(bytes, 14)?) >> 1),
        })
    }
}

/// The data of Connect: who asks, and for which controller of which subsystem.
pub(crate) fn connect_data(host: ([u8; 16], &str), controller: u16, subsystem: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    let parts: [(usize, &[u8]); 4] = [
        (0, &host.0),
        (16, &controller.to_le_bytes()),
        (256, subsystem.as_bytes()),
        (512, host.1.as_bytes()),
    ];
    for (at, bytes) in parts {
        // Names are shorter: they were checked.
        let to = data.iter_mut().skip(at).take(256);
        to.zip(bytes).for_each(|(to, from)| *to = *from);
    }
    data
}

/// The private data of the connection's request: receives on both sides of this number, less one for the target's.
pub(crate) fn request(queue: u16, entries: u16, controller: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (at, field) in [(2, queue), (4, entries), (6, entries - 1), (8, controller)] {
        let [low, high] = field.to_le_bytes();
        (bytes[at], bytes[at + 1]) = (low, high);
    }
    // On the first connection the field is reserved.
    if queue == 0 {
        (bytes[8], bytes[9]) = (0, 0);
    }
    bytes
}

/// Whether the private data of a connection is that of a target, in the one format there is.
pub(crate) fn is_target(answer: &[u8]) -> bool {
    matches!(answer, [0, 0, crqsize @ ..] if crqsize.iter().take(2).any(|&byte| byte != 0))
}

/// The binary logarithm of the most pages in a transfer, if the controller takes keys of memory; 0 is no limit.
pub(crate) fn max_pages(controller: &[u8]) -> Option<u8> {
    let sgls = u32::from_le_bytes(at(controller, 536)?);
    (sgls & 4 != 0).then_some(*controller.get(77)?)
}

/// The size of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(crate) blocks: u64,
    pub(crate) block_len: usize,
}

impl Namespace {
    /// `None` if there are no blocks of such a length, without metadata, or their length in bytes has no number.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let blocks = u64::from_le_bytes(at(bytes, 0)?);
        let flbas = usize::from(*bytes.get(26)?);
        let [0, 0, log, _] = at(bytes, 128 + 4 * (flbas & 0xf | (flbas >> 1) & 0x30))? else {
            return None;
        };
        let block_len = (9..=16).contains(&log).then(|| 1_usize << log)?;
        blocks
            .checked_mul(block_len as u64)
            .filter(|&len| len > 0)?;
        Some(Self { blocks, block_len })
    }

    /// Its length in bytes from this block on; `None` if that is behind its end.
    pub(crate) fn len_from(&self, block: u64) -> Option<u64> {
        Some(self.blocks.checked_sub(block)? * self.block_len as u64)
    }
}

fn at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use programs::Pattern;

    #[test]
    fn a_command_has_the_bytes_of_the_specification() {
        let data = RemoteMemoryRegion::new(0x1122_3344_5566_7788, 0x01_0203, 0xaabb_ccdd).unwrap();
        let read = Command::transfer(READ, 1, 0x99, 8).numbered(0x0102);
        let bytes = read.with_data(&data, true).bytes;
        assert_eq!(bytes[..8], [2, 0x40, 2, 1, 1, 0, 0, 0]);
        let sgl = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 2, 1, 0xdd, 0xcc, 0xbb, 0xaa, 0x4f,
        ];
        assert_eq!(bytes[24..40], sgl);
        assert_eq!(bytes[40..52], [0x99, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(read.with_data(&data, false).bytes[39], 0x40);
        let connect = Command::connect(1, 17).bytes;
        assert_eq!(connect[..6], [0x7f, 0x40, 0, 0, 1, 0]);
        assert_eq!(connect[39..48], [0x40, 0, 0, 1, 0, 16, 0, 0, 0]);
        let get = Command::property_get(CAP).bytes;
        assert_eq!((get[4], get[40], get[44]), (4, 1, 0));
        let set = Command::property_set(CC, ENABLE).bytes;
        assert_eq!(
            (set[4], set[44], &set[48..52]),
            (0, 0x14, &[1, 0, 0x46, 0][..])
        );
    }

    #[test]
    fn a_request_for_a_connection_has_the_bytes_of_the_specification() {
        assert_eq!(request(1, 17, 5)[..10], [0, 0, 1, 0, 17, 0, 16, 0, 5, 0]);
        let first = request(0, 32, ANY_CONTROLLER);
        assert_eq!(first[..10], [0, 0, 0, 0, 32, 0, 31, 0, 0, 0]);
        let long = "n".repeat(300);
        let data = connect_data(([7; 16], "host"), 3, &long);
        assert_eq!((data.len(), &data[15..20]), (1024, &[7, 3, 0, 0, 0][..]));
        assert_eq!((data[255], data[256], data[511]), (0, b'n', b'n'));
        assert_eq!(&data[512..517], b"host\0");
    }

    #[test]
    fn an_answer_has_its_result_number_and_status() {
        let mut bytes = [0; ANSWER];
        (bytes[0], bytes[7], bytes[12], bytes[14], bytes[15]) = (1, 2, 3, 0x05, 0x80);
        let answer = Answer {
            result: 0x0200_0000_0000_0001,
            number: 3,
            status: Status(0x4002),
        };
        assert_eq!(Answer::parse(&bytes), Some(answer));
        assert_eq!(Answer::parse(&bytes[1..]), None);
        assert_eq!(Answer::parse(&[0; 17]), None);
    }

    #[test]
    fn a_namespace_has_blocks_and_their_length() {
        let mut bytes = vec![0; IDENTIFY];
        (bytes[1], bytes[26], bytes[128 + 4 + 2]) = (1, 1, 12);
        let namespace = Namespace::parse(&bytes).unwrap();
        assert_eq!((namespace.blocks, namespace.block_len), (256, 4096));
        assert_eq!(namespace.len_from(255), Some(4096));
        assert_eq!(namespace.len_from(256), Some(0));
        assert_eq!(namespace.len_from(257), None);
        for (at, byte) in [(7, 0xff), (132, 8), (134, 0), (134, 255), (26, 0xff)] {
            let mut odd = bytes.clone();
            odd[at] = byte;
            assert_eq!(Namespace::parse(&odd), None, "{at}");
        }
        bytes[1] = 0;
        assert_eq!(Namespace::parse(&bytes), None);
    }

    #[test]
    fn a_target_answers_a_connection_in_its_format() {
        assert!(is_target(&[0, 0, 32, 0]) && is_target(&[0, 0, 0, 1, 0, 0]));
        for odd in [
            &b""[..],
            b"\0",
            b"\0\0",
            b"\0\0\0\0",
            b"VRBC",
            b"\x01\0\x20\0",
        ] {
            assert!(!is_target(odd), "{odd:?}");
        }
    }

    #[test]
    fn hostile_bytes_of_any_length_are_parsed_or_rejected() {
        for seed in 0..2000 {
            let bytes = Pattern::new(seed).bytes(0, IDENTIFY);
            let len = usize::try_from(seed).unwrap() * 3 % (IDENTIFY + 1);
            let bytes = &bytes[..len];
            let _may_be_any = (Answer::parse(bytes), Namespace::parse(bytes));
            assert!(max_pages(bytes).is_none() || len >= 540);
        }
    }
}
