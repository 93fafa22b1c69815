//! The whole path: fake driver, probe, sshd, controller and screen.

use crate::lab::{Lab, gpufleet, scenario, wait_gone};
use crate::pty::{Pty, TIMEOUT, signal};
use crate::sshd::{MuteServer, PASSPHRASE, Sshd, fingerprint, free_port};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

fn json(arguments: &[&str]) -> (Value, i32) {
    let output = gpufleet(arguments);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{stderr}"));
    (value, output.status.code().expect("an exit code"))
}

#[test]
fn status_reports_driver_readings_and_uploads_the_probe_once() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let (first, code) = json(&["status", "--json", &hosts]);
    assert_eq!(code, 0, "{first:#}");
    assert_eq!(first["schema"], 1);
    assert_eq!(first["simulated"], false);
    for (host, reported) in lab.hosts.iter().zip(first["hosts"].as_array().expect("hosts")) {
        assert_eq!(reported["name"], host.name.as_str());
        assert_eq!(reported["state"], "live", "{reported:#}");
        assert_eq!(reported["error"], Value::Null);
        assert_eq!(reported["gpu_error"], Value::Null);
        let gpus = reported["gpus"].as_array().expect("GPUs");
        assert_eq!(gpus.len(), 4);
        assert_eq!(gpus[0]["name"], "NVIDIA H100 80GB HBM3");
        assert_eq!(gpus[0]["utilization_percent"], 97);
        assert_eq!(gpus[0]["memory_used_bytes"], 61_203_283_968_u64);
        assert_eq!(gpus[0]["memory_total_bytes"], 85_520_809_984_u64);
        assert_eq!(gpus[0]["power_watts"], 512.0);
        assert_eq!(gpus[0]["state"], "in_use");
        assert_eq!(gpus[2]["utilization_percent"], 0);
        assert_eq!(gpus[2]["state"], "free");
        assert_eq!(gpus[3]["state"], "fault");
        assert_eq!(gpus[3]["utilization_percent"], Value::Null);
        let processes = reported["processes"].as_array().expect("processes");
        assert_eq!(processes.len(), 1, "{processes:#?}");
        assert_eq!(processes[0]["pid"], host.worker_pid());
        assert_eq!(processes[0]["command"], "sleep 3600");
        assert_eq!(processes[0]["user"], host.sshd.user().as_str());
        assert_eq!(processes[0]["gpus"], serde_json::json!([0, 1]));
        assert_eq!(processes[0]["gpu_memory_bytes"], 2 * 60_129_542_144_u64);
        assert_eq!(processes[0]["sm_percent"], 97);
        assert!(processes[0]["cpu_percent"].is_number(), "the second snapshot has CPU shares");
    }
    let cached = lab.cached_probes("hgx-01");
    assert_eq!(cached.len(), 1, "{cached:?}");
    let before = std::fs::metadata(&cached[0]).expect("the probe");
    assert_eq!(before.mode() & 0o777, 0o700);
    let (_, code) = json(&["status", "--json", &hosts]);
    assert_eq!(code, 0);
    assert_eq!(lab.cached_probes("hgx-01"), cached);
    let after = std::fs::metadata(&cached[0]).expect("the probe");
    assert_eq!(
        (before.ino(), before.mtime_nsec()),
        (after.ino(), after.mtime_nsec()),
        "the probe was not uploaded again"
    );
    // A modified probe is replaced and not run.
    let changed = lab.write("changed", "#!/bin/sh\necho changed\n");
    std::fs::rename(changed, &cached[0]).expect("replaces the probe");
    let (third, code) = json(&["status", "--json", &hosts]);
    assert_eq!(code, 0, "{third:#}");
    assert_eq!(std::fs::metadata(&cached[0]).expect("the probe").len(), before.len(), "it was replaced");
}

