//! `gpufleet why`: the examination of a real process through a real sshd, and the verdict about simulated jobs.

use crate::fake_driver::{copy_program, devices, gpu_with};
use crate::lab::{Lab, gpufleet, has_root, scenario};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = gpufleet(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

pub(crate) fn why_examines_a_process_twice_through_sshd() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("out.log");
    std::fs::write(&log, "step 4, token=abc\n\x1b[2Jstep 5\n\n").expect("is written");
    let lab = Lab::start_with_workers(&["hgx-01"], |_| {
        let output = std::fs::OpenOptions::new().append(true).open(&log).expect("the log");
        let mut command = Command::new("sleep");
        command.arg("3600").stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        command.env_clear().envs([("RANK", "3"), ("NCCL_API_KEY", "abc"), ("DATABASE", "mine")]);
        command.spawn().expect("starts")
    });
    let hosts = lab.hosts_toml("");
    let pid = lab.hosts[0].worker_pid();
    let (code, stdout, stderr) = run(&["why", &format!("hgx-01:{pid}"), "--json", &hosts]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&report["job"], &report["hosts"][0]), (&Value::from("sleep 3600"), &Value::from("hgx-01")));
    let process = &report["processes"][0];
    assert_eq!((&process["pid"], &process["mine"]), (&Value::from(pid), &Value::from(true)));
    assert_eq!(process["readings"], 2, "a minute apart: {report:#}");
    assert_eq!(process["variables"], serde_json::json!(["RANK=3", "NCCL_API_KEY=***"]));
    assert_eq!(process["log"].as_str(), log.to_str());
    assert_eq!(report["logs"][0]["lines"], serde_json::json!(["step 4, token=***", "␛[2Jstep 5"]));
    assert_ne!(report["outcome"], "proven", "a process that sleeps proves nothing");
    let missing = report["missing"].as_array().expect("missing facts");
    let about = |what: &str| missing.iter().find(|one| one["what"].as_str().is_some_and(|text| text.starts_with(what)));
    let stacks = about("stacks of").unwrap_or_else(|| panic!("{report:#}"));
    assert!(stacks["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{stacks}");
    assert!(stacks["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{stacks}");
    assert!(about("NCCL RAS").is_none(), "it does not use NCCL: {report:#}");
}

#[test]
fn why_names_the_ranks_of_a_simulated_hang() {
    let arguments = ["--demo", "--demo-speed", "20", "why", "--ask-ras"];
    let (code, stdout, stderr) = run(&arguments);
    assert_eq!((code, stderr.as_str()), (4, ""), "{stdout}");
    let heading = stdout.lines().next().expect("a heading");
    assert!(heading.contains("sft.py --fsdp --resume ckpt/last, 2 ranks on hgx-") && heading.ends_with("  proven"));
    assert!(stdout.contains("  culprit  rank 0, pid ") && stdout.contains(": never launched AllReduce "), "{stdout}");
    let (code, stdout, _) = run(&[&arguments[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &report["outcome"]), (4, &Value::from("proven")));
    assert_eq!(report["culprit"]["reason"], "other_path", "{report:#}");
    assert_eq!(report["culprit"]["ranks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn why_queries_nccl_ras_only_for_a_job_that_was_seen_at_work() {
    let (code, stdout, _) = run(&["--demo", "--demo-speed", "20", "why"]);
    assert_eq!(code, 0, "{stdout}");
    let refusal = "not seen  NCCL RAS: this gpufleet has not seen the job at work; while a job starts, a query may crash it \
                   (NCCL issue 2346) (if the job has worked before: gpufleet why hgx-";
    assert!(stdout.contains(refusal), "{stdout}");
}

#[test]
fn why_says_that_no_job_looks_hung() {
    let arguments = ["--demo", "--demo-hosts", "1", "--demo-speed", "20", "why"];
    let expected = "no job of yours looks hung after 30 s\n  hint: name a process: gpufleet why HOST:PID\n";
    assert_eq!(run(&arguments), (0, expected.to_owned(), String::new()));
    let (code, stdout, stderr) = run(&[&arguments[..], &["--json"]].concat());
    assert_eq!((code, stderr.as_str(), stdout.lines().count()), (0, "", 1), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&report["job"], &report["outcome"]), (&Value::Null, &Value::from("no_job")));
    assert_eq!((&report["missing"], &report["culprit"]), (&serde_json::json!([]), &Value::Null), "{report:#}");
}

pub(crate) fn why_names_the_hosts_that_did_not_report() {
    let lab = Lab::start_with_workers(&["hgx-01"], |_| {
        Command::new("sleep").arg("3600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts")
    });
    let reachable = std::fs::read_to_string(lab.hosts_toml("")).expect("hosts.toml");
    let hosts = lab.write(
        "hosts.toml",
        &format!("{reachable}\n[[hosts]]\nname = \"hgx-02\"\naddress = \"127.0.0.1\"\nport = 1\n"),
    );
    let [(code, stdout, stderr), (json_code, json, json_stderr)] = std::thread::scope(|scope| {
        let text = scope.spawn(|| run(&["why", &hosts]));
        let json = scope.spawn(|| run(&["why", "--json", &hosts]));
        [text, json].map(|thread| thread.join().expect("it ends"))
    });
    assert_eq!((code, stderr.as_str(), json_code, json_stderr.as_str()), (3, "", 3, ""), "{stdout}{json}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert_eq!(lines[0], "no job of yours looks hung after 30 s");
    assert!(lines[1].starts_with("  not seen  host hgx-02: "), "{stdout}");
    assert_eq!(json.lines().count(), 1, "{json}");
    let report: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&report["job"], &report["outcome"]), (&Value::Null, &Value::from("no_job")));
    let missing = report["missing"].as_array().expect("missing facts");
    assert_eq!(missing.iter().map(|one| &one["what"]).collect::<Vec<_>>(), ["host hgx-02"], "{report:#}");
    assert!(missing[0]["reason"].as_str().is_some_and(|reason| lines[1].contains(reason)), "{stdout}{report:#}");
}

#[test]
fn errors_of_why_name_what_is_there() {
    let (code, _, stderr) = run(&["--demo", "why", "hgx-44:7"]);
    let expected = "gpufleet: no host `hgx-44` among the 6 selected ones\n  hint: did you mean `hgx-04`?\n";
    assert_eq!((code, stderr.as_str()), (2, expected));
    let (code, _, stderr) = run(&["--demo", "why", "hgx-01:7"]);
    assert_eq!(code, 1);
    let start = "gpufleet: hgx-01: no process with pid 7 uses a GPU\n  hint: those that do are ";
    assert!(stderr.starts_with(start), "{stderr}");
    let pid = stderr[start.len()..].split([',', '\n']).next().expect("a pid");
    let (code, _, stderr) = run(&["--demo", "why", &format!("hgx-01:{pid}")]);
    let expected = "gpufleet: hgx-01: the job belongs to alice, and gpufleet is logged in as dmitri: only its owner may \
                    examine a process\n  hint: ask alice to run `gpufleet why`\n";
    assert_eq!((code, stderr.as_str()), (1, expected));
}

/// A server in the place of NCCL RAS, which answers in JSON as NCCL 2.30.7 does.
struct FakeRas {
    listener: TcpListener,
    received: Arc<Mutex<Vec<String>>>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl FakeRas {
    /// Starts it with a report about a process.
    fn start(report: impl Fn() -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let (received, stops) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (lines, is_stopped) = (Arc::clone(&received), Arc::clone(&stops));
        let accepts = listener.try_clone().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            for stream in accepts.incoming() {
                if is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                serve_ras(&stream.expect("accepts"), &report(), &lines);
            }
        });
        Self { listener, received, stops, thread }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    /// Ends it and returns the lines that it received.
    fn finish(self) -> Vec<String> {
        self.stops.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.listener.local_addr().expect("an address")).expect("connects"));
        self.thread.join().expect("it ends");
        self.received.lock().expect("not poisoned").clone()
    }
}

