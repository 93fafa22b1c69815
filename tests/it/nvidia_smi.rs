//! Hosts that are read through `nvidia-smi`, on a real sshd.

use crate::lab::{gpufleet, record_until, skip};
use crate::sshd::{Sshd, lock_probe_in_tmp};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::MutexGuard;

/// A fake nvidia-smi with the output of a driver of 2021; PID is replaced by the pid of this test.
const NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *clocks.gr*) echo 'Invalid combination of input arguments.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "GPU-aaaa, PID, 1200" ;;
esac
"#;

/// A host that limits the size of files to one block, so that no probe can be installed.
struct FullHost {
    sshd: Sshd,
    folder: tempfile::TempDir,
    _lock: MutexGuard<'static, ()>,
}

impl FullHost {
    fn new() -> Self {
        let lock = lock_probe_in_tmp();
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("bin");
        std::fs::create_dir(&programs).unwrap();
        let environment = format!(
            "SetEnv SHLVL=5 PATH={}:/usr/bin:/bin XDG_CACHE_HOME={}",
            programs.display(),
            folder.path().join("cache").display()
        );
        let command = "ForceCommand trap '' XFSZ; ulimit -f 1; exec /bin/sh";
        let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&environment, command]);
        Self { sshd, folder, _lock: lock }
    }

    fn status(&self) -> (Value, String) {
        let hosts = hosts_toml(self.folder.path(), &self.sshd, "upload");
        let json = gpufleet(&["status", "--json", &hosts]);
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        let plain = gpufleet(&["status", &hosts]);
        (json["hosts"][0].clone(), String::from_utf8(plain.stdout).unwrap())
    }
}

/// Installs a program as nvidia-smi in a folder of PATH. `PID` in it is the pid of this test.
fn install(folder: &Path, program: &str) {
    let path = folder.join("bin/nvidia-smi");
    std::fs::write(&path, program.replace("PID", &std::process::id().to_string())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn hosts_toml(folder: &Path, sshd: &Sshd, probe: &str) -> String {
    let path = folder.join("hosts.toml");
    let text = format!(
        "[[hosts]]\nname = \"old-01\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
         \"{}\"\nprobe = \"{probe}\"\n",
        sshd.port(),
        sshd.client_key().display(),
        sshd.known_hosts().display()
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A host that is read through this nvidia-smi, as hosts.toml asks.
struct SmiHost {
    sshd: Sshd,
    folder: tempfile::TempDir,
}

impl SmiHost {
    fn new(nvidia_smi: &str) -> Self {
        let folder = Self::folder(nvidia_smi);
        let environment = format!("SetEnv PATH={}:/usr/bin:/bin", folder.path().join("bin").display());
        let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&environment]);
        Self { sshd, folder }
    }

    /// Like [`Self::new`], with nvidia-smi in a folder of `/opt` instead of one in PATH.
    fn in_opt(nvidia_smi: &str, name: &str) -> Self {
        let folder = Self::folder(nvidia_smi);
        let program = folder.path().join("bin/nvidia-smi");
        let sshd = Sshd::start_in(Ipv4Addr::LOCALHOST, &[], |_| {
            Some(format!("mount -t tmpfs none /opt; mkdir /opt/{name}; cp {} /opt/{name}", program.display()))
        });
        Self { sshd, folder }
    }

    fn folder(nvidia_smi: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        install(folder.path(), nvidia_smi);
        folder
    }

    /// Runs gpufleet on this host. Returns its output.
    fn gpufleet(&self, arguments: &[&str]) -> String {
        let hosts = hosts_toml(self.folder.path(), &self.sshd, "nvidia-smi");
        let output = gpufleet(&[arguments, &[&hosts]].concat());
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.gpufleet(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Whether the machine has a real nvidia-smi, which comes first in PATH; the test is then skipped.
fn skip_with_real_nvidia_smi() -> bool {
    let found =
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join("nvidia-smi").exists());
    if found {
        skip("this machine has a real nvidia-smi, which comes first in PATH");
    }
    found
}

#[test]
fn nvidia_smi_is_used_with_the_reason_when_no_probe_can_be_installed() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    let host_without_space = FullHost::new();
    install(host_without_space.folder.path(), NVIDIA_SMI);
    let (host, plain) = host_without_space.status();
    assert_eq!((&host["state"], &host["info"]["source"]), (&"live".into(), &"nvidia-smi".into()), "{host:#}");
    assert_eq!(host["gpu_error"], Value::Null);
    let gpu = &host["gpus"][0];
    assert_eq!((&gpu["name"], &gpu["utilization_percent"]), (&"Tesla V100".into(), &97.into()));
    assert_eq!(gpu["fan_percent"], Value::Null, "a value that nvidia-smi does not print is unknown");
    let process = &host["processes"][0];
    assert_eq!((&process["pid"], process["cpu_percent"].is_number()), (&std::process::id().into(), true));
    assert!(plain.contains("via nvidia-smi: no directory for the probe: "), "{plain}");
    assert!(plain.contains("File too large"), "{plain}");
}

#[test]
fn error_names_both_when_probe_and_nvidia_smi_are_missing() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    let (host, plain) = FullHost::new().status();
    let error = host["gpu_error"]["message"].as_str().unwrap_or_else(|| panic!("{host:#}"));
    assert!(
        error.starts_with("there is no nvidia-smi on this host, and no probe: no directory for the probe: "),
        "{error}"
    );
    assert!(plain.contains("there is no nvidia-smi on this host, and no probe"), "{plain}");
    assert_eq!(host["state"], "live", "host readings need no driver");
}

/// R535 with a GPU that fell off the bus: every run ends with 255, and the list of processes is cut short.
const LOST_GPU: &str = r#"#!/bin/sh
lost='Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error'
case $1 in
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *clocks.gr*) echo 'Invalid combination of input arguments.'; exit 2 ;;
  --query-gpu=*) echo "$lost" >&2
    echo '0, GPU-aaaa, NVIDIA A100-SXM4-80GB, 00000000:1B:00.0, 535.161.08, 81920, 71201, 97, 41, 68, 250.5, 400.00, [N/A], P0'
    unknown='[Unknown Error], [Unknown Error]'
    echo "$unknown, $unknown, $unknown, $unknown, $unknown, $unknown, $unknown"
    echo '2, GPU-cccc, NVIDIA A100-SXM4-80GB, 00000000:5F:00.0, 535.161.08, 81920, 3, 0, 0, 31, 60.5, 400.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "$lost" >&2; echo "GPU-aaaa, PID, 71190" ;;
