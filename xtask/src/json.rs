//! Just enough JSON to read what cargo says; a parser crate would take longer to build than all
//! the rest of the task runner.

use std::iter::Peekable;
use std::str::Chars;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Self>),
    /// An object, in the order it was written.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Reads one whole value; `None` if `text` is anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser {
            chars: text.chars().peekable(),
        };
        let value = parser.value(0)?;
        parser.space();
        parser.chars.next().is_none().then_some(value)
    }

    /// The member `key` of an object.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else {
            return None;
        };
        members
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    /// The text of a string.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of an array.
    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }
}

/// Deeper nesting than this is refused, so that no input can exhaust the stack.
const MAX_DEPTH: u32 = 100;

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
}

impl Parser<'_> {
    fn space(&mut self) {
        while self.chars.next_if(char::is_ascii_whitespace).is_some() {}
    }

    fn eat(&mut self, wanted: char) -> Option<()> {
        self.space();
        self.chars.next_if_eq(&wanted).map(|_| ())
    }

    fn word(&mut self, word: &str, value: Json) -> Option<Json> {
        word.chars()
            .all(|c| self.chars.next_if_eq(&c).is_some())
            .then_some(value)
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        match *self.chars.peek()? {
            'n' => self.word("null", Json::Null),
            't' => self.word("true", Json::Bool(true)),
            'f' => self.word("false", Json::Bool(false)),
            '"' => self.string().map(Json::String),
            '[' => self.array(depth),
            '{' => self.object(depth),
            '-' | '0'..='9' => Some(self.number()),
            _ => None,
        }
    }

    fn number(&mut self) -> Json {
        let mut text = String::new();
        let part = |c: &char| c.is_ascii_digit() || "+-.eE".contains(*c);
        while let Some(c) = self.chars.next_if(part) {
            text.push(c);
        }
        Json::Number(text)
    }

    fn array(&mut self, depth: u32) -> Option<Json> {
        self.eat('[')?;
        let mut elements = Vec::new();
        if self.eat(']').is_some() {
            return Some(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            if self.eat(',').is_none() {
                self.eat(']')?;
                return Some(Json::Array(elements));
            }
        }
    }

    fn object(&mut self, depth: u32) -> Option<Json> {
        self.eat('{')?;
        let mut members = Vec::new();
        if self.eat('}').is_some() {
            return Some(Json::Object(members));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.eat(':')?;
            members.push((key, self.value(depth + 1)?));
            if self.eat(',').is_none() {
                self.eat('}')?;
                return Some(Json::Object(members));
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        self.chars.next_if_eq(&'"')?;
        let mut text = String::new();
        loop {
            match self.chars.next()? {
                '"' => return Some(text),
                '\\' => text.push(self.escape()?),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.chars.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => return self.unicode(),
            c @ ('"' | '\\' | '/') => c,
            _ => return None,
        })
    }

    fn unicode(&mut self) -> Option<char> {
        let high = self.hex4()?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        self.word("\\u", Json::Null)?;
        let low = self.hex4()?.checked_sub(0xDC00)?;
        char::from_u32(0x10000 + ((high - 0xD800) << 10) + low)
    }

    fn hex4(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |sum, _| {
            Some(sum * 16 + self.chars.next()?.to_digit(16)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn every_kind_of_value_is_read() {
        let json = r#" {"a": [1, -2.5e3, true, false, null], "b": {"c": ""}, "d": []} "#;
        let json = Json::parse(json).unwrap();
        let a = json.get("a").unwrap().as_array().unwrap();
        assert_eq!(a[1], Json::Number("-2.5e3".into()));
        assert_eq!(a[2..], [Json::Bool(true), Json::Bool(false), Json::Null]);
        assert_eq!(json.get("b").unwrap().get("c").unwrap().as_str(), Some(""));
        assert_eq!(json.get("d").unwrap().as_array(), Some(&[][..]));
    }

    #[test]
    fn escapes_are_undone() {
        let json = Json::parse(r#""a\n\"\\\/é😀""#).unwrap();
        assert_eq!(json.as_str(), Some("a\n\"\\/é😀"));
    }

    #[test]
    fn anything_else_is_refused() {
        let deep = "[".repeat(100_000);
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "nul",
            "\"a",
            "1 2",
            r#""\ud83d""#,
            &deep,
        ] {
            assert_eq!(Json::parse(bad), None, "{bad:.20}");
        }
    }
}
