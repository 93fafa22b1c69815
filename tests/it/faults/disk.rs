//! A disk or file server that does not answer: every call on files below one directory blocks.

use super::{preloaded_library, report};
use crate::lab::{Lab, scenario, wait_until};
use crate::pty::Pty;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// C source of a library whose calls on files below `$HANG_BELOW` wait while the file `$HANG_WHILE` exists. The path of
/// each waiting call is appended to the file `$HANG_LOG`.
const HANG: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void wait_for(const char *call, const char *path) {
  const char *below = getenv("HANG_BELOW"), *control = getenv("HANG_WHILE"), *log = getenv("HANG_LOG");
  if (!below || !control || !path || strncmp(path, below, strlen(below)) != 0) return;
  int waited = 0;
  while (syscall(SYS_faccessat, AT_FDCWD, control, F_OK) == 0) {
    if (!waited++) {
      char line[512];
      int length = snprintf(line, sizeof line, "%s %s\n", call, path);
      int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
      if (file >= 0) { syscall(SYS_write, file, line, length); close(file); }
    }
    struct timespec moment = {0, 5000000};
    nanosleep(&moment, 0);
  }
}
static void wait_for_file(const char *call, int file) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (length > 0) { path[length] = 0; wait_for(call, path); }
}
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
  va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE(flags) wait_for("open", path); return NEXT(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) wait_for("open", path); return NEXT(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) {
  MODE(flags) wait_for("open", path); return NEXT(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) {
  MODE(flags) wait_for("open", path); return NEXT(openat64)(at, path, flags, mode); }
int stat64(const char *path, struct stat64 *about) { wait_for("stat", path); return NEXT(stat64)(path, about); }
int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict about) {
  wait_for("stat", path); return NEXT(statx)(at, path, flags, mask, about); }
int mkdir(const char *path, mode_t mode) { wait_for("mkdir", path); return NEXT(mkdir)(path, mode); }
int unlink(const char *path) { wait_for("unlink", path); return NEXT(unlink)(path); }
int rename(const char *from, const char *to) { wait_for("rename", to); return NEXT(rename)(from, to); }
ssize_t write(int file, const void *bytes, size_t count) { wait_for_file("write", file); return NEXT(write)(file, bytes, count); }
int fsync(int file) { wait_for_file("fsync", file); return NEXT(fsync)(file); }
"#;

/// A host, and a state directory whose disk can hang.
struct Disk {
    lab: Lab,
    hosts: String,
    library: String,
}

impl Disk {
    fn start(name: &str) -> Self {
        let lab = Lab::start(&[name]);
        let (hosts, library) = (lab.hosts_toml(""), preloaded_library(&lab, "hang", HANG));
        fs::create_dir_all(lab.path("state/gpufleet")).unwrap();
        Self { lab, hosts, library }
    }

    fn screen(&self) -> Pty {
        let path = |name: &str| self.lab.path(name).display().to_string();
        let (state, control, log) = (path("state"), path("hang"), path("hung"));
        let environment = [
            ("LD_PRELOAD", self.library.as_str()),
            ("HANG_BELOW", &state),
            ("HANG_WHILE", &control),
            ("HANG_LOG", &log),
            ("XDG_STATE_HOME", &state),
            ("SSH_AUTH_SOCK", ""),
        ];
        Pty::gpufleet((140, 40), &["--log", &path("ssh.log"), &self.hosts], &environment)
    }

    fn hang(&self) {
        self.lab.write("hang", "");
    }

    fn recover(&self) {
        fs::remove_file(self.lab.path("hang")).unwrap();
    }

    /// Waits until a call hangs whose name and path contain this text.
    fn wait_for_hang(&self, text: &str) {
        let log = self.lab.path("hung");
        let calls = || fs::read_to_string(&log).unwrap_or_default();
        wait_until("a call that hangs", calls, || calls().contains(text).then_some(()));
        // Only later calls count for the next wait.
        fs::remove_file(&log).unwrap();
    }

    fn state_file(&self, name: &str) -> PathBuf {
        self.lab.path("state/gpufleet").join(name)
    }

