//! Many channels: what a completion costs, what each channel takes, and what it costs to join and to leave.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::chart::{Lines, Scale, Series};
use super::clock;
use super::contest::{self, Contender, Contest, LIMIT, Outcome, script, words};
use super::instructions::{Row, cost};
use super::operations::Ours;
use super::plan::{Part, Plan};
use super::programs::{build_c, build_ours};
use super::progress::Progress;
use super::report::Section;
use super::samples::Spread;
use super::table::{Table, cell, ratio};
use crate::error::{Context as _, Error};
use crate::numbers::{digits, thousands};
use crate::workspace;

const ABOUT: &str = "\
A completion is that of a send on one of a group's channels, each in turn, on the stand-in that completes every \
request at once; joining is making a queue pair, connecting it to itself, adding it to a group and removing it: one \
of 64 channels, or of 250 with 256 receives in flight each. Instructions are the group's, times with the stand-in's. \
Memory is what the server of `many_clients` has more with so many connections than with none: its own, and that of \
the whole machine with the kernel's and the clients', which run on it, too. There, the time to join is that of adding \
a connected channel to the group, and the time to leave that of removing it, which destroys its queue pair; \
connecting, over TCP and on other threads, is in neither. Times are medians.";

const CHANNELS: [u32; 4] = [1, 16, 256, 4096];
const IN_FLIGHT: [u32; 2] = [64, 64_000];

/// Counts on the stand-in.
struct Counted {
    of: u32,
    instructions: f64,
    time: Option<Spread>,
}

/// How many connections a server of `many_clients` has; without `--full` the first three.
const CLIENTS: [u32; 4] = [16, 64, 256, 1024];

/// Most connections of one process.
const OF_A_PROCESS: u32 = 250;

/// Measures all of it, but for the operations that were measured just now.
pub(super) fn measure(plan: &Plan, many_clients: &Path, known: &[Row]) -> Result<Section, Error> {
    let (completions, joins) = on_the_stand_in(plan, known)?;
    let clients = match plan.full {
        true => &CLIENTS[..],
        false => &CLIENTS[..3],
    };
    let contests: Vec<Contest> = clients
        .iter()
        .map(|clients| contest(plan, many_clients, *clients))
        .collect();
    let rounds = plan.rounds(Part::Scale);
    let outcomes = contest::hold(&contests, rounds, plan, "many clients")?;
    let mut section = section(&completions, &joins, plan.rounds(Part::Instructions));
    let connected: Vec<(u32, &Outcome)> = clients.iter().copied().zip(&outcomes.all).collect();
    let caption = format!("Connections of one server, n = {rounds}");
    section.tables.push((caption, memory(&connected)));
    section.rounds = rounds;
    section.command = plan.command(Part::Scale);
    section.about = ABOUT.to_owned();
    outcomes.note_in(&mut section);
    Ok(section)
}

/// The costs of completions with more and more channels, and of joining with more and more in flight.
fn on_the_stand_in(plan: &Plan, known: &[Row]) -> Result<(Vec<Counted>, Vec<Counted>), Error> {
    let dir = workspace::scratch_dir()?.join("bench");
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    println!("building the programs that are counted");
    let _reference = build_c(&dir)?;
    let program = build_ours(Ours::Channel)?;
    let mut progress = Progress::new("channels", CHANNELS.len() + IN_FLIGHT.len());
    let mut count = |name: String, of: u32| {
        progress.next(&name);
        if let Some(row) = known.iter().find(|row| row.operation.name == name) {
            return Ok(Counted {
                of,
                instructions: row.ours.instructions,
                time: row.times.as_ref().map(|times| times.ours),
            });
        }
        let instructions = cost(&program, &dir, &name)?.instructions;
        let timed = [(&*program, &*name, instructions)];
        let samples = clock::samples(timed, &dir, plan.rounds(Part::Instructions))?;
        Ok::<_, Error>(Counted {
            of,
            instructions,
            time: samples.and_then(|[samples]| Spread::of(samples)),
        })
    };
    let mut completions = Vec::new();
    for of in CHANNELS {
        completions.push(count(format!("group{of}"), of)?);
    }
    let mut joins = Vec::new();
    for of in IN_FLIGHT {
        joins.push(count(format!("rejoin{of}"), of)?);
    }
    Ok((completions, joins))
}

