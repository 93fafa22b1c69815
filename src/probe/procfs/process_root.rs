//! Opens files as another process sees them: in its root directory, which is that of a container or of a chroot.
//!
//! A path below `/proc/PID/root` begins in the right file system, but an absolute symbolic link on it leads to the root
//! directory of the probe. [`open_in_root`] resolves such links in the root directory of the process.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2, readlinkat, stat};
use rustix::io::Errno;

/// A file is found without opening it: the open of a device can have effects (a watchdog, a tape, a terminal), and that of a FIFO
/// wakes its writer.
const FIND: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Flags of a directory in which paths are resolved.
const DIRECTORY: OFlags = FIND.union(OFlags::DIRECTORY);
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The error if a path leads through a symbolic link or `..` in another root directory, which needs openat2(2) of Linux 5.6.
pub(crate) const NEEDS_OPENAT2: Errno = Errno::NOSYS;
/// The error for a device, a FIFO, a socket, or a file without a size.
const NOT_READABLE: Errno = Errno::OPNOTSUPP;

/// Opens a regular file by a path as process `pid` would: an absolute one in its root directory, another one in its working
/// directory. May block.
///
/// # Errors
/// Also if the path leads through a link of /proc, or if a path in the working directory of a process with another root directory
/// leads out of it: these would end in another file than that of the process. Also if the file is not a regular one or has no size,
/// and [`NEEDS_OPENAT2`].
pub(crate) fn open_as_process(pid: u32, path: &str) -> Result<OwnedFd, Errno> {
    let is_shared = shares_root(pid);
    let found = if path.starts_with('/') {
        let root = root_directory(pid)?;
        resolve(root.as_fd(), path.trim_start_matches('/'), ResolveFlags::IN_ROOT, is_shared)?
    } else {
        let directory = open(format!("/proc/{pid}/cwd"), DIRECTORY, Mode::empty())?;
        let how = if is_shared { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
        resolve(directory.as_fd(), path, how, is_shared)?
    };
    open_found(&found, FileType::RegularFile)
}

/// Opens the root directory of a process, for [`open_directory_in_root`].
pub(crate) fn root_directory(pid: u32) -> Result<OwnedFd, Errno> {
    open(format!("/proc/{pid}/root"), DIRECTORY, Mode::empty())
}

/// Opens a directory below `root`. Symbolic links and `..` stay in `root`. May block.
///
/// # Errors
/// As for [`open_as_process`].
pub(crate) fn open_directory_in_root(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let found = resolve(root.as_fd(), path.trim_start_matches('/'), ResolveFlags::IN_ROOT, false)?;
    open_found(&found, FileType::Directory)
}

/// Opens a file that [`resolve`] has found, if it has this type.
fn open_found(found: &OwnedFd, wanted: FileType) -> Result<OwnedFd, Errno> {
    let status = fstat(found)?;
    // Pseudo files have no size, and reading one can have effects: /proc/kmsg hands out each message once.
    let is_pseudo = wanted == FileType::RegularFile && status.st_size == 0;
    if FileType::from_raw_mode(status.st_mode) != wanted || is_pseudo {
        return Err(NOT_READABLE);
    }
    open(format!("/proc/self/fd/{}", found.as_raw_fd()), READ_ONLY, Mode::empty())
}

/// Whether a process has the root directory and the mounts of the probe, so that links lead both to the same files.
fn shares_root(pid: u32) -> bool {
    let mounts = |process: &str| readlinkat(CWD, format!("/proc/{process}/ns/mnt"), Vec::new()).ok();
    let root = |path: &str| stat(path).ok().map(|status| (status.st_dev, status.st_ino));
    let pid = pid.to_string();
    mounts(&pid).is_some_and(|own| Some(own) == mounts("self"))
        && root(&format!("/proc/{pid}/root/")).is_some_and(|own| Some(own) == root("/"))
}

/// Finds the file of a relative path, without opening it. `is_shared`: the links in it lead to the same files for the probe.
fn resolve(directory: BorrowedFd<'_>, path: &str, how: ResolveFlags, is_shared: bool) -> Result<OwnedFd, Errno> {
    let found = openat2(directory, path, FIND, Mode::empty(), how | ResolveFlags::NO_MAGICLINKS);
    resolve_after(found, directory, path, is_shared)
}

/// Takes the result of openat2(2).
fn resolve_after(
    found: Result<OwnedFd, Errno>,
    directory: BorrowedFd<'_>,
    path: &str,
    is_shared: bool,
) -> Result<OwnedFd, Errno> {
    match found {
        // Linux before 5.6, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => without_openat2(directory, path, is_shared),
        result => result,
    }
}

/// Finds a file on a kernel without openat2(2). Links in containers are refused there.
fn without_openat2(directory: BorrowedFd<'_>, path: &str, is_shared: bool) -> Result<OwnedFd, Errno> {
    if is_shared { openat(directory, path, FIND, Mode::empty()) } else { resolve_without_links(directory, path) }
}

/// Finds the file of a path that has no symbolic link and no `..`, one part after the other.
fn resolve_without_links(directory: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let mut found = openat(directory, ".", DIRECTORY, Mode::empty())?;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(NEEDS_OPENAT2);
        }
        found = openat(&found, part, FIND | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Symlink {
            return Err(NEEDS_OPENAT2);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{inotify, mknodat};
    use std::io::Read;
    use std::path::Path;
    use std::process::{Child, Command};

    /// A process that ends with the test.
    struct TestProcess(Child);

    impl TestProcess {
        /// Starts it in another mount namespace, in which the files of `inside` lie over those of `outside`.
        fn start(folder: &Path) -> Self {
            let root = rustix::process::getuid().is_root();
            let users: &[&str] = if root { &[] } else { &["--user", "--map-root-user"] };
            let script = "mount --bind inside outside && cd outside && exec sleep 600";
            let child = Command::new("unshare")
                .args(users)
                .args(["--mount", "sh", "-c", script])
                .current_dir(folder)
                .spawn()
                .expect("unshare of util-linux is installed");
            let mut contained = Self(child);
            let command = format!("/proc/{}/cmdline", contained.0.id());
            while !std::fs::read(&command).unwrap_or_default().starts_with(b"sleep") {
                let ended = contained.0.try_wait().unwrap();
                assert_eq!(ended, None, "the test needs mount namespaces: run it as root, or allow user namespaces");
                std::thread::yield_now();
            }
            contained
        }

        fn read(&self, path: &str) -> Result<String, Errno> {
            text(open_as_process(self.0.id(), path))
        }
    }

    impl Drop for TestProcess {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn text(file: Result<OwnedFd, Errno>) -> Result<String, Errno> {
        let mut text = String::new();
        std::fs::File::from(open_found(&file?, FileType::RegularFile)?).read_to_string(&mut text).unwrap();
        Ok(text)
    }

    /// `outside/file` says "host" and `inside/file` says "container". `link` is an absolute link to `outside/file`.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (directory, content) in [("outside", "host"), ("inside", "container")] {
            std::fs::create_dir(path.join(directory)).unwrap();
            std::fs::write(path.join(directory).join("file"), content).unwrap();
            std::os::unix::fs::symlink(path.join("outside/file"), path.join(directory).join("absolute")).unwrap();
            std::os::unix::fs::symlink("file", path.join(directory).join("relative")).unwrap();
            std::os::unix::fs::symlink("/proc/self/cwd/file", path.join(directory).join("magic")).unwrap();
        }
        std::os::unix::fs::symlink(path.join("outside/file"), path.join("link")).unwrap();
        folder
    }

    #[test]
    fn links_lead_to_the_files_of_the_process() {
        let folder = folder();
        let process = TestProcess::start(folder.path());
        let path = |name: &str| folder.path().join(name).display().to_string();
        // Such a path leads to the host.
        let naive = format!("/proc/{}/root{}", process.0.id(), path("link"));
        assert_eq!(std::fs::read_to_string(naive).unwrap(), "host");
        for name in ["link", "outside/file", "outside/relative", "outside/absolute"] {
            assert_eq!(process.read(&path(name)), Ok("container".to_owned()), "{name}");
        }
        assert_eq!(process.read(&path("none")), Err(Errno::NOENT));
        assert_eq!(process.read(&path("outside/magic")), Err(Errno::LOOP));
        // Relative to the working directory of the process.
        assert_eq!(process.read("file"), Ok("container".to_owned()));
        assert_eq!(process.read("relative"), Ok("container".to_owned()));
        assert_eq!(process.read("absolute"), Err(Errno::XDEV), "it leads out of the directory");
        assert_eq!(process.read("../outside/file"), Err(Errno::XDEV));
        assert!(!shares_root(process.0.id()));
    }

    #[test]
    fn a_process_on_the_host_may_name_files_outside_its_directory() {
        let folder = folder();
        let child = Command::new("sleep").arg("600").current_dir(folder.path().join("inside")).spawn().unwrap();
        let process = TestProcess(child);
        for name in ["../outside/file", "absolute"] {
            assert_eq!(process.read(name), Ok("host".to_owned()), "{name}");
        }
        assert_eq!(process.read("magic"), Err(Errno::LOOP));
    }

    #[test]
    fn without_openat2_links_are_refused_unless_the_probe_has_the_same_files() {
        let folder = folder();
        let process = TestProcess::start(folder.path());
        let root = root_directory(process.0.id()).unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let read = |name: &str, is_shared| {
            let path = path(name);
            text(without_openat2(root.as_fd(), path.trim_start_matches('/'), is_shared))
        };
        assert_eq!(read("outside/file", false), Ok("container".to_owned()));
        assert_eq!(read("outside/./file", false), Ok("container".to_owned()));
        for name in ["link", "outside/relative", "outside/absolute", "outside/../link"] {
            assert_eq!(read(name, false), Err(NEEDS_OPENAT2), "{name}");
        }
        let link = path("link");
        let after = |error| text(resolve_after(Err(error), root.as_fd(), link.trim_start_matches('/'), false));
        for (error, expected) in
            [(Errno::NOSYS, NEEDS_OPENAT2), (Errno::PERM, NEEDS_OPENAT2), (Errno::XDEV, Errno::XDEV)]
        {
            assert_eq!(after(error), Err(expected), "the result of openat2: {error}");
        }
        let directory = folder.path().join("to_outside");
        std::os::unix::fs::symlink("outside", directory).unwrap();
        assert_eq!(read("to_outside/file", false), Err(NEEDS_OPENAT2), "a link to a directory");
        assert_eq!(read("outside/file/file", false), Err(Errno::NOTDIR));
        let own = std::process::id();
        assert!(shares_root(own));
        let root = root_directory(own).unwrap();
        let link = path("link");
        assert_eq!(
            text(resolve(root.as_fd(), link.trim_start_matches('/'), ResolveFlags::IN_ROOT, true)),
            Ok("host".into())
        );
        assert_eq!(text(without_openat2(root.as_fd(), link.trim_start_matches('/'), true)), Ok("host".to_owned()));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::os::unix::fs::symlink("fifo", path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/null", path("null")).unwrap();
        std::os::unix::fs::symlink("/dev/tty", path("terminal")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("file"), "text").unwrap();
        let opens = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&opens, path("fifo"), inotify::WatchFlags::OPEN).unwrap();
        let was_opened = || rustix::io::read(&opens, &mut [0_u8; 4096]) != Err(Errno::AGAIN);
        let own = std::process::id();
        let root = root_directory(own).unwrap();
        for name in ["fifo", "link", "null", "terminal", "socket", "directory", "empty"] {
            let name = path(name);
            assert_eq!(open_as_process(own, &name).err(), Some(NOT_READABLE), "{name}");
            let directory = open_directory_in_root(&root, &name);
            assert_eq!(directory.is_ok(), name.ends_with("directory"), "{name}");
            let found = without_openat2(root.as_fd(), name.trim_start_matches('/'), true);
            assert_eq!(text(found), Err(NOT_READABLE), "{name}");
        }
        for name in ["/proc/stat", "/proc/self/environ"] {
            assert_eq!(open_as_process(own, name).err(), Some(NOT_READABLE), "{name}");
        }
        assert!(open_as_process(own, &path("file")).is_ok());
        assert!(!was_opened());
        open(path("fifo"), READ_ONLY, Mode::empty()).unwrap();
        assert!(was_opened());
    }
}
