//! `nvme_copy` and a target of this test's own, honest or not, which runs where the kernel's cannot.

use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use programs::Pattern;
use verbs_channel::verbs_core::rdmacm::{ConnectRequest, Listener, Message};
use verbs_channel::{BufferPool, Channel, Connect, Outgoing};
use verbs_core::{ProtectionDomain, RemoteMemoryRegion};
use verbs_harness::program::{Program, Scratch};
use verbs_harness::{PATIENCE, begin, context};

use crate::nvme::NVME_COPY;

/// Behaviour of a target.
#[derive(Clone, Copy)]
struct Manner {
    /// Private data of its answer to a connection, or of its rejection.
    greeting: Result<&'static [u8], &'static [u8]>,
    /// Whether it invalidates the keys that it may.
    gives_back: bool,
    /// Commands of this opcode are answered so.
    fault: Option<(u8, Fault)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Without the data.
    Lie,
    /// With this number.
    Number(u16),
    /// With this number of bytes; none is silence.
    Length(usize),
    /// With this status.
    Status(u16),
}

const HONEST: Manner = Manner {
    greeting: Ok(&[0, 0, 32, 0]),
    gives_back: true,
    fault: None,
};

const FABRICS: u8 = 0x7f;
const READ: u8 = 2;
const BLOCK: usize = 512;

/// The program has ended by then, or never does.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs the program with these words, and with a target of this manner.
fn with_target(manner: &Manner, words: &[&str]) -> Option<Program> {
    let (pd, disk) = (
        context().alloc_pd().unwrap(),
        Mutex::new(vec![7; 2048 * BLOCK]),
    );
    let ip = verbs_harness::ip(pd.context())?;
    let mut listener = Listener::bind(SocketAddr::new(ip, 0), 8).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (has_ended, begun) = (AtomicBool::new(false), Instant::now());
    thread::scope(|threads| {
        threads.spawn(|| {
            // Not forever, if the program does not end in time.
            while !has_ended.load(Ordering::Relaxed) && begun.elapsed() < LIMIT {
                if let Some(request) = listener.request(Some(Duration::from_millis(20))).unwrap() {
                    // It ends when the program disconnects.
                    threads.spawn(|| serve(request, &pd, &disk, manner));
                }
            }
        });
        let program = Program::start(
            NVME_COPY,
            &[&[&address, "nqn"], words].concat(),
            "VERBS_DEVICE",
        );
        program.waits_for(|| program.is_over());
        has_ended.store(true, Ordering::Relaxed);
        Some(program)
    })
}

