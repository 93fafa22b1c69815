//! The calls of libc that nothing safe wraps: the user database, the size of a page, an end without destructors.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// An entry of the user database: login name and full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PasswdEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) gecos: Vec<u8>,
}

/// `getpwuid_r`: asks the whole name service (files, LDAP, SSSD), and may block for as long as that does.
/// `Ok(None)` means that there is no such user; the error is an `errno`.
pub(crate) fn passwd_entry(uid: u32) -> Result<Option<PasswdEntry>, i32> {
    let mut buffer = vec![0_u8; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::zeroed();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: an entry, a buffer with its length, and a place for the result, all alive during the call.
        let error = unsafe {
            libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call succeeded, so `found` is `entry`, whose texts lie in `buffer`.
                let entry = unsafe { &*found };
                return Ok(Some(PasswdEntry { name: c_text(entry.pw_name), gecos: c_text(entry.pw_gecos) }));
            }
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            error => return Err(error),
        }
    }
}

fn c_text(text: *const c_char) -> Vec<u8> {
    if text.is_null() {
        return Vec::new();
    }
    // SAFETY: getpwuid_r's texts end in NUL.
    unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
}

/// The size of a memory page, in which /proc counts resident memory.
pub(crate) fn page_size() -> u64 {
    // SAFETY: a plain query.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// CPU time that a process has used, all its threads, in nanoseconds; `None` when there is no such process here. Every
/// user may ask for every process. `clock_gettime(2)` on the clock that `clock_getcpuclockid(3)` makes of a pid.
pub(crate) fn process_cpu_nanoseconds(pid: u32) -> Option<u64> {
    /// `CPUCLOCK_SCHED` of the kernel's posix-timers.h: what the scheduler counts.
    const SCHEDULER: libc::clockid_t = 2;
    let pid = libc::clockid_t::try_from(pid).ok().filter(|pid| (1..1 << 28).contains(pid))?;
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: a place for the result that lives during the call, in which all zeroes are a value.
    let time = unsafe {
        let status = libc::clock_gettime(!pid << 3 | SCHEDULER, time.as_mut_ptr());
        (status == 0).then(|| time.assume_init())?
    };
    let (seconds, remaining) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(remaining)
}

/// Ends the process at once, without the library's destructors: they would wait for a call that hangs.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: never returns; nothing of this process is left to be cleaned up.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_grows_with_its_work() {
        let before = process_cpu_nanoseconds(std::process::id()).expect("of this process");
        let sum = (0..100_000_u64).fold(0, |sum: u64, number| std::hint::black_box(sum ^ number));
        let after = process_cpu_nanoseconds(std::process::id()).expect("of this process");
        assert!(after > before, "{sum}");
        assert_eq!(process_cpu_nanoseconds(0), None);
        assert_eq!(process_cpu_nanoseconds(4_194_305), None, "more than any pid");
        assert_eq!(process_cpu_nanoseconds(u32::MAX), None);
    }
}
