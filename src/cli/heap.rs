//! Returns unused memory to the system.
//!
//! The allocator of glibc keeps freed memory for itself if something that is still in use lies behind it, and each time a
//! large piece is freed it puts larger ones into the same heap, up to 32 MiB. A host that sends the largest allowed of
//! everything leaves megabytes between small pieces that live long: in a soak with 36 hosts, 24 of 44 MiB were unused.
//! Other allocators return memory without these calls.

/// Pieces of at least this size, in bytes, get pages of their own, which the system gets back as soon as they are freed.
/// Readings of a usual host are smaller.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SEPARATE_BYTES: i32 = 256 << 10;
/// The unused bytes at the end of the heap that are kept for the next frame.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SPARE_BYTES: i32 = 1 << 20;
/// The seconds after which unused pages are returned. With 40 MiB in 10,000 pieces it takes up to 15 ms.
const RELEASE_SECONDS: u32 = 60;

/// Sets up the allocator. To be called before the first thread starts.
pub(super) fn configure() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "mallopt(3) takes two numbers, and a value that it refuses changes nothing")]
    // SAFETY: as above.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, SEPARATE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE_BYTES);
    }
}

/// Returns all pages of the heap that hold nothing.
fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "malloc_trim(3) takes a number, may be called at any time and on any thread")]
    // SAFETY: as above.
    unsafe {
        libc::malloc_trim(SPARE_BYTES as usize);
    }
}

/// Returns unused memory once a minute.
#[derive(Debug, Default)]
pub(super) struct MemoryRelease {
    seconds: u32,
}

impl MemoryRelease {
    /// Returns unused memory if that is due. To be called about once a second.
    pub(super) fn tick(&mut self) {
        self.seconds += 1;
        if self.seconds >= RELEASE_SECONDS {
            self.seconds = 0;
            release();
        }
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use std::process::Command;

    const MIB: usize = 1 << 20;
    /// Set in the process that measures its own memory. Other tests share the process of the test itself.
    const IS_CHILD: &str = "GPUFLEET_TEST_HEAP";

    /// Runs a test of this module alone in another process. Returns whether this is that process.
    fn is_alone(test: &str) -> bool {
        if std::env::var_os(IS_CHILD).is_some() {
            return true;
        }
        let program = std::env::current_exe().expect("the path of the tests");
        let test = format!("cli::heap::tests::{test}");
        let output = Command::new(program).args(["--exact", &test]).env(IS_CHILD, "1").output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{test} is not its name");
        false
    }

    fn anonymous_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    #[test]
    fn a_large_piece_is_returned_as_soon_as_it_is_freed() {
        if !is_alone("a_large_piece_is_returned_as_soon_as_it_is_freed") {
            return;
        }
        configure();
        // By default, freeing this lets smaller ones share the heap.
        drop(std::hint::black_box(vec![1_u8; 16 * MIB]));
        let pieces: Vec<(Vec<u8>, Box<[u8]>)> = (0..16).map(|_| (vec![1; MIB], vec![1; 100].into())).collect();
        let before = anonymous_bytes();
        let small: Vec<Box<[u8]>> = pieces.into_iter().map(|(_, small)| small).collect();
        let after = anonymous_bytes();
        assert!(after + 15 * MIB <= before, "{before} bytes before, {after} after; {} stay", small.len());
    }

    #[test]
    fn pages_between_small_pieces_are_returned_after_a_minute() {
        if !is_alone("pages_between_small_pieces_are_returned_after_a_minute") {
            return;
        }
        configure();
        let pieces: Vec<Box<[u8]>> = (0..16 * 1024).map(|_| vec![1; 2000].into()).collect();
        let kept: Vec<Box<[u8]>> = pieces.into_iter().step_by(64).collect();
        let before = anonymous_bytes();
        let mut memory_release = MemoryRelease::default();
        (0..RELEASE_SECONDS - 1).for_each(|_| memory_release.tick());
        assert!(anonymous_bytes() + MIB > before, "not before");
        memory_release.tick();
        let after = anonymous_bytes();
        assert!(after + 24 * MIB <= before, "{before} bytes before, {after} after; {} stay", kept.len());
    }
}
