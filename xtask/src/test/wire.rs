//! The kernel's soft-RoCE at one end of a wire, a card in user space at the other, in a guest: what each sends, the other
//! understands.
//!
//! The connection manager is the kernel's at one end, too.
//!
//! One end of a pair of links is in a network namespace, as the kernel's soft-RoCE has port 4791 of a whole one.

use std::collections::BTreeMap;
use std::time::Duration;

use soft_roce::{Driver, Options, Way};

use super::devices;
use super::interop::step;
use super::report::Report;
use crate::jobs::Job;
use crate::workspace;

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

/// A conversation on the wire: one of the programs is C's if the options begin with `-g`, which it needs.
#[derive(Clone, Copy)]
struct Case {
    program: &'static str,
    /// The options of both ends.
    options: &'static str,
    /// Further ones of the client.
    client: &'static str,
}

/// Who serves in a conversation, and where C's program is, if one of them is.
#[derive(Clone, Copy)]
struct Roles {
    kernel_serves: bool,
    c_in_user_space: bool,
}

/// Those that are run by default; in an emulated kernel each takes a second or two.
const FEW: [Case; 7] = [
    Case::new("rc_pingpong", "-g 1 -c -m 4096 -s 20000 -n 50", ""),
    Case::new("uc_pingpong", "-g 1 -c -m 1024 -s 4096 -n 100", ""),
    Case::new("srq_pingpong", "-g 1 -c -m 1024 -s 4096 -n 100", ""),
    Case::new("ud_pingpong", "-g 1 -c -s 1024 -n 100", ""),
    Case::new("rdma_read_write", "-s 1 -s 4096 -s 1048576 -n 8", ""),
    Case::new("atomic_counter", "-n 100", ""),
    Case::new("perf", "--cm", "--op send -s 10000 --check -n 100"),
];

/// The others. A datagram is one packet; messages of unreliable queue pairs are no longer than the kernel's queues.
const MORE: [Case; 19] = [
    Case::new("rc_pingpong", "-g 1 -c -m 1024 -s 4096 -n 100", ""),
    Case::new("rc_pingpong", "-g 1 -c -m 1024 -s 1 -n 100", ""),
    Case::new("rc_pingpong", "-g 1 -c -m 1024 -s 1048576 -n 4", ""),
    Case::new("rc_pingpong", "-g 1 -c -m 256 -s 20000 -n 50", ""),
    Case::new("rc_pingpong", "-g 1 -c -m 512 -s 20000 -n 50", ""),
    Case::new("rc_pingpong", "-g 1 -c -m 2048 -s 20000 -n 50", ""),
    Case::new("uc_pingpong", "-g 1 -c -m 1024 -s 1 -n 100", ""),
    Case::new("uc_pingpong", "-g 1 -c -m 1024 -s 65536 -n 20", ""),
    Case::new("srq_pingpong", "-g 1 -c -m 1024 -s 1 -n 100", ""),
    // Sixteen queue pairs, as by default, have a thousand packets on their way, for which an emulated kernel may need
    // longer than all retries take.
    Case::new("srq_pingpong", "-g 1 -c -m 1024 -s 65536 -n 20 -q 4", ""),
    Case::new("ud_pingpong", "-g 1 -c -s 1 -n 100", ""),
    Case::new("ud_pingpong", "-g 1 -c -s 2048 -n 100", ""),
    Case::new("rdma_read_write", "-s 65536 -n 8", ""),
    Case::new("perf", "", "--op send -s 10000 --check -n 100"),
    Case::new("perf", "", "--op write -s 10000 --check -n 100"),
    Case::new("perf", "", "--op write-imm -s 10000 --check -n 100"),
    Case::new("perf", "", "--op read -s 10000 --check -n 100"),
    Case::new("perf", "", "--op cas --check -n 100"),
    Case::new("perf", "", "--op faa --check -n 100"),
];

