//! The guide's table of faults: each of its cells was checked by a test of this run.

use std::collections::BTreeSet;
use std::fs;

use super::report::Report;
use crate::error::{Context as _, Error};
use crate::workspace;

const TABLE: &str = "verbs-channel/src/guide/faults.md";

/// Why cells may be unchecked in a run without virtual machines.
const ONE_HOST: &str = "The peer's host dies | ";

/// Fails if no test has checked a cell; those that two machines are needed for are skipped unless
/// `has_guests`.
pub(super) fn check(report: &mut Report, has_guests: bool) -> Result<(), Error> {
    let table = workspace::root().join(TABLE);
    let table = fs::read_to_string(table).context(|| format!("cannot read {TABLE}"))?;
    let missing = missing(&table, &report.faults);
    if missing.is_empty() {
        report.pass(1);
    }
    for cell in missing {
        if cell.starts_with(ONE_HOST) && !has_guests {
            report.skip(format!("{TABLE}: {cell}: one machine only (--native)"));
        } else {
            report.fail(format!("{TABLE}: no test has checked: {cell}"), 1);
        }
    }
    Ok(())
}

/// The cells without a test among `checked`: `FAULT | LAYER`.
fn missing(table: &str, checked: &BTreeSet<String>) -> BTreeSet<String> {
    let mut fault = "";
    let mut missing = BTreeSet::new();
    for line in table.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            fault = title;
        }
        let row = line
            .strip_prefix("| ")
            .and_then(|row| row.split_once(" | "));
        let Some((layer, what)) = row else {
            continue;
        };
        let cell = format!("{fault} | {layer}");
        let is_tested = layer != "layer" && !what.starts_with("not tested |");
        if !fault.is_empty() && is_tested && !checked.contains(&cell) {
            missing.insert(cell);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::missing;

    const TABLE: &str = "\
# Rain

| layer | what | within |
|---|---|---|
| core | ``wet`` | at once |
| async | ``damp`` | at once |
| async | ``dry`` | at once |
| stream | not tested | |
";

    #[test]
    fn cells_that_no_test_has_checked_are_missing() {
        let checked = ["Rain | core".to_owned()].into();
        assert_eq!(missing(TABLE, &checked), ["Rain | async".to_owned()].into());
        let all = ["Rain | core", "Rain | async"].map(str::to_owned).into();
        assert!(missing(TABLE, &all).is_empty());
    }
}