#[test]
fn one_dead_host_does_not_affect_the_others_and_recovers() {
    let mut lab = Lab::start(&["hgx-01", "hgx-02", "hgx-03"]);
    let hosts = lab.hosts_toml("");
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[]);
    let text = pty.wait("twelve GPUs and their processes", |text| {
        text.contains("12 GPUs") && text.matches("97%").count() >= 6 && text.matches("sleep 3600").count() == 3
    });
    assert!(!text.contains("SIMULATED"), "{text}");
    lab.hosts[1].sshd.stop();
    pty.wait("one host down", |text| text.contains("DOWN"));
    let worker = lab.hosts[2].worker_pid();
    lab.hosts[2].driver.set(&scenario(worker, 42));
    pty.wait("the third host lives on", |text| text.contains("42%"));
    // The error and the last readings stay on the screen.
    let text = pty.wait_for("nothing listens");
    assert!(text.contains("hgx-02"), "{text}");
    lab.hosts[1].sshd.restart();
    pty.wait("the second host is back", |text| !text.contains("DOWN") && text.contains("12 GPUs"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn killed_controller_leaves_no_probe_running() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let rounds = if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 100 } else { 5 };
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds {
        let pty = Pty::gpufleet((120, 40), &[&hosts], &[]);
        pty.wait_for("8 GPUs");
        let probes = lab.probes();
        assert_eq!(probes.len(), 2);
        signal(pty.pid(), "KILL");
        slowest = slowest.max(wait_gone(&probes, TIMEOUT));
    }
    println!("FAULT\tSIGKILL of gpufleet\t{:.1} s\t-", slowest.as_secs_f64());
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

#[test]
fn each_connection_failure_has_its_own_message() {
    let lab = Lab::start(&["good"]);
    let (sshd, mute) = (&lab.hosts[0].sshd, MuteServer::start());
    let closed = free_port(Ipv4Addr::LOCALHOST);
    let (key, stranger) = (sshd.client_key(), sshd.stranger_key());
    let host = |name: &str, port: u16, key: &std::path::Path, known_hosts: &str| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {port}\nidentity_file = \"{}\"\nknown_hosts \
             = \"{known_hosts}\"\n",
            key.display()
        )
    };
    let known = sshd.known_hosts().display().to_string();
    let no_keys = lab.write("no-keys", "");
    let other = Sshd::start();
    let other_key = other.host_key("ed25519");
    let changed = lab.write("changed", &format!("[127.0.0.1]:{} {other_key}\n", sshd.port()));
    let hosts = [
        host("wrong-key", sshd.port(), &stranger, &known),
        host("unknown", sshd.port(), &key, &no_keys),
        host("changed", sshd.port(), &key, &changed),
        host("refused", closed, &key, &known),
        host("mute", mute.port(), &key, &known),
        host("no-such-file", sshd.port(), &lab.path("missing"), &known),
    ];
    let hosts = lab.write("hosts.toml", &hosts.concat());
    let (report, code) = json(&["status", "--json", "--timeout", "25", &hosts]);
    assert_eq!(code, 3, "{report:#}");
    let reported = |index: usize| {
        let host = &report["hosts"][index];
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let error = &host["error"];
        (text(&host["state"]), text(&error["kind"]), text(&error["message"]), text(&error["hint"]))
    };
    println!("{report:#}");
    let (state, kind, message, hint) = reported(0);
    assert_eq!((state.as_str(), kind.as_str()), ("needs_user", "authentication"), "{message}");
    assert!(message.contains("publickey") && hint.contains("ssh"), "{message} {hint}");
    let (state, kind, message, hint) = reported(1);
    assert_eq!((state.as_str(), kind.as_str()), ("needs_user", "host_key_unknown"), "{message}");
    assert!(message.contains(&sshd.fingerprint("ed25519")), "{message} {hint}");
    let (state, kind, message, hint) = reported(2);
    assert_eq!((state.as_str(), kind.as_str()), ("needs_user", "host_key_changed"), "{message}");
    assert!(message.contains(&format!("{changed}:1")), "{message}");
    assert!(message.contains(&fingerprint(&other.file("host_ed25519.pub"))), "{message}");
    assert!(hint.contains("ssh-keygen") && hint.contains("-R"), "{hint}");
    let (state, kind, message, _) = reported(3);
    assert_eq!((state.as_str(), kind.as_str()), ("down", "refused"));
    assert_eq!(message, format!("nothing listens on 127.0.0.1 port {closed}"));
    let (state, kind, message, _) = reported(4);
    assert_eq!((state.as_str(), kind.as_str()), ("down", "timeout"), "{message}");
    let (_, kind, message, _) = reported(5);
    assert_eq!(kind, "identity_file", "{message}");
    assert!(message.contains("missing"), "{message}");
}

