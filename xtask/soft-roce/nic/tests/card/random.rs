//! Random programs on a bad link: data and completions are those of a model.

use std::time::Duration;

use crate::link::{ALL, Faults, Fired, World};
use soft_nic::{Data, Profile, SendOpcode, SendRequest, Status, Transport};

const SIZE: usize = 8192;

/// Runs one program; returns what the link did.
fn run(seed: u64, profile: Profile) -> (Fired, u64) {
    let mut world = World::of(profile.clone(), seed);
    world.faults = Faults {
        loss: world.random() % 60,
        repeat: world.random() % 60,
        reorder: world.random() % 60,
        damage: world.random() % 60,
    };
    let (qa, qb) = world.pair(Transport::Rc);
    let local = world.a.buffer(SIZE, ALL);
    let bytes: Vec<u8> = (0..SIZE).map(|_| world.random().to_le_bytes()[3]).collect();
    local.fill(&bytes);
    let (remote, back, received) = (
        world.b.buffer(SIZE, ALL),
        world.a.buffer(64 * 512, ALL),
        world.b.buffer(64 * 512, ALL),
    );

    // What the memory has to be in the end, and what is received and read.
    let mut model = vec![0; SIZE];
    let mut reads = Vec::new();
    let mut messages = Vec::new();
    let mut was_read = false;
    let count = 1 + world.random() as usize % 60;
    for number in 0..count as u64 {
        let length = world.random() as usize
            % if world.random().is_multiple_of(4) {
                4096
            } else {
                64
            };
        let (from, to) = (
            world.random() as usize % (SIZE - length),
            world.random() as usize % (SIZE - length),
        );
        let short = length.min(512);
        let slot = 512 * number as usize;
        let (opcode, element) = match world.random() % 6 {
            kind @ 0..=2 => {
                let immediate = number.to_be_bytes()[4..].try_into().unwrap();
                world
                    .b
                    .post_receive(qb, number, &[received.part(512 * messages.len(), 512)]);
                let (data, opcode) = match kind {
                    0 => (&bytes[from..from + short], SendOpcode::Send),
                    1 => (
                        &bytes[from..from + short],
                        SendOpcode::SendWithImmediate(immediate),
                    ),
                    _ => {
                        model[to..to + short].copy_from_slice(&bytes[from..from + short]);
                        (
                            &[][..],
                            SendOpcode::WriteWithImmediate(remote.remote(to), immediate),
                        )
                    }
                };
                messages.push((number, kind, data, immediate));
                (opcode, local.part(from, short))
            }
            3 => {
                model[to..to + length].copy_from_slice(&bytes[from..from + length]);
                (
                    SendOpcode::Write(remote.remote(to)),
                    local.part(from, length),
                )
            }
            4 => {
                reads.push((slot, model[to..to + short].to_vec()));
                (SendOpcode::Read(remote.remote(to)), back.part(slot, short))
            }
            _ => {
                let to = to / 8 * 8;
                let place = &mut model[to..to + 8];
                let before = u64::from_ne_bytes((&*place).try_into().unwrap());
                reads.push((slot, place.to_vec()));
                let (add, is_swap) = (world.random(), world.random().is_multiple_of(2));
                let opcode = if is_swap {
                    place.copy_from_slice(&add.to_ne_bytes());
                    SendOpcode::CompareSwap {
                        remote: remote.remote(to),
                        compare: before,
                        swap: add,
                    }
                } else {
                    place.copy_from_slice(&before.wrapping_add(add).to_ne_bytes());
                    SendOpcode::FetchAdd {
                        remote: remote.remote(to),
                        add,
                    }
                };
                (opcode, back.part(slot, 8))
            }
        };
        let elements = [element];
        let mut request = SendRequest::new(number, opcode, Data::Elements(&elements));
        // What changes memory waits for reads of it (9.5).
        request.is_fenced = was_read;
        was_read = matches!(opcode, SendOpcode::Read(_));
        world.a.nic.post_send(qa, &request).unwrap();
        if world.random().is_multiple_of(8) {
            let time = Duration::from_micros(world.random() % 200_000);
            world.run_for(time);
        }
    }
    world.run_for(Duration::from_secs(600));

    let expected: Vec<_> = (0..count as u64)
        .map(|number| (number, Status::SUCCESS))
        .collect();
    assert_eq!(
        world.a.statuses(),
        expected,
        "seed {seed}: {:?}",
        world.fired
    );
    assert_eq!(remote.bytes(), model, "seed {seed}");
    for (slot, bytes) in reads {
        assert_eq!(back.bytes()[slot..slot + bytes.len()], bytes, "seed {seed}");
    }
    for (index, (number, kind, bytes, immediate)) in messages.into_iter().enumerate() {
        let completion = world
            .b
            .poll()
            .unwrap_or_else(|| panic!("seed {seed}: message {number} is missing"));
        assert_eq!(
            (completion.wr_id, completion.status),
            (number, Status::SUCCESS),
            "seed {seed}"
        );
        assert_eq!(
            completion.immediate,
            (kind != 0).then_some(immediate),
            "seed {seed}"
        );
        assert_eq!(
            received.bytes()[512 * index..][..bytes.len()],
            *bytes,
            "seed {seed}"
        );
    }
    assert_eq!(world.b.poll(), None, "seed {seed}: nothing twice");
    (world.fired, world.a.nic.counters().retries)
}

#[test]
fn programs_on_a_bad_link_are_those_of_the_model() {
    let mut all = Fired::default();
    let mut retries = 0;
    let (first, count) = match std::env::var("SOFT_NIC_SEED").map(|seed| seed.parse()) {
        Ok(Ok(seed)) => (seed, 1),
        Ok(Err(error)) => panic!("SOFT_NIC_SEED: {error}"),
        Err(_) => (0, if cfg!(miri) { 2 } else { 300 }),
    };
    for seed in first..first + count {
        // Seven retries are not for ever there: a bad link could end the connection.
        let profile = match seed % 2 {
            0 => Profile::default(),
            _ => Profile {
                retries_seven_for_ever: true,
                overrun_breaks: false,
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
        count < 100 || fired.iter().all(|times| *times > 100),
        "{all:?}"
    );
}

#[test]
fn the_same_seed_is_the_same_packets() {
    let packets = |seed| {
        let mut world = World::of(Profile::default(), seed);
        world.faults.loss = 100;
        let (qa, qb) = world.pair(Transport::Rc);
        for number in 0..30 {
            world.b.post_receive(qb, number, &[]);
            world.a.post(qa, number, SendOpcode::Send, &[]);
            world.run();
        }
        world.run_for(Duration::from_secs(9));
        world.raw
    };
    assert_eq!(packets(1), packets(1));
    assert_ne!(packets(1), packets(2));
}