fn serve_ras(mut stream: &TcpStream, report: &str, received: &Mutex<Vec<String>>) {
    for line in BufReader::new(stream).lines() {
        let line = line.expect("a line");
        received.lock().expect("not poisoned").push(line.clone());
        let answer = match line.as_str() {
            "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n",
            "TIMEOUT 5" | "SET FORMAT json" => "OK\n",
            "STATUS" => report,
            other => panic!("{other} is not permitted"),
        };
        stream.write_all(answer.as_bytes()).expect("writes");
        if line == "STATUS" {
            return;
        }
    }
}

/// A report on two ranks, of which the second, on another host, is four operations behind.
fn report_of(pid: u32) -> String {
    let rank = |rank: u32, host: &str, pid: u32, launched: u32| {
        format!(
            "{{\"rank\": {rank},\n\"host\": \"{host}\",\n\"pid\": {pid},\n\"cuda_dev\": 0,\n\"nvml_dev\": 0,\n\"status\": \
             {{\"init_state\": 0,\n\"async_error\": 0,\n\"finalize_called\": false,\n\"destroy_flag\": false,\n\"abort_flag\": \
             false}},\n\"collective_counts\": {{\"Broadcast\": 1,\n\"AllReduce\": {launched}}}}}"
        )
    };
    format!(
        "{{\"nccl_version\": \"2.30.7\",\n\"communicators_count\": 1,\n\"communicators\": [{{\"hash\": \"0xae94\",\n\
         \"secondary_hash\": \"0xb7e7\",\n\"size\": 2,\n\"ranks_count\": 2,\n\"missing_ranks_count\": 0,\n\"ranks\": [{},\n{}],\n\
         \"missing_ranks\": [\n\n]}}],\n\"ras\": {{\"collection_time_sec\": 0.002,\n\"timeouts_count\": 0}}}}\n",
        rank(0, "127.0.0.1", pid, 64),
        rank(1, "10.0.0.9", 1_650_386, 60),
    )
}

