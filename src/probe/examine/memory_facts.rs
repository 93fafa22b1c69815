//! Facts of a process for which the kernel takes its memory lock, or that lie on a file system: its environment, the NCCL
//! library that it has mapped, and the configuration of NCCL.
//!
//! A process that hangs in the kernel may hold that lock, and its file server may not answer: a thread that reads these
//! facts may not return.

use super::cut::end;
use crate::probe::procfs::{
    FileReader, environment_variable, open_as_process, open_directory_in_root, root_directory, started_at,
};
use crate::probe::ras::ConfigurationFile;
use crate::wire::SafeText;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, RawDir, Stat, statat};
use std::mem::MaybeUninit;

/// Maximum number of bytes of an environment.
const MAX_ENVIRONMENT_BYTES: usize = 128 * 1024;
/// Maximum number of bytes of a configuration file.
const MAX_CONFIGURATION_BYTES: usize = 64 * 1024;
/// Maximum number of bytes of `/proc/PID/maps`. A process of PyTorch has about 1 MB.
const MAX_MAPS_BYTES: usize = 8 << 20;
/// Maximum number of different NCCL libraries that are looked at.
const MAX_LIBRARIES: usize = 4;
/// Maximum number of entries of a `site-packages` directory.
const MAX_PACKAGES: usize = 20_000;
/// Maximum number of bytes of a path that is shown.
const MAX_PATH_BYTES: usize = 128;
/// The directory of the library in the wheels of NVIDIA, below `site-packages`.
const WHEEL_DIRECTORY: &str = "/nvidia/nccl/lib";

/// The facts. A value that cannot be read is empty or absent.
#[derive(Debug, Default)]
pub(super) struct MemoryFacts {
    /// `/proc/PID/environ`: `NAME=value`, separated by zero bytes.
    pub(super) environment: Vec<u8>,
    /// Whether an NCCL library is mapped. Absent if that cannot be known, as with a PyTorch that may contain NCCL.
    pub(super) has_nccl: Option<bool>,
    /// Version of that library, for example `2.27.5`. Absent if nothing names it, or if several libraries differ.
    pub(super) nccl_version: Option<SafeText>,
}

impl MemoryFacts {
    /// Reads the facts. May block.
    pub(super) fn read(pid: u32) -> Self {
        let mut reader = FileReader::default();
        let environment = environment(pid, &mut reader);
        let mut libraries = NcclLibraries::default();
        let is_complete = reader.each_line(pid, "maps", MAX_MAPS_BYTES, &mut |line| libraries.add_mapping(line));
        let has_nccl = match is_complete {
            _ if !libraries.paths.is_empty() => Some(true),
            Ok(true) if !libraries.may_be_static => Some(false),
            _ => None,
        };
        // A container has another file system.
        let started = started_at(pid, &mut reader);
        let nccl_version =
            root_directory(pid).ok().zip(started).and_then(|(root, started)| libraries.version(&root, started));
        Self { environment, has_nccl, nccl_version }
    }
}

/// Reads `/proc/PID/environ`. May block.
pub(super) fn environment(pid: u32, reader: &mut FileReader) -> Vec<u8> {
    reader.read_process(pid, "environ", MAX_ENVIRONMENT_BYTES).map(<[u8]>::to_vec).unwrap_or_default()
}

/// Returns the configuration files of NCCL in the order in which they are read: `initEnv` in nccl:src/misc/param.cc. The first
/// value of a variable counts, and the environment before them. May block.
pub(super) fn nccl_configuration(pid: u32, environment: &[u8], reader: &mut FileReader) -> Vec<ConfigurationFile> {
    let variable = |name| environment_variable(environment, name).and_then(|value| std::str::from_utf8(value).ok());
    let own = match variable("NCCL_CONF_FILE").filter(|path| !path.is_empty()) {
        Some(path) => Some((path.to_owned(), end(path, MAX_PATH_BYTES))),
        // NCCL takes the home directory of the account, which HOME names unless somebody has changed it.
        None => variable("HOME").map(|home| (format!("{home}/.nccl.conf"), "~/.nccl.conf".into())),
    };
    let mut files = Vec::new();
    for (path, name) in own.into_iter().chain([("/etc/nccl.conf".to_owned(), "/etc/nccl.conf".into())]) {
        let Ok(file) = open_as_process(pid, &path) else { continue };
        if let Ok(text) = reader.read_fd(&file, MAX_CONFIGURATION_BYTES) {
            files.push(ConfigurationFile { name, text: text.to_vec() });
        }
    }
    files
}

