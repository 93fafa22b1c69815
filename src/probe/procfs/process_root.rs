//! Opens files as another process sees them: in its root directory, which is that of a container or of a chroot.
//!
//! A path below `/proc/PID/root` begins in the right file system, but an absolute symbolic link on it leads to the root
//! directory of the probe. [`open_in_root`] resolves such links in the root directory of the process.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat, openat2, readlinkat, stat};
use rustix::io::Errno;

/// Flags of a directory in which paths are resolved.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// `NONBLOCK`: a FIFO in the place of a file is opened without a writer, and then cannot be read.
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Opens a path as process `pid` would: an absolute one in its root directory, another one in its working directory. May block.
///
/// # Errors
/// Also if the path leads through a link of /proc, or if a path in the working directory of a process with another root directory
/// leads out of it: these would end in another file than that of the process.
pub(crate) fn open_as_process(pid: u32, path: &str) -> Result<OwnedFd, Errno> {
    if path.starts_with('/') {
        let root = root_directory(pid)?;
        return resolve(root.as_fd(), path.trim_start_matches('/'), ResolveFlags::IN_ROOT, shares_root(pid));
    }
    let directory = open(format!("/proc/{pid}/cwd"), DIRECTORY, Mode::empty())?;
    let is_shared = shares_root(pid);
    let how = if is_shared { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
    resolve(directory.as_fd(), path, how, is_shared)
}

/// Opens the root directory of a process, for [`open_in_root`].
pub(crate) fn root_directory(pid: u32) -> Result<OwnedFd, Errno> {
    open(format!("/proc/{pid}/root"), DIRECTORY, Mode::empty())
}

/// Opens a file or a directory below `root`. Symbolic links and `..` stay in `root`. May block.
///
/// # Errors
/// As for [`open_as_process`].
pub(crate) fn open_in_root(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    resolve(root.as_fd(), path.trim_start_matches('/'), ResolveFlags::IN_ROOT, false)
}

/// Whether a process has the root directory and the mounts of the probe, so that links lead both to the same files.
fn shares_root(pid: u32) -> bool {
    let mounts = |process: &str| readlinkat(CWD, format!("/proc/{process}/ns/mnt"), Vec::new()).ok();
    let root = |path: &str| stat(path).ok().map(|status| (status.st_dev, status.st_ino));
    let pid = pid.to_string();
    mounts(&pid).is_some_and(|own| Some(own) == mounts("self"))
        && root(&format!("/proc/{pid}/root/")).is_some_and(|own| Some(own) == root("/"))
}

/// Opens a relative path. `is_shared`: the links in it lead to the same files for the probe.
fn resolve(directory: BorrowedFd<'_>, path: &str, how: ResolveFlags, is_shared: bool) -> Result<OwnedFd, Errno> {
    match openat2(directory, path, READ_ONLY, Mode::empty(), how | ResolveFlags::NO_MAGICLINKS) {
        // Linux before 5.6, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => without_openat2(directory, path, is_shared),
        result => result,
    }
}

fn without_openat2(directory: BorrowedFd<'_>, path: &str, is_shared: bool) -> Result<OwnedFd, Errno> {
    if is_shared { openat(directory, path, READ_ONLY, Mode::empty()) } else { resolve_without_links(directory, path) }
}

/// Opens a path that has no symbolic link and no `..`, one part after the other.
fn resolve_without_links(directory: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
    let mut parent: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        if part == ".." {
            return Err(Errno::LOOP);
        }
        let at = parent.as_ref().map_or(directory, AsFd::as_fd);
        let is_last = parts.peek().is_none();
        let flags = OFlags::NOFOLLOW | if is_last { READ_ONLY } else { DIRECTORY };
        let opened = openat(at, part, flags, Mode::empty())?;
        if is_last {
            return Ok(opened);
        }
        parent = Some(opened);
    }
    openat(directory, ".", READ_ONLY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
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
        std::fs::File::from(file?).read_to_string(&mut text).unwrap();
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
            assert_eq!(read(name, false), Err(Errno::LOOP), "{name}");
        }
        let directory = folder.path().join("to_outside");
        std::os::unix::fs::symlink("outside", directory).unwrap();
        assert_eq!(read("to_outside/file", false), Err(Errno::NOTDIR), "a link to a directory");
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
}
