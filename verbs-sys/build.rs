//! Finds libibverbs, and librdmacm for the feature `rdmacm`, generates their bindings, and passes on to
//! dependents what the headers have.

use std::env;
use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process;

use bindgen::callbacks::{
    DeriveTrait, EnumVariantValue, ImplementsTrait, IntKind, ItemInfo, ParseCallbacks,
};
use bindgen::{Builder, EnumVariation, RustEdition, RustTarget};

#[path = "build/manual.rs"]
mod manual;
#[cfg(feature = "dlopen")]
#[path = "build/wrappers.rs"]
mod wrappers;

/// A library, and the oldest version of it: of rdma-core 36, the third number.
struct Library {
    name: &'static str,
    floor: &'static str,
    /// The distributions' packages with its headers.
    packages: &'static str,
    /// The first header that bindgen reads.
    header: &'static str,
}

const LIBIBVERBS: Library = Library {
    name: "libibverbs",
    floor: "1.14.36",
    packages: "libibverbs-dev (Debian, Ubuntu), rdma-core-devel (Fedora, RHEL) or rdma-core (Arch)",
    header: "infiniband/verbs.h",
};
const LIBRDMACM: Library = Library {
    name: "librdmacm",
    floor: "1.3.36",
    packages: "librdmacm-dev (Debian, Ubuntu), rdma-core-devel (Fedora, RHEL) or rdma-core (Arch)",
    header: "rdma/rdma_cma.h",
};
/// The libraries that the features choose.
const LIBRARIES: &[Library] = if cfg!(feature = "rdmacm") {
    &[LIBIBVERBS, LIBRDMACM]
} else {
    &[LIBIBVERBS]
};

/// The packages with libclang.
const LIBCLANG: &str = "libclang-dev (Debian, Ubuntu), clang-devel (Fedora, RHEL) or clang (Arch)";

/// Features of newer headers: the name handed out, and the text that shows it in the bindings,
/// whitespace removed. Versions are not asked: vendor builds carry features back.
const FEATURES: [(&str, &str); 7] = [
    ("HAS_ATOMIC_WRITE", "pubwr_atomic_write:"),
    ("HAS_FLUSH", "pubwr_flush:"),
    ("HAS_ACTIVE_SPEED_EX", "pubactive_speed_ex:"),
    ("HAS_DMAH", "pubfnibv_alloc_dmah("),
    ("HAS_PORT_SPEED", "pubfnibv_query_port_speed("),
    ("HAS_BUF", "pubfnibv_alloc_buf("),
    ("HAS_COMP_CNTR", "pubfnibv_create_comp_cntr("),
];

/// The true enumerations; every other enum is a set of bits. Names that an older header lacks are
/// ignored.
const ENUMERATIONS: &str = "ib(v|_uverbs)_(advise_mr_advice|flow_action_esp_(keymat|replay))|ibv_(\
    gid_type|node_type|transport_type|fork_status|atomic_cap|mtu|port_state|event_type|wc_status|\
    wc_opcode|mw_type|rate|srq_type|wq_type|wq_state|qp_type|qp_state|mig_state|wr_opcode|\
    ops_wr_opcode|flow_attr_type|counter_description|rereg_mr_err_code|selectivity_level|\
    tph_mem_type|comp_cntr_type)|rdma_(cm_event_type|port_space|cm_mc_join_flags)";

/// Objects with an identity: their address is what C knows them by, so a copy is never one of them.
const HANDLES: &str = "verbs_context|ibv_(context|device|pd|td|xrcd|mr|mw|dm|dmah|ah|srq|cq|cq_ex|\
    comp_channel|comp_cntr|qp|qp_ex|wq|rwq_ind_table|flow|flow_action|counters)|\
    rdma_(cm_id|cm_event|event_channel)";

pub(crate) fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-changed=rdmacm.h");
    println!("cargo::rerun-if-changed=build/manual.rs");
    println!("cargo::rerun-if-changed=build/wrappers.rs");
    for (name, _) in FEATURES {
        println!("cargo::rustc-check-cfg=cfg({})", name.to_lowercase());
    }

    check_target();
    let include_paths = find_libraries();
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bindings = generate(builder(), &include_paths, &out_dir);
    announce_features(&bindings);
    let bindings = manual::documented(&bindings);
    #[cfg(feature = "dlopen")]
    let bindings = {
        let types = generate(builder().ignore_functions(), &include_paths, &out_dir);
        manual::documented(&types) + &wrappers::of_functions(&bindings)
    };
    if let Err(error) = fs::write(out_dir.join("bindings.rs"), bindings) {
        fail(&format!(
            "cannot write the bindings to {}: {error}",
            out_dir.display()
        ));
    }
}

