//! The real controller in a real terminal: what a person does in a sitting.

use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::Lab;
use crate::pty::Pty;
use crate::signals::{has_ended, wait_for_end};
use crate::sshd::PASSPHRASE;
use serde_json::{Value, json};

const DEMO: [&str; 3] = ["--demo", "--theme", "dark"];

#[test]
fn the_demo_shows_a_living_fleet_and_says_that_it_is_simulated() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("6 hosts");
    pty.wait_for("SIMULATED");
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
    // One host's driver does not match: its GPUs are not counted, and the header says so.
    pty.wait_for("40 GPUs on 5 of 6 hosts");
    pty.wait_for("NO GPU DATA");
    pty.keys("?");
    pty.wait_for("one screen up");
    pty.keys("\x1b");
    // A key right behind an escape would be one with Alt.
    pty.wait("the help closed", |text| !text.contains("one screen up"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn enter_zooms_into_a_host_and_escape_comes_back() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.keys("\r");
    pty.wait("the first host alone", |text| text.contains(" hgx-01   8 x NVIDIA H100") && !text.contains("hgx-06"));
    pty.keys("]");
    pty.wait_for(" hgx-02   8 x NVIDIA H100");
    pty.keys("\x1b");
    pty.wait("the grid", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

#[test]
fn resizing_down_to_one_cell_and_back_loses_nothing() {
    let pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("hgx-06");
    for (columns, rows) in [(80, 24), (39, 9), (1, 1), (200, 60), (20, 50)] {
        pty.resize(columns, rows);
    }
    pty.resize(30, 8);
    pty.wait_for("40x10");
    pty.resize(120, 40);
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

/// Four GPUs, one process on the first two: at work, or spinning as in a collective that never ends.
fn job(worker: u32, is_hung: bool) -> Value {
    let process = json!([{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 100}]);
    let (memory, power) = if is_hung { (0, 104) } else { (41, 602) };
    let busy = json!({
        "utilization_percent": 100, "memory_utilization_percent": memory, "memory_used_bytes": 61_203_283_968_u64,
        "power_watts": power, "temperature_celsius": 58, "processes": process
    });
    devices(&[gpu_with(0, &busy), gpu_with(1, &busy), gpu(2), gpu(3)])
}

/// The lab without anything wrong in it.
fn healthy_lab() -> Lab {
    let lab = Lab::start(&["hgx-01", "hgx-02", "hgx-03"]);
    for host in &lab.hosts {
        host.driver.set(&job(host.worker_pid(), false));
    }
    lab
}

#[test]
fn from_the_alarm_to_the_hung_job_and_the_signal_that_ends_it() {
    let lab = healthy_lab();
    let hung = lab.hosts[1].worker_pid();
    lab.hosts[1].driver.set(&job(hung, true));
    // Whoever runs the tests may be root, who is asked for the host's name anyway.
    let defaults = "shared_account = true\n\n[diagnosis]\nstuck-spin-suspect = { warn_after = \"3s\" }";
    let hosts = lab.hosts_toml(defaults);
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[("SSH_AUTH_SOCK", "")]);
    // Which box holds the stuck job: the header has the number, the pane the mark, the list the state in its first row.
    let grid = pty.wait("the alarm", |text| text.contains("2 hung?") && text.contains("1 finding"));
    assert!(grid.lines().any(|line| line.contains("hgx-02 !")), "{grid}");
    let first = grid.lines().skip_while(|line| !line.contains("COMMAND")).nth(1).expect("a row").to_owned();
    assert!(first.contains("hgx-02") && first.contains("hung?") && first.contains("sleep 3600"), "{grid}");
    pty.keys("5");
    let findings = pty.wait_for("may be hung");
    assert!(findings.contains("GPUs 0,1 read 100 % busy"), "{findings}");
    assert!(findings.contains(&format!("py-spy dump --pid {hung}")), "{findings}");
    pty.keys("\r");
    pty.wait("the process", |text| text.contains(&format!("pid {hung}")) && text.contains("command"));
    pty.keys("T");
    let dialog = pty.wait_for("type hgx-02, then Enter");
    assert!(dialog.contains(&format!("pid {hung}")) && dialog.contains("GPUs 0,1"), "{dialog}");
    pty.keys("hgx-02\r");
    pty.wait_for(&format!("TERM to pid {hung} on hgx-02: sent"));
    wait_for_end(hung);
    lab.hosts[1].driver.set(&devices(&[gpu(0), gpu(1), gpu(2), gpu(3)]));
    pty.keys("1");
    pty.wait("it is over", |text| !text.contains("hung?") && text.contains("ended"));
    assert!([0, 2].into_iter().all(|place: usize| !has_ended(lab.hosts[place].worker_pid())), "the others live");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_filter_holds_on_the_way_into_a_host_and_out_again() {
    let lab = healthy_lab();
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &lab.hosts_toml("")], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("three hosts", |text| text.contains("6 busy") && text.matches("sleep 3600").count() == 3);
    pty.keys("/host:hgx-0[");
    pty.wait_for("0 of 3 shown");
    pty.keys("\x15host:hgx-02");
    pty.wait_for("1 of 3 shown");
    pty.keys(" mem>1");
    pty.wait("what is wrong with it", |text| text.contains("write mem>10G"));
    pty.keys("00G\r");
    let grid = pty.wait("the filter", |text| text.contains("filter host:hgx-02 mem>100G"));
    assert_eq!(grid.matches("sleep 3600").count(), 1, "{grid}");
    pty.keys("\x1b[C\r");
    pty.wait("the second host", |text| text.contains(" hgx-02   4 x NVIDIA H100") && text.contains("sleep 3600"));
    pty.keys("\r");
    pty.wait_for("held by");
    pty.keys("\x1b");
    pty.wait_for("Processes on hgx-02");
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("filter host:hgx-02") && text.contains("Tab hosts/processes"));
    pty.keys("\x1b");
    pty.wait("everything", |text| !text.contains("filter host") && text.matches("sleep 3600").count() == 3);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_host_that_is_lost_while_it_is_looked_at_says_why_and_comes_back_by_a_key() {
    let mut lab = healthy_lab();
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &lab.hosts_toml("")], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("three hosts", |text| text.contains("6 busy"));
    pty.keys("\x1b[C\r");
    pty.wait_for(" hgx-02   4 x NVIDIA H100");
    lab.hosts[1].sshd.stop();
    let lost = pty.wait("it is lost", |text| text.contains("DOWN"));
    assert!(lost.contains("last seen") && lost.contains("4 GPUs, 2 in use"), "{lost}");
    pty.keys("L");
    pty.wait("why", |text| text.contains("ssh log of hgx-02") && text.contains("nothing listens"));
    lab.hosts[1].sshd.restart();
    pty.keys("\x1b");
    pty.wait_for("Processes on hgx-02");
    pty.keys("r");
    pty.wait("it is back", |text| text.contains(" hgx-02   4 x NVIDIA H100") && !text.contains("DOWN"));
    pty.keys("1");
    pty.wait("all three", |text| text.contains("12 GPUs") && text.contains("6 busy"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn one_passphrase_opens_every_host_that_waits_for_the_key() {
    let lab = healthy_lab();
    let sshd = &lab.hosts[0].sshd;
    let host = |name: &str| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\nnvml_library = \"{}\"\n\n",
            sshd.ip(),
            sshd.port(),
            sshd.locked_key().display(),
            sshd.known_hosts().display(),
            lab.hosts[0].driver.library().display()
        )
    };
    let hosts = lab.write("hosts.toml", &(host("gpu-a") + &host("gpu-b")));
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("the question", |text| {
        text.contains("Passphrase") && text.contains("and 1 more host") && text.contains('▏')
    });
    pty.keys("not this one\r");
    pty.wait("it was wrong", |text| text.contains("Passphrase") && text.contains("rejected") && text.contains('▏'));
    pty.keys(PASSPHRASE);
    pty.keys("\r");
    pty.wait("both hosts", |text| text.contains("8 GPUs") && text.contains("4 busy") && !text.contains("Passphrase"));
    let bytes = pty.bytes();
    let written = String::from_utf8_lossy(&bytes);
    assert!(!written.contains("correct horse") && !written.contains("not this"), "a passphrase is never shown");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}
