//! Hosts on which no probe can run: `nvidia-smi` is asked by itself, through a real sshd.

use crate::lab::gpufleet;
use crate::left_out::leave_out;
use crate::sshd::Sshd;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// As a driver of 2021 prints it; the process is this test.
const NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "GPU-aaaa, PID, 1200" ;;
esac
"#;

/// A host on which every file is full after a block, so that nothing can be put there.
struct Cramped {
    sshd: Sshd,
    folder: tempfile::TempDir,
}

impl Cramped {
    fn new() -> Self {
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
        Self { sshd, folder }
    }

    fn put_nvidia_smi(&self) {
        let path = self.folder.path().join("bin/nvidia-smi");
        std::fs::write(&path, NVIDIA_SMI.replace("PID", &std::process::id().to_string())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn status(&self) -> (Value, String) {
        let path = self.folder.path().join("hosts.toml");
        let text = format!(
            "[[hosts]]\nname = \"old-01\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\n",
            self.sshd.port(),
            self.sshd.client_key().display(),
            self.sshd.known_hosts().display()
        );
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let json = gpufleet(&["status", "--json", &path]);
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        let plain = gpufleet(&["status", &path]);
        (json["hosts"][0].clone(), String::from_utf8(plain.stdout).unwrap())
    }
}

/// A machine with GPUs has the real one, which goes before the test's.
fn has_its_own_nvidia_smi() -> bool {
    let found =
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join("nvidia-smi").exists());
    if found {
        leave_out("this machine has an nvidia-smi of its own, which goes before the test's");
    }
    found
}

#[test]
fn where_no_probe_can_be_put_nvidia_smi_is_asked_and_why_is_said() {
    if has_its_own_nvidia_smi() {
        return;
    }
    let cramped = Cramped::new();
    cramped.put_nvidia_smi();
    let (host, plain) = cramped.status();
    assert_eq!((&host["state"], &host["info"]["source"]), (&"live".into(), &"nvidia-smi".into()), "{host:#}");
    assert_eq!(host["gpu_error"], Value::Null);
    let gpu = &host["gpus"][0];
    assert_eq!((&gpu["name"], &gpu["utilization_percent"]), (&"Tesla V100".into(), &97.into()));
    assert_eq!(gpu["fan_percent"], Value::Null, "what it does not say is not known");
    let process = &host["processes"][0];
    assert_eq!((&process["pid"], process["cpu_percent"].is_number()), (&std::process::id().into(), true));
    assert!(plain.contains("via nvidia-smi: no directory for the probe: "), "{plain}");
    assert!(plain.contains("File too large"), "{plain}");
}

#[test]
fn without_either_the_error_names_both() {
    if has_its_own_nvidia_smi() {
        return;
    }
    let (host, plain) = Cramped::new().status();
    let error = host["gpu_error"]["message"].as_str().unwrap_or_else(|| panic!("{host:#}"));
    assert!(
        error.starts_with("there is no nvidia-smi on this host, and no probe: no directory for the probe: "),
        "{error}"
    );
    assert!(plain.contains("there is no nvidia-smi on this host, and no probe"), "{plain}");
    assert_eq!(host["state"], "live", "the host itself is read all the same");
}
