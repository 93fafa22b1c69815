//! GPUs as the PCI bus sees them: one that fell out of NVML is still on it.

use super::Scratch;
use std::path::Path;

/// The devices that the NVIDIA driver holds.
const DRIVER: &str = "/sys/bus/pci/drivers/nvidia";

/// Display-class devices that the NVIDIA driver holds; `None` where there is no such driver.
pub(super) fn nvidia_devices(scratch: &mut Scratch) -> Option<u32> {
    display_devices(Path::new(DRIVER), scratch)
}

fn display_devices(driver: &Path, scratch: &mut Scratch) -> Option<u32> {
    let names = std::fs::read_dir(driver).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut count = 0;
    // The folder also has `bind`, `module`, and other files that are no addresses such as `0000:1b:00.0`.
    for name in names.filter(|name| name.contains(':')) {
        let class = scratch.read(driver.join(name).join("class").to_str()?).ok();
        // PCI's base class 3 is display; a GPU without outputs is a 3D controller, 0x0302.
        count += u32::from(class.is_some_and(|class| class.starts_with(b"0x03")));
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_count_and_switches_and_audio_do_not() {
        let folder = tempfile::tempdir().unwrap();
        for (name, class) in
            [("0000:1b:00.0", "0x030200\n"), ("0000:43:00.0", "0x030000\n"), ("0000:05:00.0", "0x068000\n")]
        {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("class"), class).unwrap();
        }
        std::fs::write(folder.path().join("bind"), "").unwrap();
        let mut scratch = Scratch::default();
        assert_eq!(display_devices(folder.path(), &mut scratch), Some(2));
        assert_eq!(display_devices(&folder.path().join("nothing"), &mut scratch), None);
    }
}