/// Ends the build with one line that cargo prints as an error of this package. Cargo fails the
/// build because of that line; a non-zero status would only add a dump of this script's output.
fn fail(message: &str) -> ! {
    println!("cargo::error={}", message.replace('\n', " "));
    process::exit(0);
}

fn check_target() {
    let cfg = |name: &str| env::var(name).unwrap_or_default();
    if cfg("CARGO_CFG_TARGET_OS") != "linux" || cfg("CARGO_CFG_TARGET_POINTER_WIDTH") != "64" {
        fail(&format!(
            "verbs-sys builds for 64-bit Linux only, not for {}: libibverbs exists nowhere else",
            cfg("TARGET")
        ));
    }
}

/// Finds the libraries through pkg-config, passes their link flags to cargo, and returns where their
/// headers are.
fn find_libraries() -> Vec<PathBuf> {
    let mut include_paths: Vec<PathBuf> = Vec::new();
    for library in LIBRARIES {
        let found = pkg_config::Config::new()
            .atleast_version(library.floor)
            // Providers are plugins: a static libibverbs needs more than its archive.
            .statik(false)
            // With the feature, the headers are all that is needed: nothing is linked.
            .cargo_metadata(!cfg!(feature = "dlopen"))
            .probe(library.name)
            .unwrap_or_else(|error| fail(&explain_pkg_config(library, &error)));
        if library.name == LIBIBVERBS.name {
            println!("cargo::metadata=VERSION={}", found.version);
            if let Some(rdma_core) = found.version.split('.').nth(2) {
                println!("cargo::metadata=RDMA_CORE={rdma_core}");
            }
        }
        include_paths.extend(found.include_paths);
    }
    // The compiler searches /usr/include by itself; naming it would shadow a sysroot.
    include_paths.retain(|path| path != Path::new("/usr/include"));
    include_paths.dedup();
    let joined = env::join_paths(&include_paths).unwrap_or_default();
    println!("cargo::rustc-env=VERBS_SYS_INCLUDE={}", joined.display());
    include_paths
}

fn explain_pkg_config(library: &Library, error: &pkg_config::Error) -> String {
    let Library {
        name,
        floor,
        packages,
        ..
    } = library;
    match error {
        pkg_config::Error::Command { cause, .. } => format!(
            "cannot run pkg-config, which finds {name}: install pkg-config (Debian, Ubuntu), \
             pkgconf-pkg-config (Fedora, RHEL) or pkgconf (Arch) ({cause})"
        ),
        pkg_config::Error::CrossCompilation => {
            "cross-compiling, and pkg-config is not set up for the target: set PKG_CONFIG_ALLOW_CROSS=1, \
             PKG_CONFIG_SYSROOT_DIR and PKG_CONFIG_LIBDIR, as the README of verbs-sys shows"
                .to_owned()
        }
        pkg_config::Error::EnvNoPkgConfig(variable) => format!(
            "{variable} keeps pkg-config from being asked for {name}: unset it"
        ),
        pkg_config::Error::ProbeFailure { output, .. }
        | pkg_config::Error::Failure { output, .. } => {
            let found = pkg_config::Config::new()
                .cargo_metadata(false)
                .env_metadata(false)
                .probe(name);
            if let Ok(old) = found {
                return format!(
                    "{name} {} is too old: verbs-sys needs {floor}, that is rdma-core 36 (2021), \
                     or newer; update {packages}",
                    old.version
                );
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            let reason = stderr.trim().lines().last().unwrap_or("no reason given");
            format!("{name} was not found: install {packages} (pkg-config: {reason})")
        }
        other => format!("pkg-config failed for {name}: {other}"),
    }
}

/// Runs bindgen on the installed headers.
fn generate(builder: Builder, include_paths: &[PathBuf], out_dir: &Path) -> String {
    // Without libclang, bindgen panics: suppress its output, and print what to install.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        builder
            .clang_args(
                include_paths
                    .iter()
                    .map(|path| format!("-I{}", path.display())),
            )
            // The default build directory is the package's own, which may be read-only.
            .clang_macro_fallback()
            .clang_macro_fallback_build_dir(out_dir)
            .generate()
    }));
    panic::set_hook(hook);

    match result {
        Ok(Ok(bindings)) => bindings.to_string(),
        Ok(Err(error)) => {
            let error = error.to_string();
            let error = error.trim();
            let missing = |name: &str| error.contains(&format!("'{name}' file not found"));
            if missing("stddef.h") || missing("stdarg.h") {
                fail(&format!(
                    "libclang lacks the compiler's own headers, which bindgen needs: install \
                     {LIBCLANG} ({error})"
                ));
            }
            if let Some(library) = LIBRARIES.iter().find(|it| missing(it.header)) {
                fail(&format!(
                    "{} has no headers: install {} ({error})",
                    library.name, library.packages
                ));
            }
            if error.contains("file not found") {
                fail(&format!(
                    "the C library's headers are missing: install libc6-dev (Debian, Ubuntu), \
                     glibc-devel (Fedora, RHEL) or glibc (Arch); when cross-compiling, point \
                     BINDGEN_EXTRA_CLANG_ARGS at the target's, as the README of verbs-sys shows \
                     ({error})"
                ));
            }
            fail(&format!("bindgen cannot read infiniband/verbs.h: {error}"))
        }
        Err(panic) => {
            let reason = panic
                .downcast_ref::<String>()
                .map_or("bindgen panicked", String::as_str);
            fail(&format!(
                "libclang, which bindgen needs, was not loaded: install {LIBCLANG} ({reason})"
            ))
        }
    }
}

