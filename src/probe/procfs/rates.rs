//! Bytes per second on the network interfaces and disks of the host.
//!
//! Only hardware counts, i.e. entries with a `device` link in sysfs: bonds, bridges, container interfaces and logical
//! volumes would count the same bytes twice. A host without hardware interfaces (a container) counts all interfaces
//! except loopback.

use super::files::{FileReader, OpenFile};
use std::path::Path;

/// Maximum number of interfaces, and of disks, whose counter files stay open.
const MAX_DEVICES: usize = 32;
/// The kernel counts disk traffic in 512-byte sectors, whatever the sector size of the disk
/// (Documentation/block/stat.rst).
const SECTOR_BYTES: u64 = 512;
/// Refresh period of memory, load and traffic. The kernel sums these counters on every read and updates the load only
/// every 5 s. A little less than 4 s because samples may come some milliseconds early.
pub(super) const REFRESH_SECONDS: f64 = 3.9;
/// After a longer gap, a difference gives no rate.
const MAX_GAP_SECONDS: f64 = 300.0;

/// Byte counters and their previous values.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    network: Vec<[OpenFile; 2]>,
    disks: Vec<OpenFile>,
    before: Option<(f64, Totals)>,
    rates: Rates,
}

/// Bytes since boot: received and sent, read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Totals {
    network: Option<[u64; 2]>,
    disks: Option<[u64; 2]>,
}

/// Bytes per second: received and sent, read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) network: Option<[f64; 2]>,
    pub(super) disks: Option<[f64; 2]>,
}

impl Traffic {
    /// Finds the interfaces and disks to count. If their number has changed, the next read gives no rates.
    pub(super) fn find_devices(&mut self) {
        let network = network_files(Path::new("/sys/class/net"));
        let disks = disk_files(Path::new("/sys/block"));
        if network.len() != self.network.len() || disks.len() != self.disks.len() {
            self.before = None;
        }
        (self.network, self.disks) = (network, disks);
    }

    /// Returns the rates between the last two reads of the counters, and reads them again if that is due. The files of
    /// a dozen disks cost more than all other host readings, so they are not read in every sample.
    pub(super) fn rates(&mut self, now: f64, reader: &mut FileReader) -> Rates {
        // The second sample follows the first after 250 ms and should already have rates.
        let is_fresh = self.rates != Rates::default();
        if !is_fresh || self.before.is_none_or(|(then, _)| now - then >= REFRESH_SECONDS) {
            let totals = self.totals(reader);
            let before = self.before.replace((now, totals));
            self.rates = before.map_or_else(Rates::default, |(then, before)| totals.rates_since(before, now - then));
        }
        self.rates
    }

    fn totals(&self, reader: &mut FileReader) -> Totals {
        let network = sum(self.network.iter().map(|[received, sent]| {
            let mut value = |file: &OpenFile| number(file.read(reader)?);
            Some([value(received)?, value(sent)?])
        }));
        let disks = sum(self.disks.iter().map(|file| sectors(file.read(reader)?)));
        Totals { network, disks: disks.map(|sectors| sectors.map(|count| count.saturating_mul(SECTOR_BYTES))) }
    }
}

impl Totals {
    /// Returns no rate for a counter that has fallen: its device was replaced.
    fn rates_since(self, before: Self, seconds: f64) -> Rates {
        let rates = |now: Option<[u64; 2]>, before: Option<[u64; 2]>| {
            let (now, before) = now.zip(before)?;
            let rate = |index: usize| {
                let bytes = now[index].checked_sub(before[index])?;
                (seconds > 0.0 && seconds <= MAX_GAP_SECONDS).then(|| (bytes as f64 / seconds).trunc())
            };
            Some([rate(0)?, rate(1)?])
        };
        Rates { network: rates(self.network, before.network), disks: rates(self.disks, before.disks) }
    }
}

/// Sums the devices that could be read; `None` if there is none.
fn sum(pairs: impl Iterator<Item = Option<[u64; 2]>>) -> Option<[u64; 2]> {
    pairs.flatten().reduce(|[a, b], [c, d]| [a.saturating_add(c), b.saturating_add(d)])
}

