//! A laptop that slept, behind a jump host that wants a one-time code.

use super::link::Link;
use super::{clock_library, report};
use crate::lab::Lab;
use crate::pty::Pty;
use crate::ssh::server::{CODE, PASSWORD, Server, Way};
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_the_code_is_typed_one_line_says_so_and_no_host_counts_as_failed() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let library = clock_library(&lab);
    let gate = Server::start(Way::Questions).await;
    let link = Link::to(([127, 0, 0, 1], gate.port).into()).await;
    let known = lab.write("known_gates", &Server::known_hosts_line_at(link.port()));
    let config = lab.write(
        "ssh_config",
        &format!("Host gate\n HostName 127.0.0.1\n Port {}\n User bob\n UserKnownHostsFile {known}\n", link.port()),
    );
    let hosts = lab.hosts_toml(&format!("proxy_jump = \"gate\"\nssh_config = \"{config}\""));
    let slept = lab.write("slept", "0");
    let environment = [("LD_PRELOAD", library.as_str()), ("TEST_SLEPT", &slept), ("SSH_AUTH_SOCK", "")];
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    let is_asked = |text: &str, words: &str| text.contains(words) && text.contains('▏');
    let is_live = |text: &str| {
        text.contains("8 GPUs") && text.matches("97%").count() >= 4 && !text.contains("STALE") && !text.contains('▏')
    };
    for (words, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
        pty.wait(words, |text| is_asked(text, words));
        pty.keys(&format!("{answer}\r"));
    }
    pty.wait("both hosts", is_live);
    assert_eq!(gate.connections(), 1);

    // While it slept the jump host forgot it; nobody told it.
    link.lose();
    fs::write(&slept, "7200").unwrap();
    let woke = Instant::now();
    let failed = Cell::new(None);
    let note = |text: &str| {
        if text.contains("DOWN") {
            failed.set(Some(text.to_owned()));
        }
    };
    pty.wait("that it woke", |text| {
        note(text);
        text.contains("resumed")
    });
    let noticed = woke.elapsed();
    // One line, in the header, says that somebody is waited for, whatever number of hosts is behind the jump host. It
    // stays so beyond every limit that a silent host has.
    let text = pty.wait("fifteen seconds of patience", |text| {
        note(text);
        (15..25).any(|seconds| text.contains(&format!("tcp  {seconds} s")))
    });
    assert!(text.contains("2 connecting") && text.contains("1 prompt (P)"), "{text}");
    assert!(text.contains("last seen") && !text.contains("unreachable"), "{text}");
    assert_eq!(gate.connections(), 2, "one connection, which waits for the answer");
    assert_eq!(failed.take(), None, "a host counts as failed");
    for (words, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
        // Amid other work no dialog opens by itself.
        pty.wait("a prompt and no dialog", |text| text.contains("1 prompt (P)") && !text.contains('▏'));
        pty.keys("P");
        pty.wait(words, |text| is_asked(text, words));
        pty.keys(&format!("{answer}\r"));
    }
    let typed = Instant::now();
    pty.wait("both hosts again", is_live);
    let back = typed.elapsed();
    assert!(noticed < Duration::from_secs(2) && back < Duration::from_secs(15), "{noticed:?} {back:?}");
    assert_eq!(gate.connections(), 2, "one code opens both");
    report("laptop sleeps, and the server asks for a code", noticed, Some(back));
}