/// A process whose program is named like the library of NCCL, and that holds the socket of its RAS.
fn start_rank(library: &Path, seconds: &str, ras: &FakeRas) -> Child {
    std::fs::create_dir_all(library.parent().expect("a folder")).expect("is created");
    copy_program(Path::new("/bin/sleep"), library);
    let socket = OwnedFd::from(ras.listener.try_clone().expect("a descriptor"));
    let mut command = Command::new(library);
    // `sleep` may be one of many names of a program.
    command.arg0("sleep").arg(seconds).stdin(Stdio::from(socket)).env_clear();
    // The output of the tests would be its log.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2")]).env("NCCL_RAS_ADDR", format!("localhost:{}", ras.port()));
    command.spawn().expect("starts")
}

/// Two jobs with NCCL RAS, of which only one is examined with the consent to a query: nobody has seen them at work.
pub(crate) fn why_queries_nccl_ras_through_sshd_only_with_consent() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = Arc::new(Mutex::new(0));
    let of_rank = Arc::clone(&pid);
    let asked = FakeRas::start(move || report_of(*of_rank.lock().expect("not poisoned")));
    let other = FakeRas::start(String::new);
    let lab = Lab::start_with_workers(&["hgx-01", "hgx-02"], |host| {
        // Equal commands would make them one job on two hosts.
        let (ras, seconds) = if host == "hgx-01" { (&asked, "3600") } else { (&other, "3601") };
        start_rank(&folder.path().join(host).join("libnccl.so.2.30.7"), seconds, ras)
    });
    lab.hosts[1].driver.set(&scenario(lab.hosts[1].worker_pid(), 0));
    *pid.lock().expect("not poisoned") = lab.hosts[0].worker_pid();
    let hosts = lab.hosts_toml("");
    let targets = [0, 1].map(|host| format!("{}:{}", lab.hosts[host].name, lab.hosts[host].worker_pid()));
    let [(code, stdout, stderr), (_, careful, _)] = std::thread::scope(|scope| {
        let with_consent = scope.spawn(|| run(&["why", &targets[0], "--ask-ras", "--json", &hosts]));
        let without = scope.spawn(|| run(&["why", &targets[1], &hosts]));
        [with_consent, without].map(|thread| thread.join().expect("it ends"))
    });
    let dialogue = ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"];
    assert_eq!(asked.finish(), dialogue.repeat(2), "a minute apart: {stdout}");
    let refusal = "not seen  NCCL RAS: this gpufleet has not seen the job at work";
    assert!(careful.contains(refusal), "{careful}");
    assert_eq!(other.finish(), Vec::<String>::new(), "there is no connection without the consent");

    assert_eq!((code, stderr.as_str()), (5, ""), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(report["outcome"], "likely", "the rank behind is on a host that is not watched: {report:#}");
    let culprit = &report["culprit"];
    assert_eq!((&culprit["reason"], &culprit["operation"]), (&"behind".into(), &"AllReduce 61 to 64".into()));
    let rank = &culprit["ranks"][0];
    assert_eq!((&rank["world_rank"], &rank["pid"]), (&1.into(), &1_650_386.into()), "{report:#}");
    assert_eq!((&rank["host"], &rank["watched"]), (&"10.0.0.9".into(), &false.into()), "{report:#}");
    let evidence = &report["evidence"][0];
    assert_eq!(evidence["text"], "AllReduce: 1 rank at 64, rank 1 at 60, none moved", "{report:#}");
}

/// An asynchronous error of NCCL proves that the job has failed: nothing has to be read twice.
#[test]
fn why_ends_with_the_first_reading_if_it_proves_the_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = Arc::new(Mutex::new(0));
    let of_rank = Arc::clone(&pid);
    let ras = FakeRas::start(move || {
        let report = report_of(*of_rank.lock().expect("not poisoned"));
        // `ncclRemoteError` of the second rank.
        let second = report.rfind("\"async_error\": 0").expect("two ranks");
        format!("{}\"async_error\": 6{}", &report[..second], &report[second + "\"async_error\": 0".len()..])
    });
    let lab =
        Lab::start_with_workers(&["hgx-01"], |_| start_rank(&folder.path().join("libnccl.so.2.30.7"), "3600", &ras));
    *pid.lock().expect("not poisoned") = lab.hosts[0].worker_pid();
    let hosts = lab.hosts_toml("");
    let begun = Instant::now();
    let target = format!("hgx-01:{}", lab.hosts[0].worker_pid());
    let (code, stdout, stderr) = run(&["why", &target, "--ask-ras", "--json", &hosts]);
    let took = begun.elapsed();
    assert_eq!((code, stderr.as_str()), (4, ""), "{stdout}");
    // The second reading would begin after 60 s; this run takes about 3 s on an idle machine.
    assert!(took < Duration::from_secs(55), "{took:?}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        (&report["outcome"], &report["culprit"]["reason"]),
        (&"proven".into(), &"async_error".into()),
        "{report:#}"
    );
    assert_eq!(report["processes"][0]["readings"], 1);
    assert_eq!(ras.finish(), ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"], "once");
}

