//! Readings of the host: CPU, memory, load, pressure and GPUs on the PCI bus.

use super::files::{FileReader, OpenFile};
use super::rates::{REFRESH_SECONDS, Traffic};
use crate::probe::decimal::{parse_decimal, round_to_tenth, round_to_tenth_f32};
use crate::wire::{HostReading, SafeText};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::str::FromStr;

/// Samples the host and keeps the state for rates and for readings that are not taken in every sample.
#[derive(Debug)]
pub(crate) struct HostSampler {
    stat: OpenFile,
    memory: OpenFile,
    load: OpenFile,
    cpu: Option<CpuTicks>,
    forks: Option<Forks>,
    last_pid: Option<u32>,
    /// Boot time in seconds since 1970.
    boot_unix_seconds: Option<i64>,
    traffic: Traffic,
    /// Number of slow samples so far. Interfaces and disks are searched for in only some of them.
    slow_samples: u32,
    /// The last values of readings that are not taken in every sample.
    last_reading: HostReading,
    /// Monotonic time, in seconds, of the last read of memory and load.
    refreshed_at: Option<f64>,
}

/// Counters that show whether new processes have started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forks {
    /// Processes and threads started since boot: `processes` in `/proc/stat` (proc_stat(5)).
    pub(crate) count: u64,
    /// The pid most recently given to a process or thread: the last field of `/proc/loadavg` (proc_loadavg(5)).
    pub(crate) last_pid: u32,
}

/// Clock values and fork counters that all readers of one sample share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleContext {
    /// Monotonic time, in seconds.
    pub(crate) now: f64,
    /// Time since boot.
    pub(crate) uptime_seconds: Option<f64>,
    /// Boot time in seconds since 1970.
    pub(crate) boot_unix_seconds: Option<i64>,
    /// Wall time in seconds since 1970, for the ages of files.
    pub(crate) unix_seconds: i64,
    /// Fork counters, at most [`REFRESH_SECONDS`] old.
    pub(crate) forks: Option<Forks>,
    /// The first sample of a service leaves out what takes long and is not on a screen at once, so that its host appears soon.
    pub(crate) is_starting: bool,
}

/// Interfaces and disks are searched for in the first slow sample and then in every 30th.
const DEVICE_SCAN_EVERY: u32 = 30;

impl HostSampler {
    pub(crate) fn new() -> Self {
        Self {
            stat: OpenFile::open("/proc/stat"),
            memory: OpenFile::open("/proc/meminfo"),
            load: OpenFile::open("/proc/loadavg"),
            cpu: None,
            forks: None,
            last_pid: None,
            boot_unix_seconds: None,
            traffic: Traffic::default(),
            slow_samples: 0,
            last_reading: HostReading::default(),
            refreshed_at: None,
        }
    }

    /// Boot time in seconds since 1970; `None` before the first sample.
    pub(crate) fn boot_unix_seconds(&self) -> Option<i64> {
        self.boot_unix_seconds
    }

    /// Fork counters, at most [`REFRESH_SECONDS`] old.
    pub(crate) fn forks(&self) -> Option<Forks> {
        self.forks
    }

