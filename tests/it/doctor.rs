//! `gpufleet doctor`, `clean`, and targets from the ssh configuration, against a lab of real sshds.

use crate::lab::{Lab, gpufleet};
use crate::sshd::free_port;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::Output;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The words after the step's time.
fn step<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find(|line| line.get(8..).is_some_and(|rest| rest.starts_with(name)));
    line.unwrap_or_else(|| panic!("no step {name:?} in:\n{report}"))
}

#[test]
fn doctor_walks_the_whole_way_and_clean_takes_the_probes_away() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let first = gpufleet(&["doctor", &hosts]);
    let report = text(&first);
    println!("{report}");
    assert_eq!(first.status.code(), Some(0), "{report}");
    let sshd = &lab.hosts[0].sshd;
    let part = report.split("hgx-02\n").next().unwrap();
    assert!(part.starts_with("hgx-01\n"), "{part}");
    let way = format!("{}@127.0.0.1 port {}, by the built-in client", sshd.user(), sshd.port());
    assert!(step(part, "configuration").ends_with(&way), "{part}");
    assert!(step(part, "name").ends_with(" 127.0.0.1"), "{part}");
    assert!(step(part, "TCP").ends_with(&format!("127.0.0.1 port {}", sshd.port())), "{part}");
    let keys = step(part, "key exchange");
    assert!(
        keys.contains("25519") && keys.ends_with(&format!("ssh-ed25519 {}", sshd.fingerprint("ed25519"))),
        "{part}"
    );
    assert!(step(part, "login").ends_with(&format!("publickey {} (ED25519): accepted", sshd.client_key().display())));
    assert!(step(part, "shell").ends_with("/bin/sh answers: Linux x86_64"), "{part}");
    assert!(step(part, "directory").contains("probe uploaded and verified"), "{part}");
    assert!(step(part, "probe").contains("gpufleet-probe "), "{part}");
    assert!(step(part, "NVML").contains("4 GPUs: "), "{part}");
    assert!(step(part, "first snapshot").contains("round trip "), "{part}");
    // The second time it is there.
    let again = text(&gpufleet(&["doctor", &hosts]));
    assert!(!again.contains("probe uploaded"), "{again}");
    let cached = lab.cached("hgx-01").pop().expect("a probe");
    assert!(again.contains(&format!("the probe is {}", cached.display())), "{again}");

    let cleaned = gpufleet(&["clean", &hosts]);
    assert_eq!(cleaned.status.code(), Some(0));
    let words = text(&cleaned);
    assert!(words.contains(&format!("hgx-01: removed {}\n", cached.display())), "{words}");
    assert!(lab.cached("hgx-01").is_empty() && lab.cached("hgx-02").is_empty());
    // Other tests may be putting a probe into this machine's /tmp at this moment.
    let again = text(&gpufleet(&["clean", &hosts]));
    assert_eq!(again.lines().filter(|line| line.contains("/cache/gpufleet/")).count(), 0, "{again}");
    assert!(again.contains("hgx-01: ") && again.contains("hgx-02: "), "{again}");
}

#[test]
fn doctor_names_the_step_that_fails_and_its_remedy() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let port = free_port(Ipv4Addr::LOCALHOST);
    let host = |name: &str, port: u16, key: &std::path::Path| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {port}\nidentity_file = \"{}\"\nknown_hosts \
             = \"{}\"\nnvml_library = \"{}\"\n",
            key.display(),
            sshd.known_hosts().display(),
            lab.hosts[0].driver.library().display()
        )
    };
    let config = lab.write("ssh_config", "IdentitiesOnly yes\n");
    let file = host("closed", port, &sshd.client_key())
        + &host("stranger", sshd.port(), &sshd.stranger_key())
        + &host("good", sshd.port(), &sshd.client_key());
    let hosts = lab.write("hosts.toml", &file);
    let output = gpufleet(&["doctor", "--ssh-config", &config, &hosts]);
    let report = text(&output);
    println!("{report}");
    assert_eq!(output.status.code(), Some(3));
    let part = |from: &str, to: &str| report.split(from).nth(1).unwrap().split(to).next().unwrap().to_owned();
    let closed = part("closed\n", "stranger\n");
    assert!(step(&closed, "TCP").starts_with("  FAIL"), "{closed}");
    assert!(closed.contains(&format!("nothing listens on 127.0.0.1 port {port}\n")), "{closed}");
    assert!(closed.contains("hint: is sshd running there?"), "{closed}");
    let stranger = part("stranger\n", "good\n");
    assert!(step(&stranger, "login").starts_with("  FAIL"), "{stranger}");
    assert!(
        stranger.contains(&format!("publickey {} (ED25519): refused", sshd.stranger_key().display())),
        "{stranger}"
    );
    assert!(stranger.contains("hint: ssh-copy-id"), "{stranger}");
    assert!(report.split("good\n").nth(1).unwrap().contains("first snapshot"), "{report}");
}

#[test]
fn patterns_stand_for_the_names_of_the_ssh_configuration() {
    let lab = Lab::start(&["gpu01", "gpu02"]);
    let mut config = String::from("Host db github.com\n");
    for host in &lab.hosts {
        let _ = write!(
            config,
            "Host {}\n HostName {}\n Port {}\n IdentityFile {}\n UserKnownHostsFile {}\n",
            host.name,
            host.sshd.ip(),
            host.sshd.port(),
            host.sshd.client_key().display(),
            host.sshd.known_hosts().display()
        );
    }
    let config = lab.write("ssh_config", &config);
    let output = gpufleet(&["--ssh-config", &config, "status", "--json", "gpu*"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hosts = report["hosts"].as_array().unwrap();
    let names: Vec<_> =
        hosts.iter().map(|host| (host["name"].as_str().unwrap(), host["state"].as_str().unwrap())).collect();
    assert_eq!(names, [("gpu01", "live"), ("gpu02", "live")]);
    let output = gpufleet(&["--ssh-config", &config, "status", "h100*"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("gpufleet: no host in {config} matches `h100*`\n  hint: a range is written `gpu[01-04]`\n")
    );
}