#[test]
fn why_does_not_examine_a_process_of_another_user() {
    if !has_root() {
        return;
    }
    let lab = Lab::start_with_workers(&["hgx-01"], |_| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "sleep", "3600"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).spawn().expect("setpriv starts")
    });
    let hosts = lab.hosts_toml("");
    let (code, stdout, stderr) = run(&["why", &format!("hgx-01:{}", lab.hosts[0].worker_pid()), &hosts]);
    let expected = "gpufleet: hgx-01: the job belongs to nobody, and gpufleet is logged in as root: only its owner may \
                    examine a process\n  hint: ask nobody to run `gpufleet why`\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (1, "", expected));
}

/// Two hosts with a job each that hangs. A line of its log proves the hang, so that one reading is enough.
pub(crate) struct HungJobs {
    pub(crate) lab: Lab,
    /// The path of hosts.toml.
    pub(crate) hosts: String,
    _logs: tempfile::TempDir,
}

/// Starts them. Findings about them warn after `warn_after`, such as `20s`.
pub(crate) fn hung_jobs(warn_after: &str) -> HungJobs {
    // A wait that is longer than the age of the process would be from an earlier run.
    const LINE: &str = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=61, OpType=ALLREDUCE, NumelIn=8, \
                        NumelOut=8, Timeout(ms)=100) ran for 168 milliseconds before timing out.";
    let folder = tempfile::tempdir().expect("a folder");
    let lab = Lab::start_with_workers(&["hgx-01", "hgx-02"], |host| {
        let log = std::fs::File::create(folder.path().join(host)).expect("the log");
        // Equal commands would make them one job on two hosts.
        let seconds = if host == "hgx-01" { "3600" } else { "3601" };
        let mut command = Command::new("sh");
        command.args(["-c", "echo \"$LINE\" >&2; exec sleep \"$0\"", seconds]).env("LINE", LINE).env("RANK", "3");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("starts")
    });
    for host in &lab.hosts {
        let hung = serde_json::json!({
            "utilization_percent": 100, "memory_utilization_percent": 0, "memory_used_bytes": 61_203_283_968_u64,
            "power_watts": 104, "clock_sm_mhz": 1755, "processes": [{"pid": host.worker_pid(), "memory_bytes": 60_129_542_144_u64}]
        });
        host.driver.set(&devices(&[gpu_with(0, &hung), gpu_with(1, &hung)]));
    }
    let hosts = lab.hosts_toml(&format!("\n[diagnosis]\nstuck-spin-suspect = {{ warn_after = \"{warn_after}\" }}"));
    HungJobs { lab, hosts, _logs: folder }
}

pub(crate) fn the_finding_about_a_job_that_looks_hung_warns_with_its_verdict() {
    // A busy machine takes longer than 20 s for the examination.
    let HungJobs { lab: _lab, hosts, _logs } = hung_jobs("45s");
    let text = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let second = "name = \"hgx-02\"\n";
    std::fs::write(&hosts, text.replace(second, &format!("{second}examine = \"asked\"\n"))).expect("is written");
    let (_, stdout, stderr) = run(&["findings", "--watch", "--json", "--for", "55", &hosts]);
    let changes: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let warning = |host: &str| {
        let is_it = |one: &&Value| one["host"] == host && one["rule"] == "stuck-spin-suspect" && one["to"] == "firing";
        changes.iter().find(is_it).unwrap_or_else(|| panic!("{host}: {stdout}{stderr}"))
    };
    let verdict = &warning("hgx-01")["verdict"];
    assert_eq!(verdict["outcome"], "proven", "{stdout}");
    assert_eq!(warning("hgx-01")["confidence"], "certain");
    let sentence = verdict["sentence"].as_str().expect("a sentence");
    let said = warning("hgx-01")["sentence"].as_str().expect("a sentence");
    assert!(said.starts_with(&format!("{sentence} (proven); GPUs 0,1 read 100 % busy")), "{said}");
    assert_eq!(warning("hgx-02")["verdict"], Value::Null, "examine = \"asked\": {stdout}");
}
