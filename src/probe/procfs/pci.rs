//! GPUs as the PCI bus sees them: one that fell out of NVML is still on it.

use super::FileReader;
use std::path::Path;

/// The devices that the NVIDIA driver holds.
const DRIVER: &str = "/sys/bus/pci/drivers/nvidia";

/// Display-class devices that the NVIDIA driver holds; `None` where there is no such driver.
pub(super) fn nvidia_devices(reader: &mut FileReader) -> Option<u32> {
    display_devices(Path::new(DRIVER), reader)
}

fn display_devices(driver: &Path, reader: &mut FileReader) -> Option<u32> {
    let names = std::fs::read_dir(driver).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut count = 0;
    // The folder also has `bind`, `module`, and other files that are no addresses such as `0000:1b:00.0`.
    for name in names.filter(|name| name.contains(':')) {
        let class = reader.read(driver.join(name).join("class").to_str()?).ok();
        // PCI's base class 3 is display; a GPU without outputs is a 3D controller, 0x0302.
        count += u32::from(class.is_some_and(|class| class.starts_with(b"0x03")));
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(display_devices(directory.path(), &mut reader), Some(2));
        assert_eq!(display_devices(&directory.path().join("nothing"), &mut reader), None);
    }
}