    /// Reads the host. Memory, load and traffic are read only when they are due, pressure, OOM kills and PCI devices
    /// only if `slow`. `now` is monotonic, in seconds.
    pub(crate) fn sample(&mut self, reader: &mut FileReader, now: f64, slow: bool) -> HostReading {
        if slow {
            read_slow(&mut self.last_reading, reader);
            if self.slow_samples.is_multiple_of(DEVICE_SCAN_EVERY) {
                self.traffic.find_devices();
            }
            self.slow_samples = self.slow_samples.wrapping_add(1);
        }
        let is_due = self.refreshed_at.is_none_or(|then| now - then >= REFRESH_SECONDS);
        if is_due {
            self.refreshed_at = Some(now);
            self.read_memory_and_load(reader);
        }
        let mut reading = self.last_reading.clone();
        if let Some(text) = self.stat.read(reader) {
            let ticks = CpuTicks::parse(text);
            if let Some((before, ticks)) = self.cpu.zip(ticks) {
                (reading.cpu_percent, reading.io_wait_percent) = ticks.shares_since(before);
            }
            self.cpu = ticks;
            reading.tasks_blocked = value_after(text, b"procs_blocked ");
            if is_due {
                let count = value_after(text, b"processes ");
                self.forks = count.zip(self.last_pid).map(|(count, last_pid)| Forks { count, last_pid });
            }
            if self.boot_unix_seconds.is_none() {
                self.boot_unix_seconds = value_after(text, b"btime ");
            }
        }
        reading.uptime_seconds = Some(round_to_tenth(uptime_seconds()));
        let rates = self.traffic.rates(now, reader);
        reading.network_receive_bytes_per_second = rates.network.map(|[received, _]| received);
        reading.network_transmit_bytes_per_second = rates.network.map(|[_, sent]| sent);
        reading.disk_read_bytes_per_second = rates.disks.map(|[read, _]| read);
        reading.disk_write_bytes_per_second = rates.disks.map(|[_, written]| written);
        reading
    }

    fn read_memory_and_load(&mut self, reader: &mut FileReader) {
        let Self { last_reading, memory, load, last_pid, .. } = self;
        if let Some(text) = memory.read(reader) {
            last_reading.memory_total_bytes = kibibytes(text, b"MemTotal:");
            last_reading.memory_available_bytes = kibibytes(text, b"MemAvailable:");
            last_reading.swap_total_bytes = kibibytes(text, b"SwapTotal:");
            last_reading.swap_free_bytes = kibibytes(text, b"SwapFree:");
            if let Some(available) = &mut last_reading.memory_available_bytes {
                *available = available.saturating_add(reader.read(ARC_STATISTICS).map_or(0, reclaimable_arc_bytes));
            }
        }
        if let Some(text) = load.read(reader) {
            let mut loads = words(text);
            let mut load = || loads.next().and_then(parse_decimal).map(|load| load as f32);
            (last_reading.load_1, last_reading.load_5, last_reading.load_15) = (load(), load(), load());
            *last_pid = loads.nth(1).and_then(|pid| pid.parse().ok());
        }
    }
}

fn read_slow(last_reading: &mut HostReading, reader: &mut FileReader) {
    last_reading.pressure_cpu_percent = reader.read("/proc/pressure/cpu").ok().and_then(pressure);
    last_reading.pressure_io_percent = reader.read("/proc/pressure/io").ok().and_then(pressure);
    last_reading.pressure_memory_percent = reader.read("/proc/pressure/memory").ok().and_then(pressure);
    last_reading.oom_kills = reader.read("/proc/vmstat").ok().and_then(|text| value_after(text, b"oom_kill "));
    last_reading.nvidia_pci_devices = nvidia_pci_devices(reader);
}

/// Time since boot including suspend, as in `/proc/uptime` (proc_uptime(5)). Reading the clock is cheaper than the
/// file.
fn uptime_seconds() -> f64 {
    let uptime = clock_gettime(ClockId::Boottime);
    uptime.tv_sec as f64 + uptime.tv_nsec as f64 / 1e9
}

/// Reads `/proc/sys/kernel/random/boot_id`.
pub(crate) fn boot_id(reader: &mut FileReader) -> Option<SafeText> {
    let text = reader.read("/proc/sys/kernel/random/boot_id").ok()?;
    Some(SafeText::from_bytes(text.trim_ascii()))
}

/// Reads `MemTotal` of `/proc/meminfo`.
pub(crate) fn memory_total_bytes(reader: &mut FileReader) -> Option<u64> {
    kibibytes(reader.read("/proc/meminfo").ok()?, b"MemTotal:")
}

/// Counts the online CPUs.
pub(crate) fn cpu_count(reader: &mut FileReader) -> Option<u32> {
    count_cpu_list(std::str::from_utf8(reader.read("/sys/devices/system/cpu/online").ok()?).ok()?)
}

