//! The loops that are measured, of layers that are polled.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Frames, Patience};
use serde::{Deserialize, Serialize};

use crate::figures::{Figures, Latency, Times};
use crate::link::{Counts, Link};
use crate::memory::{Memory, mark_of};
use crate::messages;
use crate::plan::{Op, Plan};

/// Number of operations that a side has posted on each connection, all of which have completed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) posted: Vec<u64>,
}

/// A side whose connections are up, and whose receives are posted.
pub(crate) struct Side<'r, L> {
    link: L,
    plan: &'r Plan,
    memory: &'r Memory,
    frames: &'r Frames,
    is_client: bool,
    counts: Counts,
    // Whether the last operation of each connection has a completion of its own.
    signaled: Vec<bool>,
    // One of this many operations has a completion.
    period: u64,
    patience: Patience<'r>,
}

/// How long datagrams that were sent may be on their way.
pub(crate) const LATE: Duration = Duration::from_millis(300);

/// How often a side that has nothing to do looks for the peer's end.
const SHORT: Duration = Duration::from_millis(1);

/// Waits until the peer is as far as this side is.
pub(crate) fn meet(frames: &Frames) -> Result<(), Failure> {
    messages::send(frames, &())?;
    messages::receive(frames).context(|| "the peer did not get ready")
}

impl<'r, L: Link> Side<'r, L> {
    pub(crate) fn new(
        link: L,
        plan: &'r Plan,
        memory: &'r Memory,
        frames: &'r Frames,
        is_client: bool,
    ) -> Self {
        let peer = frames.peer();
        Self {
            link,
            plan,
            memory,
            frames,
            is_client,
            counts: Counts::new(plan.qps()),
            signaled: vec![true; plan.qps()],
            period: match plan.times_each() {
                true => 1,
                false => u64::from(plan.in_flight() / 2).clamp(1, 100),
            },
            patience: Patience::new(peer.limit(), None),
        }
    }

    /// Measures. Returns the link, whose end the caller closes.
    pub(crate) fn measure(mut self) -> Result<(Figures, L), Failure> {
        meet(self.frames)?;
        let plan = self.plan;
        let mut figures = match (plan.bandwidth, plan.posts(self.is_client)) {
            (false, _) if self.is_client => self.latency()?,
            (true, true) => self.bandwidth()?,
            _ => Figures::default(),
        };
        let theirs = self.finish()?;
        figures.lost(self.lost(&theirs)?);
        for (conn, posted) in theirs.posted.iter().take(plan.qps()).enumerate() {
            self.memory.verify_left(conn, *posted)?;
        }
        meet(self.frames)?;
        Ok((figures, self.link))
    }

    /// One operation after the other, each answered by the peer unless it takes no part.
    fn latency(&mut self) -> Result<Figures, Failure> {
        let mut latency = Latency::new(self.plan)?;
        while let Some(number) = latency.next() {
            let begun = Instant::now();
            self.post(0, true)?;
            self.answered(number)?;
            latency.record(begun);
        }
        let ways = if self.plan.op.is_one_sided() { 1 } else { 2 };
        Ok(latency.figures(ways))
    }

    /// Waits until the peer has answered the operation with this number, or it has completed.
    #[inline]
    fn answered(&mut self, number: u64) -> Result<(), Failure> {
        let op = self.plan.op;
        self.until(|side| {
            let has_room = side.counts.in_flight(0) < side.plan.in_flight().into();
            Ok(has_room
                && match op {
                    _ if op.is_one_sided() => side.counts.sent[0] > number,
                    _ => side.has_come(number)?,
                })
        })
    }

    /// Whether the peer's operation of this number in a ping-pong has arrived.
    #[inline]
    fn has_come(&self, number: u64) -> Result<bool, Failure> {
        if self.plan.op != Op::Write {
            return Ok(self.counts.received[0] > number);
        }
        let has_come = self.memory.last_byte(number)? == mark_of(number);
        if has_come {
            self.memory.verify_before(number)?;
        }
        Ok(has_come)
    }

