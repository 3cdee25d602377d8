//! Listings in the layout of C's tools: a label, tabs up to a column, a value.

use std::fmt::Display;

/// The width of a tab.
const TAB: usize = 8;

/// The tabs in front of the name of a flag.
const FLAG_TABS: usize = 5;

/// A text to which lines are added.
#[derive(Debug, Default)]
pub struct Listing {
    text: String,
}

impl Listing {
    /// Adds a line with this many tabs in front.
    pub fn line(&mut self, tabs: usize, line: impl Display) {
        self.text.extend(std::iter::repeat_n('\t', tabs));
        self.text.push_str(&line.to_string());
        self.text.push('\n');
    }

    /// Adds a line of a label and a value, which begins at `column` or at the first tab after it.
    pub fn entry(&mut self, tabs: usize, column: usize, label: &str, value: impl Display) {
        let end = tabs * TAB + label.len() + 1;
        let gap = column.saturating_sub(end).div_ceil(TAB).max(1);
        let gap = "\t".repeat(gap);
        self.line(tabs, format_args!("{label}:{gap}{value}"));
    }

    /// Adds a line for each flag that is set, and one for those without a name.
    pub fn flags(&mut self, set: u64, names: &[(u64, &str)]) {
        let mut unknown = set;
        for (flag, name) in names {
            if set & flag != 0 {
                self.line(FLAG_TABS, name);
                unknown &= !flag;
            }
        }
        if unknown != 0 {
            self.line(FLAG_TABS, format_args!("Unknown flags: 0x{unknown:X}"));
        }
    }

    /// The text, without its last line feed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.text.strip_suffix('\n').unwrap_or(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_begin_at_their_column() {
        let mut listing = Listing::default();
        listing.entry(1, 40, "max_qp", 7);
        listing.entry(1, 40, "max_total_mcast_qp_attach", 8);
        listing.entry(3, 48, "port_cap_flags2", "0x0000");
        listing.entry(1, 16, "longer than that", 9);
        assert_eq!(
            listing.as_str(),
            "\tmax_qp:\t\t\t\t7\n\tmax_total_mcast_qp_attach:\t8\n\
             \t\t\tport_cap_flags2:\t0x0000\n\tlonger than that:\t9"
        );
    }

    #[test]
    fn flags_without_a_name_are_shown_as_a_number() {
        let mut listing = Listing::default();
        listing.flags(0x81, &[(1, "ONE"), (2, "TWO")]);
        assert_eq!(
            listing.as_str(),
            "\t\t\t\t\tONE\n\t\t\t\t\tUnknown flags: 0x80"
        );
    }
}