/// Those on a wire that loses packets.
const LOSSY: [Case; 4] = [
    Case::new("rc_pingpong", "-g 1 -c -m 1024 -s 65536 -n 20", ""),
    Case::new("srq_pingpong", "-g 1 -c -m 1024 -s 4096 -n 100", ""),
    Case::new("rdma_read_write", "-s 1 -s 4096 -s 1048576 -n 8", ""),
    Case::new("atomic_counter", "-n 100", ""),
];

/// Programs of rdma-core that connect by `rdma_cm`: the server's command, and the client's without the address. Only the first
/// is run by default.
const MANAGED: [(&str, &str); 4] = [
    ("rping -s -C 10", "rping -c -V -C 10 -a"),
    ("ucmatose", "ucmatose -s"),
    ("udaddy", "udaddy -s"),
    ("rdma_server", "rdma_client -s"),
];

/// The conversations without loss, and those with loss.
fn cases(all: bool) -> [Vec<Case>; 2] {
    let (more, lossy) = if all {
        (&MORE[..], &LOSSY[..])
    } else {
        (&[][..], &[][..])
    };
    [[&FEW[..], more].concat(), lossy.to_vec()]
}

/// Each conversation with all roles; without `all`, C's program is in the kernel's part.
fn played(cases: &[Case], all: bool) -> impl Iterator<Item = (Case, Roles)> {
    let roles = [(true, false), (false, false), (true, true), (false, true)];
    let roles = roles.map(|(kernel_serves, c_in_user_space)| Roles {
        kernel_serves,
        c_in_user_space,
    });
    let wanted = move |case: &Case, roles: &Roles| !roles.c_in_user_space || case.has_c() && all;
    let played = cases
        .iter()
        .flat_map(move |case| roles.map(|roles| (*case, roles)));
    played.filter(move |(case, roles)| wanted(case, roles))
}

/// The conversations by `rdma_cm`, by their names: the client tries again until the server listens.
fn managed(library: &str, all: bool) -> impl Iterator<Item = Job> {
    let wanted = MANAGED
        .into_iter()
        .take(if all { MANAGED.len() } else { 1 });
    let both = wanted.flat_map(|it| [(it, true), (it, false)]);
    both.map(move |((serves, asks), kernel_serves)| {
        let user = in_user_space(library);
        let (server, client, address, ends) = match kernel_serves {
            true => ("", &*user, ADDRESSES[0], "user space to the kernel"),
            false => (&*user, "", ADDRESSES[1], "the kernel to user space"),
        };
        let program = asks.split(' ').next().unwrap_or(asks);
        let script = format!(
            "{server} {serves} & until sleep 1; {client} {asks} {address}; do kill -0 $! || exit 1; done; wait $!"
        );
        shell(&format!("wire: {program}, {ends}"), &script)
    })
}

/// The words before a command that runs at the end in user space.
fn in_user_space(library: &str) -> String {
    let address = ADDRESSES[1];
    format!("ip netns exec user env LD_LIBRARY_PATH={library} SOFT_VERBS_ADDRESS={address}")
}

/// A job of one script.
fn shell(name: &str, script: &str) -> Job {
    job(
        name.to_owned(),
        vec![["sh", "-c", script].map(str::to_owned).to_vec()],
    )
}

/// The names of all conversations.
fn names(all: bool) -> impl Iterator<Item = String> {
    let cases = cases(all).into_iter();
    let managed = managed("", all).map(|job| job.name);
    managed.chain(cases.flat_map(move |cases| {
        let played = played(&cases, all).map(|(case, roles)| case.name(roles));
        played.collect::<Vec<_>>()
    }))
}

