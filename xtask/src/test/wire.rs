//! The kernel's soft-RoCE at one end of a wire, a card in user space at the other, in a guest: what each sends, the other
//! understands.
//!
//! The connection manager is the kernel's at one end, too.
//!
//! One end of a pair of links is in a network namespace, as the kernel's soft-RoCE has port 4791 of a whole one.

use std::time::Duration;

use soft_roce::{Driver, Options, Way};

use super::interop::step;
use super::report::Report;
use crate::jobs::Job;

/// The addresses of the kernel's end, and of the card in user space.
const ADDRESSES: [&str; 2] = ["10.20.0.1", "10.20.0.2"];

/// Makes the wire.
const UP: &str = "ip netns add user && ip link add w0 mtu 4200 type veth peer name w1 mtu 4200 netns user && \
    ip addr add 10.20.0.1/24 dev w0 && ip link set w0 up && \
    ip -n user addr add 10.20.0.2/24 dev w1 && ip -n user link set w1 up && ip -n user link set lo up && \
    rdma link add wire0 type rxe netdev w0 && \
    until grep -q 10.20 /proc/net/fib_trie && \
        cat /sys/class/infiniband/wire0/ports/1/gids/1 | grep -q ffff:0a14; do sleep 0.1; done";

/// Loses packets in both directions.
const LOSS: &str = "tc qdisc replace dev w0 root netem loss 1% && \
    ip netns exec user tc qdisc replace dev w1 root netem loss 1%";

/// How the names of all conversations begin.
const NAME: &str = "wire: ";

/// The conversations that are run by default, each a program with the options of both ends; in an emulated kernel each takes a
/// second or two. One of the programs is C's if the options begin with `-g`, which it needs.
const FEW: [&str; 7] = [
    "rc_pingpong -g 1 -c -m 4096 -s 20000 -n 50",
    "uc_pingpong -g 1 -c -m 1024 -s 4096 -n 100",
    "srq_pingpong -g 1 -c -m 1024 -s 4096 -n 100",
    "ud_pingpong -g 1 -c -s 1024 -n 100",
    "rdma_read_write -s 1 -s 4096 -s 1048576 -n 8",
    "atomic_counter --clients 1 -n 100",
    "perf --cm --op send -s 10000 --check -n 100",
];

/// The others. A datagram is one packet; messages of unreliable queue pairs are no longer than the kernel's queues.
const MORE: [&str; 19] = [
    "rc_pingpong -g 1 -c -m 1024 -s 4096 -n 100",
    "rc_pingpong -g 1 -c -m 1024 -s 1 -n 100",
    "rc_pingpong -g 1 -c -m 1024 -s 1048576 -n 4",
    "rc_pingpong -g 1 -c -m 256 -s 20000 -n 50",
    "rc_pingpong -g 1 -c -m 512 -s 20000 -n 50",
    "rc_pingpong -g 1 -c -m 2048 -s 20000 -n 50",
    "uc_pingpong -g 1 -c -m 1024 -s 1 -n 100",
    "uc_pingpong -g 1 -c -m 1024 -s 65536 -n 20",
    "srq_pingpong -g 1 -c -m 1024 -s 1 -n 100",
    // Sixteen queue pairs, as by default, have a thousand packets on their way, for which an emulated kernel may need
    // longer than all retries take.
    "srq_pingpong -g 1 -c -m 1024 -s 65536 -n 20 -q 4",
    "ud_pingpong -g 1 -c -s 1 -n 100",
    "ud_pingpong -g 1 -c -s 2048 -n 100",
    "rdma_read_write -s 65536 -n 8",
    "perf --op send -s 10000 --check -n 100",
    "perf --op write -s 10000 --check -n 100",
    "perf --op write-imm -s 10000 --check -n 100",
    "perf --op read -s 10000 --check -n 100",
    "perf --op cas --check -n 100",
    "perf --op faa --check -n 100",
];

/// Those on a wire that loses packets.
const LOSSY: [&str; 4] = [
    "rc_pingpong -g 1 -c -m 1024 -s 65536 -n 20",
    "srq_pingpong -g 1 -c -m 1024 -s 4096 -n 100",
    "rdma_read_write -s 1 -s 4096 -s 1048576 -n 8",
    "atomic_counter --clients 1 -n 100",
];

/// Programs of rdma-core that connect by `rdma_cm`: the server's command, and the client's without the address. Only the first
/// is run by default.
const MANAGED: [(&str, &str); 4] = [
    ("rping -s -C 10", "rping -c -V -C 10 -a"),
    ("ucmatose", "ucmatose -s"),
    ("udaddy", "udaddy -s"),
    ("rdma_server", "rdma_client -s"),
];

