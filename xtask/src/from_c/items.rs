//! The Rust names of C's names: what has which `doc(alias)`.

use std::collections::BTreeMap;

/// The items with an alias, in the order of the files, as paths of `verbs_core`.
pub(super) type Items = BTreeMap<String, Vec<String>>;

/// Whose methods macros make; the first of several types.
const OWNERS: [(&str, &str); 5] = [
    ("work_request", "SendWorkRequest"),
    ("carries_data", "SendWorkRequest"),
    ("in_each_state", "QueuePair"),
    ("receives", "QueuePair"),
    ("unowned", "RawRegion"),
];

/// Adds the items of one file of verbs-core, which rustfmt has formatted. `module` is the public module
/// of its types, such as `crate::rdmacm`.
pub(super) fn add(items: &mut Items, module: &str, text: &str) {
    let mut owner: Option<String> = None;
    let mut is_enum = false;
    let mut aliases: Vec<&str> = Vec::new();
    for line in text.lines() {
        let code = line.trim_start();
        let is_top = code.len() == line.len();
        if code.starts_with("#[cfg(test)]") {
            return;
        }
        if is_top {
            if code.starts_with('}') {
                (owner, is_enum) = (None, false);
            }
            is_enum |= code.starts_with("open_enum!");
            owner = owner_of(code).or(owner);
        }
        if is_enum && let Some((item, c)) = enum_item(code, &mut owner) {
            aliases.push(c);
            for c in aliases.drain(..) {
                add_path(items, c, format!("{module}::{item}"));
            }
            continue;
        }
        aliases.extend(alias(code));
        if code.is_empty() || code.starts_with('#') || code.starts_with("//") {
            continue;
        }
        let item = item(code);
        if let Some(item) = &item
            && !item.name.contains('$')
        {
            let path = match &owner {
                _ if item.is_type || is_top => Some(item.name.to_owned()),
                Some(owner) => Some(format!("{owner}::{}", item.name)),
                // Made by a macro, for several types.
                None => None,
            };
            for (c, path) in aliases
                .iter()
                .flat_map(|c| path.iter().map(move |path| (c, path)))
            {
                add_path(items, c, format!("{module}::{path}"));
            }
        }
        aliases.clear();
        if let Some(item) = item
            && item.is_type
            && code.ends_with('{')
        {
            owner = Some(item.name.to_owned());
        }
    }
}

fn add_path(items: &mut Items, c: &str, path: String) {
    let paths = items.entry(c.to_owned()).or_default();
    if !paths.contains(&path) {
        paths.push(path);
    }
}

/// The type of an `impl` block, or of a macro that makes methods.
fn owner_of(code: &str) -> Option<String> {
    let made = code.strip_prefix("macro_rules! ").map(name_at);
    if let Some(made) = made {
        let known = OWNERS.iter().find(|(name, _)| *name == made);
        return known.map(|(_, owner)| (*owner).to_owned());
    }
    let rest = code.strip_prefix("unsafe ").unwrap_or(code);
    let mut rest = rest.strip_prefix("impl")?;
    if rest.starts_with('<') {
        rest = rest.split_once("> ")?.1;
    }
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    Some(name_at(of.trim_start()).to_owned())
}

/// An item of an `open_enum!`: `Name(u32), "ibv_name";` or `NAME = code "IBV_NAME" "text",`.
fn enum_item<'c>(code: &'c str, owner: &mut Option<String>) -> Option<(String, &'c str)> {
    let c = code.split('"').nth(1)?;
    let name = name_at(code);
    if code.trim_end().ends_with(';') && code.contains('(') {
        *owner = Some(name.to_owned());
        return Some((name.to_owned(), c));
    }
    let is_constant = code.get(name.len()..)?.starts_with(" = ");
    let owner = owner.as_deref()?;
    is_constant.then(|| (format!("{owner}::{name}"), c))
}

