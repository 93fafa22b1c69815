//! Five questions that people come with, answered from a cold start in a terminal of 80x24, with a limit on the keys.

use crate::pty::Pty;

/// A program that was just started, and the keys that were pressed since then.
struct ColdStart {
    pty: Pty,
    keys: usize,
}

impl ColdStart {
    fn new(arguments: &[&str]) -> Self {
        let mut all = vec!["--theme", "dark"];
        all.extend(arguments);
        Self { pty: Pty::gpufleet((80, 24), &all, &[("SSH_AUTH_SOCK", "")]), keys: 0 }
    }

    /// Presses keys, each of which is one character.
    fn press(&mut self, keys: &str) {
        self.keys += keys.chars().count();
        self.pty.keys(keys);
    }

    /// Waits for the answer and checks the number of keys that it took.
    #[track_caller]
    fn answer(&self, most_keys: usize, what: &str, is_answer: impl Fn(&str) -> bool) -> String {
        let screen = self.pty.wait(what, is_answer);
        assert!(self.keys <= most_keys, "{what} took {} keys", self.keys);
        screen
    }
}

/// Whether a line of the screen contains all of these texts.
fn has_line(screen: &str, texts: &[&str]) -> bool {
    screen.lines().any(|line| texts.iter().all(|text| line.contains(text)))
}

#[test]
fn the_box_with_the_stuck_job_is_named_without_a_key() {
    let start = ColdStart::new(&["--demo", "--demo-speed", "40"]);
    let screen = start.answer(0, "the stuck job", |screen| {
        ["hung?", "stuck?"].iter().any(|state| has_line(screen, &["hgx-03", "dmitri", "sft.py", state]))
    });
    // It is in the first row of the list.
    let first = screen.lines().skip_while(|line| !line.contains("COMMAND")).nth(1).expect("a row");
    assert!(first.contains("sft.py"), "{screen}");
}

#[test]
fn the_user_of_a_gpu_is_three_keys_away() {
    let mut start = ColdStart::new(&["--demo"]);
    start.pty.wait_for("40 GPUs");
    start.press(":5");
    start.pty.wait("the host", |screen| has_line(screen, &["host", "hgx-05"]));
    start.press("\r");
    // GPU 3 is one of GPUs 0 to 3, which a job of bob has held for eleven days.
    start.answer(4, "the user of GPU 3", |screen| {
        screen.contains("hgx-05")
            && screen.lines().any(|line| line.contains("0-3") && line.contains("11d"))
            && screen.lines().filter(|line| line.contains("bob")).count() >= 4
    });
}

#[test]
fn ones_runaway_job_is_ended_with_three_keys() {
    let mut start = ColdStart::new(&["--demo"]);
    start.pty.wait("the job", |screen| has_line(screen, &["hgx-03", "dmitri", "sft.py"]));
    start.press("\tT");
    start.pty.wait("the confirmation", |screen| screen.contains("Send TERM") && screen.contains("sft.py --fsdp"));
    start.press("y");
    start.answer(4, "the end of the job", |screen| screen.contains("on hgx-03: sent"));
    start.pty.wait("a list without the job", |screen| {
        !has_line(screen, &["hgx-03", "dmitri", "sft.py"]) || has_line(screen, &["sft.py", "ended"])
    });
}

#[test]
fn two_free_gpus_on_one_host_are_one_key_away() {
    let mut start = ColdStart::new(&["--demo"]);
    start.pty.wait_for("40 GPUs");
    start.press("2");
    // Free of all GPUs, their indexes, and the unused memory of each.
    start.answer(1, "the free GPUs", |screen| has_line(screen, &["hgx-05", "2/8", "6,7", "80G"]));
}

#[test]
fn the_reason_why_a_host_is_down_is_shown_without_a_key() {
    // Ports 9 and 10 are reserved for services that nobody runs any more.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hosts.toml");
    let host =
        |name: &str, port: u16| format!("[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {port}\n");
    std::fs::write(&path, host("lab-01", 9) + &host("lab-02", 10)).expect("writes");
    let start = ColdStart::new(&[&path.display().to_string()]);
    start.answer(1, "the reason", |screen| {
        screen.contains("lab-02") && screen.contains("DOWN") && screen.contains("nothing listens on")
    });
}