fn builder() -> Builder {
    let verbs = Builder::default().header("wrapper.h");
    let builder = if cfg!(feature = "rdmacm") {
        verbs
            .header("rdmacm.h")
            .allowlist_item("rdma_.*|(RDMA|RAI)_.*")
            // The kernel's numbers of drivers, which the headers of verbs include.
            .blocklist_item("rdma_driver_id|RDMA_DRIVER_.*")
    } else {
        verbs
    };
    builder
        // The workspace's oldest compiler, whichever builds.
        .rust_target(RustTarget::stable(88, 0).expect("bindgen knows Rust 1.88"))
        .rust_edition(RustEdition::Edition2024)
        .use_core()
        .allowlist_function("_?ibv_.*|(mbps|mult)_to_ibv_rate")
        .allowlist_type("ibv_.*|verbs_context")
        .allowlist_type("ib_uverbs_(advise_mr_advice|flow_action_esp.*)")
        .allowlist_var("IBV_.*|ETHERNET_LL_SIZE|IB_(GRH|ROCE)_.*")
        // These are enumerators that macros rename: `Callbacks` does that, and keeps their type.
        .blocklist_var("IBV_(ADVISE_MR_ADVICE|FLOW_ACTION)_.*")
        // The exported symbol fills an older, shorter struct; `inline` has the real one.
        .blocklist_function("ibv_query_port")
        // Declared, but exported only to the very rdma-core that it came with.
        .blocklist_function("ibv_wr_opcode_str")
        .blocklist_type("pthread_(mutex|cond)_t|timespec|__pthread_.*|__atomic_wide_counter.*|__time_t|__syscall_slong_t")
        .blocklist_type("sockaddr(_in6?|_storage)?|socklen_t|__socklen_t|sa_family_t|in6?_addr|in_(addr|port)_t")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
        .raw_line("use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};")
        // A newer library may return a value that these headers lack: never a Rust enum.
        .default_enum_style(EnumVariation::NewType { is_bitfield: true, is_global: true })
        .newtype_global_enum(ENUMERATIONS)
        .constified_enum("_bindgen_ty_.*")
        .prepend_enum_name(false)
        // Byte order stays in the type.
        .new_type_alias("__be(16|32|64)")
        .derive_default(true)
        .no_copy(HANDLES)
        .merge_extern_blocks(true)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .parse_callbacks(Box::new(Callbacks))
}

#[derive(Debug)]
struct Callbacks;

impl ParseCallbacks for Callbacks {
    /// C's comments are plain text, not Markdown.
    fn process_comment(&self, comment: &str) -> Option<String> {
        Some(format!("```text\n{}\n```", comment.trim_matches('\n')))
    }

    /// `verbs_api.h` renames the kernel's types by macros, which bindgen does not follow.
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        let renamed = item.name.strip_prefix("ib_uverbs_")?;
        Some(format!("ibv_{renamed}"))
    }

    fn enum_variant_name(
        &self,
        _enum_name: Option<&str>,
        variant: &str,
        _value: EnumVariantValue,
    ) -> Option<String> {
        let renamed = variant.strip_prefix("IB_UVERBS_")?;
        Some(format!("IBV_{renamed}"))
    }

    /// Parts of 64-bit service numbers, which C declares with `ULL`.
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        name.starts_with("RDMA_IB_").then_some(IntKind::U64)
    }

    fn blocklisted_type_implements_trait(
        &self,
        name: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        let plain = matches!(derive, DeriveTrait::Copy | DeriveTrait::Debug);
        let is_libc = name.ends_with("timespec") || name.contains("sockaddr");
        (is_libc && plain).then_some(ImplementsTrait::Yes)
    }
}

fn announce_features(bindings: &str) {
    let dense: String = bindings.split_whitespace().collect();
    for (name, sign) in FEATURES {
        if dense.contains(sign) {
            println!("cargo::rustc-cfg={}", name.to_lowercase());
            println!("cargo::metadata={name}=1");
        }
    }
}