    /// The number of snoozes in the saved state; `None` without a state.
    fn saved_snoozes(&self) -> Option<usize> {
        let text = fs::read_to_string(self.state_file("memory.json")).ok()?;
        let state: Value = serde_json::from_str(&text).expect("only whole states are visible");
        Some(state["snoozed"].as_object().unwrap().len())
    }

    /// Shows new readings of the host, so that its pane must change.
    fn assert_alive(&self, pty: &Pty, utilization: u8) {
        let host = &self.lab.hosts[0];
        host.driver.set(&scenario(host.worker_pid(), utilization));
        pty.wait_for(&format!("{utilization}%"));
    }
}

/// Ends gpufleet with `q` while the disk hangs, and returns how long that took.
fn quit(pty: &mut Pty) -> Duration {
    let began = Instant::now();
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    began.elapsed()
}

/// Three seconds for the files, one for the threads that still wait, and a busy machine.
const QUIT_LIMIT: Duration = Duration::from_secs(8);

#[test]
fn disk_that_hangs_stops_neither_the_screen_nor_the_end_and_loses_nothing_that_can_be_saved() {
    let disk = Disk::start("hgx-01");
    let mut pty = disk.screen();
    pty.wait_for("1 finding");
    pty.keys("5");
    pty.wait_for("has fallen off the bus");

    disk.hang();
    let hung = Instant::now();
    pty.keys("x");
    pty.wait_for("is snoozed for 1 hour; x undoes it");
    disk.wait_for_hang("memory.");
    pty.keys("y");
    // `copied.txt` begins with its directory.
    disk.wait_for_hang("mkdir ");
    pty.wait_for("copied.txt: the disk does not answer within 2 s");
    let noticed = hung.elapsed();
    // Keys are answered, and readings arrive.
    pty.keys("1");
    disk.assert_alive(&pty, 42);
    pty.keys("3");
    pty.wait_for("▸Processes");
    pty.keys("1");
    disk.assert_alive(&pty, 43);
    assert_eq!(disk.saved_snoozes(), None);

    // After the disk has recovered, the state is saved without another key.
    disk.recover();
    let recovered = Instant::now();
    wait_until("the saved state", String::new, || disk.saved_snoozes().filter(|&count| count == 1));
    report("the disk of the state directory hangs", noticed, Some(recovered.elapsed()));

    // The end does not wait for a disk that hangs. The state that was saved before stays, and other files are written.
    disk.hang();
    pty.keys("5x");
    pty.wait_for("is no longer snoozed");
    disk.wait_for_hang("memory.");
    let ended = quit(&mut pty);
    assert!(ended < QUIT_LIMIT, "it took {ended:?}");
    assert_eq!(disk.saved_snoozes(), Some(1));
    let log = fs::read_to_string(disk.lab.path("ssh.log")).unwrap();
    assert!(log.contains("hgx-01") && log.ends_with('\n'), "{log}");
}

#[test]
fn disk_that_hangs_at_the_start_delays_the_screen_briefly_and_keeps_the_saved_state() {
    let disk = Disk::start("hgx-01");
    let mut pty = disk.screen();
    pty.wait_for("1 finding");
    pty.keys("5");
    pty.wait_for("has fallen off the bus");
    pty.keys("x");
    pty.wait_for("is snoozed for 1 hour; x undoes it");
    quit(&mut pty);
    assert_eq!(disk.saved_snoozes(), Some(1));
    let view = fs::read(disk.state_file("view.json")).unwrap();

    disk.hang();
    let mut pty = disk.screen();
    pty.wait_for("starts without saved state and saves none: the disk did not answer within 2 s");
    disk.assert_alive(&pty, 42);
    pty.keys("3");
    pty.wait_for("▸Processes");
    // The disk answers again, but this gpufleet does not know the state that it would replace.
    disk.recover();
    let ended = quit(&mut pty);
    assert!(ended < QUIT_LIMIT, "it took {ended:?}");
    assert_eq!(disk.saved_snoozes(), Some(1));
    assert_eq!(fs::read(disk.state_file("view.json")).unwrap(), view);
}
