//! The Rust names of C's names: what has which `doc(alias)`.

use std::collections::BTreeMap;

/// The items with an alias, in the order of the files, as paths of `verbs_core`.
pub(super) type Items = BTreeMap<String, Vec<String>>;

/// Whose methods macros make; of the steps of a connection manager, the last ones.
const OWNERS: [(&str, &[&str]); 8] = [
    (
        "work_request",
        &[
            "SendWorkRequest",
            "WriteWorkRequest",
            "ReadWorkRequest",
            "AtomicWorkRequest",
            "BindWorkRequest",
            "InvalidateWorkRequest",
        ],
    ),
    (
        "mw_bind_info",
        &["SharedRegion", "RawRegion", "DmabufRegion"],
    ),
    (
        "carries_data",
        &["SendWorkRequest", "WriteWorkRequest", "DatagramWorkRequest"],
    ),
    ("in_each_state", &["PreparedQueuePair", "QueuePair"]),
    ("receives", &["PreparedQueuePair", "QueuePair"]),
    ("unowned", &["RawRegion", "DmabufRegion"]),
    (
        "with_a_device",
        &["Connection", "DatagramService", "MulticastGroup"],
    ),
    ("with_a_peer", &["Connection", "DatagramService"]),
];

/// Adds the items of one file of verbs-core, which rustfmt has formatted. `module` is the public module
/// of its types, such as `crate::rdmacm`.
pub(super) fn add(items: &mut Items, module: &str, text: &str) {
    let mut owners: Vec<String> = Vec::new();
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
                owners.clear();
                is_enum = false;
            }
            is_enum |= code.starts_with("open_enum!");
        }
        if is_top || code.starts_with("impl") {
            owners = owners_of(code).unwrap_or(owners);
        }
        if is_enum && let Some((item, c)) = enum_item(code, &mut owners) {
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
            let paths: Vec<String> = if item.is_type || is_top {
                vec![item.name.to_owned()]
            } else {
                let of = owners.iter();
                of.map(|owner| format!("{owner}::{}", item.name)).collect()
            };
            for c in &aliases {
                for path in &paths {
                    add_path(items, c, format!("{module}::{path}"));
                }
            }
        }
        aliases.clear();
        if let Some(item) = item
            && item.is_type
            && code.ends_with('{')
        {
            owners = vec![item.name.to_owned()];
        }
    }
}

/// Types that have methods in several modules, and their own.
const SPREAD: [(&str, &str); 3] = [
    ("::Context::", "crate"),
    ("::ProtectionDomain::", "crate"),
    ("::WorkRequestBatch::", "crate::queue_pair"),
];

fn add_path(items: &mut Items, c: &str, path: String) {
    let spread = SPREAD.iter().find_map(|(owner, module)| {
        let (_, method) = path.split_once(owner)?;
        Some(format!("{module}{owner}{method}"))
    });
    let path = spread.unwrap_or(path);
    let paths = items.entry(c.to_owned()).or_default();
    if !paths.contains(&path) {
        paths.push(path);
    }
}

/// The type of an `impl` block, or those of a macro that makes methods.
fn owners_of(code: &str) -> Option<Vec<String>> {
    let made = code.strip_prefix("macro_rules! ").map(name_at);
    if let Some(made) = made {
        let (_, owners) = OWNERS.iter().find(|(name, _)| *name == made)?;
        return Some(owners.iter().map(|&owner| owner.to_owned()).collect());
    }
    let rest = code.strip_prefix("unsafe ").unwrap_or(code);
    let mut rest = rest.strip_prefix("impl")?;
    if rest.starts_with('<') {
        rest = rest.split_once("> ")?.1;
    }
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    let of = of.trim_start();
    let path = of.split(['<', ' ']).next()?;
    let name = name_at(path.rsplit("::").next()?);
    // Otherwise it is an argument of the macro.
    (!name.contains('$')).then(|| vec![name.to_owned()])
}

/// An item of an `open_enum!`: `Name(u32), "ibv_name";` or `NAME = code "IBV_NAME" "text",`.
fn enum_item<'c>(code: &'c str, owners: &mut Vec<String>) -> Option<(String, &'c str)> {
    let c = code.split('"').nth(1)?;
    let name = name_at(code);
    if code.trim_end().ends_with(';') && code.contains('(') {
        *owners = vec![name.to_owned()];
        return Some((name.to_owned(), c));
    }
    let is_constant = code.get(name.len()..)?.starts_with(" = ");
    let owner = owners.first()?;
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

    fn paths(text: &str) -> Vec<(String, String)> {
        let mut items = Items::new();
        add(&mut items, "crate", text);
        let all = items.into_iter();
        all.flat_map(|(c, paths)| paths.into_iter().map(move |path| (c.clone(), path)))
            .collect()
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

        impl Chain<$name> {
            #[doc(alias = "ibv_post_recv")]
            pub unsafe fn post_receives(&self) {}
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
            ("ibv_post_recv", "crate::PreparedQueuePair::post_receive"),
            ("ibv_post_recv", "crate::QueuePair::post_receive"),
            ("ibv_post_recv", "crate::Chain::post_receives"),
            ("ibv_qp_state", "crate::QpState"),
            ("ibv_qp_state_str", "crate::QpState"),
            ("verbs_of_any_prefix", "crate::Context::alloc_pd"),
        ];
        let expected = expected.map(|(c, path)| (c.to_owned(), path.to_owned()));
        assert_eq!(paths(text), expected);
    }
}
