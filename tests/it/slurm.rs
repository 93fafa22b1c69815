//! Slurm from a fake `scontrol` on the host to `gpufleet findings`: how a job ended.
//!
//! The process on the GPUs seems to be in the cgroup of a Slurm job, because a file is mounted over its `/proc/PID/cgroup`.

use crate::lab::{Lab, has_root, program, wait_until};
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A host on which job 3385 runs.
struct SlurmHost {
    lab: Lab,
    /// The folder of `scontrol`, which answers about job 3385 with the file `end`, and appends a line to `calls` for each time. It
    /// fails with the error message in the file `down` if that exists.
    folder: tempfile::TempDir,
}

const SCONTROL: &str = "#!/bin/sh
cd \"${0%/*}\"
case $* in
'show config') echo 'ClusterName = lab' ;;
*'show node'*) echo 'NodeName=hgx-01 GresUsed=gpu:h100:0(IDX:N/A)' ;;
'show job 3385') if [ -e down ]; then cat down >&2; echo x >>calls; exit 1; fi; echo x >>calls; cat end ;;
*) exit 1 ;;
esac
";

impl SlurmHost {
    /// `end`: the state and the exit code that `scontrol show job` prints.
    fn start((state, exit_code): (&str, &str)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        write("scontrol", SCONTROL);
        fs::set_permissions(folder.path().join("scontrol"), fs::Permissions::from_mode(0o755)).expect("may run");
        write("end", &format!("JobId=3385 JobName=train\n   JobState={state} Reason=None\n   ExitCode={exit_code}\n"));
        write("cgroup", "0::/system.slice/slurmstepd.scope/job_3385/step_0/user/task_0\n");
        let pid = Cell::new(0);
        let lab = Lab::start_with(
            &["hgx-01"],
            &format!("PATH={}:/usr/bin:/bin", folder.path().display()),
            |_| {
                // The process may have ended when the server starts again.
                let (file, proc) = (folder.path().join("cgroup"), format!("/proc/{}/cgroup", pid.get()));
                Some(format!("if [ -e {proc} ]; then mount --bind {} {proc}; fi", file.display()))
            },
            |_| {
                let worker = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("starts");
                pid.set(worker.id());
                worker
            },
        );
        Self { lab, folder }
    }

    /// Starts `gpufleet findings --watch`.
    fn watch(&self) -> Watch {
        let hosts = self.lab.hosts_toml("[diagnosis]\njob-ended = { held_for = \"0s\" }");
        let output = self.lab.path("findings.jsonl");
        let child = Command::new(program())
            .args(["findings", "--watch", "--json", &hosts])
            .env_remove("SSH_AUTH_SOCK")
            .env("XDG_STATE_HOME", self.lab.path("state"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).expect("a file"))
            .spawn()
            .expect("gpufleet runs");
        Watch { child, output }
    }

    fn queries_of_the_end(&self) -> usize {
        fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default().lines().count()
    }

    /// Waits for a warning about the end of the job with this text. Slurm must have got one query about it.
    #[track_caller]
    fn expect_end(&self, watch: &Watch, text: &str) {
        watch.expect_end(text);
        assert_eq!(self.queries_of_the_end(), 1);
    }
}

/// `gpufleet findings --watch --json` in the background.
struct Watch {
    child: Child,
    output: PathBuf,
}

impl Watch {
    /// Waits for a warning about the end of the job with this text.
    #[track_caller]
    fn expect_end(&self, text: &str) {
        let is_end = |change: &Value| change["rule"] == "job-ended" && change["severity"] == "warn";
        let change = self.wait_for("the end of the job", is_end);
        assert!(change.to_string().contains(text), "{change:#}");
    }

    /// Waits for a change that satisfies the condition.
    #[track_caller]
    fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let changes = || changes(&self.output);
        wait_until(what, || format!("{:#?}", changes()), || changes().into_iter().find(&wanted))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
    }
}

/// The complete lines of the output.
fn changes(output: &Path) -> Vec<Value> {
    let text = fs::read_to_string(output).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn findings_tell_how_a_job_ended() {
    if !has_root() {
        return;
    }
    let mut host = SlurmHost::start(("OUT_OF_MEMORY", "0:125"));
    let watch = host.watch();
    watch.wait_for("the lost GPU", |change| change["rule"] == "gpu-lost");
    host.lab.hosts[0].end_worker();
    host.expect_end(&watch, "Slurm: ran out of memory");
}

#[test]
fn findings_tell_how_a_job_ended_while_the_connection_was_lost() {
    if !has_root() {
        return;
    }
    let mut host = SlurmHost::start(("FAILED", "3:0"));
    let watch = host.watch();
    watch.wait_for("the lost GPU", |change| change["rule"] == "gpu-lost");
    host.lab.hosts[0].sshd.stop();
    host.lab.hosts[0].end_worker();
    assert_eq!(host.queries_of_the_end(), 0);
    host.lab.hosts[0].sshd.restart();
    host.expect_end(&watch, "Slurm: failed with exit status 3");
}

/// The first query finds slurmctld down, and the second one 20 s later finds the end.
pub(crate) fn findings_tell_how_a_job_ended_while_slurmctld_was_down() {
    if !has_root() {
        return;
    }
    let mut host = SlurmHost::start(("TIMEOUT", "0:1"));
    let down = host.folder.path().join("down");
    fs::write(&down, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n").expect("writes");
    let watch = host.watch();
    watch.wait_for("the lost GPU", |change| change["rule"] == "gpu-lost");
    host.lab.hosts[0].end_worker();
    wait_until("a query of the end", String::new, || (host.queries_of_the_end() > 0).then_some(()));
    fs::remove_file(&down).expect("slurmctld is up");
    watch.expect_end("Slurm: ");
    assert_eq!(host.queries_of_the_end(), 2);
}
