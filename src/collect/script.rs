//! Builds the scripts for the `/bin/sh` of a host. Pure functions.
//!
//! Every answer of a script begins with a nonce that is fresh for each connection, so that banners and the output of
//! start-up files cannot be mistaken for an answer.

use super::probe_binary::ProbeBinary;
use crate::wire::shell::shell_word;
use std::fmt::Write as _;
use std::time::Duration;

/// The command executed on the host. Every login shell understands it; the script follows on standard input.
pub(super) const EXEC: &str = "exec /bin/sh";

const UPLOAD: &str = include_str!("scripts/upload.sh");
const CLEAN: &str = include_str!("scripts/clean.sh");
const PATH: &str = include_str!("scripts/path.sh");
const NVIDIA_SMI: &str = include_str!("scripts/nvidia_smi.sh");

/// Variables that could make the loader (`ld.so(8)`), or a program started by the script, load foreign code. They are
/// listed one by one, because a shell cannot unset variables by pattern without starting another program.
const CLEARED: &str = "LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT LD_ASSUME_KERNEL LD_BIND_NOW LD_BIND_NOT LD_DEBUG \
    LD_DEBUG_OUTPUT LD_DYNAMIC_WEAK LD_HWCAP_MASK LD_ORIGIN_PATH LD_POINTER_GUARD LD_PREFER_MAP_32BIT_EXEC LD_PROFILE \
    LD_PROFILE_OUTPUT LD_SHOW_AUXV LD_TRACE_LOADED_OBJECTS LD_USE_LOAD_BIAS LD_VERBOSE LD_WARN GCONV_PATH \
    GLIBC_TUNABLES LOCPATH TIME_STYLE POSIXLY_CORRECT CDPATH";

/// Directories of system programs, placed before the PATH of the account.
const SYSTEM_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin:/run/current-system/sw/bin";

/// A fresh random number of 128 bits in hexadecimal.
pub(super) fn new_nonce() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's source, a generator seeded by the standard library still differs on each call.
        bytes = fastrand::u128(..).to_le_bytes();
    }
    format!("{:032x}", u128::from_le_bytes(bytes))
}

/// The first line, which makes the shell print its system and machine. `uname` must not come from a directory in the PATH
/// of the account, and the PATH may be empty.
pub(super) fn marker(nonce: &str) -> String {
    format!("printf '\\n%s shell %s\\n' {nonce} \"$(PATH={SYSTEM_PATH}; uname -sm)\"\n")
}

/// The script that finds or receives the probe and executes it. `shared_directories` are world-writable directories, tried
/// after those of the account.
pub(super) fn upload(nonce: &str, binary: &ProbeBinary, shared_directories: &[&str], arguments: &[String]) -> String {
    let mut script = prologue(nonce, arguments);
    let _ = writeln!(
        script,
        "NAME={} SHA={} SIZE={} PLACES={}",
        shell_word(&binary.file_name),
        shell_word(&binary.sha256),
        binary.size_bytes,
        shell_word(&shared_directories.join(" "))
    );
    script.push_str(&stripped(UPLOAD));
    script
}

/// The script that executes the probe at `path`.
pub(super) fn path(nonce: &str, path: &str, arguments: &[String]) -> String {
    let mut script = prologue(nonce, arguments);
    let _ = writeln!(script, "PROBE={}", shell_word(path));
    script.push_str(&stripped(PATH));
    script
}

/// The script that removes uploaded probes from the directories of the account and from `shared_directories`.
pub(super) fn clean(nonce: &str, shared_directories: &[&str]) -> String {
    let mut script = prologue(nonce, &[]);
    let _ = writeln!(script, "PLACES={}", shell_word(&shared_directories.join(" ")));
    script.push_str(&stripped(CLEAN));
    script
}

/// The script that answers requests by running `nvidia-smi`.
pub(super) fn nvidia_smi(nonce: &str) -> String {
    let mut script = prologue(nonce, &[]);
    script.push_str(&stripped(NVIDIA_SMI));
    script
}

/// Arguments of the probe.
pub(super) fn probe_arguments(interval: Duration, nvml_library: Option<&str>) -> Vec<String> {
    let mut arguments = vec!["--interval".to_owned(), interval.as_secs_f64().to_string()];
    if let Some(library) = nvml_library {
        arguments.extend(["--nvml-library".to_owned(), library.to_owned()]);
    }
    arguments
}

fn prologue(nonce: &str, arguments: &[String]) -> String {
    let arguments: String = arguments.iter().map(|argument| format!(" {}", shell_word(argument))).collect();
    format!(
        // An empty entry at the end of PATH would be the current directory.
        "umask 077\nunset {CLEARED}\nLC_ALL=C PATH={SYSTEM_PATH}${{PATH:+:$PATH}} N={nonce}\nexport LC_ALL PATH\n\
         become() {{ say exec \"$1\"; shift; exec \"$@\"{arguments}; }}\n"
    )
}

/// Removes comments and empty lines: the script is sent on every connect, and bash reads it byte by byte.
fn stripped(script: &str) -> String {
    script
        .lines()
        .filter(|line| !line.trim_start().starts_with('#') && !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_has_128_bits_and_differs_each_time() {
        let (first, second) = (new_nonce(), new_nonce());
        assert_eq!(first.len(), 32);
        assert!(first.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(first, second);
    }

    #[test]
    fn arguments_of_the_probe_stay_words() {
        let arguments = probe_arguments(Duration::from_millis(250), Some("/opt/it's my lib/libnvidia-ml.so.1"));
        assert_eq!(arguments, ["--interval", "0.25", "--nvml-library", "/opt/it's my lib/libnvidia-ml.so.1"]);
        assert_eq!(probe_arguments(Duration::from_secs(2), None), ["--interval", "2"]);
        let script = format!("{}say() {{ :; }}\nbecome x printf '<%s>'\n", prologue("n", &arguments));
        let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().expect("sh runs");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "<--interval><0.25><--nvml-library></opt/it's my lib/libnvidia-ml.so.1>"
        );
    }

    #[test]
    fn a_script_is_small_and_has_no_comments() {
        let binary = ProbeBinary::from_bytes("gpufleet-probe-0.1.0-0123456789abcdef", b"probe".to_vec());
        let script = upload(
            "00112233445566778899aabbccddeeff",
            &binary,
            &["/tmp", "/dev/shm"],
            &probe_arguments(Duration::MAX, None),
        );
        assert!(!script.lines().any(|line| line.trim_start().starts_with('#') || line.is_empty()), "{script}");
        assert!(script.len() < 6500, "{} bytes", script.len());
        assert!(script.ends_with("\nmain\n"), "the shell must have read everything before it runs anything");
    }
}