/// How many processes share `clients` connections, and how many each of them has: all the same.
fn divided(clients: u32) -> (u32, u32) {
    let mut processes = clients.div_ceil(OF_A_PROCESS)..=clients;
    let processes = processes.find(|processes| clients.is_multiple_of(*processes));
    let processes = processes.unwrap_or(clients);
    (processes, clients / processes)
}

fn contest(plan: &Plan, program: &Path, clients: u32) -> Contest {
    let program = program.display().to_string();
    let server = format!(
        "\"$1\" -d \"$0\" \"${{@:2}}\" --clients {clients} --max-clients {} --receives {} | sed 's/^/RESULT /'",
        clients.max(64),
        (clients * 4).clamp(256, 16_384)
    );
    let (processes, each) = divided(clients);
    let each = each.to_string();
    let mut client = words(&[&program, "-d", "{peer}", "-n", "20", "-c", &each]);
    if processes > 1 {
        client.extend(words(&["--processes", &processes.to_string()]));
    }
    let mut server = script(&server, &["{device}", &program]);
    if let Some(gid) = &plan.gid {
        server.extend(words(&["-g", gid]));
        client.extend(words(&["-g", gid]));
    }
    client.push("127.0.0.1".to_owned());
    Contest {
        name: format!("{clients} connections"),
        // On soft-RoCE, each takes some hundredths of a second.
        limit: LIMIT + Duration::from_millis(250) * clients,
        contenders: vec![Contender {
            name: "many_clients",
            server,
            client,
            read: own_memory,
        }],
    }
}

/// Reads `RESULT 64 connections at once: 36.4 KiB of this process each, 180.4 KiB of this machine`.
fn own_memory(line: &str) -> Option<f64> {
    number_after(line, "connections at once: ")
}

fn machine_memory(line: &str) -> Option<f64> {
    number_after(line, "KiB of this process each, ")
}

fn to_join(line: &str) -> Option<f64> {
    number_after(line.strip_prefix("RESULT to join: ")?, "median ")
}

fn to_leave(line: &str) -> Option<f64> {
    number_after(line.strip_prefix("RESULT to leave: ")?, "median ")
}