/// Runs the conversations whose name contains `filter`: all of them, or a few.
pub(super) fn tests(report: &mut Report, options: &Options, filter: Option<&str>, all: bool) {
    let mut names = names(all);
    let wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    if !names.any(|name| wanted(&name)) {
        return;
    }
    let mut guest = options.clone();
    (guest.way, guest.driver) = (Way::Guest, Driver::Rxe);
    step(report, "wire", &guest, || {
        let mut user = options.clone();
        (user.way, user.driver) = (Way::User, Driver::Rxe);
        let library = soft_roce::library(&user)?.display().to_string();
        let examples = devices::built()?;
        let mut ours = BTreeMap::new();
        for case in cases(all).iter().flatten() {
            let program = workspace::example(&examples, case.program)?;
            ours.insert(case.program, program.display().to_string());
        }
        let [plain, lossy] = cases(all);
        let jobs = |cases: &[Case], how: &str| -> Vec<Job> {
            let jobs = played(cases, all).map(|(case, roles)| {
                let mut job = case.job(&library, &ours[case.program], roles);
                job.name += how;
                job
            });
            jobs.filter(|job| wanted(&job.name)).collect()
        };
        let mut run = vec![shell("the wire between a kernel and user space", UP)];
        run.extend(managed(&library, all).filter(|job| wanted(&job.name)));
        run.extend(jobs(&plain, ""));
        let lossy = jobs(&lossy, ", with loss");
        if !lossy.is_empty() {
            run.push(shell("the wire loses packets", LOSS));
        }
        run.extend(lossy);
        Ok(run)
    });
}

impl Case {
    const fn new(program: &'static str, options: &'static str, client: &'static str) -> Self {
        Self {
            program,
            options,
            client,
        }
    }

    /// Whether one of the programs is C's.
    fn has_c(&self) -> bool {
        self.options.starts_with("-g")
    }

    fn name(&self, roles: Roles) -> String {
        let Self {
            program,
            options,
            client,
            ..
        } = self;
        let (serves, asks) = match roles.kernel_serves {
            true => ("the kernel", "user space"),
            false => ("user space", "the kernel"),
        };
        let words = format!("wire: {program} {options} {client}");
        let c = match roles.c_in_user_space {
            true => ", C in user space",
            false => "",
        };
        format!("{}, {asks} to {serves}{c}", words.trim_end())
    }

    fn job(&self, library: &str, ours: &str, roles: Roles) -> Job {
        let kernel_serves = roles.kernel_serves;
        let c = format!("ibv_{}", self.program);
        let [in_kernel, program] = match (self.has_c(), roles.c_in_user_space) {
            (true, false) => [&c, ours],
            (true, true) => [ours, &c],
            (false, _) => [ours, ours],
        };
        let kernel = format!("{in_kernel} -d wire0");
        let user = format!("{} {program} -d soft0", in_user_space(library));
        let ends = match kernel_serves {
            true => [kernel, user],
            false => [user, kernel],
        };
        let address = ADDRESSES[usize::from(!kernel_serves)];
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
        let [server, client] = ends;
        let clients = match self.program {
            "atomic_counter" => "--clients 1",
            _ => "",
        };
        let Self {
            options,
            client: more,
            ..
        } = self;
        job(
            self.name(roles),
            vec![
                words(format!("{server} {options} {clients}")),
                words(format!("{client} {options} {more} {address}")),
            ],
        )
    }
}

fn job(name: String, commands: Vec<Vec<String>>) -> Job {
    Job::new(name, Duration::from_secs(120), commands)
}

#[cfg(test)]
mod tests {
    use super::{cases, names, played};
    use std::collections::BTreeSet;

    #[test]
    fn each_conversation_is_there_once_and_the_few_are_among_all() {
        let [few, all] = [false, true].map(|all| names(all).collect::<Vec<_>>());
        let [plain, _] = cases(true);
        let played = || played(&plain, true).map(|(case, roles)| case.name(roles));
        assert_eq!(played().collect::<BTreeSet<_>>().len(), played().count());
        assert!(few.iter().all(|name| all.contains(name)), "{few:?}");
        let c_serves = "user space, C in user space";
        assert!(all.iter().any(|name| name.ends_with(c_serves)), "{all:?}");
    }
}
