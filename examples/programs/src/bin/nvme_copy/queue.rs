//! A queue: a connection on which commands are in flight, whose data is lent to the target by leases.

use std::mem;
use std::time::{Duration, Instant};

use programs::Failure;
use verbs_channel::error::Error;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::lease::{Lease, LeaseKind};
use verbs_channel::verbs_core::{AccessFlags, Error as CoreError, ProtectionDomain, SharedRegion};
use verbs_channel::{
    BufferPool, Channel, Completed, Connect, Peer, PollStrategy, SharedMemory, Ticket,
};

use crate::status::rejection;
use crate::wire::{self, ANSWER, Answer, COMMAND, Command};

/// How long a window rests: whichever command is late has ended the run before.
const REST: Duration = Duration::from_millis(100);

/// The target, and who asks.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pd: ProtectionDomain,
    pub(crate) address: String,
    pub(crate) subsystem: String,
    pub(crate) host_id: [u8; 16],
    pub(crate) host: String,
    pub(crate) timeout: Duration,
}

/// A queue whose commands have a slot each, with memory for their data.
pub(crate) struct Queue {
    // Before the leases: when it is gone, so is the target's access.
    channel: Channel,
    commands: BufferPool,
    memory: SharedMemory,
    slots: Vec<Slot>,
    slot_len: usize,
    timeout: Duration,
    /// How many leases the target has given back; how many were revoked: windows, and registrations.
    pub(crate) leases: [u64; 3],
}

/// A command that is in flight until it was sent and answered; idle without a beginning.
#[derive(Default)]
struct Slot {
    began: Option<Instant>,
    name: &'static str,
    sent: Option<Ticket>,
    lease: Option<Lease>,
    answer: Option<Answer>,
}

impl Slot {
    const fn is_done(&self) -> bool {
        self.answer.is_some() && self.sent.is_none()
    }
}

impl Queue {
    /// Connects a queue of this number to a controller. Returns the answer's result, too.
    pub(crate) fn connect(
        target: &Target,
        (number, controller): (u16, u16),
        entries: u16,
        slot_len: usize,
    ) -> Result<(Self, u64), Failure> {
        let (pd, slots) = (&target.pd, entries - 1);
        let mut prepared = Channel::builder(pd)
            // One for a lease that is granted or revoked.
            .max_send_wr(u32::from(slots) + 1)
            .max_recv_wr(entries.into())
            .timeout(target.timeout)
            .lease_windows(4 * u32::from(slots))
            .lease_rest(REST)
            .strategy(PollStrategy::Notify { after: 100 })
            .build()?;
        let answers = BufferPool::new(pd, ANSWER, entries.into())?;
        while let Some(block) = answers.take() {
            prepared.start_receive(block)?;
        }
        let request = wire::request(number, entries, controller);
        let options = Connect::within(target.timeout).raw_private_data(&request);
        let met = prepared.connect(Peer::cm(&target.address), options);
        let met = met.map_err(explained)?;
        if !wire::is_target(&met.private_data) {
            return Err(Failure::new("the peer is no target of NVMe"));
        }
        let memory = vec![0_u8; usize::from(slots) * slot_len];
        let mut queue = Self {
            channel: met.channel,
            commands: BufferPool::new(pd, COMMAND, slots.into())?,
            memory: SharedMemory::register([pd], memory, AccessFlags::MW_BIND)?,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            slot_len,
            timeout: target.timeout,
            leases: [0; 3],
        };
        let host = (target.host_id, target.host.as_str());
        let data = wire::connect_data(host, controller, &target.subsystem);
        queue.fill(0, &data)?;
        let connect = Command::connect(number, entries);
        let lent = Some((data.len(), AccessFlags::REMOTE_READ));
        let result = queue.run(connect, lent)?;
        Ok((queue, result))
    }

