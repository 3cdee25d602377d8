//! Registered memory is copied by a function that memory which is not mapped any more ends, as an error.
//!
//! On x86-64 the copy is a few instructions of this module's own. A handler of SIGSEGV and SIGBUS knows their place: a
//! fault there is the function's answer, and any other goes to the handler that was there before. So a copy
//! costs no system call. Elsewhere the kernel copies, by `process_vm_readv`, and notices what is not mapped.
//!
//! Under Miri the bytes are copied directly, through the pointers that were registered: it sees each access.
#![expect(unsafe_code, reason = "copies memory that may not be mapped")]

use std::ptr;

use crate::errno::last;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod faults {
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::OnceLock;

    use libc::{SIGBUS, SIGSEGV, sigaction, siginfo_t, ucontext_t};

    // Eight bytes are moved as one: at an aligned address, no other thread sees half of them.
    std::arch::global_asm!(
        ".globl soft_verbs_copy, soft_verbs_copy_fault",
        ".hidden soft_verbs_copy, soft_verbs_copy_fault",
        "soft_verbs_copy:",
        "cmp rdx, 8",
        "jne 2f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "jmp 3f",
        "2: mov rcx, rdx",
        "rep movsb",
        "3: mov eax, 1",
        "ret",
        "soft_verbs_copy_fault:",
        "xor eax, eax",
        "ret",
    );

    unsafe extern "C" {
        /// Copies `length` bytes; false if some are not mapped.
        pub(super) fn soft_verbs_copy(to: *mut u8, from: *const u8, length: usize) -> bool;
        /// The end of the function, where a fault in it goes on.
        fn soft_verbs_copy_fault();
    }

    /// The signals, and what the process did about them before.
    static BEFORE: [(c_int, OnceLock<sigaction>); 2] =
        [(SIGSEGV, OnceLock::new()), (SIGBUS, OnceLock::new())];

    /// Has the signals handled, once.
    pub(super) fn handle() {
        for (signal, before) in &BEFORE {
            before.get_or_init(|| {
                let mut known = MaybeUninit::uninit();
                // SAFETY: there is room for the action that the process has.
                unsafe { sigaction(*signal, ptr::null(), known.as_mut_ptr()) };
                // SAFETY: the call has filled it, as the signal is one that there is.
                unsafe { known.assume_init() }
            });
        }
        // SAFETY: zeros are an action without a handler, of no flags, that blocks no signals.
        let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = faulted as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        for (signal, _) in &BEFORE {
            // SAFETY: the handler does only what one may, and passes on what is not its own.
            unsafe { sigaction(*signal, &raw const action, ptr::null_mut()) };
        }
    }

    unsafe extern "C" fn faulted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let copy = soft_verbs_copy as *const () as i64..soft_verbs_copy_fault as *const () as i64;
        // SAFETY: the kernel has the registers of the thread there, and nothing else uses them.
        let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        if copy.contains(at) {
            *at = copy.end;
            return;
        }
        let known = BEFORE.iter().find(|(own, _)| *own == signal);
        let Some(before) = known.and_then(|(_, before)| before.get()) else {
            return;
        };
        match before.sa_sigaction {
            // Without a handler, the fault is repeated, and ends the process.
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: the action is the process's own.
                unsafe { sigaction(signal, before, ptr::null_mut()) };
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the flag says that the process's handler has this type.
                let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                // SAFETY: the arguments are the kernel's.
                unsafe { handler(signal, info, context) };
            }
            handler => {
                // SAFETY: without the flag, the process's handler has this type.
                let handler: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                // SAFETY: the argument is the kernel's.
                unsafe { handler(signal) };
            }
        }
    }
}

/// Prepares for copies: before memory is registered.
pub(super) fn prepare() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(faults::handle);
    }
}

/// Copies from or to registered memory; false if some is not mapped.
///
/// # Safety
///
/// One side is memory of the card's, the other within what a program has registered and promised to leave to the card.
/// [`prepare`] was called.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> bool {
    // SAFETY: bytes that are not mapped end the function, as `prepare` has arranged; nothing else uses those that are, as
    // the caller promises.
    unsafe { faults::soft_verbs_copy(to, from, length) }
}

/// The same, by the kernel. Where a sandbox forbids that, and under Miri, memory is copied directly, and has to be mapped.
///
/// # Safety
///
/// One side is memory of the card's, the other within what a program has registered and promised to leave to the card.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> bool {
    let piece = |base: *mut u8| libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    };
    let (into, out) = (piece(to), piece(from.cast_mut()));
    if !cfg!(miri) {
        let process = std::process::id().cast_signed();
        // SAFETY: the kernel checks both ranges; nothing else uses them, as the caller promises.
        let copied =
            unsafe { libc::process_vm_readv(process, &raw const into, 1, &raw const out, 1, 0) };
        if copied >= 0 || last() == libc::EFAULT {
            return usize::try_from(copied) == Ok(length);
        }
    }
    // SAFETY: the bytes are mapped, as this function's page asks for, and one side is the card's own.
    unsafe { ptr::copy(from, to, length) };
    true
}

/// Whether all bytes are mapped now.
pub(crate) fn is_mapped(address: usize, length: usize) -> bool {
    const PAGES: usize = 256;
    if cfg!(miri) {
        return true;
    }
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut start = address - address % page;
    let Some(end) = address.checked_add(length) else {
        return false;
    };
    let mut in_core = [0; PAGES];
    while start < end {
        let length = (end - start).min(PAGES * page);
        let pages = ptr::without_provenance_mut(start);
        // SAFETY: the kernel looks at the addresses only, and there is a byte for each page.
        let found = unsafe { libc::mincore(pages, length, in_core.as_mut_ptr()) };
        if found != 0 && last() == libc::ENOMEM {
            return false;
        }
        start += length;
    }
    true
}
