//! The report: sections with tables and pictures, in one file and on the terminal.

use std::fs;
use std::path::{Path, PathBuf};

use super::machine::Machine;
use super::table::Table;
use crate::error::{Context as _, Error};

/// The measurements of one part.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) title: &'static str,
    /// The command that measures it again.
    pub(super) command: String,
    /// The measurement and its method, in sentences.
    pub(super) about: String,
    /// How often.
    pub(super) rounds: usize,
    pub(super) tables: Vec<(String, Table)>,
    /// The names of files, and pictures for them.
    pub(super) charts: Vec<(String, String)>,
    /// Runs that went wrong; others may have measured the same.
    pub(super) failures: Vec<String>,
    /// Failed measurements, and other reasons why the part has failed.
    pub(super) problems: Vec<String>,
    /// The figures that the docs show.
    pub(super) figures: Vec<(String, Vec<f64>)>,
    /// The machine of the devices.
    pub(super) ran_on: Option<String>,
    /// The devices, in words.
    pub(super) devices: Vec<String>,
}

impl Section {
    /// Adds a picture, if there is one.
    pub(super) fn chart(&mut self, file: &str, svg: Option<String>) {
        self.charts.extend(svg.map(|svg| (file.to_owned(), svg)));
    }
}

/// A report in a folder, which is whole after each section.
#[derive(Debug)]
pub(super) struct Report {
    dir: PathBuf,
    text: String,
}

const FILE: &str = "report.md";

impl Report {
    /// Begins one; that of the last run is removed.
    pub(super) fn begin(dir: &Path, machine: &Machine) -> Result<Self, Error> {
        fs::create_dir_all(dir).context(|| format!("cannot make the folder {}", dir.display()))?;
        let what = || format!("cannot list the folder {}", dir.display());
        for entry in fs::read_dir(dir).context(what)? {
            let path = entry.context(what)?.path();
            let is_old = path.ends_with(FILE) || path.extension().is_some_and(|ext| ext == "svg");
            if is_old {
                fs::remove_file(&path).context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        let mut about = Table::new(&["measured on", ""]);
        for (name, value) in machine.rows() {
            about.row([name.into(), value.into()]);
        }
        println!("{}", about.text());
        let text = format!(
            "# What RDMA for Rust costs\n\nBy `cargo xtask bench`.\n\n{}",
            about.markdown().replace("---:", "---")
        );
        let report = Self {
            dir: dir.to_owned(),
            text,
        };
        report.write(FILE, &report.text)?;
        Ok(report)
    }

    /// Prints a section, and adds it to the file.
    pub(super) fn add(&mut self, section: &Section) -> Result<(), Error> {
        println!("\n{}", section.terminal());
        for (name, svg) in &section.charts {
            self.write(name, svg)?;
        }
        self.text.push_str(&section.markdown());
        self.write(FILE, &self.text)
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.dir.join(name);
        fs::write(&path, text).context(|| format!("cannot write {}", path.display()))
    }
}

impl Section {
    fn terminal(&self) -> String {
        let mut text = format!("{}\n{}\n", self.title, "=".repeat(self.title.len()));
        for (caption, table) in self.tables.iter().filter(|(_, table)| !table.is_empty()) {
            text.push_str(&format!("\n{caption}\n{}", table.text()));
        }
        for failure in &self.failures {
            text.push_str(&format!("one run failed: {failure}\n"));
        }
        for problem in &self.problems {
            text.push_str(&format!("FAILED: {problem}\n"));
        }
        text
    }

    fn markdown(&self) -> String {
        let Self {
            title,
            command,
            about,
            ..
        } = self;
        let mut text = format!("\n## {title}\n\n{about}\n\nMeasured by `{command}`");
        if let Some(ran_on) = &self.ran_on {
            text.push_str(&format!(", on {ran_on}"));
        }
        text.push_str(".\n");
        for device in &self.devices {
            text.push_str(&format!("\nDevice {device}.\n"));
        }
        for (caption, table) in self.tables.iter().filter(|(_, table)| !table.is_empty()) {
            text.push_str(&format!("\n{caption}:\n\n{}", table.markdown()));
        }
        for (file, _) in &self.charts {
            let what = file.trim_end_matches(".svg");
            text.push_str(&format!("\n![{what}]({file})\n"));
        }
        for failure in &self.failures {
            text.push_str(&format!("\nOne run failed: {failure}\n"));
        }
        for problem in &self.problems {
            text.push_str(&format!("\n**Failed**: {problem}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE, Machine, Report, Section, Table};
    use std::{env, fs, process};

    #[test]
    fn the_file_has_each_section_and_nothing_of_the_last_run() {
        let dir = env::temp_dir().join(format!("xtask-report-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("old.svg"), "x").unwrap();
        fs::write(dir.join("other"), "x").unwrap();
        let machine = Machine::this();
        let mut report = Report::begin(&dir, &machine).unwrap();
        let mut table = Table::new(&["operation", "C"]);
        table.row(["send".into(), "59".into()]);
        let mut section = Section {
            title: "Instructions",
            command: "cargo xtask bench --only instructions".into(),
            tables: vec![("each".into(), table), ("none".into(), Table::new(&["a"]))],
            failures: vec!["once".into()],
            devices: vec!["mlx5_0: 400 Gbps".into()],
            problems: vec!["no".into()],
            ..Section::default()
        };
        section.chart("a.svg", Some("<svg/>".into()));
        section.chart("b.svg", None);
        report.add(&section).unwrap();
        let text = fs::read_to_string(dir.join(FILE)).unwrap();
        assert!(text.contains(&machine.commit) && text.contains(&machine.kernel));
        for part in [
            "\n## Instructions\n",
            "| send | 59 |",
            "![a](a.svg)",
            "\nDevice mlx5_0: 400 Gbps.\n",
            "One run failed: once",
            "**Failed**: no",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("none:") && !text.contains("b.svg"), "{text}");
        assert_eq!(fs::read_to_string(dir.join("a.svg")).unwrap(), "<svg/>");
        assert!(!dir.join("old.svg").exists() && dir.join("other").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
