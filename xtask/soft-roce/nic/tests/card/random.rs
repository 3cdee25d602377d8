//! Random programs on a bad link: data and completions are those of a model.

use std::time::Duration;

use crate::link::{ALL, Buffer, Faults, Fired, Host, World};
use soft_nic::{
    CompletedOpcode, Completion, Data, Profile, SendOpcode, SendRequest, Status, Transport,
};

/// Bytes of each memory that is written to.
const SIZE: usize = 8192;
/// Bytes of a message, and of an answer.
const SLOT: usize = 512;
/// Requests of a program.
const MAX: usize = 60;

/// Requests of one end of a connection, and the results that they have to have.
struct Program {
    is_to_b: bool,
    from_qp: u32,
    to_qp: u32,
    bytes: Vec<u8>,
    local: Buffer,
    remote: Buffer,
    answers: Buffer,
    received: Buffer,
    /// The peer's memory in the end.
    model: Vec<u8>,
    /// Bytes that are read, by their slots.
    reads: Vec<(usize, Vec<u8>)>,
    messages: Vec<Message>,
    was_read: bool,
    posted: u64,
    /// Receives that are posted, which may be later than the message.
    receives: usize,
}

struct Message {
    bytes: Vec<u8>,
    opcode: CompletedOpcode,
    immediate: Option<[u8; 4]>,
}

const fn ends(world: &mut World, is_to_b: bool) -> (&mut Host, &mut Host) {
    match is_to_b {
        true => (&mut world.a, &mut world.b),
        false => (&mut world.b, &mut world.a),
    }
}

impl Program {
    fn new(world: &mut World, is_to_b: bool, from_qp: u32, to_qp: u32) -> Self {
        let bytes: Vec<u8> = (0..SIZE).map(|_| world.random().to_le_bytes()[3]).collect();
        let (from, to) = ends(world, is_to_b);
        Self {
            is_to_b,
            from_qp,
            to_qp,
            local: from.filled(&bytes),
            bytes,
            remote: to.buffer(SIZE, ALL),
            answers: from.buffer(SLOT * MAX, ALL),
            received: to.buffer(SLOT * MAX, ALL),
            model: vec![0; SIZE],
            reads: Vec::new(),
            messages: Vec::new(),
            was_read: false,
            posted: 0,
            receives: 0,
        }
    }

    /// Posts a request.
    fn step(&mut self, world: &mut World) {
        let mut random = |end: usize| world.random() as usize % end;
        let limit = if random(4) == 0 { 4096 } else { 64 };
        let length = random(limit);
        let (from, to) = (random(SIZE - length), random(SIZE - length));
        let short = length.min(SLOT);
        let slot = SLOT * self.posted as usize;
        let bytes = self.bytes[from..from + short].to_vec();
        let immediate = (self.posted as u32).to_be_bytes();
        let remote = self.remote.remote(to);
        let mut message = |bytes, opcode, immediate| {
            self.messages.push(Message {
                bytes,
                opcode,
                immediate,
            });
        };
        let (opcode, element) = match random(6) {
            0 => {
                message(bytes, CompletedOpcode::Receive, None);
                (SendOpcode::Send, self.local.part(from, short))
            }
            1 => {
                message(bytes, CompletedOpcode::Receive, Some(immediate));
                let opcode = SendOpcode::SendWithImmediate(immediate);
                (opcode, self.local.part(from, short))
            }
            2 => {
                let opcode = CompletedOpcode::ReceiveWriteWithImmediate;
                message(Vec::new(), opcode, Some(immediate));
                self.model[to..to + short].copy_from_slice(&bytes);
                let opcode = SendOpcode::WriteWithImmediate(remote, immediate);
                (opcode, self.local.part(from, short))
            }
            3 => {
                let bytes = &self.bytes[from..from + length];
                self.model[to..to + length].copy_from_slice(bytes);
                (SendOpcode::Write(remote), self.local.part(from, length))
            }
            4 => {
                self.reads.push((slot, self.model[to..to + short].to_vec()));
                (SendOpcode::Read(remote), self.answers.part(slot, short))
            }
            _ => {
                let (to, add, is_swap) = (to / 8 * 8, random(usize::MAX) as u64, random(2) == 0);
                let remote = self.remote.remote(to);
                let place = &mut self.model[to..to + 8];
                let before = u64::from_ne_bytes((&*place).try_into().unwrap());
                self.reads.push((slot, place.to_vec()));
                let after = if is_swap {
                    add
                } else {
                    before.wrapping_add(add)
                };
                place.copy_from_slice(&after.to_ne_bytes());
                let opcode = match is_swap {
                    true => SendOpcode::CompareSwap {
                        remote,
                        compare: before,
                        swap: add,
                    },
                    false => SendOpcode::FetchAdd { remote, add },
                };
                (opcode, self.answers.part(slot, 8))
            }
        };
        let elements = [element];
        let mut request = SendRequest::new(self.posted, opcode, Data::Elements(elements.to_vec()));
        // A request that may change memory waits for reads of it (9.5).
        request.is_fenced = self.was_read;
        self.was_read = matches!(opcode, SendOpcode::Read(_));
        self.posted += 1;
        let (from, _) = ends(world, self.is_to_b);
        from.nic.post_send(self.from_qp, request).unwrap();
    }

