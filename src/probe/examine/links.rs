//! The InfiniBand and RoCE ports of the host, read twice.

use super::cut::beginning;
use crate::probe::procfs::FileReader;
use crate::wire::{LinkErrorCount, LinkReading, SafeText, limits};
use std::time::Instant;

/// The directory with the devices (kernel ABI, sysfs-class-infiniband).
pub(super) const ROOT: &str = "/sys/class/infiniband";
/// Maximum number of entries of a directory that are looked at.
const MAX_ENTRIES: usize = 256;
/// Maximum number of bytes of a text.
const MAX_TEXT_BYTES: usize = 64;
/// Data counters count units of four bytes.
const BYTES_PER_UNIT: u64 = 4;
/// A counter of 32 bits stays at this value.
const FULL_COUNTER: u64 = u32::MAX as u64;

/// The counters whose rise is reported. `port_xmit_wait` and `np_cnp_sent` show congestion, the others errors.
const ERROR_COUNTERS: &str = "counters/link_downed counters/symbol_error counters/port_xmit_wait \
    hw_counters/local_ack_timeout_err hw_counters/packet_seq_err hw_counters/out_of_sequence \
    hw_counters/rnr_nak_retry_err hw_counters/np_cnp_sent";

/// Reads all ports twice, with a call of `pause` in between. Returns them and the number of ports left out. A host without
/// such a device has no port.
pub(super) fn examine_links(root: &str, pause: &dyn Fn()) -> (Vec<LinkReading>, u32) {
    let mut reader = FileReader::default();
    let mut ports = ports(root);
    let left_out = ports.len().saturating_sub(limits::MAX_LINKS) as u32;
    ports.truncate(limits::MAX_LINKS);
    let first: Vec<Counters> = ports.iter().map(|port| Counters::read(&port.directory, &mut reader)).collect();
    if first.is_empty() {
        return (Vec::new(), 0);
    }
    let started = Instant::now();
    pause();
    let seconds = started.elapsed().as_secs_f32();
    let links = ports.into_iter().zip(first).map(|(port, first)| port.reading(&first, seconds, &mut reader));
    (links.collect(), left_out)
}

/// A port of a device.
struct Port {
    device: String,
    number: u16,
    directory: String,
}

/// Returns the ports in the order of their names.
fn ports(root: &str) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in names(root) {
        for name in names(&format!("{root}/{device}/ports")) {
            if let Ok(number) = name.parse() {
                let directory = format!("{root}/{device}/ports/{name}");
                ports.push(Port { device: device.clone(), number, directory });
            }
        }
    }
    ports
}

/// Returns the names in a directory in their order. The code of a sort is three kilobytes larger.
fn names(directory: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_ENTRIES) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let place = names.iter().position(|other| *other > name).unwrap_or(names.len());
        names.insert(place, name);
    }
    names
}

/// Counters of a port, absent if the device does not have them.
struct Counters {
    sent: Option<u64>,
    received: Option<u64>,
    /// In the order of [`ERROR_COUNTERS`].
    errors: Vec<Option<u64>>,
}

impl Counters {
    fn read(directory: &str, reader: &mut FileReader) -> Self {
        let mut read = |name: &str| text(directory, name, reader)?.parse().ok();
        Self {
            sent: read("counters/port_xmit_data"),
            received: read("counters/port_rcv_data"),
            errors: ERROR_COUNTERS.split(' ').map(read).collect(),
        }
    }
}

impl Port {
    /// Takes the second reading.
    fn reading(self, first: &Counters, seconds: f32, reader: &mut FileReader) -> LinkReading {
        let second = Counters::read(&self.directory, reader);
        let mut text = |name: &str| text(&self.directory, name, reader);
        let short = |text: &str| beginning(text, MAX_TEXT_BYTES);
        let mut errors = Vec::new();
        for ((name, first), second) in ERROR_COUNTERS.split(' ').zip(&first.errors).zip(&second.errors) {
            let count = rise(*first, *second).unwrap_or(0);
            if count > 0 {
                let name = SafeText::new(name.rsplit('/').next().unwrap_or(name));
                errors.push(LinkErrorCount { name, count });
            }
        }
        LinkReading {
            layer: text("link_layer").map(|layer| short(&layer)),
            // The number of the state precedes its name: `4: ACTIVE`.
            state: text("state").map(|state| short(state.split_once(": ").map_or(&*state, |(_, name)| name))),
            rate: text("rate").map(|rate| short(&rate)),
            device: short(&self.device),
            port: self.number,
            seconds,
            sent_bytes: rise(first.sent, second.sent).map(|units| units.saturating_mul(BYTES_PER_UNIT)),
            received_bytes: rise(first.received, second.received).map(|units| units.saturating_mul(BYTES_PER_UNIT)),
            errors,
        }
    }
}

