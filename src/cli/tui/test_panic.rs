//! A bug on demand, in debug builds alone: the whole-program tests see with it that a panic gives the terminal back.

use std::sync::Once;

/// Panics once where `GPUFLEET_TEST_PANIC` says so: `loop` here, in the event loop, `task` in a task of its own. The text
/// is what a hostile host could have put into it.
pub(super) fn panic_for_test() {
    static DONE: Once = Once::new();
    let wanted = std::env::var("GPUFLEET_TEST_PANIC").unwrap_or_default();
    DONE.call_once(|| match wanted.as_str() {
        "loop" => panic!("on purpose, in the loop \x1b]0;pwned\x07"),
        "task" => drop(tokio::spawn(async { panic!("on purpose, in a task \x1b]0;pwned\x07") })),
        _ => {}
    });
}
