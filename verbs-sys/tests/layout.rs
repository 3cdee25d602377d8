//! Sizes, alignments, offsets and constants of the bindings agree with the C compiler.
//!
//! bindgen's own assertions compare rustc with libclang. This takes the same numbers, and every
//! constant, from the generated text, and has the compiler that `CC` names check them.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

/// The generated bindings, one space between words, so that it does not matter how they are laid
/// out.
fn bindings() -> String {
    let text = fs::read_to_string(concat!(env!("OUT_DIR"), "/bindings.rs"))
        .expect("the build script wrote the bindings");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Has the C compiler check `assertions`, each a C expression and what it is about.
fn check_in_c(assertions: &[String]) {
    let mut source = String::from("#include <infiniband/verbs.h>\n");
    if cfg!(feature = "rdmacm") {
        source.push_str("#include <rdma/rdma_cma.h>\n");
    }
    for assertion in assertions {
        writeln!(source, "_Static_assert({assertion}, \"\");").expect("a String takes all text");
    }

    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut child = Command::new(&compiler)
        .args([
            "-std=gnu11",
            "-Wno-deprecated",
            "-fsyntax-only",
            "-x",
            "c",
            "-",
        ])
        .args(
            env::split_paths(env!("VERBS_SYS_INCLUDE")).map(|path| format!("-I{}", path.display())),
        )
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("no C compiler `cc` runs: install gcc, or name one in CC");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin
        .write_all(source.as_bytes())
        .expect("the compiler reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("the compiler ends");
    assert!(
        output.status.success(),
        "C disagrees with the bindings:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The text between `prefix` and `suffix`, for each `prefix` in `text`.
fn between<'a>(text: &'a str, prefix: &'a str, suffix: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(prefix)
        .skip(1)
        .filter_map(move |rest| Some(rest.split_once(suffix)?.0))
}

/// A field's name in C: bindgen marks those that are Rust keywords.
fn c_field(name: &str) -> &str {
    name.strip_suffix('_').unwrap_or(name)
}

/// Whether C has a name for this type or field; bindgen numbers those that have none.
fn has_c_name(name: &str) -> bool {
    !name.contains("__bindgen")
}

#[test]
fn sizes_alignments_and_offsets_agree_with_c() {
    let bindings = bindings();
    let unions: BTreeSet<_> = between(&bindings, "pub union ", " {").collect();
    let c_type = |name: &str| {
        let keyword = if unions.contains(name) {
            "union"
        } else {
            "struct"
        };
        format!("{keyword} {name}")
    };

    let mut assertions = Vec::new();
    for check in between(&bindings, "[\"", "usize];") {
        let (what, rest) = check.split_once("\"]").expect("a name is in quotes");
        let (_, number) = rest.rsplit_once("- ").expect("a number is subtracted");
        if !has_c_name(what) {
            continue;
        }
        assertions.push(if let Some(name) = what.strip_prefix("Size of ") {
            format!("sizeof({}) == {number}", c_type(name))
        } else if let Some(name) = what.strip_prefix("Alignment of ") {
            format!("_Alignof({}) == {number}", c_type(name))
        } else {
            let path = what
                .strip_prefix("Offset of field: ")
                .expect("three kinds of checks");
            let (name, field) = path.split_once("::").expect("a field of a type");
            format!("offsetof({}, {}) == {number}", c_type(name), c_field(field))
        });
    }
    println!("{} sizes, alignments and offsets", assertions.len());
    assert!(
        assertions.len() > 800,
        "bindgen's assertions were found: {}",
        assertions.len()
    );
    check_in_c(&assertions);
}

#[test]
fn constants_and_enum_types_agree_with_c() {
    let bindings = bindings();
    let mut assertions = Vec::new();
    for constant in between(&bindings, "pub const ", ";") {
        let Some((name, rest)) = constant.split_once(": ") else {
            continue;
        };
        let Some((_, value)) = rest.split_once(" = ") else {
            continue;
        };
        // Either `name(value)` or the bare value.
        let value = value
            .split_once('(')
            .map_or(value, |(_, inner)| inner.trim_end_matches(')'));
        if ["IBV_", "RDMA_", "RAI_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            let value: i128 = value.parse().expect("a constant is a number");
            let suffix = if value > i64::MAX.into() { "ULL" } else { "LL" };
            assertions.push(format!("({name}) == ({value}{suffix})"));
        }
    }
    println!("{} constants", assertions.len());
    assert!(
        assertions.len() > 400,
        "the constants were found: {}",
        assertions.len()
    );

    let before = assertions.len();
    for newtype in between(&bindings, "pub struct ", ");") {
        let Some((name, inner)) = newtype.split_once("(pub ") else {
            continue;
        };
        let (size, signed) = match inner {
            "::core::ffi::c_uint" => (size_of::<u32>(), 0),
            "::core::ffi::c_int" => (size_of::<i32>(), 1),
            "__u16" | "__u32" | "__u64" => continue,
            other => panic!("{name} is a newtype of {other}, which this test does not know"),
        };
        assertions.push(format!("sizeof(enum {name}) == {size}"));
        assertions.push(format!("((enum {name})-1 < 0) == {signed}"));
    }
    println!("{} checks of enum types", assertions.len() - before);
    assert!(
        assertions.len() > before + 80,
        "the enums were found: {}",
        assertions.len() - before
    );
    check_in_c(&assertions);
}

/// The offset of a field in a nested or anonymous type, by C's path and by Rust's.
macro_rules! nested {
    ($($type:ident: $c:literal = $($rust:ident).+;)+) => {
        [$(format!(
            "offsetof(struct {}, {}) == {}",
            stringify!($type), $c, offset_of!(verbs_sys::$type, $($rust).+)
        )),+]
    };
}

#[test]
fn fields_of_anonymous_types_agree_with_c() {
    check_in_c(&nested! {
        ibv_send_wr: "imm_data" = __bindgen_anon_1.imm_data;
        ibv_send_wr: "invalidate_rkey" = __bindgen_anon_1.invalidate_rkey;
        ibv_send_wr: "wr.rdma.remote_addr" = wr.rdma.remote_addr;
        ibv_send_wr: "wr.rdma.rkey" = wr.rdma.rkey;
        ibv_send_wr: "wr.atomic.remote_addr" = wr.atomic.remote_addr;
        ibv_send_wr: "wr.atomic.compare_add" = wr.atomic.compare_add;
        ibv_send_wr: "wr.atomic.swap" = wr.atomic.swap;
        ibv_send_wr: "wr.atomic.rkey" = wr.atomic.rkey;
        ibv_send_wr: "wr.ud.ah" = wr.ud.ah;
        ibv_send_wr: "wr.ud.remote_qpn" = wr.ud.remote_qpn;
        ibv_send_wr: "wr.ud.remote_qkey" = wr.ud.remote_qkey;
        ibv_send_wr: "qp_type.xrc.remote_srqn" = qp_type.xrc.remote_srqn;
        ibv_send_wr: "bind_mw.mw" = __bindgen_anon_2.bind_mw.mw;
        ibv_send_wr: "bind_mw.rkey" = __bindgen_anon_2.bind_mw.rkey;
        ibv_send_wr: "bind_mw.bind_info" = __bindgen_anon_2.bind_mw.bind_info;
        ibv_send_wr: "tso.hdr" = __bindgen_anon_2.tso.hdr;
        ibv_send_wr: "tso.hdr_sz" = __bindgen_anon_2.tso.hdr_sz;
        ibv_send_wr: "tso.mss" = __bindgen_anon_2.tso.mss;
        ibv_wc: "imm_data" = __bindgen_anon_1.imm_data;
        ibv_wc: "invalidated_rkey" = __bindgen_anon_1.invalidated_rkey;
        ibv_async_event: "element.cq" = element.cq;
        ibv_async_event: "element.port_num" = element.port_num;
        ibv_ops_wr: "tm.handle" = tm.handle;
        ibv_ops_wr: "tm.add.recv_wr_id" = tm.add.recv_wr_id;
        ibv_ops_wr: "tm.add.mask" = tm.add.mask;
        ibv_device_attr_ex: "odp_caps.per_transport_caps.rc_odp_caps"
            = odp_caps.per_transport_caps.rc_odp_caps;
        ibv_device_attr_ex: "pci_atomic_caps.fetch_add" = pci_atomic_caps.fetch_add;
    });
}

#[cfg(feature = "rdmacm")]
#[test]
fn fields_of_anonymous_types_of_librdmacm_agree_with_c() {
    check_in_c(&nested! {
        rdma_cm_id: "route.addr.src_addr" = route.addr.__bindgen_anon_1.src_addr;
        rdma_cm_id: "route.addr.dst_storage" = route.addr.__bindgen_anon_2.dst_storage;
        rdma_cm_id: "route.addr.addr.ibaddr.pkey" = route.addr.addr.ibaddr.pkey;
        rdma_cm_event: "param.conn.private_data_len" = param.conn.private_data_len;
        rdma_cm_event: "param.conn.qp_num" = param.conn.qp_num;
        rdma_cm_event: "param.ud.ah_attr" = param.ud.ah_attr;
        rdma_cm_event: "param.ud.qkey" = param.ud.qkey;
    });
}
