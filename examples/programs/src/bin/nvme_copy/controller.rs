//! A controller of the target: connected, enabled and identified.

use std::thread;
use std::time::{Duration, Instant};

use programs::Failure;
use verbs_channel::verbs_core::AccessFlags;

use crate::queue::{Queue, Target};
use crate::wire::{
    self, ANY_CONTROLLER, CAP, CC, CSTS, Command, ENABLE, IDENTIFY, Namespace, SHUT_DOWN,
};

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
        let cap = admin.run(Command::property_get(CAP, 8), None)?;
        let [e0, e1, _, half_seconds, _, _, pages, _] = cap.to_le_bytes();
        admin.run(Command::property_set(CC, ENABLE), None)?;
        let begun = Instant::now();
        let limit = target
            .timeout
            .min(Duration::from_millis(500) * half_seconds.max(1).into());
        // Ready, and not failed.
        while admin.run(Command::property_get(CSTS, 4), None)? & 3 != 1 {
            if begun.elapsed() > limit {
                return Err(Failure::new("the controller does not become ready"));
            }
            thread::sleep(PAUSE);
        }
        let bytes = identify(&mut admin, Command::identify_controller())?;
        let odd = || Failure::new("the controller's description is too short");
        let about = wire::Controller::parse(&bytes).ok_or_else(odd)?;
        if !about.takes_keys {
            return Err(Failure::new("the controller takes no keys of memory"));
        }
        let shift = 12 + u32::from(pages & 0xf) + u32::from(about.mdts);
        Ok(Self {
            admin,
            number: u16::from_le_bytes([n0, n1]),
            max_entries: u16::from_le_bytes([e0, e1]).saturating_add(1),
            max_len: match about.mdts {
                0 => usize::MAX,
                _ => 1_usize.checked_shl(shift).unwrap_or(usize::MAX),
            },
        })
    }

    /// The size of a namespace that this program can use.
    pub(crate) fn namespace(&mut self, number: u32) -> Result<Namespace, Failure> {
        let bytes = identify(&mut self.admin, Command::identify_namespace(number))?;
        let namespace = Namespace::parse(&bytes);
        let namespace = namespace.ok_or_else(|| {
            Failure::new(format!("namespace {number} has no blocks that can be read"))
        })?;
        match namespace.metadata {
            0 => Ok(namespace),
            _ => Err(Failure::new("blocks with metadata are not supported")),
        }
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

    /// Tells the controller that this is the end.
    pub(crate) fn shut_down(mut self) -> Result<(), Failure> {
        self.admin.run(Command::property_set(CC, SHUT_DOWN), None)?;
        Ok(())
    }
}

fn identify(admin: &mut Queue, command: Command) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; IDENTIFY];
    admin.fill(0, &bytes)?;
    admin.run(command, Some((IDENTIFY, AccessFlags::REMOTE_WRITE)))?;
    admin.read(0, &mut bytes)?;
    Ok(bytes)
}