#[test]
fn protocol_violation_of_one_host_does_not_affect_the_others() {
    let lab = Lab::start(&["good"]);
    let sshd = &lab.hosts[0].sshd;
    let hello = r#"{"hello":{"protocol":1,"probe_version":"0"}}"#;
    let remotes = [
        ("noise", "echo Welcome; echo to the lab".to_owned(), "protocol violation"),
        ("endless", format!("echo '{hello}'; exec tr '\\0' x </dev/zero"), "a line of more than"),
        ("version", r#"echo '{"hello":{"protocol":99}}'"#.to_owned(), "protocol 99"),
        ("not-utf8", format!("echo '{hello}'; printf '{{\"echo\":\\377}}\\n'; cat >/dev/null"), "protocol violation"),
        ("mute", "exec cat >/dev/null".to_owned(), "10 s"),
        ("dies", "echo broken >&2; exit 7".to_owned(), "7"),
    ];
    let mut text = std::fs::read_to_string(lab.hosts_toml("")).expect("hosts.toml");
    for (name, script, _) in &remotes {
        let path = lab.write(name, &format!("#!/bin/sh\n{script}\n"));
        std::process::Command::new("chmod").args(["700", &path]).status().expect("chmod");
        let _ = write!(
            text,
            "\n[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\nprobe = \"{path}\"\n",
            sshd.port(),
            sshd.client_key().display(),
            sshd.known_hosts().display()
        );
    }
    let hosts = lab.write("hosts.toml", &text);
    let (report, code) = json(&["status", "--json", "--timeout", "25", &hosts]);
    println!("{report:#}");
    assert_eq!(code, 3);
    assert_eq!(report["hosts"][0]["state"], "live");
    for (index, (name, _, expected)) in remotes.iter().enumerate() {
        let host = &report["hosts"][index + 1];
        let message = host["error"]["message"].as_str().unwrap_or_else(|| panic!("{host:#}"));
        assert_eq!(host["name"], *name);
        assert!(message.contains(expected), "{name}: {message}");
        assert!(!message.contains('\u{1b}'), "{message}");
    }
}

#[test]
fn screen_prompts_for_an_unknown_host_key_and_a_passphrase() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let known_hosts = lab.write("known", "");
    let hosts = lab.write(
        "hosts.toml",
        &format!(
            "[[hosts]]\nname = \"hgx-01\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{known_hosts}\"\nnvml_library = \"{}\"\n",
            sshd.port(),
            sshd.locked_key().display(),
            lab.hosts[0].driver.library().display()
        ),
    );
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &[("SSH_AUTH_SOCK", "")]);
    // The dialog ignores keys for half a second, and then shows its caret.
    pty.wait("the host key", |text| text.contains(&sshd.fingerprint("ed25519")) && text.contains('▏'));
    pty.keys("yes\r");
    pty.wait("the passphrase dialog", |text| {
        text.contains("Passphrase") && text.contains("locked") && text.contains('▏')
    });
    pty.keys(PASSPHRASE);
    pty.keys("\r");
    pty.wait("the GPUs", |text| text.contains("4 GPUs") && text.contains("97%"));
    let written = std::fs::read_to_string(&known_hosts).expect("known_hosts");
    assert!(written.contains(sshd.host_key("ed25519").split(' ').nth(1).expect("a key")), "{written}");
    assert!(!String::from_utf8_lossy(&pty.bytes()).contains("correct horse"), "the passphrase is never shown");
}

#[test]
fn diagnosis_memory_survives_a_restart_and_a_broken_file_is_kept_aside() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_str().expect("UTF-8");
    let watch = || {
        let pty = Pty::gpufleet((100, 30), &[&hosts], &[("XDG_STATE_HOME", state)]);
        pty.wait_for("4 GPUs");
        pty
    };
    let leave = |mut pty: Pty| {
        pty.keys("q");
        assert_eq!(pty.exit_code(), 0);
    };
    leave(watch());
    let memory = folder.path().join("gpufleet/memory.json");
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&memory).expect("it was written")).expect("JSON");
    assert_eq!(std::fs::metadata(&memory).expect("it was written").mode() & 0o777, 0o600);
    assert_eq!(read()["version"], 2);
    assert_eq!(read()["processes"][0]["host"], "hgx-01");
    assert_eq!(read()["processes"][0]["pid"], lab.hosts[0].worker_pid());
    std::fs::write(&memory, "{\"version\":").expect("writes");
    let pty = Pty::gpufleet((160, 30), &[&hosts], &[("XDG_STATE_HOME", state)]);
    pty.wait_for("the diagnosis starts without saved state, the unusable file is kept as memory.json.bad-1");
    pty.wait_for("4 GPUs");
    leave(pty);
    assert_eq!(std::fs::read(folder.path().join("gpufleet/memory.json.bad-1")).expect("is kept"), b"{\"version\":");
    assert_eq!(read()["version"], 2);
}
