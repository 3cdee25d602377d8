//! Prevents unwinding while borrowed buffers are in flight.

use std::mem::ManuallyDrop;

use crate::engine::abort_with;

/// Exists while operations on borrowed buffers are being ended. No code there panics. If it did,
/// unwinding would end the borrows while the device uses the buffers, so the process is aborted.
pub(crate) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// Call this when all of them have ended.
    #[inline(always)]
    pub(crate) const fn defuse(self) {
        let _finished = ManuallyDrop::new(self);
    }
}

impl Drop for AbortOnUnwind {
    #[cold]
    fn drop(&mut self) {
        abort_with(format_args!(
            "a panic while borrowed buffers were in flight: aborting the process"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::panic::catch_unwind;
    use std::process::Command;
    use std::{env, process};

    use super::*;

    const ROLE: &str = "VERBS_TEST_ROLE";

    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no other process")]
    fn a_panic_before_borrowed_operations_have_ended_aborts_the_process() {
        if env::var(ROLE).is_ok() {
            let unwound = catch_unwind(|| {
                let _ends = AbortOnUnwind;
                panic!("on purpose");
            });
            // Not reached: the borrows would have ended here.
            process::exit(if unwound.is_ok() { 2 } else { 3 });
        }
        AbortOnUnwind.defuse();
        let (_crate, module) = module_path!().split_once("::").unwrap();
        let name = "a_panic_before_borrowed_operations_have_ended_aborts_the_process";
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::{name}")])
            .args(["--nocapture", "--test-threads=1"])
            .env(ROLE, "unwinds")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        let signal = output.status.signal();
        assert_eq!(signal, Some(libc::SIGABRT), "{:?}: {words}", output.status);
        let line = "verbs-channel: a panic while borrowed buffers were in flight: aborting";
        assert!(words.contains(line), "{words}");
    }
}
