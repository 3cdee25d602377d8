//! The figures of runs: those that the docs show, in a file of the project, and those of the last run.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use tinyjson::JsonValue;

use super::machine::Machine;
use super::report::Section;
use crate::error::{Context as _, Error};
use crate::workspace;

/// The file of the project, below the workspace's root.
pub(super) const FILE: &str = "xtask/figures.json";

/// The file of the last run, in the folder of the report.
pub(super) const LAST: &str = "figures.json";

/// The figures of one part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    /// The part.
    pub(super) name: String,
    /// The command, and the machine.
    pub(super) about: Vec<(String, String)>,
    /// Names of the measurements, and their numbers.
    pub(super) rows: Vec<(String, Vec<f64>)>,
}

/// All groups, each of the last run that measured it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) groups: Vec<Group>,
}

impl Group {
    /// Figures of a part that was measured just now.
    pub(super) fn new(name: &str, command: &str, section: &Section, machine: &Machine) -> Self {
        let machine = machine.rows().into_iter();
        let mut about = vec![("command".to_owned(), command.to_owned())];
        about.extend(machine.map(|(name, value)| (name.to_owned(), value.to_owned())));
        about.push(("rounds".to_owned(), section.rounds.to_string()));
        let ran_on = section.ran_on.iter();
        about.extend(ran_on.map(|place| ("ran on".to_owned(), place.clone())));
        let devices = section.devices.iter();
        about.extend(devices.map(|device| ("device".to_owned(), device.clone())));
        Self {
            name: name.to_owned(),
            about,
            rows: section.figures.clone(),
        }
    }

    /// Something about its run.
    pub(super) fn about(&self, name: &str) -> &str {
        let mut about = self.about.iter();
        let found = about.find(|(key, _)| key == name);
        found.map_or("unknown", |(_, value)| value)
    }

    /// The numbers of a row.
    pub(super) fn row(&self, name: &str) -> Option<&[f64]> {
        let found = self.rows.iter().find(|(row, _)| row == name);
        found.map(|(_, numbers)| &**numbers)
    }
}

impl Figures {
    /// Where those of the docs are.
    pub(super) fn of_docs() -> PathBuf {
        workspace::root().join(FILE)
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display();
        let text = fs::read_to_string(path).context(|| format!("cannot read {name}"))?;
        Self::parse(&text).ok_or_else(|| Error::new(format!("{name} has another form")))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        fs::write(path, self.text()).context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Takes the place of the group of that name.
    pub(super) fn replace(&mut self, group: Group) {
        self.groups.retain(|old| old.name != group.name);
        self.groups.push(group);
        self.groups.sort_by(|a, b| a.name.cmp(&b.name));
    }

    fn parse(text: &str) -> Option<Self> {
        let json: JsonValue = text.parse().ok()?;
        let all: &Vec<JsonValue> = json.get()?;
        let groups = all.iter().map(group).collect::<Option<_>>()?;
        Some(Self { groups })
    }

    /// One row a line, so that a change is small.
    fn text(&self) -> String {
        let string = |text: &str| {
            let json = JsonValue::from(text.to_owned());
            json.stringify().unwrap_or_default()
        };
        let groups = self.groups.iter().map(|group| {
            let about = group.about.iter();
            let about =
                about.map(|(name, value)| format!("    [{}, {}]", string(name), string(value)));
            let rows = group.rows.iter().map(|(name, numbers)| {
                let numbers = numbers.iter().map(|number| format!(", {number}"));
                format!("    [{}{}]", string(name), numbers.collect::<String>())
            });
            format!(
                "{{\n  \"name\": {},\n  \"about\": [\n{}\n  ],\n  \"rows\": [\n{}\n  ]\n}}",
                string(&group.name),
                about.collect::<Vec<_>>().join(",\n"),
                rows.collect::<Vec<_>>().join(",\n")
            )
        });
        format!("[\n{}\n]\n", groups.collect::<Vec<_>>().join(",\n"))
    }
}

fn group(json: &JsonValue) -> Option<Group> {
    let object: &HashMap<String, JsonValue> = json.get()?;
    let list = |name: &str| -> Option<&Vec<JsonValue>> { object.get(name)?.get() };
    let about = list("about")?.iter().map(|pair| {
        let [name, value] = &pair.get::<Vec<JsonValue>>()?[..] else {
            return None;
        };
        Some((
            name.get::<String>()?.clone(),
            value.get::<String>()?.clone(),
        ))
    });
    let rows = list("rows")?.iter().map(|row| {
        let (name, numbers) = row.get::<Vec<JsonValue>>()?.split_first()?;
        let numbers = numbers.iter().map(|number| number.get().copied());
        Some((
            name.get::<String>()?.clone(),
            numbers.collect::<Option<_>>()?,
        ))
    });
    Some(Group {
        name: object.get("name")?.get::<String>()?.clone(),
        about: about.collect::<Option<_>>()?,
        rows: rows.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Figures, Group, Machine, Section};

    fn figures() -> Figures {
        let rows = vec![
            ("send \"1\"".to_owned(), vec![59.0, 43.25]),
            ("none".to_owned(), vec![]),
        ];
        let machine = Machine::this();
        let mut figures = Figures::default();
        let stand_in = Section {
            figures: rows.clone(),
            ..Section::default()
        };
        let guest = Section {
            figures: rows,
            rounds: 7,
            ran_on: Some("a guest".to_owned()),
            devices: vec!["rxe0: port 1".to_owned()],
            ..Section::default()
        };
        figures.replace(Group::new("b", "cargo", &stand_in, &machine));
        figures.replace(Group::new("a", "x", &guest, &machine));
        figures
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let figures = figures();
        assert_eq!(Figures::parse(&figures.text()), Some(figures.clone()));
        assert_eq!(figures.groups[0].name, "a");
        assert_eq!(figures.groups[0].about("ran on"), "a guest");
        assert_eq!(figures.groups[0].about("rounds"), "7");
        assert_eq!(figures.groups[0].about("device"), "rxe0: port 1");
        assert_eq!(figures.groups[1].about("ran on"), "unknown");
        assert_eq!(
            figures.groups[1].row("send \"1\""),
            Some(&[59.0, 43.25][..])
        );
        assert!(
            figures
                .text()
                .contains("\n    [\"send \\\"1\\\"\", 59, 43.25],\n")
        );
    }

    #[test]
    fn a_group_takes_the_place_of_the_last_run_s() {
        let mut figures = figures();
        let empty = Group {
            name: "a".to_owned(),
            ..Group::default()
        };
        figures.replace(empty.clone());
        assert_eq!(
            (figures.groups.len(), figures.group("a")),
            (2, Some(&empty))
        );
    }

    #[test]
    fn a_file_of_another_form_is_not_read() {
        for text in [
            "",
            "{}",
            "[1]",
            r#"[{"name":"a","about":[],"rows":[["x","y"]]}]"#,
        ] {
            assert_eq!(Figures::parse(text), None, "{text}");
        }
    }
}
