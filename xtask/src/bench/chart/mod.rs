//! Charts: lines over an axis with the spread of each point, and bars beside each other.

mod axis;
mod svg;

pub(super) use axis::Scale;

use super::samples::Spread;
use crate::numbers::digits;
use axis::Axis;
use svg::{Anchor, Svg};

/// Colours of the series, in this order; they differ for colour-blind readers, too.
const COLOURS: [&str; 6] = [
    "#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
];
const GRID: &str = "#dddddd";
const INK: &str = "#222222";

/// Points that are connected.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, Spread)>,
}

/// Lines in one picture.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    pub(super) x: (&'a str, Scale),
    pub(super) y: (&'a str, Scale),
    /// How the values on the horizontal axis are named.
    pub(super) name: fn(f64) -> String,
    /// A value to compare with.
    pub(super) level: Option<f64>,
    pub(super) series: Vec<Series>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// Around the area of the points: left, right, top, bottom.
const ROOM: [f64; 4] = [70.0, 20.0, 62.0, 48.0];

impl Lines<'_> {
    /// The picture; none without points.
    pub(super) fn svg(&self) -> Option<String> {
        let [left, right, top, bottom] = ROOM;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::of(self.x.1, points().map(|(x, _)| *x))?;
        let ends = points().flat_map(|(_, y)| [y.least, y.most]);
        let y = Axis::of(self.y.1, ends.chain(self.level))?;
        let across = |value: f64| left + x.place(value) * (WIDTH - left - right);
        let up = |value: f64| HEIGHT - bottom - y.place(value) * (HEIGHT - top - bottom);
        let mut svg = Svg::new(WIDTH, HEIGHT);
        svg.title((10.0, 20.0), self.title);
        for tick in x.ticks() {
            let at = across(tick);
            svg.line((at, top), (at, HEIGHT - bottom), GRID, 1.0);
            let name = (self.name)(tick);
            svg.words((at, HEIGHT - bottom + 16.0), Anchor::Middle, &name);
        }
        for tick in y.ticks() {
            let at = up(tick);
            svg.line((left, at), (WIDTH - right, at), GRID, 1.0);
            svg.words((left - 6.0, at + 4.0), Anchor::End, &short(tick));
        }
        svg.words((left, top - 6.0), Anchor::Start, self.y.0);
        let below = (WIDTH - right, HEIGHT - 12.0);
        svg.words(below, Anchor::End, self.x.0);
        if let Some(level) = self.level {
            svg.line((left, up(level)), (WIDTH - right, up(level)), INK, 1.5);
        }
        legend(&mut svg, self.series.iter().map(|series| &*series.name));
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let place = |(x, y): &(f64, Spread)| (across(*x), up(y.median));
            let path: Vec<(f64, f64)> = series.points.iter().map(place).collect();
            svg.path(&path, colour);
            for (x, y) in &series.points {
                let at = across(*x);
                svg.line((at, up(y.least)), (at, up(y.most)), colour, 1.0);
                svg.dot((at, up(y.median)), colour);
            }
        }
        Some(svg.finish())
    }
}

/// One row of bars, with a value for each name.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
    /// The most that the last value may be.
    pub(super) limit: Option<f64>,
}

/// Bars beside each other.
#[derive(Debug)]
pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    /// The names of each row's values.
    pub(super) names: &'a [&'a str],
    pub(super) scale: Scale,
    pub(super) rows: Vec<Bar>,
}

const NAMES_WIDTH: f64 = 310.0;
const BAR: f64 = 8.0;

impl Bars<'_> {
    /// The picture; none without bars.
    pub(super) fn svg(&self) -> Option<String> {
        let values = |row: &Bar| row.values.iter().copied().chain(row.limit).collect();
        let all = self.rows.iter().flat_map(|row| -> Vec<f64> { values(row) });
        let axis = Axis::of(self.scale, all)?;
        let count = |count: usize| u32::try_from(count).map_or(0.0, f64::from);
        let each = BAR * count(self.names.len()) + 8.0;
        let (top, bottom) = (64.0, 12.0);
        let height = top + each * count(self.rows.len()) + bottom;
        let across = |value: f64| NAMES_WIDTH + axis.place(value) * (WIDTH - NAMES_WIDTH - 70.0);
        let mut svg = Svg::new(WIDTH, height);
        svg.title((10.0, 20.0), self.title);
        legend(&mut svg, self.names.iter().copied());
        for tick in axis.ticks() {
            let at = across(tick);
            svg.line((at, top - 6.0), (at, height - bottom), GRID, 1.0);
            svg.words((at, top - 10.0), Anchor::Middle, &short(tick));
        }
        let mut y = top;
        for row in &self.rows {
            let middle = y + each / 2.0;
            svg.words((NAMES_WIDTH - 8.0, middle), Anchor::End, &row.name);
            for (at, (value, colour)) in row.values.iter().zip(COLOURS).enumerate() {
                let place = (NAMES_WIDTH, y + BAR * count(at));
                svg.bar(place, (across(*value) - NAMES_WIDTH, BAR - 1.0), colour);
                let end = across(*value).max(row.limit.map_or(0.0, across));
                let end = (end + 4.0, place.1 + BAR - 1.0);
                if at + 1 == row.values.len() {
                    svg.words(end, Anchor::Start, &short(*value));
                }
            }
            if let Some(limit) = row.limit {
                let (at, high) = (across(limit), BAR * count(row.values.len()));
                svg.line((at, y - 1.0), (at, y + high), "#d55e00", 2.0);
            }
            y += each;
        }
        Some(svg.finish())
    }
}

