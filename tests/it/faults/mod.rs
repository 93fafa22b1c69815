//! The fault matrix: what a host task reports after a fault, how soon, and how soon it recovers. `tests/faults` prints
//! it with the times of a run.

mod disk;
mod hosts;
mod network;
pub(crate) mod proxies;

use crate::lab::Lab;
use std::time::Duration;

/// Prints a row of the matrix for `tests/faults`.
fn report(fault: &str, noticed: Duration, back: Option<Duration>) {
    let back = back.map_or("-".to_owned(), |back| format!("{:.1} s", back.as_secs_f64()));
    println!("FAULT\t{fault}\t{:.1} s\t{back}", noticed.as_secs_f64());
}

/// C source of a library that adds the seconds in the file `$TEST_SLEPT` to the wall clock.
const CLOCK: &str = "\
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, id, now);
  const char *path = getenv(\"TEST_SLEPT\");
  int file = result == 0 && id == CLOCK_REALTIME && path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  char text[32] = {0};
  if (file >= 0 && read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
  if (file >= 0) close(file);
  return result;
}
";

/// Builds [`CLOCK`] for `LD_PRELOAD` and returns its path.
fn clock_library(lab: &Lab) -> String {
    preloaded_library(lab, "clock", CLOCK)
}

/// Builds a library for `LD_PRELOAD` of this C source and returns its path.
fn preloaded_library(lab: &Lab, name: &str, source: &str) -> String {
    let source = lab.write(&format!("{name}.c"), source);
    let library = lab.path(&format!("{name}.so")).display().to_string();
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status().unwrap();
    assert!(built.success(), "these tests need a C compiler: apt-get install build-essential");
    library
}