fn number_after(line: &str, words: &str) -> Option<f64> {
    let (_, rest) = line.split_once(words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

fn memory(connected: &[(u32, &Outcome)]) -> Table {
    let mut table = Table::new(&[
        "connections",
        "KiB of the server, each",
        "KiB of the machine, each",
        "to join, µs",
        "to leave, µs",
    ]);
    for (clients, outcome) in connected {
        table.row([
            thousands((*clients).into()),
            cell(outcome.of(0), digits),
            cell(outcome.find(0, machine_memory), digits),
            cell(outcome.find(0, to_join), digits),
            cell(outcome.find(0, to_leave), digits),
        ]);
    }
    table
}

fn section(completions: &[Counted], joins: &[Counted], rounds: usize) -> Section {
    let mut section = Section {
        title: "Many channels",
        ..Section::default()
    };
    for (caption, what, all) in [
        ("A completion", "channels", completions),
        (
            "Joining and leaving a group",
            "others' operations in flight",
            joins,
        ),
    ] {
        let mut table = Table::new(&[what, "instructions", "ratio to the first", "ns"]);
        let first = all.first().map_or(1.0, |first| first.instructions);
        for Counted {
            of,
            instructions,
            time,
        } in all
        {
            table.row([
                thousands((*of).into()),
                format!("{instructions:.1}"),
                ratio(instructions / first),
                cell(*time, digits),
            ]);
        }
        let caption = format!("{caption}, times of n = {rounds} rounds");
        section.tables.push((caption, table));
    }
    let series = |name: &str, of: fn(&Counted) -> Option<Spread>| Series {
        name: name.to_owned(),
        points: completions
            .iter()
            .filter_map(|counted| Some((counted.of.into(), of(counted)?)))
            .collect(),
    };
    let lines = Lines {
        title: "A completion in a group of channels",
        x: ("channels", Scale::Log(4.0)),
        y: ("instructions, nanoseconds", Scale::Linear),
        name: |channels| format!("{channels:.0}"),
        level: None,
        series: vec![
            series("instructions", |counted| {
                Some(Spread::exactly(counted.instructions))
            }),
            series("nanoseconds, with the stand-in's", |counted| counted.time),
        ],
    };
    section.chart("channels.svg", lines.svg());
    section
}

#[cfg(test)]
mod tests {
    use super::{
        CLIENTS, Counted, OF_A_PROCESS, Path, Plan, Spread, contest, divided, machine_memory,
        own_memory, section, to_join, to_leave,
    };
    use crate::args::Args;
    use crate::packages::Policy;

    #[test]
    fn number_of_clients_is_that_the_server_waits_for() {
        for clients in CLIENTS.into_iter().chain([1, 250, 1000, 4000]) {
            let (processes, each) = divided(clients);
            assert_eq!(processes * each, clients);
            assert!((1..=OF_A_PROCESS).contains(&each), "{clients}: {each}");
            // The program starts no more.
            assert!(processes <= 64, "{clients}: {processes}");
        }
    }

    #[test]
    fn both_ends_have_the_gid() {
        let words = ["--device", "a", "--gid-index", "3"].map(Into::into);
        let mut args = Args::new("Usage: try", words.into()).unwrap();
        let plan = Plan::read(&mut args, Policy::No).unwrap();
        let contest = contest(&plan, Path::new("p"), 1024);
        let [one] = &contest.contenders[..] else {
            panic!("one contender");
        };
        assert!(one.server[4].starts_with("\"$1\" -d \"$0\" \"${@:2}\" --clients 1024 "));
        assert_eq!(one.server[5..], ["{device}", "p", "-g", "3"]);
        let client = "p -d {peer} -n 20 -c 128 --processes 8 -g 3 127.0.0.1";
        assert_eq!(one.client.join(" "), client);
    }

    #[test]
    fn output_of_the_server_is_read() {
        let memory = "RESULT 64 connections at once: 36.4 KiB of this process each, 180.4 KiB of this machine";
        assert_eq!(
            (own_memory(memory), machine_memory(memory)),
            (Some(36.4), Some(180.4))
        );
        let times = "microseconds: mean 5062.4, min 19.2, median 104.3, 90 % 12953.9";
        let join = format!("RESULT to join: {times}");
        assert_eq!((to_join(&join), to_leave(&join)), (Some(104.3), None));
        assert_eq!(to_leave(&format!("RESULT to leave: {times}")), Some(104.3));
        assert_eq!(own_memory("RESULT connections: 64"), None);
    }

    #[test]
    fn costs_are_compared_with_those_of_the_first() {
        let counted = |of, instructions, time| Counted {
            of,
            instructions,
            time,
        };
        let time = Some(Spread::exactly(12.0));
        let section = section(
            &[counted(1, 400.0, time), counted(4096, 420.0, None)],
            &[counted(64, 7.0, None)],
            5,
        );
        let text = section.tables[0].1.markdown();
        assert!(text.contains("| 1 | 400.0 | 1.00 | 12.0 |"), "{text}");
        assert!(text.contains("| 4,096 | 420.0 | 1.05 | - |"), "{text}");
        assert_eq!(section.charts.len(), 1);
    }
}
