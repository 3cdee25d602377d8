//! The names that a C header declares.

use std::collections::BTreeSet;

/// The names of macros, types, enumerators, functions and variables that `code` declares, whatever they
/// begin with; it has no comments. Fields, parameters and what is in the bodies of functions are not among them. Both branches
/// of a condition of the preprocessor are read.
pub(super) fn declared(code: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut tokens = Vec::new();
    let mut is_continued = false;
    for line in code.lines() {
        let directive = line.trim_start().strip_prefix('#');
        if let Some(directive) = directive.filter(|_| !is_continued) {
            let defined = directive.trim_start().strip_prefix("define");
            names.extend(defined.and_then(|rest| words(rest).next()));
        }
        let is_code = directive.is_none() && !is_continued;
        is_continued = !is_code && line.trim_end().ends_with('\\');
        if is_code {
            tokens.extend(split(line));
        }
    }
    let mut open = Vec::new();
    let mut statement: Vec<&str> = Vec::new();
    let mut parentheses = 0_usize;
    for (index, &token) in tokens.iter().enumerate() {
        let before = |back: usize| index.checked_sub(back).map_or("", |index| tokens[index]);
        let is_top = open.is_empty();
        match token {
            "{" if before(1) == "\"C\"" => statement.clear(),
            "{" => {
                let is_type = |word: &str| matches!(word, "struct" | "union" | "enum");
                names.extend(is_type(before(2)).then_some(before(1)));
                open.push(before(1) == "enum" || before(2) == "enum");
            }
            "}" => {
                open.pop();
                // The end of a function's body, not of a type that a statement begins with.
                if open.is_empty() && statement.contains(&"(") {
                    names.extend(of_statement(&statement));
                    statement.clear();
                }
            }
            ";" if is_top => {
                names.extend(of_statement(&statement));
                statement.clear();
            }
            "(" => parentheses += 1,
            ")" => parentheses = parentheses.saturating_sub(1),
            _ if open.last() == Some(&true) && parentheses == 0 && is_word(token) => {
                names.extend(matches!(before(1), "{" | ",").then_some(token));
            }
            _ => {}
        }
        if is_top && !matches!(token, "{" | "}" | ";") {
            statement.push(token);
        }
    }
    names
}

/// All words of `code`.
pub(super) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c| !is_part(c)).filter(|word| is_word(word))
}

/// The text of a header without its comments.
pub(super) fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (before, comment) = rest.split_once("/*").unwrap_or((rest, ""));
        code.push_str(before);
        code.push(' ');
        rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
    }
    let lines = code.lines().map(|line| line.split("//").next());
    let lines: Vec<&str> = lines.map(Option::unwrap_or_default).collect();
    lines.join("\n")
}

/// The item that a statement outside of all types and functions declares.
fn of_statement<'t>(statement: &[&'t str]) -> Option<&'t str> {
    let last = || statement.iter().rfind(|token| is_word(token)).copied();
    let called = |pair: &&[&str]| pair[1] == "(" && is_word(pair[0]) && pair[0] != "__attribute__";
    match statement {
        ["typedef", ..] => {
            let pointer = |three: &&[&str]| three[0] == "(" && three[1] == "*";
            let pointer = statement.windows(3).find(pointer);
            pointer.map(|three| three[2]).or_else(last)
        }
        ["struct" | "union" | "enum", name] => Some(name),
        _ if statement.contains(&"(") => statement.windows(2).find(called).map(|pair| pair[0]),
        ["extern", _, ..] => last(),
        _ => None,
    }
}

/// The words of a line, and each other character but white space by itself; a string is one.
fn split(line: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if first == '"' {
            rest.match_indices('"').nth(1).map(|(at, _)| at + 1)
        } else if is_part(first) {
            rest.find(|c| !is_part(c))
        } else {
            Some(first.len_utf8())
        };
        let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| is_part(first) && !first.is_ascii_digit())
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"
#ifndef A_GUARD_H
#define A_GUARD_H
#include <a.h>
#  define HELPER __attribute__((const))
#ifdef __cplusplus
extern "C" {
#endif
/* no_comment(void); */ struct forward; // no_line(void);
#define LIMIT (1 + /* no_part */ \
    NO_CONTINUED)
#define with_argument(arg) ({ \
    no_variable = arg; })
union a_union { struct inside { int no_field; } no_inside; enum deep { DEEP } no_deep; };
struct a_struct {
    int (*no_callback)(struct referred *no_argument);
    enum a_named no_value;
};
enum a_named { FIRST = 1 << 2, /* no_one */ SECOND = no_macro(1, 2),
    THIRD };
enum { UNNAMED };
typedef struct a_struct alias_t;
typedef int (*callback_t)(int no_parameter);
extern const struct ops *a_variable;
enum a_named a_function(struct a_struct *no_parameter) __attribute__((const));
static inline int __attribute__((unused)) an_inline(void)
{
    struct a_struct no_local = { 0 };
    return no_call(no_local);
}
static inline struct a_struct *after_it(void) { return NULL; }
#ifdef __cplusplus
}
#endif
int last(void);
#endif
"#;

    #[test]
    fn names_are_found_whatever_they_begin_with() {
        let mut expected = vec![
            "A_GUARD_H",
            "HELPER",
            "LIMIT",
            "with_argument",
            "forward",
            "a_union",
            "inside",
            "deep",
            "DEEP",
            "a_struct",
            "a_named",
            "FIRST",
            "SECOND",
            "THIRD",
            "UNNAMED",
            "alias_t",
            "callback_t",
            "a_variable",
            "a_function",
            "an_inline",
            "after_it",
            "last",
        ];
        expected.sort_unstable();
        let code = code(HEADER);
        let found: Vec<&str> = declared(&code).into_iter().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn words_are_found_outside_of_comments() {
        let code = code("int ibv_open(struct ibv_x *x); // no_line\n/* no_comment */ #define A B2");
        let found: Vec<&str> = words(&code).collect();
        let expected = [
            "int", "ibv_open", "struct", "ibv_x", "x", "define", "A", "B2",
        ];
        assert_eq!(found, expected);
    }
}
