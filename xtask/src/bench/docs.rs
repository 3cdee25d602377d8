//! The figures in the docs: parts of texts between marks, which are made of the figures of the last run.

use std::fs;

use super::figures::{FILE, Figures, Group};
use super::operations::OPERATIONS;
use super::table::Table;
use crate::error::{Context as _, Error};
use crate::numbers::{size, thousands};
use crate::workspace;

/// What makes them new.
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
        text: perftest,
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

/// What is wrong with the figures in the docs, one line each.
pub(crate) fn complaints() -> Result<Vec<String>, Error> {
    let figures = Figures::read()?;
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

/// What was measured just now on such a machine as the last run's, and is another number of instructions:
/// those depend on nothing else. None on another machine.
pub(super) fn news(figures: &Figures, now: &Group) -> Option<String> {
    let last = figures.group(&now.name)?;
    let is_same = |name: &str| last.about(name) == now.about(name);
    let arch = |group: &Group| group.about("kernel").rsplit(", ").next().map(str::to_owned);
    if !(is_same("rdma-core") && is_same("Rust") && arch(last) == arch(now)) {
        return None;
    }
    let others = now.rows.iter().filter_map(|(name, numbers)| {
        let [_, new] = numbers[..] else { return None };
        let [_, old] = numbers_of(last, name)?;
        ((new - old).abs() >= 1.0).then(|| format!("`{name}` takes {new} and took {old}"))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        let all = others.join(", ");
        format!("other than in {FILE}: {all}; `{COMMAND}` brings them into the docs")
    })
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

/// The ratios of a part of the sizes, with their spread.
fn perftest(figures: &Figures) -> Result<String, Error> {
    let Some(group) = figures.group("perftest") else {
        return Ok(format!("Not measured yet: `{COMMAND}` does it.\n"));
    };
    let sizes: [u64; 4] = [2, 4096, 65_536, 1 << 20];
    let heads = sizes.map(size);
    let [a, b, c, d] = &heads;
    let mut table = Table::new(&["ratio to perftest", a, b, c, d]);
    let mut row = |words: &str, prefix: &str, suffix: &str| {
        let cell = |bytes: u64| {
            let numbers = group.row(&format!("{prefix}, {}{suffix}", size(bytes)));
            match numbers {
                Some([least, median, most]) => format!("{median:.2} ({least:.2} to {most:.2})"),
                _ => "-".to_owned(),
            }
        };
        let [a, b, c, d] = sizes.map(cell);
        table.row([words.to_owned(), a, b, c, d]);
    };
    for op in ["send", "write", "read"] {
        row(&format!("latency of a {op}"), &format!("latency, {op}"), "");
    }
    let control = ", control";
    row(
        "perftest beside itself: latency of a send",
        "latency, send",
        control,
    );
    for (qps, s) in [(1, ""), (16, "s")] {
        for op in ["send", "write", "read"] {
            let words = format!("bandwidth of {op}s, {qps} queue pair{s}");
            let suffix = format!(", {qps} queue pair{s}");
            row(&words, &format!("bandwidth, {op}"), &suffix);
        }
        if qps == 1 {
            let words = "perftest beside itself: bandwidth of sends, 1 queue pair";
            row(words, "bandwidth, send", ", 1 queue pair, control");
        }
    }
    Ok(format!(
        "Measured by `{}` (rdma-core {}, commit {}; {}; load before: {}):\n\n{}",
        group.about("command"),
        group.about("rdma-core"),
        group.about("commit"),
        group.about("ran on"),
        group.about("load before"),
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
        Figures, Group, OPERATIONS, README, instructions, news, not_measured, perftest, replaced,
    };

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
    fn other_numbers_are_news_on_such_a_machine_only() {
        let figures = figures();
        let mut now = figures.groups[0].clone();
        assert_eq!(news(&figures, &now), None);
        now.rows[0].1[1] += 2.0;
        let told = news(&figures, &now).unwrap();
        assert!(
            told.contains("`send1` takes 1002.6 and took 1000.6;"),
            "{told}"
        );
        now.about[0].1 = "Linux 6.1, aarch64".to_owned();
        assert_eq!(news(&figures, &now), None);
    }

    #[test]
    fn ratios_are_shown_with_their_spread() {
        let mut figures = Figures::default();
        let row = |name: &str| (name.to_owned(), vec![0.9, 1.0, 1.25]);
        figures.replace(Group {
            name: "perftest".to_owned(),
            about: Vec::new(),
            rows: vec![
                row("latency, send, 2 B"),
                row("bandwidth, read, 4 KiB, 16 queue pairs"),
            ],
        });
        let text = perftest(&figures).unwrap();
        assert!(
            text.contains("| latency of a send | 1.00 (0.90 to 1.25) | - | - | - |"),
            "{text}"
        );
        let row = "| bandwidth of reads, 16 queue pairs | - | 1.00 (0.90 to 1.25) | - | - |";
        assert!(text.contains(row), "{text}");
    }
}
