//! The guide's table of faults: its rows are what the tests of a run have recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use soft_roce::Way;

use super::report::Report;
use crate::error::{Context as _, Error};
use crate::workspace;

const TABLE: &str = "verbs-channel/src/guide/faults.md";

/// The section with the words of each status, which the rows leave out.
const STATUSES: &str = "The words of the statuses";

/// Why rows may be missing in a run without virtual machines.
const TWO_HOSTS: &str = "The peer's host dies";

/// Where tests see what no device is needed for.
const NO_DEVICE: &str = "no device";

/// Where devices in user space see it.
const USER_SPACE: &str = "user space";

/// A fault as a layer shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    fault: String,
    layer: String,
    what: String,
    within: String,
}

/// All rows, and where each was seen; and the words of the statuses.
#[derive(Debug, Default, PartialEq)]
struct Table {
    rows: BTreeMap<Row, BTreeSet<String>>,
    // A status has others for other kinds of requests.
    words: BTreeSet<(String, String)>,
}

/// Which tests were run.
#[derive(Debug)]
pub(super) struct Run {
    /// All that need no device.
    pub(super) all_offline: bool,
    /// All that need a device, there.
    pub(super) device: Option<Way>,
}

/// Fails if a test has recorded what the table lacks, or if none has recorded what the table has.
pub(super) fn check(report: &mut Report, run: &Run) -> Result<(), Error> {
    let seen = Table::recorded(&report.faults)?;
    let table = Table::parse(&read()?);
    let whole = seen.whole(run);
    let complaints = table.complaints(&seen, &whole);
    if run.device.is_some() && whole.iter().all(|place| place == NO_DEVICE) {
        report.fail(
            format!("{TABLE}: no test on a device has recorded a fault"),
            1,
        );
    }
    if complaints.is_empty() && !seen.rows.is_empty() {
        report.pass(1);
    }
    for (fault, complaint) in complaints {
        if fault == TWO_HOSTS && run.device == Some(Way::Native) {
            report.skip(format!("{TABLE}: {complaint}: one machine only (--native)"));
        } else {
            report.fail(format!("{TABLE}: {complaint}"), 1);
        }
    }
    Ok(())
}

fn read() -> Result<String, Error> {
    fs::read_to_string(workspace::root().join(TABLE)).context(|| format!("cannot read {TABLE}"))
}

impl Table {
    /// The rows of records: `PLACE | FAULT | LAYER | WHAT | WITHIN`.
    fn recorded(records: &BTreeSet<String>) -> Result<Self, Error> {
        let mut table = Self::default();
        for record in records {
            let parts: Vec<_> = record.split(" | ").collect();
            let [place, fault, layer, what, within] = parts[..] else {
                return Err(Error::new(format!("a record has five parts: {record}")));
            };
            let (what, status) = without_words(what);
            table.words.extend(status);
            let [fault, layer, within] = [fault, layer, within].map(str::to_owned);
            let row = Row {
                fault,
                layer,
                what,
                within,
            };
            table.rows.entry(row).or_default().insert(place.to_owned());
        }
        Ok(table)
    }

    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        let mut fault = "";
        for line in text.lines() {
            fault = line.strip_prefix("# ").unwrap_or(fault);
            let row = line.strip_prefix("| ");
            let row = row.and_then(|row| row.strip_suffix(" |"));
            let cells: Vec<_> = row.into_iter().flat_map(|row| row.split(" | ")).collect();
            match cells[..] {
                ["layer" | "status", ..] => {}
                [status, words] => {
                    let status = status.trim_matches('`');
                    table.words.insert((status.to_owned(), words.to_owned()));
                }
                [layers, what, within, places] => {
                    let places: BTreeSet<_> = places.split(", ").map(str::to_owned).collect();
                    for layer in layers.split(", ") {
                        let row = Row {
                            fault: fault.to_owned(),
                            layer: layer.to_owned(),
                            what: what.to_owned(),
                            within: within.to_owned(),
                        };
                        table.rows.insert(row, places.clone());
                    }
                }
                _ => {}
            }
        }
        table
    }

    /// The places of which a run has seen everything.
    fn whole(&self, run: &Run) -> BTreeSet<String> {
        let places = self.rows.values().flatten();
        // A kernel has run a part only unless it was asked for.
        let is_whole = |place: &str| match run.device {
            _ if place == NO_DEVICE => run.all_offline,
            Some(Way::Native | Way::Guest) => place != USER_SPACE,
            Some(_) => place == USER_SPACE,
            None => false,
        };
        let offline = run.all_offline.then(|| NO_DEVICE.to_owned());
        let whole = places.filter(|place| is_whole(place)).cloned();
        whole.chain(offline).collect()
    }

    /// How a run differs from this table, each with its fault.
    fn complaints(&self, seen: &Self, whole: &BTreeSet<String>) -> Vec<(String, String)> {
        let known: BTreeSet<_> = self.rows.values().flatten().collect();
        let mut complaints = Vec::new();
        let mut complain = |row: &Row, place: &str, what: &str| {
            let Row {
                fault,
                layer,
                what: saw,
                within,
            } = row;
            let complaint = format!("{what}: {place}: # {fault}: {layer}: {saw}: {within}");
            complaints.push((fault.clone(), complaint));
        };
        for (row, places) in &seen.rows {
            let there = self.rows.get(row);
            for place in places {
                // Nobody has made the table on another kernel.
                let fits =
                    |there: &BTreeSet<String>| there.contains(place) || !known.contains(place);
                if !there.is_some_and(fits) {
                    complain(row, place, "a test saw what is not in the table");
                }
            }
        }
        for (row, places) in &self.rows {
            for place in places.intersection(whole) {
                let there = seen.rows.get(row);
                if !there.is_some_and(|there| there.contains(place)) {
                    complain(row, place, "no test saw");
                }
            }
        }
        for (status, words) in seen.words.difference(&self.words) {
            let complaint = format!("# {STATUSES} lacks: {status}: {words}");
            complaints.push((STATUSES.to_owned(), complaint));
        }
        complaints
    }
}

