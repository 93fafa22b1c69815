//! Child processes for the tests of this folder.

use super::{ExamineRequest, RequestedReading};
use crate::probe::procfs::{FileReader, Stat};
use crate::wire::{ExaminationPart, SafeText};
use std::process::{Child, Command, Stdio};

/// The boot id that the tests use.
pub(super) const BOOT: &str = "b0071d";

/// A child process that ends with the test.
pub(super) struct TestProcess(pub(super) Child);

impl TestProcess {
    /// Starts a child and waits until its program runs.
    pub(super) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The arguments and the environment exist a moment after the parent continues.
        while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        Self(child)
    }

    pub(super) fn sleep() -> Self {
        let child = Self::start(Command::new("sleep").arg("600"));
        child.wait_until(|stat| stat.state.letter() == 'S');
        child
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until `/proc/PID/stat` meets a condition.
    pub(super) fn wait_until(&self, condition: impl Fn(&Stat<'_>) -> bool) {
        let mut reader = FileReader::default();
        while !Stat::parse(reader.read_process(self.pid(), "stat", 4096).unwrap()).is_some_and(|stat| condition(&stat))
        {
            std::thread::yield_now();
        }
    }

    pub(super) fn request(&self, parts: &[ExaminationPart]) -> ExamineRequest {
        let mut reader = FileReader::default();
        let stat = reader.read_process(self.pid(), "stat", 4096).ok().and_then(Stat::parse).unwrap();
        ExamineRequest {
            id: 7,
            boot_id: SafeText::new(BOOT),
            pid: self.pid(),
            start_ticks: stat.start_ticks,
            reading: RequestedReading::Examination { parts: parts.to_vec(), accept_ras_risk: false },
        }
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // A test may have ended it.
        let _ended = self.0.kill();
        self.0.wait().unwrap();
    }
}
