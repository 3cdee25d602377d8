//! A table, for a terminal and for Markdown.

use super::samples::Spread;

/// Rows of cells below their heads; the first column is words, the others are numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(heads: &[&str]) -> Self {
        Self {
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each head.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For a terminal: the columns stand below each other.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let all = std::iter::once(&self.heads).chain(&self.rows);
        let width = |at: usize| {
            let widths = all
                .clone()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        for row in all.clone() {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let cell = match at {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
                line.push_str(&cell);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// For Markdown.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = line(&self.heads);
        text.push_str("|---");
        text.push_str(&"|---:".repeat(self.heads.len().saturating_sub(1)));
        text.push_str("|\n");
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

/// A spread, or that there is none.
pub(super) fn cell(spread: Option<Spread>, number: impl Fn(f64) -> String) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.text(number))
}

/// A ratio in a table.
pub(super) fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

#[cfg(test)]
mod tests {
    use super::Table;

    fn table() -> Table {
        let mut table = Table::new(&["what", "µs", "ratio"]);
        table.row(["a|b".into(), "12.5".into(), "1".into()]);
        table.row(["longer".into(), "3".into(), String::new()]);
        table
    }

    #[test]
    fn numbers_stand_below_each_other() {
        let expected = "what      µs  ratio\na|b     12.5      1\nlonger     3\n";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let expected =
            "| what | µs | ratio |\n|---|---:|---:|\n| a\\|b | 12.5 | 1 |\n| longer | 3 |  |\n";
        assert_eq!(table().markdown(), expected);
    }
}
