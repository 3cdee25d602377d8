//! The server: owns the area that bytes go to and come from, and checks it.
#![expect(unsafe_code, reason = "posts receives")]

use programs::{Context as _, Failure, Frames, Listener, Patience, Waiter, check, say};
use verbs_core::memory::Sge;
use verbs_core::{AccessFlags, CompletionQueue, QueuePair, ReceiveWorkRequest, SharedRegion};

use crate::protocol::{Answer, Needs, Offer, Operation, Order, Run, STALE, hello};
use crate::{Options, prepare};

/// The most that a server gives to a client.
const MAX_AREA: usize = 1 << 30;
const MAX_DEPTH: u32 = 4096;
/// Bytes behind the moved ones that must not change.
const GUARD: usize = 4096;

pub(crate) struct Server<'o> {
    // First, so that it is destroyed before the area.
    qp: QueuePair,
    cq: CompletionQueue,
    area: SharedRegion<Vec<u8>>,
    frames: Frames,
    options: &'o Options,
}

impl<'o> Server<'o> {
    pub(crate) fn start(options: &'o Options) -> Result<Self, Failure> {
        let common = &options.common;
        let context = programs::open(common)?;
        let pd = context.alloc_pd()?;
        let listener = Listener::bind(common.port)?;
        say(format_args!(
            "serving on {}, TCP port {}",
            context.device().name(),
            listener.port()
        ))?;
        let peer = listener.accept(common.wait(), common.limit())?;
        let frames = Frames::greet(peer, &hello())?;
        let needs: Needs = frames.receive()?;
        if needs.area > MAX_AREA || needs.depth > MAX_DEPTH {
            let Needs { area, depth, .. } = needs;
            return Err(Failure::new(format!(
                "the client asks for {area} bytes and {depth} receives: too many"
            )));
        }
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let area = pd.reg_shared(programs::memory(STALE, needs.area + GUARD)?, access)?;
        let cq = CompletionQueue::create(&context, needs.depth.max(1))?;
        let prepared = prepare(&pd, &cq, common, [1, needs.depth], 1, access)?;
        let offer = Offer {
            area: area.remote().slice(..needs.area as u64)?,
            endpoint: prepared.endpoint(),
        };
        let qp = prepared.handshake(&needs.endpoint)?;
        frames.send(&offer)?;
        Ok(Self {
            qp,
            cq,
            area,
            frames,
            options,
        })
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        loop {
            let run = match self.frames.receive()? {
                Order::Prepare(run) => run,
                Order::Check => return Err(Failure::new("the client asks for a check too early")),
                Order::Bye => return Ok(self.qp.close()?),
            };
            self.prepare(&run)?;
            self.frames.send(&Answer::Ready)?;
            let took_part = self.take_part(&run);
            let Order::Check = self.frames.receive()? else {
                return Err(Failure::new("the client asks for no check"));
            };
            let name = run.operation.name();
            let checked = took_part.and_then(|()| self.check(&run));
            if let Err(failure) = checked.context(|| name) {
                self.frames.send(&Answer::Wrong(failure.to_string()))?;
                return Err(failure);
            }
            self.frames.send(&Answer::Right)?;
            let Run { size, count, .. } = run;
            say(format_args!("{name}: {count} x {size} bytes are right"))?;
        }
    }

    /// Fills the area, and posts receives if there will be something to receive.
    fn prepare(&self, run: &Run) -> Result<(), Failure> {
        let len = run.len().filter(|len| *len <= self.area.len() - GUARD);
        let (Some(len), 1.., ..=MAX_DEPTH) = (len, run.size, run.count) else {
            return Err(Failure::new("the client asks for a run that does not fit"));
        };
        self.area.write(0, &vec![STALE; len + GUARD])?;
        if run.operation == Operation::Read {
            self.area.write(0, &run.pattern().bytes(0, len))?;
        }
        if run.operation.completes_as().is_some() {
            for (index, slot) in (0..run.count).zip((0..).step_by(run.size)) {
                let mut list = Sge::from(self.area.element(slot..slot + run.size)?);
                let receive = ReceiveWorkRequest::new(&mut list).wr_id(index.into());
                // SAFETY: the area is a shared region, which lives until the queue pair is gone.
                unsafe { self.qp.post_receive(&mut [receive]) }?;
            }
        }
        Ok(())
    }

    /// Waits for what comes with a completion on this side.
    fn take_part(&self, run: &Run) -> Result<(), Failure> {
        let Some(opcode) = run.operation.completes_as() else {
            return Ok(());
        };
        let patience = Patience::new(self.options.common.limit(), Some(self.frames.peer()));
        let mut indices = 0..run.count;
        Waiter::new(&self.cq, patience).wait(run.count.into(), |success| {
            let index = indices.next().unwrap_or(run.count);
            let is = (
                success.wr_id(),
                success.opcode(),
                success.byte_len(),
                success.imm_data(),
            );
            let len = u32::try_from(run.size)?;
            let imm_data = run.pattern().immediate(index);
            let should_be = (index.into(), opcode, len, Some(imm_data));
            if is == should_be {
                return Ok(());
            }
            Err(Failure::new(format!(
                "completion (wr_id, opcode, byte_len, imm_data) is {is:?}, not {should_be:?}"
            )))
        })
    }

    /// Checks every byte that was to be moved, and those behind.
    fn check(&self, run: &Run) -> Result<(), Failure> {
        let len = run.len().unwrap_or(0);
        let mut bytes = vec![0; len + GUARD];
        self.area.read(0, &mut bytes)?;
        let (moved, rest) = bytes.split_at(len);
        run.pattern().check(0, moved)?;
        let untouched = check(moved.len(), rest, &vec![STALE; rest.len()]);
        untouched.context(|| "behind what was to be moved")
    }
}