esac
exit 255
"#;

#[test]
fn lost_gpu_is_shown_beside_the_others_and_their_processes() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    let lab = SmiHost::new(LOST_GPU);
    let report = lab.json(&["status", "--json"]);
    let host = &report["hosts"][0];
    assert_eq!((&host["state"], &host["gpu_error"]), (&"live".into(), &Value::Null), "{host:#}");
    let gpus = host["gpus"].as_array().expect("GPUs");
    let column = |name: &str| gpus.iter().map(|gpu| gpu[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("index"), [0, 1, 2]);
    assert_eq!(column("state"), ["in_use", "fault", "free"]);
    assert_eq!(column("pci_bus_id")[1], "00000000:3B:00.0");
    assert_eq!(column("utilization_percent"), [Value::from(97), Value::Null, Value::from(0)]);
    assert_eq!(gpus[1]["error"]["kind"], "gpu_lost");
    let message = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error";
    assert_eq!(gpus[1]["error"]["message"], message);
    assert_eq!(host["processes"][0]["pid"], std::process::id());
    let plain = lab.gpufleet(&["status"]);
    assert!(plain.contains(&format!("nvidia-smi: exit status 255: {message}")), "{plain}");
    assert!(plain.contains("GPU 1 has fallen off the bus"), "{plain}");
    // The recording says that processes may be missing, so that no rule takes their memory for leaked.
    let recording = lab.folder.path().join("lab.jsonl");
    let hosts = hosts_toml(lab.folder.path(), &lab.sshd, "nvidia-smi");
    record_until(&recording, &[&hosts], |recorded| recorded.contains("\"processes_unknown\":[true,null,true]"));
}

#[test]
fn nvidia_smi_outside_of_path_is_found() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip("mount namespaces need root");
        return;
    }
    for (place, count) in [("bin", 1), ("elsewhere", 0)] {
        let report = SmiHost::in_opt(NVIDIA_SMI, place).json(&["status", "--json"]);
        let gpus = report["hosts"][0]["gpus"].as_array().expect("GPUs");
        assert_eq!(gpus.len(), count, "/opt/{place}: {report:#}");
    }
}

#[test]
fn every_line_of_a_driver_error_reaches_the_person() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    let mismatch = "Failed to initialize NVML: Driver/library version mismatch";
    let host = SmiHost::new(&format!("#!/bin/sh\necho '{mismatch}'\necho 'NVML library version: 535.161'\nexit 18\n"));
    let report = host.json(&["status", "--json"]);
    let error = &report["hosts"][0]["gpu_error"];
    assert_eq!(error["kind"], "version_mismatch");
    assert_eq!(error["message"], format!("{mismatch}; NVML library version: 535.161"));
    assert_eq!(report["findings"][0]["rule"], "driver-mismatch");
    let plain = host.gpufleet(&["status"]);
    assert!(plain.contains("NVML library version: 535.161"), "{plain}");
}

#[test]
fn hanging_nvidia_smi_is_a_hanging_driver_on_a_host_that_answers() {
    if skip_with_real_nvidia_smi() {
        return;
    }
    let host = SmiHost::new("#!/bin/sh\nexec sleep 600\n");
    let report = host.json(&["status", "--json", "--timeout", "60"]);
    let reported = &report["hosts"][0];
    assert_eq!(reported["state"], "live", "{reported:#}");
    assert_eq!(reported["gpu_error"]["kind"], "blocked");
    let message = reported["gpu_error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("nvidia-smi hangs: the NVIDIA driver has not answered for "), "{message}");
    assert!(reported["readings"]["load_1"].is_number(), "{reported:#}");
    // `status` leaves out what it has watched for a few seconds only. A busy machine may need a second attempt.
    let report = host.json(&["findings", "--json", "--for", "30"]);
    let is_blocked = |finding: &serde_json::Value| finding["rule"] == "probe-blocked";
    assert!(report["findings"].as_array().expect("a list").iter().any(is_blocked), "{report:#}");
}