/// Runs the conversations whose name contains `filter`: all of them, or a few.
pub(super) fn tests(report: &mut Report, options: &Options, filter: Option<&str>, all: bool) {
    let is_wanted = |job: &Job| filter.is_none_or(|filter| job.name.contains(filter));
    let is_test = |job: &Job| job.name.starts_with(NAME);
    if !jobs("", all)
        .iter()
        .any(|job| is_test(job) && is_wanted(job))
    {
        return;
    }
    let (mut guest, mut user) = (options.clone(), options.clone());
    (guest.way, guest.driver) = (Way::Guest, Driver::Rxe);
    (user.way, user.driver) = (Way::User, Driver::Rxe);
    let jobs = soft_roce::library(&user).map(|library| {
        let mut jobs = jobs(&library.display().to_string(), all);
        jobs.retain(|job| !is_test(job) || is_wanted(job));
        jobs
    });
    step(report, "wire", &guest, jobs);
}

/// The job that makes the wire, and the conversations on it; `library` is the folder of the one for devices in user space.
fn jobs(library: &str, all: bool) -> Vec<Job> {
    let mut jobs = vec![shell("the wire between a kernel and user space".into(), UP)];
    for (serves, asks) in &MANAGED[..if all { MANAGED.len() } else { 1 }] {
        jobs.extend(
            [true, false].map(|kernel_serves| managed(serves, asks, library, kernel_serves)),
        );
    }
    let cases = |cases: &'static [&str]| cases.iter().flat_map(|case| roles(case, library, all));
    jobs.extend(cases(&FEW));
    if all {
        jobs.extend(cases(&MORE));
        jobs.push(shell("the wire loses packets".into(), LOSS));
        jobs.extend(cases(&LOSSY).map(|mut job| {
            job.name += ", with loss";
            job
        }));
    }
    jobs
}

/// A conversation by `rdma_cm`: the client tries again until the server listens.
fn managed(serves: &str, asks: &str, library: &str, kernel_serves: bool) -> Job {
    let user = in_user_space(library);
    let (server, client) = match kernel_serves {
        true => ("", &*user),
        false => (&*user, ""),
    };
    let (ends, address) = ends(kernel_serves);
    let program = asks.split(' ').next().unwrap_or(asks);
    let script = format!(
        "{server} {serves} & until sleep 1; {client} {asks} {address}; do kill -0 $! || exit 1; done; wait $!"
    );
    shell(format!("{NAME}{program}, {ends}"), &script)
}

/// A conversation in all roles; without `all`, C's program is in the kernel's part, and serves: both ends of a ping-pong do the same.
fn roles(case: &'static str, library: &str, all: bool) -> Vec<Job> {
    let (program, options) = case.split_once(' ').unwrap_or((case, ""));
    let (c, ours) = (format!("ibv_{program}"), format!("{{{program}}}"));
    let has_c = options.starts_with("-g");
    let mut jobs = Vec::new();
    for (kernel_serves, c_in_user_space) in
        [(true, false), (false, false), (true, true), (false, true)]
    {
        let [in_kernel, in_user] = match (has_c, c_in_user_space) {
            (true, false) if all || kernel_serves => [&c, &ours],
            (true, true) if all => [&ours, &c],
            (false, false) => [&ours, &ours],
            _ => continue,
        };
        let kernel = format!("{in_kernel} -d wire0 {options}");
        let user = format!("{} {in_user} -d soft0 {options}", in_user_space(library));
        let (server, client) = match kernel_serves {
            true => (kernel, user),
            false => (user, kernel),
        };
        let (ends, address) = ends(kernel_serves);
        let c = if c_in_user_space {
            ", C in user space"
        } else {
            ""
        };
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
        jobs.push(job(
            format!("{NAME}{case}, {ends}{c}"),
            vec![words(server), words(format!("{client} {address}"))],
        ));
    }
    jobs
}

/// Who asks whom, and the address of the one that is asked.
const fn ends(kernel_serves: bool) -> (&'static str, &'static str) {
    match kernel_serves {
        true => ("user space to the kernel", ADDRESSES[0]),
        false => ("the kernel to user space", ADDRESSES[1]),
    }
}

/// The words before a command that runs at the end in user space.
fn in_user_space(library: &str) -> String {
    let address = ADDRESSES[1];
    format!("ip netns exec user env LD_LIBRARY_PATH={library} SOFT_VERBS_ADDRESS={address}")
}

/// A job of one script.
fn shell(name: String, script: &str) -> Job {
    job(name, vec![["sh", "-c", script].map(str::to_owned).to_vec()])
}

fn job(name: String, commands: Vec<Vec<String>>) -> Job {
    Job::new(name, Duration::from_secs(120), commands)
}

#[cfg(test)]
mod tests {
    use super::jobs;
    use std::collections::BTreeSet;

    #[test]
    fn each_conversation_is_there_once_and_the_few_are_among_all() {
        let names = |all| jobs("", all).into_iter().map(|job| job.name);
        let every: BTreeSet<String> = names(true).collect();
        assert_eq!(every.len(), names(true).count());
        assert!(names(false).all(|name| every.contains(&name)));
        let c_serves = "the kernel to user space, C in user space";
        assert!(
            every.iter().any(|name| name.ends_with(c_serves)),
            "{every:?}"
        );
    }
}
