//! Counts the probes on this host, a few processes a sample.

use super::Scratch;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// The name that every probe gives itself; the kernel keeps 15 bytes.
pub(crate) const PROBE_NAME: &std::ffi::CStr = c"gpufleet-probe";

/// Room for about 8 entries of /proc: so many processes are looked at in a sample.
const SLICE_BYTES: usize = 256;
/// Samples between the end of one walk and the beginning of the next.
const PAUSE_SAMPLES: u32 = 60;

/// A walk through /proc, spread over samples, since a big host has thousands of processes.
#[derive(Debug)]
pub(crate) struct Census {
    folder: Option<OwnedFd>,
    counting: u32,
    counted: Option<u32>,
    pause: u32,
}

impl Census {
    pub(crate) fn new() -> Self {
        let folder = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self { folder, counting: 0, counted: None, pause: 0 }
    }

    /// Goes on with the walk; returns what the last whole walk counted.
    pub(crate) fn step(&mut self, scratch: &mut Scratch) -> Option<u32> {
        if self.pause > 0 {
            self.pause -= 1;
            return self.counted;
        }
        let folder = self.folder.as_ref()?;
        let mut buffer = [MaybeUninit::uninit(); SLICE_BYTES];
        let mut entries = RawDir::new(folder, &mut buffer);
        loop {
            match entries.next() {
                Some(Ok(entry)) => {
                    let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
                    let name = pid.map(|pid| scratch.read_process(pid, "comm", 32));
                    if name.is_some_and(|name| name.is_ok_and(|name| name.starts_with(PROBE_NAME.to_bytes()))) {
                        self.counting += 1;
                    }
                }
                Some(Err(_)) => return self.counted,
                None => {
                    self.counted = Some(std::mem::take(&mut self.counting));
                    self.pause = PAUSE_SAMPLES;
                    if seek(folder, SeekFrom::Start(0)).is_err() {
                        self.folder = None;
                    }
                    return self.counted;
                }
            }
            if entries.is_buffer_empty() {
                return self.counted;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_ends_and_starts_again() {
        let mut census = Census::new();
        let mut scratch = Scratch::default();
        for _ in 0..2 {
            census.counted = None;
            census.pause = 0;
            let steps = (0..100_000).take_while(|_| census.step(&mut scratch).is_none()).count();
            assert!(steps < 100_000, "the walk never ended");
        }
    }
}
