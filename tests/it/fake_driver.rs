//! Builds the fake NVML library (`tests/fake_nvml`) once per test run and gives each test a copy with a scenario.
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The environment variable with a folder that has another build of `gpufleet-probe` and `libfake_nvml.so` to test:
/// `tests/run --all` uses it.
const OTHER_BUILD: &str = "GPUFLEET_TESTS_OTHER_BUILD";

/// The probe program under test.
pub(crate) fn probe_program() -> PathBuf {
    match std::env::var_os(OTHER_BUILD) {
        Some(folder) => PathBuf::from(folder).join("gpufleet-probe"),
        None => env!("CARGO_BIN_EXE_gpufleet-probe").into(),
    }
}

/// Copies a program that is run at once. A child that another test starts meanwhile would inherit a file that this process
/// writes, and the kernel runs no file that is open for writing.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp starts");
    assert!(copied.success(), "cp: {copied}");
}

/// A fake driver in a temporary folder: `libnvidia-ml.so.1` and its scenario. Dropping it removes both.
pub(crate) struct FakeDriver {
    folder: tempfile::TempDir,
}

impl FakeDriver {
    /// A driver that plays `scenario` (see `tests/fake_nvml/scenario.rs`).
    pub(crate) fn new(scenario: &Value) -> Self {
        Self::without(&[], scenario)
    }

    /// A driver without some functions, like an older one: their names are overwritten in the copy of the library, so
    /// that the dynamic linker does not find them.
    pub(crate) fn without(names: &[&str], scenario: &Value) -> Self {
        let driver = Self { folder: tempfile::tempdir().expect("a folder") };
        let mut library = std::fs::read(built_library()).expect("the fake library was built");
        for name in names {
            assert!(forget(&mut library, name), "the fake library has no {name}");
        }
        std::fs::write(driver.library(), library).expect("writes the library");
        driver.set(scenario);
        driver
    }

    /// Changes the scenario; NVML calls see it within a tenth of a second.
    pub(crate) fn set(&self, scenario: &Value) {
        let new = self.folder.path().join("new.json");
        std::fs::write(&new, scenario.to_string()).expect("writes the script");
        // An atomic rename, so that no call reads a partial file.
        std::fs::rename(new, self.folder.path().join("fake_nvml.json")).expect("replaces the script");
    }

    /// Lets probes of other users load the library.
    pub(crate) fn open_to_all(&self) {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), everybody).expect("opens the folder");
    }

    /// Makes the driver log each init and shutdown to the returned file, one line each.
    pub(crate) fn log_calls(&self) -> PathBuf {
        let log = self.folder.path().join("calls.log");
        std::fs::write(&log, "").expect("makes the log");
        log
    }

    /// The path of the scenario.
    pub(crate) fn script(&self) -> PathBuf {
        self.folder.path().join("fake_nvml.json")
    }

    /// The library, for `--nvml-library` or `nvml_library`.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }
}

/// An idle H100 for scenarios; `index` gives it a unique UUID and bus id.
pub(crate) fn gpu(index: u32) -> Value {
    json!({
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": format!("GPU-00000000-0000-4000-8000-{index:012}"),
        "pci_bus_id": format!("00000000:{:02X}:00.0", index + 1),
        "memory_total_bytes": 85_520_809_984_u64,
        "memory_used_bytes": 4_194_304,
        "memory_reserved_bytes": 655_360_000,
        "utilization_percent": 0,
        "memory_utilization_percent": 0,
        "temperature_celsius": 31,
        "temperature_slowdown_celsius": 87,
        "temperature_shutdown_celsius": 92,
        "power_watts": 68.5,
        "power_limit_watts": 700,
        "power_limit_max_watts": 700,
        "energy_joules": 1000,
        "clock_graphics_mhz": 345,
        "clock_sm_mhz": 345,
        "clock_memory_mhz": 2619,
        "clock_graphics_max_mhz": 1980,
        "clock_sm_max_mhz": 1980,
        "clock_memory_max_mhz": 2619,
        "performance_state": 0,
        "clocks_event_reasons": 1,
        "pcie_generation": 5,
        "pcie_width": 16,
        "ecc_uncorrectable_volatile": 0,
        "persistence_mode": true,
        "compute_mode": 0,
        "mig_enabled": false
    })
}

/// A [`gpu`] with these fields replaced; `null` removes a field.
pub(crate) fn gpu_with(index: u32, fields: &Value) -> Value {
    let mut device = gpu(index);
    for (key, value) in fields.as_object().into_iter().flatten() {
        device[key] = value.clone();
    }
    device
}

/// A scenario of these GPUs.
pub(crate) fn devices(devices: &[Value]) -> Value {
    json!({ "devices": devices })
}

/// Overwrites every whole occurrence of a name in the symbol tables. Returns false if there is no occurrence.
fn forget(library: &mut [u8], name: &str) -> bool {
    let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        library.windows(wanted.len()).enumerate().filter(|(_, window)| *window == wanted).map(|(at, _)| at).collect();
    for &place in &places {
        library[place + 1] = b'_';
    }
    !places.is_empty()
}

/// The fake library, built once.
fn built_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os(OTHER_BUILD) {
        Some(folder) => PathBuf::from(folder).join("libfake_nvml.so"),
        None => build_example("fake_nvml"),
    })
}

/// `cargo build --example NAME`: `cargo test --test it` alone does not build examples. Returns the path of the result.
pub(crate) fn build_example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test's path");
    let target = this.ancestors().nth(3).expect("TARGET/PROFILE/deps/it-HASH");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--example", name, "--message-format=json-render-diagnostics", "--target-dir"]).arg(target);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // The CARGO_* variables of this test run would make build scripts run again.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let is_ours = name_text.starts_with("CARGO_") && !["CARGO_HOME", "CARGO_MAKEFLAGS"].contains(&&*name_text);
        if is_ours || name_text == "OUT_DIR" {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("cargo runs");
    assert!(output.status.success(), "the example {name} does not build");
    let messages = String::from_utf8(output.stdout).expect("cargo writes JSON");
    let artifact = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|message| message["target"]["name"] == name && message["filenames"].is_array())
        .expect("cargo names what it built");
    PathBuf::from(artifact["filenames"][0].as_str().expect("a path"))
}
