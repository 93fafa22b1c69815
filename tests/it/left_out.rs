//! Tests that cannot run everywhere: none is left out without a word.

use std::io::Write as _;

/// Names a file to which a line is added for each test that was left out; `tests/run` prints it at its end.
const LIST: &str = "GPUFLEET_TESTS_LEFT_OUT";

/// Whether tests may be left out for want of root: `tests/run` sets it to 1 for an ordinary user.
const WITHOUT_ROOT: &str = "GPUFLEET_TESTS_WITHOUT_ROOT";

/// Whether this test, which makes namespaces, has the root account that they need. To be asked on the test's own thread.
///
/// Without it the test fails with the way out, unless it was asked for that such tests are left out.
#[track_caller]
pub(crate) fn have_root() -> bool {
    if rustix::process::getuid().is_root() {
        return true;
    }
    assert!(
        std::env::var(WITHOUT_ROOT).is_ok_and(|value| value == "1"),
        "this test needs root, for a mount namespace: run it as root, or as `sudo -E env PATH=\"$PATH\" cargo test \
         --test it {}`; {WITHOUT_ROOT}=1 leaves out all tests that do",
        test()
    );
    leave_out("it needs root, for a mount namespace");
    false
}

/// Says that this test is left out, and why: in its output, and in the list where one is kept.
pub(crate) fn leave_out(why: &str) {
    let line = format!("{}: {why}", test());
    println!("left out: {line}");
    if let Some(list) = std::env::var_os(LIST) {
        let mut list = std::fs::OpenOptions::new().append(true).create(true).open(list).expect("the list opens");
        // At once, since other tests write too.
        list.write_all(format!("{line}\n").as_bytes()).expect("the list takes a line");
    }
}

/// The name of the test that runs on this thread.
fn test() -> String {
    std::thread::current().name().unwrap_or("?").to_owned()
}