/// Times of all CPUs together, in ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTicks {
    all: u64,
    idle: u64,
    io_wait: u64,
}

impl CpuTicks {
    /// Parses the first line of `/proc/stat`. Guest time is already part of user time and is not added.
    fn parse(text: &[u8]) -> Option<Self> {
        let line = text.split(|&byte| byte == b'\n').next()?.strip_prefix(b"cpu ")?;
        let mut ticks = [0_u64; 8];
        let mut numbers = words(line).map_while(|word| word.parse().ok());
        for tick in &mut ticks {
            *tick = numbers.next().unwrap_or(0);
        }
        let all = ticks.iter().fold(0_u64, |sum, &tick| sum.saturating_add(tick));
        (all > 0).then_some(Self { all, idle: ticks[3], io_wait: ticks[4] })
    }

    /// Returns the busy and I/O wait percentages since `before`; `None` if no tick has passed. The kernel's idle
    /// counters may fall by a tick; that difference counts as 0.
    fn shares_since(self, before: Self) -> (Option<f32>, Option<f32>) {
        let Some(all) = self.all.checked_sub(before.all).filter(|&all| all > 0) else { return (None, None) };
        let idle = self.idle.saturating_sub(before.idle).min(all);
        let io_wait = self.io_wait.saturating_sub(before.io_wait).min(all - idle);
        let percent = |ticks: u64| Some(round_to_tenth_f32(100.0 * ticks as f64 / all as f64));
        (percent(all - idle - io_wait), percent(io_wait))
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .filter_map(|word| std::str::from_utf8(word).ok())
}

/// Parses the number after `name` at the start of a line.
fn value_after<T: FromStr>(text: &[u8], name: &[u8]) -> Option<T> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    words(line).next()?.parse().ok()
}

/// Statistics of the ARC, the cache of ZFS. The file exists while the module is loaded.
const ARC_STATISTICS: &str = "/proc/spl/kstat/zfs/arcstats";

/// The part of the ARC that ZFS gives back when memory runs short: all but `c_min`. The kernel does not count it in
/// `MemAvailable` (openzfs/zfs#10255, htop-dev/htop#1002). A line is a name, a type and a number.
fn reclaimable_arc_bytes(text: &[u8]) -> u64 {
    let value = |name: &[u8]| {
        let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        words(line).nth(1)?.parse::<u64>().ok()
    };
    value(b"size ").zip(value(b"c_min ")).map_or(0, |(size, least)| size.saturating_sub(least))
}

fn kibibytes(text: &[u8], name: &[u8]) -> Option<u64> {
    value_after::<u64>(text, name)?.checked_mul(1024)
}

/// Parses `some avg60` of a file in `/proc/pressure`.
fn pressure(text: &[u8]) -> Option<f32> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"some "))?;
    words(line).find_map(|word| word.strip_prefix("avg60=")).and_then(parse_decimal).map(|percent| percent as f32)
}

/// Counts the CPUs in a kernel list such as `0-3,8,10-11`.
fn count_cpu_list(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let count = last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)?;
        sum.checked_add(count)
    })
}

/// Links to the PCI devices that the NVIDIA driver holds.
const NVIDIA_DRIVER_DIRECTORY: &str = "/sys/bus/pci/drivers/nvidia";

/// Counts the display-class PCI devices that the NVIDIA driver holds; `None` without that driver. A GPU that NVML has
/// lost is still on the bus.
fn nvidia_pci_devices(reader: &mut FileReader) -> Option<u32> {
    count_display_devices(Path::new(NVIDIA_DRIVER_DIRECTORY), reader)
}

