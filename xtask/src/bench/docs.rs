//! The figures in the docs: parts of texts between marks, which are made of the figures of a run.

use std::fs;

use super::figures::{FILE, Figures, Group};
use super::operations::OPERATIONS;
use super::plan::DOCUMENTED;
use super::ratios;
use super::table::Table;
use crate::error::{Context as _, Error};
use crate::numbers::thousands;
use crate::workspace;

/// The command that updates them.
pub(super) const COMMAND: &str = "cargo xtask bench --update-docs";

/// A part of a text: between `<!-- figures: NAME … -->` and `<!-- figures end -->`.
struct Block {
    file: &'static str,
    name: &'static str,
    text: fn(&Figures) -> Result<String, Error>,
}

const BLOCKS: [Block; 3] = [
    Block {
        file: "README.md",
        name: "instructions",
        text: instructions,
    },
    Block {
        file: "README.md",
        name: "perftest",
        text: ratios::table,
    },
    Block {
        file: "verbs-channel/src/guide/performance.md",
        name: "batches",
        text: batches,
    },
];

const END: &str = "<!-- figures end -->";

/// The rows of the README: its words, the operation, and how many of them the figures are of.
const README: [(&str, &str, f64); 20] = [
    ("core: post a send, poll its completion", "send1", 1.0),
    (
        "core: the same, with the request built once (a chain of one)",
        "send1_reuse",
        1.0,
    ),
    ("core: post a receive, poll its completion", "recv1", 1.0),
    (
        "core: post a receive to a shared receive queue, poll its completion",
        "srq1",
        1.0,
    ),
    (
        "core: post a datagram, poll its completion",
        "ud_send1",
        1.0,
    ),
    (
        "core: post a receive for a datagram, poll its completion",
        "ud_recv1",
        1.0,
    ),
    ("core: 16 sends in a chain, one doorbell", "batch16", 1.0),
    (
        "core: 16 sends in a chain that was built once",
        "chain16",
        1.0,
    ),
    ("core: the same, with one completion", "quiet16", 1.0),
    (
        "core: 64 writes in a chain that was built once, each patched, one completion",
        "chain64",
        1.0,
    ),
    ("core: poll an empty queue", "poll0", 1.0),
    ("channel: a blocking send", "channel_send1", 1.0),
    (
        "channel: a scope of 16 sends, handles dropped",
        "channel_scope16",
        1.0,
    ),
    (
        "channel: a scope of 16 sends, each polled by its handle",
        "channel_handles16",
        1.0,
    ),
    (
        "channel: a send of an owned buffer, its outcome taken",
        "channel_owned1",
        1.0,
    ),
    (
        "channel: a block from the pool, sent, dropped back",
        "channel_pooled1",
        1.0,
    ),
    (
        "channel: 16 sends of owned buffers in a batch, one completion",
        "channel_owned16",
        1.0,
    ),
    (
        "channel: 16 sends of owned buffers in a chain that was built once, one completion",
        "channel_chain16",
        1.0,
    ),
    (
        "async: a send whose completion is there when it is awaited",
        "async_send1",
        1.0,
    ),
    ("async: 16 sends in flight, each", "async_sep16", 16.0),
];

/// The files that are written from figures.
pub(super) fn files() -> impl Iterator<Item = &'static str> {
    BLOCKS.iter().map(|block| block.file).chain([FILE])
}

/// Writes all blocks anew.
pub(super) fn update(figures: &Figures) -> Result<(), Error> {
    for block in BLOCKS {
        let path = workspace::root().join(block.file);
        let what = || format!("cannot read or write {}", block.file);
        let text = fs::read_to_string(&path).context(what)?;
        let text = replaced(&text, block.name, &(block.text)(figures)?)
            .ok_or_else(|| Error::new(unmarked(&block)))?;
        fs::write(&path, text).context(what)?;
    }
    Ok(())
}

/// Faults of the figures in the docs, one line each.
pub(crate) fn complaints() -> Result<Vec<String>, Error> {
    let figures = Figures::read(&Figures::of_docs())?;
    let mut complaints = Vec::new();
    for block in BLOCKS {
        let text = fs::read_to_string(workspace::root().join(block.file));
        let text = text.context(|| format!("cannot read {}", block.file))?;
        let expected = replaced(&text, block.name, &(block.text)(&figures)?);
        let (file, name) = (block.file, block.name);
        match expected {
            None => complaints.push(unmarked(&block)),
            Some(expected) if expected == text => {}
            Some(_) => complaints.push(format!(
                "{file}: the figures `{name}` are not those of {FILE}: `{COMMAND}` writes both"
            )),
        }
    }
    complaints.extend(not_measured(&figures));
    Ok(complaints)
}