fn network_files(class: &Path) -> Vec<[OpenFile; 2]> {
    let all = names(class);
    let physical: Vec<_> = all.iter().filter(|name| class.join(name).join("device").exists()).cloned().collect();
    let counted = if physical.is_empty() { all } else { physical };
    let counter =
        |name: &str, counter: &str| OpenFile::open(&format!("{}/{name}/statistics/{counter}", class.display()));
    let counted = counted.iter().filter(|name| *name != "lo").take(MAX_DEVICES);
    counted.map(|name| [counter(name, "rx_bytes"), counter(name, "tx_bytes")]).collect()
}

fn disk_files(block: &Path) -> Vec<OpenFile> {
    let all = names(block).into_iter().filter(|name| block.join(name).join("device").exists()).take(MAX_DEVICES);
    all.map(|name| OpenFile::open(&format!("{}/{name}/stat", block.display()))).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Returns the sectors read and written: fields 3 and 7 of a disk's `stat`.
fn sectors(text: &[u8]) -> Option<[u64; 2]> {
    let mut fields = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let read = fields.nth(2)?.parse().ok()?;
    let written = fields.nth(3)?.parse().ok()?;
    Some([read, written])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Creates a sysfs directory with these interfaces or disks; `true` marks hardware.
    fn class(entries: &[(&str, bool)], files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, hardware) in entries {
            let entry = directory.path().join(name);
            fs::create_dir_all(entry.join("statistics")).unwrap();
            if *hardware {
                fs::create_dir(entry.join("device")).unwrap();
            }
            for (file, text) in files {
                fs::write(entry.join(file), text).unwrap();
            }
        }
        directory
    }

    #[test]
    fn only_physical_devices_are_counted() {
        let files = [("statistics/rx_bytes", "1000\n"), ("statistics/tx_bytes", "50\n")];
        let net = class(&[("bond0", false), ("eth0", true), ("eth1", true), ("lo", false), ("veth1", false)], &files);
        let block = class(
            &[("dm-0", false), ("loop0", false), ("nvme0n1", true), ("sda", true)],
            &[("stat", "  5 0 16 3 7 0 8 1 0 2 4 0 0 0 0 0 0\n")],
        );
        let traffic =
            Traffic { network: network_files(net.path()), disks: disk_files(block.path()), ..Traffic::default() };
        let totals = traffic.totals(&mut FileReader::default());
        assert_eq!(totals, Totals { network: Some([2000, 100]), disks: Some([32 * 512, 16 * 512]) });
        let container = class(&[("eth0", false), ("lo", false)], &files);
        assert_eq!(network_files(container.path()).len(), 1);
    }

    #[test]
    fn a_falling_counter_has_no_rate() {
        let totals = |received, read| Totals { network: Some([received, 0]), disks: Some([read, 0]) };
        let rates = totals(3000, 10).rates_since(totals(1000, 20), 2.0);
        assert_eq!(rates, Rates { network: Some([1000.0, 0.0]), disks: None });
        assert_eq!(totals(2, 2).rates_since(totals(1, 1), 0.0), Rates::default());
        assert_eq!(totals(2, 2).rates_since(totals(1, 1), 301.0), Rates::default());
        assert_eq!(totals(2, 2).rates_since(Totals::default(), 1.0), Rates::default());
    }

    #[test]
    fn rates_are_refreshed_every_four_seconds() {
        let files =
            |bytes: &str| [("statistics/rx_bytes", bytes.to_owned()), ("statistics/tx_bytes", bytes.to_owned())];
        let net = class(&[("eth0", true)], &files("0").each_ref().map(|(name, text)| (*name, text.as_str())));
        let mut traffic = Traffic { network: network_files(net.path()), ..Traffic::default() };
        let mut reader = FileReader::default();
        let mut seen = Vec::new();
        for (now, bytes) in [(0.0, 0), (0.25, 100), (2.25, 1100), (4.25, 4100), (6.25, 5000), (8.25, 12_100)] {
            for (name, text) in files(&bytes.to_string()) {
                fs::write(net.path().join("eth0").join(name), text).unwrap();
            }
            seen.push(traffic.rates(now, &mut reader).network.map(|[received, _]| received));
        }
        assert_eq!(seen, [None, Some(400.0), Some(400.0), Some(1000.0), Some(1000.0), Some(2000.0)]);
    }

    #[test]
    fn the_first_sample_has_no_rates() {
        let mut traffic = Traffic::default();
        let mut reader = FileReader::default();
        traffic.find_devices();
        assert_eq!(traffic.rates(1.0, &mut reader), Rates::default());
        let has_network = !traffic.network.is_empty();
        assert_eq!(traffic.rates(2.0, &mut reader).network.is_some(), has_network);
    }
}
