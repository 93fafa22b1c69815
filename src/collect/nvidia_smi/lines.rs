//! The lines that the remote script prints: sections of lines, and parsers of single lines.

use crate::wire::{DeviceError, DriverErrorKind, ProcessState, SafeText};
use std::fmt;

/// Limits of one section of the output. A host with 512 GPUs and 1,024 processes stays below them.
pub(super) const SECTION_BYTES: usize = 1 << 20;
pub(super) const SECTION_LINES: usize = 8192;

/// `USER_HZ`, the unit of times in `/proc`: 100 on every architecture that NVIDIA's driver runs on.
pub(super) const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// The lines of one section, within the limits.
///
/// A program in the background writes them, while the script may answer another request: that answer begins with a
/// newline and may cut a line in two.
#[derive(Debug, Default)]
pub(super) struct Section {
    lines: Vec<String>,
    bytes: usize,
    /// The last line, until it is known to be whole, and whether an answer has cut it.
    last: Option<String>,
    is_cut: bool,
    /// Whether an empty line followed.
    is_ended: bool,
}

impl Section {
    /// Adds a line of the program.
    pub(super) fn push(&mut self, line: &str) {
        if line.is_empty() {
            self.is_ended = true;
            return;
        }
        let start = if self.is_cut && !self.is_ended { self.last.take() } else { None };
        let line = match start {
            Some(start) => start + line,
            None => line.to_owned(),
        };
        self.keep();
        (self.last, self.is_cut, self.is_ended) = (Some(line), false, false);
    }

    /// Marks the place of an answer. Without an empty line before it, the answer cut the last line.
    pub(super) fn interrupt(&mut self) {
        self.is_cut |= self.last.is_some() && !self.is_ended;
        self.is_ended = false;
    }

    /// Returns the lines.
    pub(super) fn finish(mut self) -> Vec<String> {
        self.keep();
        self.lines
    }

    /// Keeps the last line if it is within the limits.
    fn keep(&mut self) {
        let Some(line) = self.last.take() else { return };
        if self.lines.len() < SECTION_LINES && line.len() <= SECTION_BYTES - self.bytes {
            self.bytes += line.len();
            self.lines.push(line);
        }
    }
}

/// A PCI address: domain, bus, device, function. Its text is that of NVML, `00000000:3B:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PciAddress(u32, u8, u8, u8);

impl PciAddress {
    /// Parses `0000:3b:00.0` with any number of digits of the domain.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (device, function) = rest.split_once('.')?;
        let is_whole = parts.next().is_none() && bus.len() == 2 && device.len() == 2;
        let hex = |digits: &str| u8::from_str_radix(digits, 16).ok();
        let address = Self(u32::from_str_radix(domain, 16).ok()?, hex(bus)?, hex(device)?, hex(function)?);
        is_whole.then_some(address)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(domain, bus, device, function) = self;
        write!(formatter, "{domain:08X}:{bus:02X}:{device:02X}.{function:X}")
    }
}

/// A GPU that an error message names by index, PCI address or both. The forms are from reports of users:
///
/// ```text
/// Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system to recover this GPU
/// Unable to determine the device handle for gpu 0000:08:00.0: Unknown Error
/// Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error
/// Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error
/// Unable to determine the device handle for GPU2: Unknown Error
/// ```
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedGpu {
    pub(super) index: Option<u32>,
    pub(super) address: Option<PciAddress>,
    pub(super) error: DeviceError,
}

impl NamedGpu {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let lower = line.to_ascii_lowercase();
        let (message, gpu) = lower.split_once(" the device handle for ")?;
        let words = gpu.strip_prefix("gpu").filter(|_| message.starts_with("unable to"))?;
        let (mut index, mut address) = (None, None);
        for word in words.split_whitespace().take(2).map(|word| word.trim_end_matches(':')) {
            address = address.or_else(|| PciAddress::parse(word));
            index = index.or_else(|| word.parse().ok().filter(|index| *index < 4096));
        }
        // The reason cannot be told from the name of the GPU without one of them.
        if index.is_none() && address.is_none() {
            return None;
        }
        let kind = if gpu.contains("reset") {
            DriverErrorKind::ResetRequired
        } else if gpu.contains("permission") {
            DriverErrorKind::NoPermission
        } else {
            DriverErrorKind::GpuLost
        };
        Some(Self { index, address, error: DeviceError { kind, code: None, message: SafeText::new(line.trim()) } })
    }
}

/// Fields of `/proc/PID/stat` (proc(5)).
pub(super) struct Stat<'a> {
    pub(super) pid: u32,
    pub(super) name: &'a str,
    pub(super) state: ProcessState,
    pub(super) session: u32,
    pub(super) cpu_seconds: f64,
    pub(super) threads: u32,
    pub(super) start_ticks: u64,
    pub(super) rss_bytes: u64,
}

