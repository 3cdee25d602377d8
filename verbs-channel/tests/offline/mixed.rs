//! A model test of owned operations and scopes on the same channels: each result is taken once, by its
//! own ticket, and a scope takes the results of its own operations only.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::time::Duration;

use fake_libibverbs::with;
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_oneof, proptest};
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, ibv_wc, ibv_wc_status,
};
use verbs_channel::verbs_core::{MemoryRegion, ProtectionDomain};
use verbs_channel::{Channel, ChannelGroup, ChannelId, Error, Queue, RejectReason, Ticket};

use crate::fake_device::{bounded, pd};

/// A step of a program. Numbers choose among the operations that exist.
#[derive(Clone, Debug)]
enum Step {
    Start(usize, Queue),
    Complete(usize),
    Fail(usize),
    Poll(usize),
    PollSuccess(usize),
    Take(usize),
    NextTicket,
    NextCompleted,
    Scope(usize, Vec<Lent>, bool),
    Reserve(usize),
}

/// An operation of a scope, and how it completes, if it does.
#[derive(Clone, Debug)]
struct Lent {
    ends: Option<bool>,
    polls: bool,
    leaves: bool,
    // An owned operation completes beside it.
    beside: Option<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chosen = || any::<usize>();
    let queue = prop_oneof![Just(Queue::Send), Just(Queue::Receive)];
    let ends = prop_oneof![20 => Just(Some(true)), 1 => Just(Some(false)), 1 => Just(None)];
    let beside = proptest::option::of(chosen());
    let lent =
        (ends, any::<bool>(), any::<bool>(), beside).prop_map(|(ends, polls, leaves, beside)| {
            Lent {
                ends,
                polls,
                leaves,
                beside,
            }
        });
    let step = prop_oneof![
        10 => (0..2_usize, queue).prop_map(|(member, queue)| Step::Start(member, queue)),
        8 => chosen().prop_map(Step::Complete),
        1 => chosen().prop_map(Step::Fail),
        3 => chosen().prop_map(Step::Poll),
        3 => chosen().prop_map(Step::PollSuccess),
        3 => chosen().prop_map(Step::Take),
        3 => Just(Step::NextTicket),
        3 => Just(Step::NextCompleted),
        4 => (0..2_usize, collection::vec(lent, 0..6), proptest::bool::weighted(0.9))
            .prop_map(|(member, lent, is_well)| Step::Scope(member, lent, is_well)),
        1 => (0..2_usize).prop_map(Step::Reserve),
    ];
    collection::vec(step, 0..if cfg!(miri) { 40 } else { 120 })
}

/// An operation on an owned buffer whose result has not been taken.
struct Op {
    ticket: Ticket,
    wr_id: u64,
    number: u32,
    addr: usize,
    // Whether it succeeded, once it has ended.
    end: Option<bool>,
}

struct World {
    pd: ProtectionDomain,
    group: ChannelGroup,
    ids: Vec<ChannelId>,
    lent: MemoryRegion<Vec<u8>>,
    ops: Vec<Op>,
    taken: VecDeque<Ticket>,
    named: Vec<Ticket>,
    numbers: u32,
}

const SHORT: Duration = Duration::from_millis(1);

impl World {
    fn new() -> Self {
        with(|library| {
            library.done.clear();
            library.posted.clear();
        });
        let pd = pd();
        let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(2);
        let mut group = builder
            .timeout(SHORT)
            .drain_timeout(SHORT)
            .group(2)
            .unwrap();
        for _ in 0..2 {
            let member = group.prepare().unwrap();
            let endpoint = member.endpoint();
            group.join(member.handshake(&endpoint).unwrap()).unwrap();
        }
        Self {
            lent: pd.reg_mr(vec![0_u8; 8]).unwrap(),
            pd,
            ids: group.channels().collect(),
            group,
            ops: Vec::new(),
            taken: VecDeque::new(),
            named: Vec::new(),
            numbers: 0,
        }
    }