/// The NCCL libraries among the mapped files of a process.
#[derive(Debug, Default)]
struct NcclLibraries {
    /// Their paths, which have no links: the kernel resolves them.
    paths: Vec<String>,
    /// A library is mapped that contains NCCL in some builds.
    may_be_static: bool,
}

impl NcclLibraries {
    /// Adds a line of `/proc/PID/maps` (proc_pid_maps(5)): `address permissions offset device inode path`.
    fn add_mapping(&mut self, line: &[u8]) {
        let Some(start) = line.iter().position(|&byte| byte == b'/') else { return };
        let Ok(path) = std::str::from_utf8(&line[start..]) else { return };
        let (directory, name) = path.rsplit_once('/').unwrap_or_default();
        // A library that was removed from a file server while it was mapped has another name.
        if name.starts_with("libnccl.so") || directory.ends_with(WHEEL_DIRECTORY) {
            if self.paths.len() < MAX_LIBRARIES && self.paths.iter().all(|known| known != path) {
                self.paths.push(path.to_owned());
            }
        } else if name.starts_with("libtorch_cuda") {
            self.may_be_static = true;
        }
    }

    /// Returns the version of the libraries if all have the same. Their paths are below `root`. The process started at `started`.
    fn version(&self, root: &OwnedFd, started: f64) -> Option<SafeText> {
        let version = |path: &String| library_version(path, root, started);
        let first = version(self.paths.first()?)?;
        self.paths.iter().all(|path| version(path).as_ref() == Some(&first)).then_some(first.into())
    }
}

/// Returns the version of the library at `path`: from its name (`libnccl.so.2.27.5`), or from the wheel that contains it
/// (`nvidia_nccl_cu12-2.27.5.dist-info` in `site-packages`), if neither has changed since the process started: another computer may
/// have replaced a wheel on a file server, which the mappings do not tell.
fn library_version(path: &str, root: &OwnedFd, started: f64) -> Option<String> {
    let present = path.strip_suffix(" (deleted)");
    let (directory, name) = present.unwrap_or(path).rsplit_once('/')?;
    let number = name.strip_prefix("libnccl.so.").filter(|number| is_version(number));
    if let Some(number) = number {
        return Some(number.to_owned());
    }
    // After an upgrade the directory names the version of the new file. On NFS, the old one is renamed to `.nfs...`.
    if present.is_some() || !name.starts_with("libnccl.so") {
        return None;
    }
    let packages = directory.strip_suffix(WHEEL_DIRECTORY)?;
    if !is_older(&open_directory_in_root(root, directory).ok()?, name, started) {
        return None;
    }
    let mut version: Option<String> = None;
    let packages = open_directory_in_root(root, packages).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&packages, &mut buffer);
    for _ in 0..MAX_PACKAGES {
        let Some(Ok(entry)) = entries.next() else { break };
        let Some(name) = entry.file_name().to_str().ok() else { continue };
        let Some(found) = wheel_version(name) else { continue };
        if !is_older(&packages, name, started) || version.is_some_and(|version| version != found) {
            return None;
        }
        version = Some(found.to_owned());
    }
    version
}

/// Whether a file has not changed since this time, in seconds since 1970.
fn is_older(directory: &OwnedFd, name: &str, time: f64) -> bool {
    let changed = |status: Stat| status.st_ctime as f64 + status.st_ctime_nsec as f64 / 1e9;
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|status| changed(status) < time)
}