impl<'a> Stat<'a> {
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        // The name may contain parentheses; it ends at the last one.
        let (name, rest) = rest.rsplit_once(") ")?;
        // The first field here is field 3 of proc(5).
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name,
            state: ProcessState::from_letter(fields.first()?.chars().next()?),
            session: u32::try_from(field(6)?).ok()?,
            cpu_seconds: field(14)?.saturating_add(field(15)?) as f64 / TICKS_PER_SECOND,
            threads: u32::try_from(field(20)?).ok()?,
            start_ticks: field(22)?,
            rss_bytes: field(24)?.saturating_mul(PAGE_BYTES),
        })
    }
}

/// The first line of `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuTimes {
    pub(super) idle: u64,
    pub(super) io_wait: u64,
    pub(super) all: u64,
}

impl CpuTimes {
    /// Parses `cpu  user nice system idle iowait irq softirq steal ...`. User time includes guest time.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let times: Vec<u64> =
            line.strip_prefix("cpu")?.split_whitespace().map_while(|time| time.parse().ok()).collect();
        Some(Self {
            idle: *times.get(3)?,
            io_wait: *times.get(4)?,
            all: times.iter().take(8).fold(0, |all, time| u64::saturating_add(all, *time)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines after this output, in which `@` is an answer of the script (that begins with a newline).
    fn lines(output: &str) -> Vec<String> {
        let mut section = Section::default();
        for line in output.replace('@', "\n@\n").split('\n') {
            if line == "@" { section.interrupt() } else { section.push(line) }
        }
        section.finish()
    }

    #[test]
    fn an_answer_between_or_within_lines_leaves_them_whole() {
        assert_eq!(lines("one\ntwo\n"), ["one", "two"]);
        assert_eq!(lines("one\n@two\n"), ["one", "two"]);
        assert_eq!(lines("one\n@@two\n"), ["one", "two"]);
        assert_eq!(lines("o@ne\ntwo\n"), ["one", "two"]);
        assert_eq!(lines("o@n@@e\nt@wo\n"), ["one", "two"]);
        assert_eq!(lines("one@\ntwo\n"), ["one", "two"], "before the newline");
        assert_eq!(lines("one\ntw@"), ["one", "tw"]);
        assert_eq!(lines("@one\n\n\ntwo"), ["one", "two"]);
    }

    #[test]
    fn a_section_without_end_is_kept_up_to_its_limits() {
        let mut section = Section::default();
        (0..SECTION_LINES + 10).for_each(|_| section.push("x"));
        assert_eq!(section.finish().len(), SECTION_LINES);
        let mut section = Section::default();
        (0..100).for_each(|_| section.push(&"x".repeat(SECTION_BYTES / 8)));
        assert_eq!(section.finish().len(), 8);
    }

    #[test]
    fn pci_addresses_have_one_text() {
        for text in ["0000:3b:00.0", "00000000:3B:00.0", "0:3B:00.0"] {
            assert_eq!(PciAddress::parse(text).map(|address| address.to_string()).as_deref(), Some("00000000:3B:00.0"));
        }
        for text in ["", "*", "3B:00.0", "0000:3B:00", "0000:3B:00.0:1", "0000:3B:000.0", "g:3B:00.0", "::."] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_error_message_names_its_gpu() {
        let address = PciAddress::parse("0000:5F:00.0");
        let lost = DriverErrorKind::GpuLost;
        for (gpu, index, at, kind) in [
            ("GPU 0000:5F:00.0: GPU is lost.  Reboot the system to recover this GPU", None, address, lost),
            ("gpu 0000:5F:00.0: Unknown Error", None, address, lost),
            ("GPU0000:5F:00.0: Unknown Error", None, address, lost),
            ("GPU 0000:5F:00.0: Not Found", None, address, lost),
            ("GPU3: 0000:5F:00.0: Unknown Error", Some(3), address, lost),
            ("GPU2: Unknown Error", Some(2), None, lost),
            ("GPU0: 0000:5F:00.0: GPU requires reset", Some(0), address, DriverErrorKind::ResetRequired),
            ("GPU0000:5F:00.0: Insufficient Permissions", None, address, DriverErrorKind::NoPermission),
        ] {
            let line = format!("Unable to determine the device handle for {gpu}");
            let named = NamedGpu::parse(&line).expect(gpu);
            assert_eq!((named.index, named.address, named.error.kind), (index, at, kind), "{gpu}");
            assert_eq!(*named.error.message, line);
        }
        for line in [
            "GPU is lost.  Reboot the system to recover this GPU",
            "Unable to determine the device handle for GPU: Unknown Error",
            "Unable to determine the device handle for the GPU",
            "No devices were found",
        ] {
            assert_eq!(NamedGpu::parse(line), None, "{line}");
        }
    }

    #[test]
    fn incomplete_stat_lines_are_left_out() {
        for line in ["", "x", "1 (a", "1 (a) R", "1 (a) R 1 2 x 0 0 0 0"] {
            assert!(Stat::parse(line).is_none(), "{line}");
        }
    }
}