/// The name of a `doc(alias = "…")`.
fn alias(code: &str) -> Option<&str> {
    let (_, rest) = code.split_once("doc(alias = \"")?;
    rest.split_once('"').map(|(name, _)| name)
}

struct Item<'c> {
    name: &'c str,
    is_type: bool,
}

fn item(code: &str) -> Option<Item<'_>> {
    let is_public = code.starts_with("pub ");
    let mut rest = code.strip_prefix("pub ").unwrap_or(code);
    for word in ["unsafe ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    if let Some(constant) = rest.strip_prefix("const ") {
        rest = constant.strip_prefix("unsafe ").unwrap_or(constant);
        if !rest.starts_with("fn ") {
            let (name, is_type) = (name_at(rest), false);
            return Some(Item { name, is_type });
        }
    }
    for (word, is_type) in [
        ("fn ", false),
        ("struct ", true),
        ("enum ", true),
        ("trait ", true),
    ] {
        if let Some(rest) = rest.strip_prefix(word) {
            let name = name_at(rest);
            return Some(Item { name, is_type });
        }
    }
    // A variant: fields have no link.
    let name = name_at(rest);
    let is_variant = !is_public && name.starts_with(|first: char| first.is_ascii_uppercase());
    let is_type = false;
    is_variant.then_some(Item { name, is_type })
}

/// The identifier at the front.
fn name_at(code: &str) -> &str {
    let end = code.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$')));
    code.get(..end.unwrap_or(code.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<(String, Vec<String>)> {
        let mut items = Items::new();
        add(&mut items, "crate", text);
        items.into_iter().collect()
    }

    #[test]
    fn items_are_found_with_their_types() {
        let text = r#"
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

impl<'a, T: Clone> Context<'a, T> {
    /// Allocates.
    #[doc(alias = "ibv_alloc_pd")]
    #[doc(alias = "verbs_of_any_prefix")]
    pub fn alloc_pd(&self) {}
}

impl Drop for Inner {
    fn drop(&mut self) {}
}

#[doc(alias = "ibv_fork_init")]
pub fn fork_init() {}

bitflags::bitflags! {
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags: u32 {
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = 1;
    }
}

open_enum! {
    /// States.
    #[doc(alias = "ibv_qp_state_str")]
    QpState(c_uint), "ibv_qp_state";
    /// New.
    RESET = 0 "IBV_QPS_RESET",
}

macro_rules! receives {
    ($name:ident) => {
        impl $name {
            #[doc(alias = "ibv_post_recv")]
            pub unsafe fn post_receive(&self) {}
        }
    };
}

#[derive(Clone)]
#[doc(alias = "ibv_mtu")]
pub enum Mtu {
    /// 256.
    #[doc(alias = "IBV_MTU_256")]
    Mtu256 = 1,
}

#[cfg(test)]
mod tests {
    #[doc(alias = "ibv_none")]
    fn none() {}
}
"#;
        let expected = [
            ("IBV_ACCESS_LOCAL_WRITE", "crate::AccessFlags::LOCAL_WRITE"),
            ("IBV_MTU_256", "crate::Mtu::Mtu256"),
            ("IBV_QPS_RESET", "crate::QpState::RESET"),
            ("ibv_access_flags", "crate::AccessFlags"),
            ("ibv_alloc_pd", "crate::Context::alloc_pd"),
            ("ibv_fork_init", "crate::fork_init"),
            ("ibv_mtu", "crate::Mtu"),
            ("ibv_pd", "crate::ProtectionDomain"),
            ("ibv_post_recv", "crate::QueuePair::post_receive"),
            ("ibv_qp_state", "crate::QpState"),
            ("ibv_qp_state_str", "crate::QpState"),
            ("verbs_of_any_prefix", "crate::Context::alloc_pd"),
        ];
        let expected = expected.map(|(c, path)| (c.to_owned(), vec![path.to_owned()]));
        assert_eq!(paths(text), expected);
    }
}