fn unmarked(block: &Block) -> String {
    let Block { file, name, .. } = block;
    format!("{file}: no line `<!-- figures: {name}` with a line `{END}` after it")
}

/// The operations of this program and of the last run differ.
fn not_measured(figures: &Figures) -> Vec<String> {
    let Some(group) = figures.group("instructions") else {
        return vec![format!("{FILE}: no instructions were measured")];
    };
    let new = OPERATIONS.iter().map(|operation| operation.name);
    let new = new.filter(|name| group.row(name).is_none());
    let is_known = |name: &str| OPERATIONS.iter().any(|operation| operation.name == name);
    let gone = group.rows.iter().filter(|(name, _)| !is_known(name));
    let names = new.chain(gone.map(|(name, _)| &**name));
    names
        .map(|name| format!("{FILE}: `{name}` is new or gone since the last `{COMMAND}`"))
        .collect()
}

/// How the figures of the docs differ from those of the last run, if it could be shown there: measured on such
/// a machine, and as often.
pub(super) fn differences(docs: &Figures, last: &Figures) -> Vec<String> {
    let pairs = last
        .groups
        .iter()
        .filter_map(|now| Some((docs.group(&now.name)?, now)));
    let differences = pairs.filter_map(|(shown, now)| match &*now.name {
        "instructions" => other_instructions(shown, now),
        "perftest" => other_ratios(shown, now),
        _ => None,
    });
    differences.collect()
}

/// Instructions depend on nothing but the programs, the compiler and the headers.
fn other_instructions(shown: &Group, now: &Group) -> Option<String> {
    let arch = |group: &Group| group.about("kernel").rsplit(", ").next().map(str::to_owned);
    let is_same = |name: &str| shown.about(name) == now.about(name);
    if !(is_same("rdma-core") && is_same("Rust") && arch(shown) == arch(now)) {
        return None;
    }
    let others = now.rows.iter().filter_map(|(name, numbers)| {
        let [_, new] = numbers[..] else { return None };
        let [_, old] = numbers_of(shown, name)?;
        ((new - old).abs() >= 1.0).then(|| format!("`{name}` takes {new}, not {old}"))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        let all = others.join(", ");
        format!("instructions: in the last run, other than in the docs: {all}; `{COMMAND}` writes them there")
    })
}

/// Ratios of two runs always differ.
fn other_ratios(shown: &Group, now: &Group) -> Option<String> {
    let is_same = |name: &&str| shown.about(name) == now.about(name);
    let is_such = ["processor", "rdma-core", "ran on"].iter().all(is_same);
    let rounds: usize = now.about("rounds").parse().ok()?;
    if !is_such || rounds < DOCUMENTED || shown.rows == now.rows {
        return None;
    }
    let [old, new] = [shown, now].map(|group| {
        let (date, commit) = (group.about("date"), group.about("commit"));
        format!("{date}, commit {commit}")
    });
    Some(format!(
        "perftest: the docs show the run of {old}, not the last one, of {new}; with `--update-docs`, a run \
         writes its figures there"
    ))
}

/// The text with another block of this name.
fn replaced(text: &str, name: &str, block: &str) -> Option<String> {
    let start = text.find(&format!("<!-- figures: {name} "))?;
    let start = start + text[start..].find("-->\n")? + 4;
    let end = start + text[start..].find(END)?;
    Some(format!("{}{block}{}", &text[..start], &text[end..]))
}

fn group<'f>(figures: &'f Figures, name: &str) -> Result<&'f Group, Error> {
    let found = figures.group(name);
    found.ok_or_else(|| Error::new(format!("{FILE} has no {name}: `{COMMAND}` measures them")))
}

/// The instructions of C and of ours.
fn numbers(group: &Group, name: &str) -> Result<[f64; 2], Error> {
    let missing = || Error::new(format!("{FILE} has no instructions of {name}"));
    numbers_of(group, name).ok_or_else(missing)
}

fn numbers_of(group: &Group, name: &str) -> Option<[f64; 2]> {
    match group.row(name)? {
        [c, ours] => Some([*c, *ours]),
        _ => None,
    }
}

/// A number of instructions, to one.
fn whole(number: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "of an operation: some thousands at most"
    )]
    thousands(number.round() as u64)
}