/// Reads a file with one line.
fn text(directory: &str, name: &str, reader: &mut FileReader) -> Option<String> {
    let text = reader.read(&format!("{directory}/{name}")).ok()?.trim_ascii();
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Returns by how much a counter rose; `None` if it was reset or is full.
fn rise(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    let (first, second) = (first?, second?);
    if first == FULL_COUNTER && second == FULL_COUNTER { None } else { second.checked_sub(first) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// Writes the files of one port.
    fn set(root: &str, port: &str, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = format!("{root}/{port}/{name}");
            create_dir_all(path.rsplit_once('/').unwrap().0).unwrap();
            write(path, format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn ports_are_read_twice() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        set(root, "mlx5_1/ports/1", &[("state", "1: DOWN"), ("link_layer", "Ethernet")]);
        let facts = [("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")];
        set(root, "mlx5_0/ports/1", &facts);
        set(root, "mlx5_0/ports/x", &facts);
        let counters = |sent: &str, timeouts: &str, downed: &str| {
            set(
                root,
                "mlx5_0/ports/1",
                &[
                    ("counters/port_xmit_data", sent),
                    ("counters/port_rcv_data", "4294967295"),
                    ("counters/link_downed", downed),
                    ("counters/symbol_error", "9"),
                    ("hw_counters/local_ack_timeout_err", timeouts),
                ],
            );
        };
        counters("1000", "5", "7");
        let (links, left_out) = examine_links(root, &|| counters("1250", "8", "0"));
        let expected = LinkReading {
            device: "mlx5_0".into(),
            port: 1,
            layer: Some("InfiniBand".into()),
            state: Some("ACTIVE".into()),
            rate: Some("400 Gb/sec (4X NDR)".into()),
            seconds: links[0].seconds,
            sent_bytes: Some(1000),
            received_bytes: None,
            errors: vec![LinkErrorCount { name: "local_ack_timeout_err".into(), count: 3 }],
        };
        let down = LinkReading {
            device: "mlx5_1".into(),
            port: 1,
            layer: Some("Ethernet".into()),
            state: Some("DOWN".into()),
            seconds: links[0].seconds,
            ..LinkReading::default()
        };
        assert_eq!((links, left_out), (vec![expected, down], 0));
    }

    #[test]
    fn a_host_without_a_device_has_no_ports_and_no_pause() {
        let (links, left_out) = examine_links("/nonexistent", &|| panic!("there is nothing to wait for"));
        assert_eq!((links.len(), left_out), (0, 0));
    }

    #[test]
    fn ports_beyond_the_limit_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        for number in 0..limits::MAX_LINKS + 3 {
            let state = "x".repeat(500);
            set(root, &format!("mlx5_{number:03}/ports/1"), &[("state", &state)]);
        }
        let (links, left_out) = examine_links(root, &|| {});
        assert_eq!((links.len(), left_out, &*links[63].device), (limits::MAX_LINKS, 3, "mlx5_063"));
        assert!(links.iter().all(|link| link.state.as_ref().is_some_and(|state| state.len() == MAX_TEXT_BYTES)));
    }

    #[test]
    fn a_counter_that_is_full_or_was_reset_has_no_rise() {
        assert_eq!(rise(Some(5), Some(7)), Some(2));
        assert_eq!(rise(Some(5), Some(5)), Some(0));
        for (first, second) in
            [(None, Some(1)), (Some(1), None), (Some(7), Some(5)), (Some(FULL_COUNTER), Some(FULL_COUNTER))]
        {
            assert_eq!(rise(first, second), None);
        }
    }
}