/// One connection, until it breaks.
fn serve(
    request: ConnectRequest,
    pd: &ProtectionDomain,
    disk: &Mutex<Vec<u8>>,
    manner: &Manner,
) -> Option<()> {
    let greeting = match manner.greeting {
        Ok(greeting) => greeting,
        Err(why) => return request.reject(Message::raw(why)).ok(),
    };
    let pool = BufferPool::new(pd, 64, 32).unwrap();
    let mut prepared = Channel::builder(pd).timeout(PATIENCE).build().unwrap();
    while let Some(block) = pool.take() {
        prepared.start_receive(block).unwrap();
    }
    let options = Connect::within(PATIENCE).raw_private_data(greeting);
    let mut channel = prepared.accept(request, options).ok()?.channel;
    let mut memory = pd.reg_mr(vec![0; 128 << 10]).unwrap();
    loop {
        let received = channel.wait_completed(PATIENCE)?;
        let command: [u8; 64] = received.message()?.try_into().ok()?;
        channel.start_receive(received.buffer?).ok()?;
        let number = |from: usize, len: usize| {
            let bytes = command[from..from + len].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let key = u32::try_from(number(35, 4)).unwrap();
        let theirs = RemoteMemoryRegion::new(number(24, 8), number(32, 3), key).unwrap();
        let (len, first) = (
            usize::try_from(theirs.len()).unwrap(),
            usize::try_from(number(40, 8)).unwrap(),
        );
        let mut answer = vec![0; 16];
        answer[12..14].copy_from_slice(&command[2..4]);
        let fault = manner.fault.filter(|(opcode, _)| *opcode == command[0]);
        let fault = fault.map(|(_, fault)| fault);
        match fault {
            Some(Fault::Number(number)) => answer[12..14].copy_from_slice(&number.to_le_bytes()),
            Some(Fault::Status(status)) => answer[14..16].copy_from_slice(&status.to_le_bytes()),
            _ => {}
        }
        let moves = fault != Some(Fault::Lie);
        match (command[0], command[4], command[40]) {
            // The property 0 is what the controller can do, 0x1c whether it is ready.
            (FABRICS, 4, _) if command[44] == 0 => answer[0] = 127,
            // Connect returns the controller's number.
            (FABRICS, 1 | 4, _) => answer[0] = 1,
            (6, _, what) => {
                memory[..len].fill(0);
                // Keyed descriptors, or 2048 blocks of 2^9 bytes.
                match what {
                    1 => memory[536] = 4,
                    _ => (memory[1], memory[130]) = (8, 9),
                }
                channel
                    .write(memory.gather_element(..len).ok()?, theirs)
                    .ok()?;
            }
            (1, ..) if moves => {
                channel
                    .read(memory.scatter_element(..len).ok()?, theirs)
                    .ok()?;
                disk.lock().unwrap()[first * BLOCK..][..len].copy_from_slice(&memory[..len]);
            }
            (READ, ..) if moves => {
                memory[..len].copy_from_slice(&disk.lock().unwrap()[first * BLOCK..][..len]);
                channel
                    .write(memory.gather_element(..len).ok()?, theirs)
                    .ok()?;
            }
            _ => {}
        }
        if let Some(Fault::Length(len)) = fault {
            answer.truncate(len);
        }
        memory[..answer.len()].copy_from_slice(&answer);
        if !answer.is_empty() {
            let send = Outgoing::send(memory.gather_element(..answer.len()).ok()?);
            let gives_back = manner.gives_back && command[39] == 0x4f;
            let send = if gives_back {
                send.invalidate(key)
            } else {
                send
            };
            channel.run(send).ok()?;
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn buffers_are_lent_to_a_target_that_gives_them_back_or_does_not() {
    let test = begin!();
    let scratch = Scratch::new();
    let file = scratch.path("file");
    fs::write(&file, Pattern::new(1).bytes(0, 300_001)).unwrap();
    let words = [
        "write",
        file.to_str().unwrap(),
        "--size",
        "16",
        "--depth",
        "8",
    ];
    for gives_back in [true, false] {
        let manner = Manner {
            gives_back,
            ..HONEST
        };
        let Some(program) = with_target(&manner, &words) else {
            return test.skip("the device has no IPv4 address");
        };
        let output = program.succeeds();
        // 19 pieces are written and compared; the first is of Connect. On soft-RoCE there are no windows.
        let leases = match (verbs_harness::is_in_user_space(), gives_back) {
            (true, true) => "39 given back, 0 revoked, 0 registrations",
            (true, false) => "0 given back, 39 revoked, 0 registrations",
            (false, _) => "leases: ",
        };
        let is_copied = output.contains("300001 bytes written, and compared");
        assert!(is_copied && output.contains(leases), "{output}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_target_that_lies_is_silent_or_answers_with_rubbish_is_an_error() {
    let test = begin!();
    let scratch = Scratch::new();
    let file = scratch.path("file");
    fs::write(&file, vec![7; 100_000]).unwrap();
    let file = file.to_str().unwrap();
    let rubbish = "which answers nothing";
    let faults = [
        (READ, Fault::Lie, "the blocks differ from the file: byte "),
        (READ, Fault::Number(9), rubbish),
        (READ, Fault::Number(u16::MAX), rubbish),
        (READ, Fault::Length(15), rubbish),
        // In two seconds nothing at all may be answered on a busy machine.
        (READ, Fault::Length(0), "answer"),
        (FABRICS, Fault::Length(0), "answer"),
        (
            READ,
            Fault::Status(0x0502),
            "rejects Read: the target could not read",
        ),
    ];
    let greetings = [
        (Ok(&b"hello"[..]), "the peer is no target"),
        (
            Err(&[0, 0, 6, 0][..]),
            "rejects the connection: it has no resources left",
        ),
    ];
    let greetings = greetings.map(|(greeting, expected)| (Manner { greeting, ..HONEST }, expected));
    let faults = faults.map(|(opcode, fault, expected)| {
        let fault = Some((opcode, fault));
        (Manner { fault, ..HONEST }, expected)
    });
    for (manner, expected) in faults.into_iter().chain(greetings) {
        let is_silent = matches!(manner.fault, Some((_, Fault::Length(0))));
        let limit = if is_silent { "2" } else { "30" };
        let words = ["verify", file, "--timeout", limit];
        let Some(program) = with_target(&manner, &words) else {
            return test.skip("the device has no IPv4 address");
        };
        let why = program.fails();
        assert!(why.contains(expected), "{expected}: {why}");
    }
}