fn instructions(figures: &Figures) -> Result<String, Error> {
    let group = group(figures, "instructions")?;
    let mut table = Table::new(&["operation", "C", "here"]);
    for (words, name, of) in README {
        let [c, ours] = numbers(group, name)?.map(|number| whole(number / of));
        table.row([words.to_owned(), c, ours]);
    }
    let [rdma_core, rust, commit] = ["rdma-core", "Rust", "commit"].map(|name| group.about(name));
    let on = group
        .about("kernel")
        .rsplit(", ")
        .next()
        .unwrap_or_default();
    Ok(format!(
        "Measured by `{}` ({on}, rdma-core {rdma_core}, Rust {rust}, commit {commit}):\n\n{}",
        group.about("command"),
        table.markdown()
    ))
}

fn batches(figures: &Figures) -> Result<String, Error> {
    let group = group(figures, "instructions")?;
    let ours = |name| numbers(group, name).map(|[_, ours]| whole(ours));
    Ok(format!(
        "16 sends of owned buffers take 16 times {} instructions one by one, {} as a batch,\n\
         and {} as a chain that was built once.\n",
        ours("channel_owned1")?,
        ours("channel_owned16")?,
        ours("channel_chain16")?
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        Figures, Group, OPERATIONS, README, differences, files, instructions, not_measured,
        replaced,
    };
    use crate::bench::ratios::tests::ratios;

    fn figures() -> Figures {
        let rows = OPERATIONS.iter().zip(1_u32..).map(|(operation, at)| {
            let c = f64::from(at * 1000);
            (operation.name.to_owned(), vec![c, c + 0.6])
        });
        let mut figures = Figures::default();
        figures.replace(Group {
            name: "instructions".to_owned(),
            about: vec![("kernel".to_owned(), "Linux 6.1, x86_64".to_owned())],
            rows: rows.collect(),
        });
        figures
    }

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let text = "a\n<!-- figures: x by y -->\nold\n<!-- figures end -->\nb\n";
        let new = "a\n<!-- figures: x by y -->\nnew\n<!-- figures end -->\nb\n";
        assert_eq!(replaced(text, "x", "new\n").as_deref(), Some(new));
        assert_eq!(replaced(text, "y", "new\n"), None);
        assert_eq!(replaced("<!-- figures: x -->\nold\n", "x", ""), None);
    }

    #[test]
    fn the_readme_s_rows_are_of_operations() {
        for (_, name, _) in README {
            assert!(
                OPERATIONS.iter().any(|operation| operation.name == name),
                "{name}"
            );
        }
        let text = instructions(&figures()).unwrap();
        assert!(text.contains("(x86_64, "), "{text}");
        assert!(
            text.contains("| core: post a send, poll its completion | 1,000 | 1,001 |"),
            "{text}"
        );
        assert!(instructions(&Figures::default()).is_err());
    }

    #[test]
    fn an_operation_that_the_last_run_did_not_have_is_a_complaint() {
        let mut figures = figures();
        assert!(not_measured(&figures).is_empty());
        figures.groups[0].rows[0].0 = "old".to_owned();
        let complaints = not_measured(&figures);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("`send1`") && complaints[1].contains("`old`"));
    }

    #[test]
    fn other_instructions_are_a_difference_on_such_a_machine_only() {
        let docs = figures();
        let mut last = docs.clone();
        assert!(differences(&docs, &last).is_empty());
        last.groups[0].rows[0].1[1] += 2.0;
        let different = differences(&docs, &last).concat();
        assert!(
            different.contains("`send1` takes 1002.6, not 1000.6;"),
            "{different}"
        );
        last.groups[0].about[0].1 = "Linux 6.1, aarch64".to_owned();
        assert!(differences(&docs, &last).is_empty());
    }

    #[test]
    fn other_ratios_are_a_difference_if_they_are_of_enough_rounds() {
        let docs = ratios([0.9, 1.0, 1.25], 10);
        let with = |rounds| differences(&docs, &ratios([0.9, 1.01, 1.25], rounds));
        assert!(differences(&docs, &docs).is_empty());
        assert!(with(9).is_empty());
        let [different] = &with(10)[..] else {
            panic!("one difference");
        };
        assert!(
            different.contains("not the last one, of today"),
            "{different}"
        );
    }

    #[test]
    fn every_file_with_figures_is_known() {
        let all: Vec<&str> = files().collect();
        assert!(
            all.contains(&"README.md") && all.contains(&super::FILE),
            "{all:?}"
        );
    }
}