/// The key to the colours, in a line below the title.
fn legend<'n>(svg: &mut Svg, names: impl Iterator<Item = &'n str>) {
    let mut x = 10.0;
    for (name, colour) in names.zip(COLOURS.iter().cycle()) {
        svg.bar((x, 30.0), (14.0, 10.0), colour);
        svg.words((x + 18.0, 39.0), Anchor::Start, name);
        let len = u32::try_from(name.chars().count()).map_or(0.0, f64::from);
        x += 34.0 + 6.6 * len;
    }
}

/// A value at an axis.
fn short(value: f64) -> String {
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value.abs() {
        large if large >= 999_950.0 => trimmed(digits(value / 1e6)) + " M",
        large if large >= 9_999.5 => trimmed(digits(value / 1e3)) + " k",
        small if small < 0.095 && small > 0.0 => format!("{value:.1e}"),
        _ => trimmed(digits(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Bars, Lines, Scale, Series, Spread, short};

    fn lines(points: Vec<(f64, Spread)>) -> Option<String> {
        let name = "ours & theirs".to_owned();
        let lines = Lines {
            title: "latency",
            x: ("bytes", Scale::Log(2.0)),
            y: ("ratio", Scale::Linear),
            name: |x| format!("{x} B"),
            level: Some(1.0),
            series: vec![Series { name, points }],
        };
        lines.svg()
    }

    #[test]
    fn each_point_is_in_its_place_with_its_spread() {
        let spread = Spread {
            least: 0.5,
            median: 1.0,
            most: 2.0,
        };
        let svg = lines(vec![(2.0, Spread::exactly(0.0)), (8.0, spread)]).unwrap();
        // The area is from 70 to 740, and from 352 up to 62, of which 2.0 is the top.
        assert!(svg.contains("points=\"70.0,352.0 740.0,207.0\""), "{svg}");
        let line = "x1=\"740.0\" y1=\"279.5\" x2=\"740.0\" y2=\"62.0\" stroke=\"#555555\"";
        assert!(svg.contains(line), "{svg}");
        assert!(svg.contains(">4 B<") && svg.contains(">ours &amp; theirs<"));
        // The level of 1.
        let level = "x1=\"70.0\" y1=\"207.0\" x2=\"740.0\" y2=\"207.0\" stroke=\"#222222\"";
        assert!(svg.contains(level), "{svg}");
    }

    #[test]
    fn there_is_no_picture_of_nothing() {
        assert_eq!(lines(vec![]), None);
        let bars = Bars {
            title: "",
            names: &[],
            scale: Scale::Linear,
            rows: vec![],
        };
        assert_eq!(bars.svg(), None);
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_show_their_limit() {
        let row = Bar {
            name: "send".into(),
            values: vec![10.0, 1000.0],
            limit: Some(100.0),
        };
        let bars = Bars {
            title: "instructions",
            names: &["C", "here"],
            scale: Scale::Log(10.0),
            rows: vec![row],
        };
        let svg = bars.svg().unwrap();
        // From 310 to 690.
        assert!(svg.contains("width=\"0.0\" height=\"7.0\" fill=\"#555555\""));
        assert!(svg.contains("width=\"380.0\" height=\"7.0\" fill=\"#0072b2\""));
        assert!(svg.contains("<line x1=\"500.0\""), "{svg}");
        assert!(svg.contains(">1000</text>"), "{svg}");
    }

    #[test]
    fn values_are_short() {
        let shown = [0.0, 0.25, 1.0, 50.0, 12_000.0, 2.5e6, 0.01].map(short);
        assert_eq!(shown, ["0", "0.25", "1", "50", "12 k", "2.5 M", "1.0e-2"]);
    }
}