    /// A slot for a command, if there is one.
    pub(crate) fn idle(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.began.is_none())
    }

    /// Writes the data of a slot.
    pub(crate) fn fill(&self, slot: usize, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.region()?.write(slot * self.slot_len, bytes)?)
    }

    /// Reads the data of a slot.
    pub(crate) fn read(&self, slot: usize, into: &mut [u8]) -> Result<(), Failure> {
        Ok(self.region()?.read(slot * self.slot_len, into)?)
    }

    fn region(&self) -> Result<&SharedRegion<Vec<u8>>, Failure> {
        let region = self.memory.region();
        region.ok_or_else(|| Failure::new("the memory is of another type"))
    }

    /// Sends a command in an idle slot, and lends the target the first bytes of its data.
    pub(crate) fn submit(
        &mut self,
        slot: usize,
        command: Command,
        lent: Option<(usize, AccessFlags)>,
    ) -> Result<(), Failure> {
        let mut command = command.numbered(u16::try_from(slot)?);
        let mut lease = None;
        if let Some((len, access)) = lent {
            let begin = slot * self.slot_len;
            let data = self.memory.slice(begin..begin + len.min(self.slot_len))?;
            let granted = self.channel.lease(data, access)?;
            let is_window = granted.kind() == LeaseKind::Window;
            command = command.with_data(&granted.remote(), is_window);
            lease = Some(granted);
        }
        let block = self.commands.take_with(&command.bytes)?;
        let block = block.ok_or_else(|| Failure::new("all commands are in flight"))?;
        let sent = Some(self.channel.start_send(block)?);
        self.slots[slot] = Slot {
            began: Some(Instant::now()),
            name: command.name,
            sent,
            lease,
            answer: None,
        };
        Ok(())
    }

    /// Waits for the next command that succeeds: its slot, which is idle again, and its result. The target has no
    /// access to its data any more. `None` if no command is in flight.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, u64)>, Failure> {
        loop {
            if let Some(at) = self.slots.iter().position(Slot::is_done) {
                let Slot { name, answer, .. } = mem::take(&mut self.slots[at]);
                let answer = answer.ok_or_else(|| Failure::new("no answer"))?;
                if answer.status.is_success() {
                    return Ok(Some((at, answer.result)));
                }
                let status = answer.status;
                return Err(Failure::new(format!("the target rejects {name}: {status}")));
            }
            let Some(oldest) = self.slots.iter().filter_map(|slot| slot.began).min() else {
                return Ok(None);
            };
            let left = self.timeout.saturating_sub(oldest.elapsed());
            let completed = self.channel.wait_completed(left).ok_or_else(|| {
                let late = self.slots.iter().find(|slot| slot.began == Some(oldest));
                let (name, limit) = (late.map_or("", |slot| slot.name), self.timeout.as_secs());
                Failure::new(format!("the target has not answered {name} for {limit} s"))
            })?;
            self.complete(completed)?;
        }
    }

    /// Carries out one command, alone. Returns its result.
    pub(crate) fn run(
        &mut self,
        command: Command,
        lent: Option<(usize, AccessFlags)>,
    ) -> Result<u64, Failure> {
        self.submit(0, command, lent)?;
        Ok(self.next()?.map_or(0, |(_, result)| result))
    }

    /// A command was sent, or an answer has come.
    fn complete(&mut self, completed: Completed) -> Result<(), Failure> {
        let ticket = Some(completed.ticket);
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.sent == ticket) {
            slot.sent = None;
            completed.result?;
            return Ok(());
        }
        let (received, block) = completed.into_success()?;
        let message = received.message_in(&block).unwrap_or_default();
        let odd = || {
            Failure::new(format!(
                "the target sent {message:02x?}, which answers nothing"
            ))
        };
        let answer = Answer::parse(message).ok_or_else(odd)?;
        let slot = self.slots.get_mut(usize::from(answer.number));
        let slot = slot.filter(|slot| slot.began.is_some() && slot.answer.is_none());
        let slot = slot.ok_or_else(odd)?;
        slot.answer = Some(answer);
        if let Some(lease) = slot.lease.take() {
            let is_window = lease.kind() == LeaseKind::Window;
            let how = match lease.given_back(self.channel.id(), &received) {
                Ok(_memory) => 0,
                Err(lease) => {
                    drop(self.channel.revoke(lease)?);
                    if is_window { 1 } else { 2 }
                }
            };
            self.leases[how] += 1;
        }
        self.channel.start_receive(block)?;
        Ok(())
    }
}

/// Why there is no connection, with the target's reason.
fn explained(error: Error) -> Failure {
    if let Error::Exchange(failure) = &error
        && let ExchangeError::Manager(CoreError::ConnectionManager { failure, .. }) = &failure.error
        && let Some(why) = rejection(failure.private_data().as_bytes())
    {
        return Failure::new(format!("the target rejects the connection: {why}"));
    }
    error.into()
}