/// A text without the words of its status, and the status with its words.
fn without_words(what: &str) -> (String, Option<(String, String)>) {
    const BEFORE: &str = " on QP 0x11: ";
    let split = what.trim_matches('`').split_once(BEFORE);
    let Some((before, words)) = split else {
        return (what.to_owned(), None);
    };
    let status = before.rsplit(' ').next().unwrap_or_default();
    let status = (status.to_owned(), words.to_owned());
    (format!("``{before}{BEFORE}…``"), Some(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Intro.

# The words of the statuses

| status | its words |
|---|---|
| `IBV_WC_WET` | it rains |

# Rain

Water.

| layer | what is seen | within | seen on |
|---|---|---|---|
| core | ``IBV_WC_WET on QP 0x11: …`` | at once | Linux 6.1, Linux 6.12 |
| async, stream | ``a send failed: IBV_WC_WET on QP 0x11: …`` | at once | Linux 6.1 |
| stream | nothing | the deadline | no device |

[link]: x
";

    const RECORDS: [&str; 4] = [
        "Linux 6.1 | Rain | core | ``IBV_WC_WET on QP 0x11: it rains`` | at once",
        "Linux 6.1 | Rain | async | ``a send failed: IBV_WC_WET on QP 0x11: it rains`` | at once",
        "Linux 6.1 | Rain | stream | ``a send failed: IBV_WC_WET on QP 0x11: it rains`` | at once",
        "no device | Rain | stream | nothing | the deadline",
    ];

    const ALL: Run = Run {
        all_offline: true,
        device: Some(Way::Guest),
    };

    fn recorded(records: &[&str]) -> Table {
        let records = records.iter().map(|record| (*record).to_owned());
        Table::recorded(&records.collect()).unwrap()
    }

    fn complaints(records: &[&str], run: &Run) -> Vec<String> {
        let seen = recorded(records);
        let complaints = Table::parse(TEXT).complaints(&seen, &seen.whole(run));
        complaints.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn run_that_saw_the_rows_of_its_kernel_has_no_complaints() {
        assert_eq!(complaints(&RECORDS, &ALL), [""; 0]);
    }

    #[test]
    fn rows_that_no_test_saw_are_complaints_in_a_whole_run() {
        let records = [RECORDS[0], RECORDS[1], RECORDS[3]];
        let lacks = "no test saw: Linux 6.1: # Rain: stream: ``a send failed: IBV_WC_WET on QP 0x11: …``: at once";
        assert_eq!(complaints(&records, &ALL), [lacks]);
        let part = Run {
            device: None,
            ..ALL
        };
        assert_eq!(complaints(&records, &part), [""; 0]);
    }

    #[test]
    fn row_missing_from_the_table_is_a_complaint_in_any_run() {
        let part = Run {
            all_offline: false,
            device: None,
        };
        for lie in [
            "Linux 6.1 | Rain | core | ``damp`` | at once",
            "Linux 6.1 | Rain | core | ``IBV_WC_WET on QP 0x11: it rains`` | the deadline",
            "Linux 6.1 | Rain | channel | ``IBV_WC_WET on QP 0x11: it rains`` | at once",
            "Linux 6.1 | Snow | core | ``IBV_WC_WET on QP 0x11: it rains`` | at once",
            "Linux 6.1 | Rain | core | ``IBV_WC_WET on QP 0x11: it pours`` | at once",
            // The table has it of another kernel.
            "Linux 6.12 | Rain | stream | ``a send failed: IBV_WC_WET on QP 0x11: it rains`` | at once",
        ] {
            assert_eq!(complaints(&[lie], &part).len(), 1, "{lie}");
        }
        // Nobody has made it on this one.
        let other = "Linux 7.2 | Rain | stream | nothing | the deadline";
        assert_eq!(complaints(&[other], &part), [""; 0]);
    }

    /// Each fault has a row of each layer.
    #[test]
    fn table_in_the_guide_is_complete() {
        let text = read().unwrap();
        let table = Table::parse(&text);
        let faults = text.lines().filter_map(|line| line.strip_prefix("# "));
        for fault in faults.filter(|fault| *fault != STATUSES) {
            let layers: &[&str] = match fault {
                "The disk is full" => &["the receiver", "the sender"],
                _ => &["core", "channel", "async", "stream"],
            };
            for layer in layers {
                let mut rows = table.rows.keys();
                let has_row = rows.any(|row| (&*row.fault, &*row.layer) == (fault, layer));
                assert!(has_row, "{fault}: no row of {layer}");
            }
        }
    }
}