    fn apply(&mut self, step: &Step) {
        let count = self.ops.len();
        let chosen = |number: usize| (count > 0).then(|| number % count);
        match step {
            Step::Start(member, queue) => self.start(*member, *queue),
            Step::Complete(number) => self.end(*number, true),
            Step::Fail(number) => self.end(*number, false),
            Step::Poll(number) | Step::Take(number) | Step::PollSuccess(number) => {
                let Some(at) = chosen(*number) else { return };
                let ticket = self.ops[at].ticket;
                let (taken, polls) = match step {
                    Step::Poll(_) => (self.group.poll(ticket).unwrap(), true),
                    Step::Take(_) => (self.group.engine_mut().take(ticket).unwrap(), false),
                    _ => {
                        let taken = self.group.engine_mut().poll_success(ticket);
                        let taken = taken.map(|(success, buffer)| (success.byte_len(), buffer));
                        if let Some((len, buffer)) = taken {
                            self.taken(ticket, Some(len), buffer.as_ptr().addr());
                        } else {
                            self.learn();
                            let end = self.ops[at].end;
                            assert!(end != Some(true), "a success is lost");
                        }
                        return;
                    }
                };
                match taken {
                    Some(ended) => {
                        let len = ended.result.ok().map(|success| success.byte_len());
                        assert_eq!(ended.ticket, ticket);
                        let buffer = ended.buffer.unwrap();
                        self.taken(ticket, len, buffer.as_ptr().addr());
                    }
                    None => assert!(!polls || self.ops[at].end.is_none(), "it has ended"),
                }
            }
            Step::NextTicket => match self.group.engine_mut().next_ticket() {
                Some(ticket) => {
                    assert!(!self.named.contains(&ticket), "returned twice");
                    self.named.push(ticket);
                    self.learn();
                    let mut ops = self.ops.iter();
                    let op = ops.find(|op| op.ticket == ticket).unwrap();
                    assert!(op.end.is_some());
                }
                None => self.none_is_ready(),
            },
            Step::NextCompleted => match self.group.next_completed() {
                Some(ended) => {
                    let is_named = self.named.contains(&ended.ticket);
                    assert!(!is_named, "its ticket was returned");
                    let len = ended.result.ok().map(|success| success.byte_len());
                    let buffer = ended.buffer.unwrap();
                    self.taken(ended.ticket, len, buffer.as_ptr().addr());
                }
                None => self.none_is_ready(),
            },
            Step::Scope(member, lent, is_well) => self.scope(*member, lent, *is_well),
            Step::Reserve(member) => self
                .group
                .engine_mut()
                .reserve(self.ids[*member], 1)
                .unwrap(),
        }
        self.learn();
        // A result cannot be taken again.
        for ticket in self.taken.iter().rev().take(3) {
            assert!(matches!(
                self.group.engine_mut().take(*ticket),
                Err(Error::StaleTicket)
            ));
        }
    }

    fn none_is_ready(&mut self) {
        self.learn();
        let mut ops = self.ops.iter();
        let is_ready = |op: &Op| op.end.is_some() && !self.named.contains(&op.ticket);
        assert!(!ops.any(is_ready), "it has ended");
    }

    /// Records that operations in flight on a destroyed queue pair have ended.
    fn learn(&mut self) {
        for op in &mut self.ops {
            let member = self.group.channel(op.ticket.channel()).unwrap();
            if member.endpoint().is_none() {
                op.end.get_or_insert(false);
            }
        }
    }

    fn start(&mut self, member: usize, queue: Queue) {
        let buffer = self.pd.reg_mr(vec![0_u8; 8]).unwrap();
        let addr = buffer.as_ptr().addr();
        let mut channel = self.group.channel(self.ids[member]).unwrap();
        let has_credits = channel.credits(queue) > 0;
        let started = match queue {
            Queue::Send => channel.start_send(buffer),
            _ => channel.start_receive(buffer),
        };
        match started {
            Ok(ticket) => {
                assert!(has_credits);
                let wr_id = self.posted();
                self.numbers += 1;
                let number = self.numbers;
                assert!(self.ops.iter().all(|op| op.ticket.slot() != ticket.slot()));
                self.ops.push(Op {
                    ticket,
                    wr_id,
                    number,
                    addr,
                    end: None,
                });
            }
            Err(rejected) if rejected.error().is_backpressure() => assert!(!has_credits),
            Err(rejected) if *rejected.error() == RejectReason::Untaken => {
                let id = self.ids[member];
                let its = self.ops.iter().filter(|op| op.ticket.channel() == id);
                assert!(has_credits && its.count() >= 5, "a slot was lost");
            }
            Err(_) => assert!(channel.is_down()),
        }
    }

