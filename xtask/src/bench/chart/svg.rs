//! A picture as SVG text: lines, boxes and words.

use std::fmt::Write as _;

/// Where words begin at their place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture of a size, on white: it is read in light and dark.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        Self { text }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        self.add(&format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        ));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        self.add(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn bar(&mut self, at: (f64, f64), size: (f64, f64), colour: &str) {
        let ((x, y), (width, height)) = (at, size);
        let width = width.max(0.0);
        self.add(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn words(&mut self, (x, y): (f64, f64), anchor: Anchor, words: &str) {
        self.styled((x, y), anchor, words, "");
    }

    /// A heading.
    pub(super) fn title(&mut self, (x, y): (f64, f64), words: &str) {
        let style = " font-weight=\"bold\" font-size=\"14\"";
        self.styled((x, y), Anchor::Start, words, style);
    }

    fn styled(&mut self, (x, y): (f64, f64), anchor: Anchor, words: &str, style: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let words = escape(words);
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{style}>{words}</text>"
        ));
    }

    fn add(&mut self, element: &str) {
        // A string takes everything.
        let _written = writeln!(self.text, "{element}");
    }

    pub(super) fn finish(self) -> String {
        self.text + "</svg>\n"
    }
}

fn escape(words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    words.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Anchor, Svg};

    #[test]
    fn words_cannot_end_their_element() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.words((1.0, 2.0), Anchor::End, "a<b & \"c\"");
        let text = svg.finish();
        let expected = "text-anchor=\"end\">a&lt;b &amp; &quot;c&quot;</text>\n</svg>\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.starts_with("<svg "), "{text}");
    }

    #[test]
    fn a_bar_is_never_of_less_than_no_width() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.bar((0.0, 0.0), (-3.0, 5.0), "#123456");
        assert!(svg.finish().contains("width=\"0.0\" height=\"5.0\""));
    }
}
