//! A controller of the target: connected, enabled and identified.

use std::thread;
use std::time::{Duration, Instant};

use programs::Failure;
use verbs_channel::verbs_core::AccessFlags;

use crate::queue::{Queue, Target};
use crate::wire::{self, ANY_CONTROLLER, CAP, CC, CSTS, Command, ENABLE, IDENTIFY, Namespace};

/// Entries of the first queue: no target has fewer.
const ADMIN: u16 = 32;
/// The pause between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(5);

/// A controller that is ready.
pub(crate) struct Controller {
    admin: Queue,
    number: u16,
    /// The most entries of a queue.
    max_entries: u16,
    /// The most bytes of a command's data.
    pub(crate) max_len: usize,
}

impl Controller {
    pub(crate) fn connect(target: &Target) -> Result<Self, Failure> {
        let first = (0, ANY_CONTROLLER);
        let (mut admin, result) = Queue::connect(target, first, ADMIN, IDENTIFY)?;
        let [n0, n1, required, ..] = result.to_le_bytes();
        if required & 3 != 0 {
            return Err(Failure::new(
                "the target requires authentication, which this program lacks",
            ));
        }
        let cap = admin.run(Command::property_get(CAP), None)?;
        let [e0, e1, _, half_seconds, _, _, pages, _] = cap.to_le_bytes();
        admin.run(Command::property_set(CC, ENABLE), None)?;
        let begun = Instant::now();
        let limit = target
            .timeout
            .min(Duration::from_millis(500) * half_seconds.max(1).into());
        // Ready, and not failed.
        while admin.run(Command::property_get(CSTS), None)? & 3 != 1 {
            if begun.elapsed() > limit {
                return Err(Failure::new("the controller does not become ready"));
            }
            thread::sleep(PAUSE);
        }
        let about = identify(&mut admin, 0)?;
        let mdts = wire::max_pages(&about);
        let mdts = mdts.ok_or_else(|| Failure::new("the controller takes no keys of memory"))?;
        let shift = 12 + u32::from(pages & 0xf) + u32::from(mdts);
        Ok(Self {
            admin,
            number: u16::from_le_bytes([n0, n1]),
            max_entries: u16::from_le_bytes([e0, e1]).saturating_add(1),
            max_len: match mdts {
                0 => usize::MAX,
                _ => 1_usize.checked_shl(shift).unwrap_or(usize::MAX),
            },
        })
    }

    /// The size of a namespace.
    pub(crate) fn namespace(&mut self, number: u32) -> Result<Namespace, Failure> {
        let namespace = Namespace::parse(&identify(&mut self.admin, number)?);
        let why = "has no blocks, or they have metadata";
        namespace.ok_or_else(|| Failure::new(format!("namespace {number} {why}")))
    }

    /// A queue for reads and writes, with this number of commands in flight, if the controller has such.
    pub(crate) fn open(
        &mut self,
        target: &Target,
        depth: u16,
        len: usize,
    ) -> Result<Queue, Failure> {
        self.admin.run(Command::one_queue(), None)?;
        let entries = self.max_entries.min(depth + 1);
        if entries < 2 {
            return Err(Failure::new("the controller has no queues of two entries"));
        }
        Ok(Queue::connect(target, (1, self.number), entries, len)?.0)
    }
}

fn identify(admin: &mut Queue, namespace: u32) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; IDENTIFY];
    admin.fill(0, &bytes)?;
    let lent = Some((IDENTIFY, AccessFlags::REMOTE_WRITE));
    admin.run(Command::identify(namespace), lent)?;
    admin.read(0, &mut bytes)?;
    Ok(bytes)
}