    fn posted(&self) -> u64 {
        with(|library| library.posted.pop().unwrap()[0].wr_id)
    }

    fn end(&mut self, number: usize, is_well: bool) {
        let flying = self.ops.iter_mut().filter(|op| op.end.is_none());
        let mut flying: Vec<_> = flying.collect();
        if !flying.is_empty() {
            let at = number % flying.len();
            let op = &mut flying[at];
            op.end = Some(is_well);
            done(op.wr_id, status(is_well), op.number);
        }
    }

    fn taken(&mut self, ticket: Ticket, len: Option<u32>, addr: usize) {
        self.learn();
        let at = self.ops.iter().position(|op| op.ticket == ticket);
        let op = self.ops.swap_remove(at.expect("it comes once"));
        assert_eq!(len, op.end.expect("it has ended").then_some(op.number));
        assert_eq!(addr, op.addr, "another's buffer");
        self.taken.push_back(ticket);
    }

    fn scope(&mut self, member: usize, lent: &[Lent], is_well: bool) {
        let mut channel = self.group.channel(self.ids[member]).unwrap();
        let (ops, numbers) = (&mut self.ops, &mut self.numbers);
        let region = &self.lent;
        let mut posted = Vec::new();
        let result = channel.scope(|scope| {
            for how in lent {
                let Ok(mut work) = scope.post_send(region.gather_element(..).unwrap()) else {
                    continue;
                };
                let wr_id = with(|library| library.posted.pop().unwrap()[0].wr_id);
                *numbers += 1;
                if let Some(at) = how.beside
                    && let Some(op) = ops.iter_mut().filter(|op| op.end.is_none()).nth(at % 3)
                {
                    op.end = Some(true);
                    done(op.wr_id, IBV_WC_SUCCESS, op.number);
                }
                posted.push(how.ends);
                if let Some(is_well) = how.ends {
                    done(wr_id, status(is_well), *numbers);
                }
                if how.polls {
                    let taken = work.poll().map(Result::ok);
                    let len = taken.map(|taken| taken.map(|success| success.byte_len()));
                    assert_eq!(len, how.ends.map(|is_well| is_well.then_some(*numbers)));
                }
                if !how.leaves {
                    // The scope has to end nevertheless.
                    let _forgotten = ManuallyDrop::new(work);
                }
            }
            is_well.then_some(()).ok_or(())
        });
        let all_well = posted.iter().all(|end| *end == Some(true));
        assert!(result.is_err() || posted.iter().all(Option::is_some));
        assert!(result.is_ok() || !is_well || !all_well, "{result:?}");
    }
}

fn status(is_well: bool) -> ibv_wc_status {
    if is_well {
        IBV_WC_SUCCESS
    } else {
        IBV_WC_REM_ACCESS_ERR
    }
}

fn done(wr_id: u64, status: ibv_wc_status, byte_len: u32) {
    let done = ibv_wc {
        wr_id,
        status,
        byte_len,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}

proptest! {
    #[test]
    fn each_result_is_taken_once_by_its_ticket_and_no_slot_is_lost(steps in steps()) {
        bounded(|| {
            let mut world = World::new();
            steps.iter().for_each(|step| world.apply(step));
            while !world.ops.is_empty() {
                world.end(0, true);
                if world.ops.iter().all(|op| world.named.contains(&op.ticket)) {
                    world.apply(&Step::Poll(0));
                } else {
                    world.apply(&Step::NextCompleted);
                }
            }
            for member in 0..2 {
                let channel = world.group.channel(world.ids[member]).unwrap();
                assert!(channel.is_idle());
                for queue in [Queue::Send, Queue::Send, Queue::Send, Queue::Receive, Queue::Receive] {
                    world.start(member, queue);
                }
            }
        });
    }
}