    /// Posts the receives of all messages so far.
    fn receive(&mut self, world: &mut World) {
        let (_, to) = ends(world, self.is_to_b);
        while self.receives < self.messages.len() {
            let number = self.receives;
            let element = self.received.part(SLOT * number, SLOT);
            to.post_receive(self.to_qp, number as u64, &[element]);
            self.receives += 1;
        }
    }

    /// Compares with the model; `from` and `to` are all completions of the two ends.
    fn check(&self, from: &[Completion], to: &[Completion]) {
        use CompletedOpcode::{Receive, ReceiveWriteWithImmediate};
        let is_receive =
            |done: &Completion| matches!(done.opcode, Receive | ReceiveWriteWithImmediate);
        let sends = from
            .iter()
            .filter(|done| done.queue_pair == self.from_qp && !is_receive(done));
        let sends: Vec<_> = sends.map(|done| (done.wr_id, done.status)).collect();
        let expected: Vec<_> = (0..self.posted)
            .map(|number| (number, Status::SUCCESS))
            .collect();
        assert_eq!(sends, expected);
        assert_eq!(self.remote.bytes(), self.model);
        for (slot, bytes) in &self.reads {
            assert_eq!(self.answers.bytes()[*slot..slot + bytes.len()], *bytes);
        }
        let received = to
            .iter()
            .filter(|done| done.queue_pair == self.to_qp && is_receive(done));
        let received: Vec<_> = received.collect();
        assert_eq!(received.len(), self.messages.len(), "each once");
        for (number, (done, message)) in received.into_iter().zip(&self.messages).enumerate() {
            assert_eq!((done.wr_id, done.status), (number as u64, Status::SUCCESS));
            assert_eq!(
                (done.opcode, done.immediate),
                (message.opcode, message.immediate)
            );
            let found = &self.received.bytes()[SLOT * number..][..message.bytes.len()];
            assert_eq!(*found, message.bytes);
        }
    }
}

/// Runs two connections with a program in each direction, one after the other request of any; returns
/// what the link did.
fn run(seed: u64, profile: Profile) -> (Fired, u64) {
    let mut world = World::of(profile, seed);
    world.faults = Faults {
        loss: world.random() % 60,
        repeat: world.random() % 60,
        reorder: world.random() % 60,
        damage: world.random() % 60,
    };
    let mut programs = Vec::new();
    for _ in 0..2 {
        let (qa, qb) = world.pair(Transport::Rc);
        programs.push(Program::new(&mut world, true, qa, qb));
        programs.push(Program::new(&mut world, false, qb, qa));
    }
    for _ in 0..1 + world.random() as usize % (3 * MAX) {
        let which = world.random() as usize % programs.len();
        let program = &mut programs[which];
        if program.posted < MAX as u64 {
            program.step(&mut world);
        }
        if !world.random().is_multiple_of(4) {
            program.receive(&mut world);
        }
        if world.random().is_multiple_of(8) {
            let time = Duration::from_micros(world.random() % 200_000);
            world.run_for(time);
        }
    }
    programs
        .iter_mut()
        .for_each(|program| program.receive(&mut world));
    world.run_for(Duration::from_secs(600));
    let all = |host: &mut Host| std::iter::from_fn(|| host.poll()).collect::<Vec<_>>();
    let (a, b) = (all(&mut world.a), all(&mut world.b));
    for program in &programs {
        match program.is_to_b {
            true => program.check(&a, &b),
            false => program.check(&b, &a),
        }
    }
    let counters = [world.a.nic.counters(), world.b.nic.counters()];
    (
        world.fired,
        counters.iter().map(|counters| counters.retries).sum(),
    )
}

/// One seed: `SOFT_NIC_SEED=17`; many: `SOFT_NIC_SEEDS=10000`.
fn seeds() -> std::ops::Range<u64> {
    let set = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect("a number"))
    };
    match (set("SOFT_NIC_SEED"), set("SOFT_NIC_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..if cfg!(miri) { 2 } else { 200 },
    }
}

#[test]
fn programs_on_a_bad_link_are_those_of_the_model() {
    let mut all = Fired::default();
    let mut retries = 0;
    for seed in seeds() {
        println!("SOFT_NIC_SEED={seed}");
        let profile = match seed % 2 {
            0 => Profile::default(),
            // Seven retries are not for ever there: a bad link could end the connection.
            _ => Profile {
                retries_seven_for_ever: true,
                ..Profile::hostile()
            },
        };
        let (fired, times) = run(seed, profile);
        all.lost += fired.lost;
        all.repeated += fired.repeated;
        all.reordered += fired.reordered;
        all.damaged += fired.damaged;
        retries += times;
    }
    println!("{all:?}, {retries} retries");
    let fired = [all.lost, all.repeated, all.reordered, all.damaged];
    assert!(
        seeds().end < 100 || fired.iter().all(|times| *times > 100),
        "{all:?}"
    );
}