    /// Polls until something is so.
    #[inline]
    fn until(
        &mut self,
        mut is_so: impl FnMut(&Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        self.patience.renew();
        while !is_so(self)? {
            self.poll()?;
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Result<(), Failure> {
        if self.link.poll(&mut self.counts)? {
            self.patience.renew();
            return Ok(());
        }
        self.patience.idle()?;
        if self.link.sleep(&self.counts, self.frames.peer().limit())? {
            Ok(())
        } else {
            Err(self.patience.over())
        }
    }

    /// Posts the next operation on a connection, if there is room for it.
    #[inline]
    fn post(&mut self, conn: usize, is_last: bool) -> Result<(), Failure> {
        let number = self.counts.posted[conn];
        let fills = self.counts.in_flight(conn) + 1 >= self.plan.in_flight().into();
        let signaled = is_last || fills || (number + 1).is_multiple_of(self.period);
        self.link.post(conn, number, signaled)?;
        self.counts.posted[conn] = number + 1;
        self.signaled[conn] = signaled;
        Ok(())
    }

    /// Keeps the allowed number of operations in flight.
    fn bandwidth(&mut self) -> Result<Figures, Failure> {
        self.window(self.plan.warm_up(), None, None)?;
        let mut times = self.plan.times_each().then(Times::new).transpose()?;
        let before: u64 = self.counts.sent.iter().sum();
        let start = Instant::now();
        match self.plan.duration() {
            Some(duration) => self.window(u64::MAX, Some(start + duration), times.as_mut())?,
            None => {
                let iters = self.plan.iters().unwrap_or(0);
                self.window(self.plan.warm_up() + iters, None, times.as_mut())?;
            }
        }
        let took = start.elapsed();
        let sent = self.counts.sent.iter().sum::<u64>() - before;
        Ok(Figures::bandwidth(sent, took).timed(times))
    }

    /// Posts up to this number on each connection, or until the deadline, and waits for all.
    /// Records how long each was in flight, if that is wanted.
    fn window(
        &mut self,
        limit: u64,
        deadline: Option<Instant>,
        mut times: Option<&mut Times>,
    ) -> Result<(), Failure> {
        let depth = u64::from(self.plan.in_flight());
        // When each operation in flight was posted, on each connection.
        let mut begun = vec![VecDeque::new(); self.plan.qps()];
        self.patience.renew();
        let mut is_over = false;
        loop {
            is_over |= deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let mut left = false;
            for (conn, begun) in begun.iter_mut().enumerate() {
                while !is_over
                    && self.counts.posted[conn] < limit
                    && self.counts.in_flight(conn) < depth
                {
                    if times.is_some() {
                        begun.push_back(Instant::now());
                    }
                    self.post(conn, self.counts.posted[conn] + 1 == limit)?;
                }
                // Those before it have no completion of their own; there is room, as it did not fill
                // the queue.
                if is_over && !self.signaled[conn] {
                    self.post(conn, true)?;
                }
                left |= self.counts.in_flight(conn) > 0;
            }
            if !left {
                return Ok(());
            }
            self.poll()?;
            if let Some(times) = &mut times {
                let now = Instant::now();
                for (conn, begun) in begun.iter_mut().enumerate() {
                    let left = usize::try_from(self.counts.in_flight(conn))?;
                    for begun in begun.drain(..begun.len().saturating_sub(left)) {
                        times.record(now - begun);
                    }
                }
            }
        }
    }

    /// Tells the peer what was posted, and waits until all that it posted has arrived. In a ping-pong the
    /// server answers until then.
    fn finish(&mut self) -> Result<Done, Failure> {
        let answers = !self.is_client && !self.plan.bandwidth && !self.plan.op.is_one_sided();
        if !answers {
            messages::send(self.frames, &self.done())?;
        }
        let (mut number, mut idle) = (0, 0);
        // The peer is done when its message is there; until then each of its operations is answered.
        while !self.peer_is_done(&mut idle)? {
            let has_room = self.counts.in_flight(0) < self.plan.in_flight().into();
            if answers && has_room && self.has_come(number)? {
                self.post(0, true)?;
                number += 1;
            }
            idle += u32::from(!self.link.poll(&mut self.counts)?);
        }
        let theirs: Done = messages::receive(self.frames)?;
        if answers {
            messages::send(self.frames, &self.done())?;
        }
        self.arrive(&theirs)?;
        Ok(theirs)
    }

    fn done(&self) -> Done {
        Done {
            posted: self.counts.posted.clone(),
        }
    }

    /// Whether the peer has sent over TCP, looked at once in a number of empty polls. The peer may
    /// measure for as long as it wants.
    #[inline]
    fn peer_is_done(&mut self, idle: &mut u32) -> Result<bool, Failure> {
        // C's programs do not poll then either: on soft-RoCE, the operations need the processor.
        let is_passive = match self.plan.bandwidth {
            true => !self.plan.op.is_received(),
            false => self.plan.op.is_one_sided(),
        };
        if *idle < 256 && !(is_passive || self.plan.events && *idle > 0) {
            return Ok(false);
        }
        *idle = 0;
        // The peer may be on this machine, and needs the processor.
        if self.plan.events {
            let _has_come = self.link.sleep(&self.counts, SHORT)?;
        } else if is_passive {
            thread::sleep(SHORT);
        } else {
            thread::yield_now();
        }
        self.frames.peer().has_sent()
    }

    /// Waits until all that the peer posted has arrived, and all of ours has completed.
    fn arrive(&mut self, theirs: &Done) -> Result<(), Failure> {
        if self.plan.op.is_received() && theirs.posted.len() != self.plan.qps() {
            return Err(Failure::new("the peer has another number of connections"));
        }
        let (mut before, mut since) = (0, Instant::now());
        let plan = self.plan;
        self.until(|side| {
            let is_quiet = (0..plan.qps()).all(|conn| side.counts.in_flight(conn) == 0);
            let missing = |(posted, received): (&u64, &u64)| posted > received;
            let is_here = !plan.op.is_received()
                || !theirs.posted.iter().zip(&side.counts.received).any(missing);
            if is_here || !plan.datagrams {
                return Ok(is_quiet && is_here);
            }
            let received: u64 = side.counts.received.iter().sum();
            if received != before {
                (before, since) = (received, Instant::now());
            }
            Ok(is_quiet && since.elapsed() >= LATE)
        })
    }

    /// How many messages of the peer have not arrived.
    fn lost(&self, theirs: &Done) -> Result<u64, Failure> {
        if !self.plan.op.is_received() {
            return Ok(0);
        }
        let (posted, received) = (&theirs.posted, &self.counts.received);
        let posted: u64 = posted.iter().sum();
        let lost = posted.checked_sub(received.iter().sum());
        lost.ok_or_else(|| Failure::new("more messages arrived than the peer sent"))
    }
}
