//! Other users, for tests: root becomes them, anybody else is them in a user namespace. Where neither can be done the
//! test fails and says what it takes.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use std::process::{Command, Stdio};

/// Nobody else's on a sane machine.
const OTHER_USER: u32 = 61_234;

/// What starts a program as another user.
pub(super) fn as_another_user() -> Vec<String> {
    let words = if rustix::process::geteuid().is_root() {
        format!("setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups")
    } else {
        format!("unshare --user --map-user={OTHER_USER} --map-group={OTHER_USER}")
    };
    checked(&words, &["true"])
}

/// What starts a program in a world of its own, where it may mount /proc again and nobody else sees that.
pub(super) fn in_own_world() -> Vec<String> {
    let user = if rustix::process::geteuid().is_root() { "" } else { " --user --map-root-user" };
    checked(&format!("unshare{user} --mount --pid --fork"), &["mount", "-t", "proc", "proc", "/proc"])
}

/// Gives the words out if they start this program.
fn checked(words: &str, trial: &[&str]) -> Vec<String> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let tried = Command::new(&words[0]).args(&words[1..]).args(trial).stdin(Stdio::null()).output();
    let told = match &tried {
        Ok(output) if output.status.success() => return words,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!(
        "this test takes another user, and `{}` does not work here: {}\nhint: run the tests as root, or where user \
         namespaces are allowed (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), \
         with util-linux 2.38 or newer",
        words.join(" "),
        told.trim()
    )
}
