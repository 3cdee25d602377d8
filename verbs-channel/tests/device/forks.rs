//! Forks: a child drops and ends what its parent has, and the parent goes on with its queue pairs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use verbs_channel::error::CloseError;
use verbs_channel::verbs_core::device::fork_init;
use verbs_channel::{BufferPool, Channel, Datagrams};
use verbs_harness::child::{Child, end_the_child, fork, in_the_child, role, wait_for_the_child};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin};

use super::ends::{filled, here, patient, works, zeros};
use super::meeting::{Meeting, connect};

/// A pair that met over TCP, so that each end watches the other.
fn watched() -> (Channel, Channel) {
    let meeting = Meeting::new();
    let address = meeting.address;
    thread::scope(|threads| {
        let client = threads.spawn(move || connect(address, patient));
        let accepted = meeting.accept(patient(&here()));
        (client.join().unwrap(), accepted)
    })
}

/// A page of this memory, which has room for it. After `fork_init`, a child has no page on which registered
/// bytes are, so nothing else may be there.
fn page(memory: &mut [u8]) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(PAGE);
    &mut memory[start..start + PAGE]
}

const PAGE: usize = 4096;

/// A scope that unwinds in a child, with its operations in flight; and then the parent's channels.
fn a_scope_unwinds() -> (Channel, Channel) {
    let (mut a, mut b) = watched();
    works(&mut a, &mut b, 1000);
    let mut memory = [vec![0; 2 * PAGE], vec![7; 2 * PAGE]];
    let [into, from] = &mut memory;
    let mut into = a.pd().reg_mr(page(into)).unwrap();
    let from = b.pd().reg_mr(page(from)).unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        a.scope(|scope| {
            let mut receive = scope
                .post_receive(into.scatter_element(..).unwrap())
                .unwrap();
            let child = fork();
            if child == 0 {
                resume_unwind(Box::new("in the child"));
            }
            wait_for_the_child(child);
            b.send(from.gather_element(..).unwrap()).unwrap();
            receive.wait_timeout(PATIENCE).unwrap().unwrap();
            Ok::<_, ()>(())
        })
    }));
    if unwound.is_err() {
        end_the_child(|| drop((a, b, into, from)));
    }
    assert_eq!(into[..], [7; PAGE]);
    (a, b)
}

/// All that a child can end of its parent's, and what the parent does with it afterwards.
fn children_end_everything() {
    let (mut a, b) = a_scope_unwinds();
    let (into, from) = (zeros(&a, 64), filled(&b, 1, 64));

    // Channels with owned operations in flight, which are dropped, and closed.
    let receive = a.start_receive(into).unwrap();
    let mut ends = Some((a, b, from));
    in_the_child(fork(), || drop(ends.take()));
    in_the_child(fork(), || {
        let (a, b, _from) = ends.take().unwrap();
        assert_eq!(a.close(), Err(CloseError::OtherProcess));
        assert_eq!(b.close(), Err(CloseError::OtherProcess));
    });
    let (mut a, mut b, from) = ends.unwrap();
    b.send(from.gather_element(..).unwrap()).unwrap();
    let received = a.wait(receive, Some(PATIENCE)).unwrap().unwrap();
    received.result.unwrap();
    works(&mut a, &mut b, 1000);
    // The peer's end is noticed still.
    drop(b);
    let mut into = zeros(&a, 64);
    a.receive(into.scatter_element(..).unwrap()).unwrap_err();
    a.close().unwrap();

    if !is_iwarp() {
        datagrams();
    }
}

fn datagrams() {
    let pd = here();
    let pool = BufferPool::new(&pd, 64, 2).unwrap();
    let block = || pool.take_with(b"hello").unwrap().unwrap();
    let mut asks = Datagrams::builder(&pd).build().unwrap();
    let mut answers = Datagrams::builder(&pd).build().unwrap();
    let server = answers.endpoint();
    for _ in 0..2 {
        asks.send_to(&server, block()).unwrap();
        let question = answers.receive_from(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(question[..], *b"hello");
        drop(question);
        asks.flush(Some(PATIENCE));
        let mut ends = Some((asks, answers));
        in_the_child(fork(), || drop(ends.take()));
        (asks, answers) = ends.unwrap();
    }
    asks.close().unwrap();
    answers.close().unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn children_of_a_fork_end_their_copies_and_the_parent_goes_on() {
    if let Some((role, mut line)) = role() {
        if role == "safe" {
            // First of all verbs.
            drop(fork_init());
            let (a, b) = a_scope_unwinds();
            let mut ends = Some((a, b));
            in_the_child(fork(), || drop(ends.take()));
            let (mut a, mut b) = ends.unwrap();
            works(&mut a, &mut b, 1000);
        } else {
            children_end_everything();
        }
        return line.write("works");
    }
    let test = begin!();
    for role in ["plain", "safe"] {
        let mut child = Child::start(&test, role);
        assert_eq!(child.line.read(), "works", "{role}");
        assert!(child.ended().success());
    }
}

#[test]
#[cfg(feature = "rdmacm")]
#[ignore = "needs an RDMA device"]
fn a_child_of_a_fork_ends_no_connection_of_the_connection_manager() {
    let test = begin!();
    let Some(mut server) = super::by_manager::Server::new(&test) else {
        return;
    };
    let (mut a, mut b) = super::by_manager::pair(&mut server);
    let mut ends = Some((a, b, server));
    in_the_child(fork(), || drop(ends.take()));
    let server;
    (a, b, server) = ends.unwrap();
    works(&mut a, &mut b, 1000);
    a.close().unwrap();
    b.close().unwrap();
    drop(server);
}
