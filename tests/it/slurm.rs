//! Slurm on a host, to `gpufleet findings` and `gpufleet record`: how a job ended, and which job has a GPU.
//!
//! Most tests use a fake `scontrol`, and the process on the GPUs seems to be in the cgroup of a Slurm job, because a file is mounted
//! over its `/proc/PID/cgroup`. With `GPUFLEET_TESTS_ALL` there is a real cluster of this one node.

use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::{Lab, has_root, program, record_until, skip, wait_gone, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A host on which job 3385 runs.
struct SlurmHost {
    lab: Lab,
    /// The folder of `scontrol`, which answers about job 3385 with the file `end`, and appends a line to `calls` for each time. It
    /// fails with the error message in the file `down` if that exists.
    folder: tempfile::TempDir,
}

const SCONTROL: &str = "#!/bin/sh
cd FOLDER
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
        write("scontrol", &SCONTROL.replace("FOLDER", &folder.path().display().to_string()));
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
                // The probe prefers the Slurm of the system if there is one.
                let fake = folder.path().join("scontrol");
                Some(format!(
                    "if [ -e {proc} ]; then mount --bind {} {proc}; fi; if [ -e /usr/bin/scontrol ]; then mount --bind {} \
                     /usr/bin/scontrol; fi",
                    file.display(),
                    fake.display()
                ))
            },
            |_| {
                let worker = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("starts");
                pid.set(worker.id());
                worker
            },
        );
        Self { lab, folder }
    }

    fn watch(&self) -> Watch {
        Watch::start(&self.lab)
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

/// Settings with which the ends of short jobs are reported, too.
const REPORT_EVERY_END: &str = "[diagnosis]\njob-ended = { held_for = \"0s\" }";

/// `gpufleet findings --watch --json` in the background.
struct Watch {
    child: Child,
    output: PathBuf,
}

impl Watch {
    /// Starts `gpufleet findings --watch`.
    fn start(lab: &Lab) -> Self {
        let hosts = lab.hosts_toml(REPORT_EVERY_END);
        let output = lab.path("findings.jsonl");
        let child = Command::new(program())
            .args(["findings", "--watch", "--json", &hosts])
            .env_remove("SSH_AUTH_SOCK")
            .env("XDG_STATE_HOME", lab.path("state"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).expect("a file"))
            .spawn()
            .expect("gpufleet runs");
        Self { child, output }
    }

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

/// A real cluster of one node with four GPUs: munged, slurmctld and slurmd in a folder, on loopback.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    /// The processes of its jobs.
    jobs: Vec<u32>,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // munged wants a folder that everybody may enter.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("may be entered");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        let ports: Vec<TcpListener> =
            (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        let port = |index: usize| ports[index].local_addr().expect("an address").port();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = host.split('.').next().expect("a name");
        write("munge.key", &"key of the tests ".repeat(4));
        fs::set_permissions(folder.path().join("munge.key"), fs::Permissions::from_mode(0o400)).expect("a secret");
        (0..4).for_each(|gpu| write(&format!("nvidia{gpu}"), ""));
        write("gres.conf", &format!("NodeName={node} Name=gpu Type=h100 File={}\n", path("nvidia[0-3]")));
        write(
            "slurm.conf",
            &format!(
                "ClusterName=lab\nSlurmctldHost={node}(127.0.0.1)\nSlurmctldPort={}\nSlurmdPort={}\n\
                 AuthType=auth/munge\nAuthInfo=socket={}\nCredType=cred/munge\nSlurmUser=root\n\
                 StateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\n\
                 ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
                 SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nGresTypes=gpu\nMpiDefault=none\n\
                 SwitchType=switch/none\nReturnToService=2\n\
                 NodeName={node} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:h100:4 State=UNKNOWN\n\
                 PartitionName=main Nodes={node} Default=YES State=UP OverSubscribe=FORCE:8\n",
                port(0),
                port(1),
                path("munge"),
                path("state"),
                path("spool"),
                path("slurmctld.pid"),
                path("slurmd.pid"),
            ),
        );
        for name in ["state", "spool"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        drop(ports);
        let mut cluster = Self { folder, daemons: Vec::new(), jobs: Vec::new() };
        let munge = format!("--socket={}", cluster.path("munge"));
        let files = ["key", "pid", "log", "seed"]
            .map(|file| format!("--{file}-file={}", cluster.path(&format!("munge.{file}"))));
        cluster.daemon(
            "munged",
            &[&["--foreground", "--force", &munge][..], &files.each_ref().map(String::as_str)[..]].concat(),
        );
        wait_until("munged", || cluster.log(), || Path::new(&cluster.path("munge")).exists().then_some(()));
        cluster.daemon("slurmctld", &["-D", "-i"]);
        cluster.daemon("slurmd", &["-D"]);
        let state = || cluster.run("sinfo", &["-h", "-o", "%t"]);
        wait_until("an idle node", || cluster.log(), || (state().trim() == "idle").then_some(()));
        cluster
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn daemon(&mut self, name: &str, arguments: &[&str]) {
        let log = fs::File::create(self.path(&format!("{name}.out"))).expect("a file");
        let started = Command::new(name)
            .args(arguments)
            .env("SLURM_CONF", self.path("slurm.conf"))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn();
        self.daemons.push(started.unwrap_or_else(|error| {
            panic!(
                "{name} does not start: {error}\ninstall Slurm: on Debian `apt-get install slurmctld slurmd slurm-client munge`, \
                 or run tests/run --all, which does"
            )
        }));
    }

    /// The output of the daemons.
    fn log(&self) -> String {
        let log = |name: &str| fs::read_to_string(self.path(&format!("{name}.out"))).unwrap_or_default();
        ["munged", "slurmctld", "slurmd"].map(log).concat()
    }

    /// Runs a program of Slurm and returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let run = Command::new(program).args(arguments).env("SLURM_CONF", self.path("slurm.conf")).output();
        String::from_utf8(run.expect("Slurm is installed").stdout).expect("text")
    }

    /// Submits a job with a GPU that runs `script`, and returns the pid of its shell.
    fn submit(&mut self, job: &str, name: &str, script: &str) -> u32 {
        let (pid, output) = (self.path(&format!("{job}.pid")), self.path(&format!("{job}.out")));
        let script = format!("echo $$ >{pid}.new; mv {pid}.new {pid}; {script}");
        let submitted =
            self.run("sbatch", &["--parsable", "--gres=gpu:1", "-J", name, "-o", &output, "--wrap", &script]);
        assert_eq!(submitted.trim(), job, "{}", self.log());
        let pid =
            wait_until("the start of a job", || self.log(), || fs::read_to_string(&pid).ok()?.trim().parse().ok());
        self.jobs.push(pid);
        pid
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test that fails must not panic again here. The shells of the jobs end with a signal even if slurmctld does not answer.
        for job in &self.jobs {
            let pid = Pid::from_raw(*job as i32).expect("a pid");
            let _ended_already = kill_process(pid, Signal::KILL);
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ended_already = daemon.kill();
            let _ended_already = daemon.wait();
        }
    }
}

/// The processes of two jobs are found by their `slurmstepd`, since this cluster makes no cgroups. The third job uses no GPU, and has
/// a line break in its name.
#[test]
fn a_real_cluster_tells_which_job_has_a_gpu_and_how_it_ended() {
    if std::env::var_os("GPUFLEET_TESTS_ALL").is_none() {
        return skip("it needs Slurm: run tests/run --all");
    }
    if !has_root() {
        return;
    }
    let mut cluster = Cluster::start();
    let first = cluster.submit("1", "train", "exec sleep 3600");
    let second =
        cluster.submit("2", "failing", &format!("until [ -e {} ]; do sleep 0.1; done; exit 3", cluster.path("end")));
    let third = cluster.submit("3", "holds\nJobState=FAILED", "exec sleep 3600");
    let lab = Lab::start_with(
        &["node"],
        &format!("SLURM_CONF={}", cluster.path("slurm.conf")),
        |_| None,
        |_| Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("starts"),
    );
    let busy = |pid: u32| {
        let process = json!([{"pid": pid, "memory_bytes": 60_129_542_144_u64, "sm_percent": 97}]);
        json!({"utilization_percent": 97, "memory_used_bytes": 61_203_283_968_u64, "power_watts": 512, "processes": process})
    };
    let driver = &lab.hosts[0].driver;
    let lost = gpu_with(3, &json!({"error": 15}));
    driver.set(&devices(&[gpu_with(0, &busy(first)), gpu_with(1, &busy(second)), gpu(2), lost.clone()]));
    let hosts = lab.hosts_toml(REPORT_EVERY_END);
    let recording = lab.path("recording.jsonl");
    let recorded = record_until(&recording, &[&hosts], |text| text.contains("\"slurm_jobs\":["));
    assert!(recorded.status.success(), "{recorded:?}");
    let text = fs::read_to_string(&recording).expect("a recording");
    let text = text.lines().filter(|line| line.contains("slurm")).collect::<Vec<_>>().join("\n");
    assert!(text.contains("\"slurm_allocated_gpus\":[0,1,2]"), "{text}");
    for job in [1, 2, 3] {
        let expected = format!("{{\"job\":\"{job}\",\"user\":\"root\",\"gpus\":[{}]}}", job - 1);
        assert!(text.contains(&expected), "{expected} is not in {text}");
    }
    for job in ["1", "2"] {
        assert!(text.contains(&format!("\"slurm\":{{\"job\":\"{job}\"")), "{text}");
    }
    let watch = Watch::start(&lab);
    watch.wait_for("the lost GPU", |change| change["rule"] == "gpu-lost");
    fs::write(cluster.path("end"), "").expect("the job ends");
    wait_gone(&[second], Duration::from_secs(30));
    driver.set(&devices(&[gpu_with(0, &busy(first)), gpu(1), gpu(2), lost]));
    watch.expect_end("Slurm: failed with exit status 3");
    assert!(Path::new(&format!("/proc/{third}")).exists());
}