fn count_display_devices(driver: &Path, reader: &mut FileReader) -> Option<u32> {
    let names = std::fs::read_dir(driver).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut count = 0;
    // The directory also contains `bind`, `module` and other files. Device addresses have colons: `0000:1b:00.0`.
    for name in names.filter(|name| name.contains(':')) {
        let class = reader.read(driver.join(name).join("class").to_str()?).ok();
        // PCI base class 3 is display. A GPU without outputs is a 3D controller, 0x0302.
        count += u32::from(class.is_some_and(|class| class.starts_with(b"0x03")));
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_shares_are_differences() {
        let before = CpuTicks::parse(b"cpu  100 0 50 800 40 5 5 0 70 0\ncpu0 1 2\n").expect("parses");
        let after = CpuTicks::parse(b"cpu  150 0 60 830 50 5 5 0 99 0\n").expect("parses");
        assert_eq!(before, CpuTicks { all: 1000, idle: 800, io_wait: 40 });
        assert_eq!(after.shares_since(before), (Some(60.0), Some(10.0)));
        assert_eq!(before.shares_since(after), (None, None));
        assert_eq!(CpuTicks::parse(b"intr 5"), None);
    }

    #[test]
    fn values_are_found_by_name() {
        let text = b"MemTotal:       1024 kB\nMemAvailable:    512 kB\nSwapTotal:  none\n";
        assert_eq!(kibibytes(text, b"MemTotal:"), Some(1 << 20));
        assert_eq!(kibibytes(text, b"SwapTotal:"), None);
        assert_eq!(value_after::<i64>(b"cpu 1\nbtime 1763000000\n", b"btime "), Some(1_763_000_000));
        assert_eq!(pressure(b"some avg10=1.00 avg60=2.50 avg300=0.1 total=9\nfull avg60=9\n"), Some(2.5));
    }

    #[test]
    fn the_cache_of_zfs_is_available_down_to_its_least_size() {
        let text = b"13 1 0x01 123 33456 5212 99\nname                            type data\n\
            hits                            4    12917314\nc_min                           4    1056358400\n\
            c_max                           4    16901734400\nsize                            4    15461882880\n\
            compressed_size                 4    7\n";
        assert_eq!(reclaimable_arc_bytes(text), 15_461_882_880 - 1_056_358_400);
        assert_eq!(reclaimable_arc_bytes(b"c_min 4 9\nsize 4 5\n"), 0);
        for bad in [&b""[..], b"size 4 5\n", b"size\nc_min\n", b"size 4 -1\nc_min 4 0\n"] {
            assert_eq!(reclaimable_arc_bytes(bad), 0);
        }
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpu_list("0-111\n"), Some(112));
        assert_eq!(count_cpu_list("0-3,8,10-11"), Some(7));
        for bad in ["", "3-1", "x", "0-4294967295"] {
            assert_eq!(count_cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_host_is_read() {
        let mut reader = FileReader::default();
        let mut sampler = HostSampler::new();
        let first = sampler.sample(&mut reader, 1.0, true);
        assert_eq!((first.cpu_percent, first.network_receive_bytes_per_second), (None, None));
        assert!(first.tasks_blocked.is_some());
        assert_eq!(first.memory_total_bytes, memory_total_bytes(&mut reader));
        assert!(first.load_1.is_some() && first.uptime_seconds.is_some_and(|seconds| seconds > 0.0));
        assert!(sampler.boot_unix_seconds().is_some());
        assert!(sampler.forks().is_some_and(|forks| forks.count > 0 && forks.last_pid > 0));
        assert!(cpu_count(&mut reader).is_some_and(|count| count > 0));
        assert_eq!(boot_id(&mut reader).map(|id| id.len()), Some(36));
    }

    #[test]
    fn only_display_devices_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        for (name, class) in
            [("0000:1b:00.0", "0x030200\n"), ("0000:43:00.0", "0x030000\n"), ("0000:05:00.0", "0x068000\n")]
        {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join(name).join("class"), class).unwrap();
        }
        std::fs::write(directory.path().join("bind"), "").unwrap();
        let mut reader = FileReader::default();
        assert_eq!(count_display_devices(directory.path(), &mut reader), Some(2));
        assert_eq!(count_display_devices(&directory.path().join("nothing"), &mut reader), None);
    }
}