/// Returns the version in `nvidia_nccl_cu12-2.27.5.dist-info`.
fn wheel_version(name: &str) -> Option<&str> {
    let (_cuda, version) = name.strip_prefix("nvidia_nccl_cu")?.strip_suffix(".dist-info")?.split_once('-')?;
    is_version(version).then_some(version)
}

/// Whether this is a version with three numbers or more, such as `2.27.5`.
fn is_version(text: &str) -> bool {
    text.len() <= 32
        && text.split('.').count() >= 3
        && text.split('.').all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::test_process::TestProcess;
    use super::*;
    use std::process::Command;

    fn libraries(paths: &[&str]) -> NcclLibraries {
        let mut libraries = NcclLibraries::default();
        for path in paths {
            libraries.add_mapping(format!("7f10-7f20 r-xp 00000000 08:01 131073      {path}").as_bytes());
        }
        libraries
    }

    #[test]
    fn nccl_libraries_are_found_among_the_mappings() {
        let mapped = libraries(&[
            "/usr/bin/python3.11",
            "[heap]",
            "/v/site-packages/nvidia/nccl/lib/libnccl.so.2",
            "/v/site-packages/nvidia/nccl/lib/libnccl.so.2",
            "/usr/lib/libnccl-net.so",
        ]);
        assert_eq!(mapped.paths, ["/v/site-packages/nvidia/nccl/lib/libnccl.so.2"]);
        assert!(!mapped.may_be_static);
        let renamed = libraries(&["/v/nvidia/nccl/lib/.nfs0000000000c0ffee00000001"]);
        assert_eq!(
            (renamed.paths.len(), renamed.version(&root_directory(std::process::id()).unwrap(), f64::INFINITY)),
            (1, None)
        );
        let conda = libraries(&["/v/torch/lib/libtorch_cuda.so"]);
        assert!(conda.may_be_static && conda.paths.is_empty());
        let mut many = NcclLibraries::default();
        for number in 0..100 {
            many.add_mapping(format!("0-1 r-xp 0 0:0 1 /{number}/libnccl.so.2").as_bytes());
        }
        many.add_mapping(b"0-1 r-xp 0 0:0 1 /\xff/libnccl.so.2");
        assert_eq!(many.paths.len(), MAX_LIBRARIES);
    }

    #[test]
    fn the_version_is_that_of_the_file_or_of_its_wheel() {
        let directory = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let later = f64::INFINITY;
        let version = |path: &str| libraries(&[path]).version(&root, later);
        assert_eq!(version("/usr/lib/libnccl.so.2.21.5"), Some("2.21.5".into()));
        assert_eq!(version("/usr/lib/libnccl.so.2.21.5 (deleted)"), Some("2.21.5".into()));
        for unknown in [
            "/usr/lib/libnccl.so.2",
            "/usr/lib/libnccl.so",
            "/usr/lib/libnccl.so.2.x.5",
            "/none/nvidia/nccl/lib/libnccl.so.2",
        ] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
        let wheel = "/v/site-packages/nvidia/nccl/lib/libnccl.so.2";
        for package in ["torch-2.9.0.dist-info", "nvidia_nccl_cu12-2.27.5.dist-info", "nvidia_nccl_cu12"] {
            std::fs::create_dir_all(directory.path().join("v/site-packages").join(package)).unwrap();
        }
        let folder = directory.path().join("v/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(version(wheel), None, "the file was moved");
        for name in ["libnccl.so.2", ".nfs0000000000a1b2c300000001"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(version(wheel), Some("2.27.5".into()));
        let renamed = "/v/site-packages/nvidia/nccl/lib/.nfs0000000000a1b2c300000001";
        assert_eq!(version(renamed), None, "the wheel was replaced on this computer");
        assert_eq!(libraries(&[wheel]).version(&root, 1e9), None, "the wheel was installed after the process started");
        assert_eq!(version(&format!("{wheel} (deleted)")), None, "the wheel was replaced since");
        assert_eq!(libraries(&[wheel, "/usr/lib/libnccl.so.2.27.5"]).version(&root, later), Some("2.27.5".into()));
        assert_eq!(libraries(&[wheel, "/usr/lib/libnccl.so.2.21.5"]).version(&root, later), None);
        assert_eq!(libraries(&["/usr/lib/libnccl.so.2.21.5", wheel]).version(&root, later), None);
        std::fs::create_dir(directory.path().join("v/site-packages/nvidia_nccl_cu11-2.21.5.dist-info")).unwrap();
        assert_eq!(version(wheel), None, "two wheels");
    }

    #[test]
    fn the_configuration_of_nccl_is_that_of_the_user_then_that_of_the_host() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().to_str().unwrap();
        std::fs::write(directory.path().join(".nccl.conf"), "NCCL_RAS_ENABLE=0\n").unwrap();
        std::fs::write(directory.path().join("other.conf"), "NCCL_DEBUG=WARN\n").unwrap();
        let own = |variables: &[(&str, &str)]| {
            let mut command = Command::new("sleep");
            command.arg("600").env_clear().envs(variables.iter().copied()).current_dir(home);
            let job = TestProcess::start(&mut command);
            let mut reader = FileReader::default();
            let environment = environment(job.pid(), &mut reader);
            let files = nccl_configuration(job.pid(), &environment, &mut reader);
            let own = files.into_iter().filter(|file| file.name != "/etc/nccl.conf");
            own.map(|file| (file.name.to_string(), String::from_utf8(file.text).unwrap())).collect::<Vec<_>>()
        };
        let of_home = vec![("~/.nccl.conf".to_owned(), "NCCL_RAS_ENABLE=0\n".to_owned())];
        assert_eq!(own(&[("HOME", home)]), of_home);
        assert_eq!(own(&[("HOME", home), ("NCCL_CONF_FILE", "")]), of_home);
        let other = vec![("other.conf".to_owned(), "NCCL_DEBUG=WARN\n".to_owned())];
        assert_eq!(own(&[("HOME", home), ("NCCL_CONF_FILE", "other.conf")]), other);
        assert_eq!(
            own(&[("HOME", home), ("NCCL_CONF_FILE", "/none")]),
            [],
            "the file replaces that of the home directory"
        );
        assert_eq!(own(&[]), []);
    }

    #[test]
    fn wheels_have_versions_of_numbers() {
        assert_eq!(wheel_version("nvidia_nccl_cu12-2.27.5.dist-info"), Some("2.27.5"));
        for name in [
            "nvidia_nccl_cu12-2.27.5.post1.dist-info",
            "nvidia_nccl_cu12-2.27.dist-info",
            "nvidia_nccl_cu12-2..5.dist-info",
            "nvidia_nccl_cu12.dist-info",
            "nvidia_cudnn_cu12-9.1.0.dist-info",
        ] {
            assert_eq!(wheel_version(name), None, "{name}");
        }
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"MY_RANK=1\0RANK_ZERO=2\0RANK=3\0EMPTY=\0";
        assert_eq!(environment_variable(environment, "RANK"), Some(b"3".as_slice()));
        assert_eq!(environment_variable(environment, "EMPTY"), Some(b"".as_slice()));
        assert_eq!(environment_variable(environment, "WORLD_SIZE"), None);
    }

    #[test]
    fn a_process_without_nccl_has_none() {
        let job = TestProcess::start(Command::new("sleep").arg("600").env("RANK", "5"));
        let facts = MemoryFacts::read(job.pid());
        assert_eq!((facts.has_nccl, facts.nccl_version), (Some(false), None));
        assert_eq!(environment_variable(&facts.environment, "RANK"), Some(b"5".as_slice()));
        let missing = MemoryFacts::read(u32::MAX);
        assert_eq!((missing.has_nccl, missing.environment.len()), (None, 0));
    }
}
