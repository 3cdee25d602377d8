//! The table of perftest in the README.

use super::docs::COMMAND;
use super::figures::{Figures, Group};
use super::samples::Spread;
use super::table::{Table, ratio};
use crate::error::Error;
use crate::numbers::size;

/// The sizes in the table of perftest.
const SIZES: [u64; 4] = [2, 4096, 65_536, 1 << 20];

/// Atomics have only this size.
const ATOMIC: &str = "latency, atomic, 8 B";

/// The rows of the table of perftest: words, and the names of the figures of each size.
fn rows() -> Vec<(String, [String; 4])> {
    let mut rows = Vec::new();
    let mut row = |words: String, name: &dyn Fn(String) -> String| {
        rows.push((words, SIZES.map(|bytes| name(size(bytes)))));
    };
    let itself = "perftest beside itself";
    let ops = ["send", "write", "read"];
    for op in ops {
        row(format!("latency of a {op}"), &|size| {
            format!("latency, {op}, {size}")
        });
    }
    for op in ops {
        row(format!("{itself}: latency of a {op}"), &|size| {
            format!("latency, {op}, {size}, control")
        });
    }
    for op in ops {
        row(format!("bandwidth of {op}s, 1 queue pair"), &|size| {
            format!("bandwidth, {op}, {size}, 1 queue pair")
        });
    }
    for op in ops {
        row(
            format!("{itself}: bandwidth of {op}s, 1 queue pair"),
            &|size| format!("bandwidth, {op}, {size}, 1 queue pair, control"),
        );
    }
    for op in ops {
        row(format!("bandwidth of {op}s, 16 queue pairs"), &|size| {
            format!("bandwidth, {op}, {size}, 16 queue pairs")
        });
    }
    rows
}

/// The ratios of a part of the sizes, with their spread.
pub(super) fn table(figures: &Figures) -> Result<String, Error> {
    let Some(group) = figures.group("perftest") else {
        return Ok(format!("Not measured yet: `{COMMAND}` does it.\n"));
    };
    let [a, b, c, d] = &SIZES.map(size);
    let mut ratios = Table::new(&["ratio to perftest", a, b, c, d]);
    let cell = |name: &str| match group.row(name) {
        Some([least, median, most]) => {
            format!("{} ({} to {})", ratio(*median), ratio(*least), ratio(*most))
        }
        _ => "-".to_owned(),
    };
    for (words, names) in rows() {
        // A row is missing only until it is measured for the first time.
        if names.iter().any(|name| group.row(name).is_some()) {
            let [a, b, c, d] = names.map(|name| cell(&name));
            ratios.row([words, a, b, c, d]);
        }
    }
    Ok(format!(
        "Measured by `{}` (rdma-core {}, commit {}; {}; load before: {}):\n\n{}\n\
         Latency of an atomic of 8 bytes: {}.\n{}",
        group.about("command"),
        group.about("rdma-core"),
        group.about("commit"),
        group.about("ran on"),
        group.about("load before"),
        ratios.markdown(),
        cell(ATOMIC),
        noise(group)
    ))
}

/// The noise, from the ratios of perftest to itself.
fn noise(group: &Group) -> String {
    let controls = group
        .rows
        .iter()
        .filter(|(name, _)| name.ends_with(", control"));
    let [mut medians, mut all] = [const { Vec::new() }; 2];
    for (_, numbers) in controls {
        medians.extend(numbers.get(1));
        all.extend(numbers);
    }
    match (Spread::of(medians), Spread::of(all)) {
        (Some(medians), Some(all)) => format!(
            "\nThe ratios of perftest to itself have medians from {} to {}, and single pairs from {} to {}.\n\
             So a median within the first of these limits is noise of the machine, and no difference between the\n\
             programs.\n",
            ratio(medians.least),
            ratio(medians.most),
            ratio(all.least),
            ratio(all.most)
        ),
        _ => String::new(),
    }
}

/// Rows of the table of perftest that this run has not measured, if it has measured others.
pub(super) fn unmeasured(run: &Figures) -> Vec<String> {
    let Some(group) = run.group("perftest") else {
        return Vec::new();
    };
    needed().filter(|name| group.row(name).is_none()).collect()
}

/// The figures of perftest that are shown: all of the table but one, which soft-RoCE does not have.
pub(super) fn needed() -> impl Iterator<Item = String> {
    let names = rows().into_iter().flat_map(|(_, names)| names);
    let names = names.filter(|name| name != "bandwidth, read, 1 MiB, 16 queue pairs");
    names.chain([ATOMIC.to_owned()])
}

#[cfg(test)]
pub(super) mod tests {
    use super::{ATOMIC, Figures, Group, needed, table, unmeasured};

    /// Ratios of perftest, each with these numbers.
    pub(crate) fn ratios(numbers: [f64; 3], rounds: usize) -> Figures {
        let about = [("date", "today"), ("rounds", &*rounds.to_string())];
        let mut figures = Figures::default();
        figures.replace(Group {
            name: "perftest".to_owned(),
            about: about
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            rows: needed().map(|name| (name, numbers.into())).collect(),
        });
        figures
    }

    #[test]
    fn each_row_of_the_table_that_is_missing_is_named() {
        let mut figures = ratios([0.9, 1.0, 1.25], 10);
        assert!(unmeasured(&figures).is_empty());
        let is_other = |name: &str| name != "latency, read, 64 KiB, control" && name != ATOMIC;
        figures.groups[0].rows.retain(|(name, _)| is_other(name));
        let missing = unmeasured(&figures);
        assert_eq!(missing, ["latency, read, 64 KiB, control", ATOMIC]);
        assert!(unmeasured(&Figures::default()).is_empty());
    }

    #[test]
    fn ratios_are_shown_with_their_spread_and_what_it_means() {
        let mut figures = ratios([0.9, 1.0, 1.25], 10);
        let text = table(&figures).unwrap();
        for part in [
            "| latency of a send | 1.00 (0.90 to 1.25) | 1.00 (0.90 to 1.25) |",
            "| perftest beside itself: bandwidth of reads, 1 queue pair | 1.00 (0.90 to 1.25) |",
            "\nLatency of an atomic of 8 bytes: 1.00 (0.90 to 1.25).\n",
            "medians from 1.00 to 1.00, and single pairs from 0.90 to 1.25.",
        ] {
            assert!(text.contains(part), "{text}");
        }
        // Until all have been measured.
        figures.groups[0].rows.truncate(2);
        let text = table(&figures).unwrap();
        let row = "| latency of a send | 1.00 (0.90 to 1.25) | 1.00 (0.90 to 1.25) | - | - |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("latency of a write"), "{text}");
        assert!(!text.contains("medians"), "{text}");
    }
}
