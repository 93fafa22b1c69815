//! `gpufleet collect --metrics` with real sshds, and with a real Prometheus.

use crate::collect::{CollectorProcess, run};
use crate::lab::Lab;
use crate::sshd::free_port;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a scrape, an answer of Prometheus or a change may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The body of a GET request, or `None` if nothing answers.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    // With HTTP/1.0 the body is not in chunks and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// Waits until `wanted` returns a value.
#[track_caller]
fn wait_until<T>(what: &str, limit: Duration, mut wanted: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = wanted() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited for {what}");
        // Polling without a pause would take the processor from the programs that it waits for.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Starts a collector with metrics and returns it with their address.
#[track_caller]
fn start(lab: &Lab, more: &[&str]) -> (CollectorProcess, SocketAddr) {
    let hosts = lab.hosts_toml("");
    let arguments = [&[hosts.as_str(), "--metrics", "127.0.0.1:0"], more].concat();
    let collector = CollectorProcess::start(lab, "collector.log", &arguments);
    let line = collector.wait_for("metrics are at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.strip_suffix("/metrics")).expect("an address");
    (collector, address.parse().expect("an address"))
}

/// The value of the sample that begins with this text.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(sample))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn metrics_follow_the_fleet() {
    let mut lab = Lab::start(&["met-1", "met-2"]);
    let (mut collector, address) = start(&lab, &["--per-process"]);
    let scrape = || get(address, "/metrics").expect("an answer");
    let both_up = |text: &str| {
        ["met-1", "met-2"].iter().all(|host| value(text, &format!("gpufleet_host_up{{host=\"{host}\"}}")) == Some(1.0))
    };
    let text = wait_until("both hosts", LIMIT, || Some(scrape()).filter(|text| both_up(text)));
    assert_eq!(value(&text, "gpufleet_gpu_utilization_ratio{host=\"met-1\",gpu=\"0\""), Some(0.97), "{text}");
    assert_eq!(value(&text, "gpufleet_gpu_memory_used_bytes{host=\"met-2\",gpu=\"1\""), Some(61_203_283_968.0));
    assert_eq!(value(&text, "gpufleet_gpu_utilization_ratio{host=\"met-1\",gpu=\"3\""), None, "this GPU is lost");
    let user = lab.hosts[0].sshd.user();
    // The name of the user comes later than the process.
    wait_until("the process and its user", LIMIT, || {
        let process = format!("user=\"{user}\",program=\"sleep\"}} 60129542144");
        let is_it = |line: &str| line.starts_with("gpufleet_process_gpu_memory_bytes{host=\"met-1\"");
        scrape().lines().find(|line| is_it(line) && line.ends_with(&process)).map(str::to_owned)
    });
    wait_until("the finding", LIMIT, || {
        value(&scrape(), "gpufleet_finding{rule=\"gpu-lost\",severity=\"crit\",host=\"met-1\",gpu=\"3\"")
    });
    lab.hosts[1].sshd.stop();
    let text = wait_until("the loss", LIMIT, || Some(scrape()).filter(|text| !both_up(text)));
    assert_eq!(value(&text, "gpufleet_host_up{host=\"met-2\"}"), Some(0.0));
    assert_eq!(value(&text, "gpufleet_gpu_utilization_ratio{host=\"met-2\""), None, "{text}");
    assert_eq!(value(&text, "gpufleet_gpu_utilization_ratio{host=\"met-1\",gpu=\"0\""), Some(0.97), "{text}");
    assert!(!collector.log().contains("no login"), "{}", collector.log());
    let (code, took) = collector.end();
    assert!(code == Some(0) && took < Duration::from_secs(3), "{code:?} after {took:?}");
}

#[test]
fn addresses_are_checked_and_open_ones_are_named() {
    let lab = Lab::start(&["met-3"]);
    let hosts = lab.hosts_toml("");
    let (_collector, address) = start(&lab, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let [store, socket] = ["other.db", "other.sock"].map(|name| folder.path().join(name).display().to_string());
    let output =
        run(&lab, &["collect", &hosts, "--store", &store, "--socket", &socket, "--metrics", &address.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!(
            "gpufleet: viewers connect to {socket}\ngpufleet: cannot listen on {address} for the metrics: Address already \
             in use\n  hint: write another address, as in --metrics 127.0.0.1:9900\n"
        )
    );
    let open = CollectorProcess::start(&lab, "open.log", &[&hosts, "--store", &store, "--metrics", "0.0.0.0:0"]);
    open.wait_for("everyone who can reach this address reads the metrics, with host and user names: there is no login");
}

/// A file of packaging/.
fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name)
}

/// Runs promtool with this input, and fails if it finds a problem.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "promtool does not start: {error}\ninstall it and prometheus: on Debian `apt-get install \
                 --no-install-recommends prometheus`, as tests/run --all does"
            )
        });
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("takes its input");
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
}

/// A Prometheus that scrapes one address every two seconds. Dropping it kills it.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(target: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = packaged("prometheus-rules.yml");
        let configuration = format!(
            "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}\nrule_files: [\"{}\"]\nscrape_configs:\n- job_name: \
             gpufleet\n  static_configs: [{{targets: [\"{target}\"]}}]\n",
            rules.display()
        );
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, configuration).expect("writes");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)));
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        let prometheus = Self { child, address, folder };
        wait_until("Prometheus", LIMIT, || get(address, "/-/ready"));
        prometheus
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The answer to a request of its HTTP API.
    #[track_caller]
    fn api(&self, path: &str) -> Value {
        let body = get(self.address, path).unwrap_or_else(|| panic!("no answer to {path}: {}", self.log()));
        serde_json::from_str(&body).expect("JSON")
    }

    /// The results of a query.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.api(&format!("/api/v1/query?query={encoded}"));
        answer["data"]["result"].as_array().expect("results").clone()
    }
}

#[test]
fn a_real_prometheus_reads_the_metrics_and_every_query_of_the_dashboard_has_data() {
    if std::env::var_os("GPUFLEET_TESTS_ALL").is_none() {
        return crate::lab::skip("it takes two minutes and needs Prometheus: tests/run --all runs it");
    }
    let shown = |name: &str| packaged(name).display().to_string();
    promtool(&["check", "rules", &shown("prometheus-rules.yml")], "");
    promtool(&["test", "rules", &shown("prometheus-rules-test.yml")], "");
    let lab = Lab::start(&["prom-1", "prom-2"]);
    let (_collector, address) = start(&lab, &["--per-process"]);
    let up = |text: &str| value(text, "gpufleet_host_up{host=\"prom-2\"}") == Some(1.0);
    let text = wait_until("metrics", LIMIT, || get(address, "/metrics").filter(|text| up(text)));
    promtool(&["check", "metrics"], &text);
    let prometheus = Prometheus::start(address);
    // Two minutes of scrapes.
    wait_until("60 scrapes", LIMIT * 5, || {
        let results = prometheus.query("sum_over_time(up{job=\"gpufleet\"}[10m]) >= 60");
        (!results.is_empty()).then_some(())
    });
    let targets = prometheus.api("/api/v1/targets");
    assert_eq!(targets["data"]["activeTargets"][0]["lastError"], "", "{targets}");
    let log = prometheus.log();
    assert!(!log.contains("level=warn") && !log.contains("level=error"), "{log}");
    let dashboard = std::fs::read_to_string(packaged("grafana-dashboard.json")).expect("reads");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let query = target["expr"].as_str().expect("a query").replace("$host", ".*").replace("$__range", "5m");
            assert!(!query.contains('$'), "{query}");
            let results = prometheus.query(&query);
            let has_data = results.iter().any(|result| result["value"][1].as_str().is_some_and(|value| value != "NaN"));
            assert!(has_data, "{}: {query}: {results:?}", panel["title"]);
            queries += 1;
        }
    }
    assert!(queries >= 15, "{queries} queries");
    let alert = wait_until("the alert about the lost GPU", LIMIT, || {
        let alerts = prometheus.api("/api/v1/alerts");
        let alerts = alerts["data"]["alerts"].as_array().expect("alerts");
        alerts
            .iter()
            .find(|alert| alert["labels"]["rule"] == "gpu-lost" && alert["labels"]["host"] == "prom-1")
            .cloned()
    });
    assert_eq!(alert["labels"]["alertname"], "GpuFindingCritical");
    assert_eq!(alert["annotations"]["summary"], "gpu-lost on prom-1, GPU 3");
}
