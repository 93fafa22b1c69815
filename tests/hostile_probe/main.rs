//! A host that misbehaves. The first argument names the way; `PROBE` and `SHELL` list them. In place of the probe it speaks
//! the wire protocol, in place of the shell it answers the remote script. Everything else on such a host is real: the
//! sshd, the connection and the script.
//!
//! It ends when its input ends or its output is closed, as the probe does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a host that misbehaves may also panic")]

mod escapes;

use escapes::ESCAPES;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::exit;
use std::time::{Duration, Instant};

/// Writes in place of the probe, after its hello.
type ProbeAttack = fn(&mut Output);
/// Writes in place of the shell. The second argument is the nonce.
type ShellAttack = fn(&mut Output, &str);

/// Ways to misbehave in place of the probe.
const PROBE: [(&str, ProbeAttack); 15] = [
    ("honest", honest),
    ("endless-line", endless_line),
    ("gigabyte-lines", gigabyte_lines),
    ("flood", flood),
    ("largest", largest),
    ("long-lists", long_lists),
    ("growing-facts", growing_facts),
    ("changing", changing),
    ("uninvited-replies", uninvited_replies),
    ("extreme-numbers", extreme_numbers),
    ("trickle", trickle),
    ("silent", silent),
    ("control-characters", control_characters),
    ("stderr", stderr),
    ("nested", nested),
];

/// Ways to misbehave in place of the shell.
const SHELL: [(&str, ShellAttack); 4] = [
    ("endless-skip", endless_skip),
    ("endless-noise", |output, _| output.repeat(b"Welcome to the lab!\n", usize::MAX)),
    ("nvidia-smi", nvidia_smi),
    ("nvidia-smi-processes", nvidia_smi_processes),
];

/// Time between two messages of a host that keeps to the interval.
const INTERVAL: Duration = Duration::from_millis(200);
/// The longest line that the controller accepts.
const LINE_BYTES: usize = 1 << 20;
const MAX_GPUS: u32 = 512;
const MAX_PROCESSES: u32 = 2048;

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let mut output = Output(File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap()));
    if let Some((_, misbehave)) = PROBE.iter().find(|(name, _)| *name == mode) {
        read_to_end(std::io::stdin());
        // Every host says hello once.
        if mode != "control-characters" {
            output.send(&hello(1));
        }
        misbehave(&mut output);
    } else if let Some((_, misbehave)) = SHELL.iter().find(|(name, _)| *name == mode) {
        // `printf '\n%s shell %s\n' NONCE "$(uname -sm)"`
        let mut input = BufReader::new(std::io::stdin());
        let mut marker = String::new();
        input.read_line(&mut marker).unwrap();
        let nonce = marker.split(' ').nth(4).unwrap_or_default().to_owned();
        output.write(format!("\n{nonce} shell Linux {}\n", std::env::consts::ARCH).as_bytes());
        if mode.starts_with("nvidia-smi") {
            // The script reads its requests from the same input: see `requests`.
            let mut line = String::new();
            while line != "main\n" {
                line.clear();
                if input.read_line(&mut line).unwrap() == 0 {
                    exit(0);
                }
            }
            output.write(
                format!("\n{nonce} hello\nboot_id 1\nlogin_uid 1000\nlogin_user bob\n\n{nonce} end\n").as_bytes(),
            );
            requests(input, &mut output, &nonce, *misbehave);
        } else {
            read_to_end(input);
            misbehave(&mut output, &nonce);
        }
    } else {
        eprintln!("hostile_probe: unknown mode '{mode}'");
        exit(2);
    }
    // Stays connected until its input ends.
    loop {
        std::thread::park();
    }
}

/// Reads and forgets all input. The program ends with it.
fn read_to_end(mut input: impl Read + Send + 'static) {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(1..) = input.read(&mut chunk) {}
        exit(0)
    });
}

/// Standard output, unbuffered. The program ends when it is closed.
struct Output(File);

impl Output {
    fn write(&mut self, bytes: &[u8]) {
        if self.0.write_all(bytes).is_err() {
            exit(0);
        }
    }

    /// Writes one message as a line.
    fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    /// Writes `bytes` again and again, in large blocks, until it has written `total` bytes.
    fn repeat(&mut self, bytes: &[u8], total: usize) {
        let block = bytes.repeat((64 * 1024 / bytes.len()).max(1));
        let mut left = total;
        while left > 0 {
            let count = block.len().min(left);
            self.write(&block[..count]);
            left -= count;
        }
    }
}

fn hello(boot: u64) -> Value {
    json!({"hello": {
        "protocol": 1, "probe_version": "9", "boot_id": format!("boot-{boot}"), "host_name": format!("host-{boot}"),
        "login_user": format!("user-{boot}"), "login_uid": boot % 60_000, "kernel": "6", "arch": "x86_64", "cpu_count": 64,
        "memory_total_bytes": 1_u64 << 40, "source": "probe", "probe_pid": boot % 60_000
    }})
}

fn inventory(generation: u64, count: u32, text: &str) -> Value {
    let gpu = |index: u32| {
        json!({
            "index": index, "uuid": format!("GPU-{generation}-{index}"), "name": text,
            "memory_total_bytes": 1_u64 << 37, "power_limit_watts": 700
        })
    };
    json!({"inventory": {"generation": generation, "driver_version": "570", "gpus": (0..count).map(gpu).collect::<Vec<_>>()}})
}

/// A snapshot of `count` idle GPUs, with further fields.
fn snapshot(sequence: u64, generation: u64, count: u32, fields: &Value) -> Value {
    let mut snapshot = json!({
        "sequence": sequence, "generation": generation, "monotonic_seconds": sequence as f64 / 4.0,
        "wall_unix_ms": 1_800_000_000_000_u64 + sequence, "interval_seconds": 0.5, "host": {"cpu_percent": 3, "load_1": 1},
        "gpus": {
            "rows": count, "utilization_percent": 3, "memory_used_bytes": 1_u64 << 30, "temperature_celsius": 30,
            "power_watts": 70 + sequence % 7
        }
    });
    for (name, value) in fields.as_object().into_iter().flatten() {
        snapshot[name] = value.clone();
    }
    json!({ "snapshot": snapshot })
}

/// Calls `each` with 1, 2 and so on, once per interval, without end.
fn at_intervals(interval: Duration, mut each: impl FnMut(u64)) {
    let began = Instant::now();
    for number in 1.. {
        each(number);
        std::thread::sleep((interval * number as u32).saturating_sub(began.elapsed()));
    }
}

/// The host in whose place the others are: one GPU, no process.
fn honest(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    at_intervals(INTERVAL, |number| output.send(&snapshot(number, 1, 1, &json!({}))));
}

/// A line that does not end and is no JSON.
fn endless_line(output: &mut Output) {
    output.repeat(b"x", usize::MAX);
}

/// Messages of a gigabyte each, valid up to their end.
fn gigabyte_lines(output: &mut Output) {
    loop {
        output.write(br#"{"snapshot":{"notes":[""#);
        output.repeat(b"note", 1 << 30);
        output.write(b"\"]}}\n");
    }
}

/// Ten thousand valid snapshots a second.
fn flood(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    at_intervals(Duration::from_millis(10), |tick| {
        let lines: String =
            (0..100).map(|number| format!("{}\n", snapshot(tick * 100 + number, 1, 1, &json!({})))).collect();
        output.write(lines.as_bytes());
    });
}

/// Everything that the protocol allows, at once, in every snapshot. Texts fill the rest of the line.
fn largest(output: &mut Output) {
    let text = "long name ".repeat(150);
    output.send(&inventory(1, MAX_GPUS, &text));
    // The interval of the controller.
    at_intervals(Duration::from_millis(500), |number| {
        // Equal values are sent once and take the memory of all rows.
        let pids: Vec<u32> = (1..=MAX_PROCESSES).collect();
        let (gpu_pids, gpus): (Vec<u32>, Vec<u32>) =
            (0..2 * MAX_PROCESSES).map(|row| (row % MAX_PROCESSES + 1, row % MAX_GPUS)).unzip();
        let facts: Vec<Value> = (1..=MAX_PROCESSES)
            .map(|pid| json!({"pid": pid, "start_ticks": pid, "user": format!("user{pid}"), "argv": ["python", &text[..100]]}))
            .collect();
        let fields = json!({
            "gpu_processes": {
                "rows": 2 * MAX_PROCESSES, "pid": gpu_pids, "gpu": gpus, "kind": "C", "gpu_memory_bytes": 1_u64 << 20,
                "sm_percent": 1, "memory_percent": 1, "encoder_percent": 1, "decoder_percent": 1
            },
            "processes": {
                "rows": MAX_PROCESSES, "pid": pids, "start_ticks": pids, "presence": "visible", "state": "R",
                "cpu_percent": 1.5, "cpu_seconds": number, "rss_bytes": 1, "threads": 1, "age_seconds": 1, "parent_pid": 1,
                "wait_channel": text.repeat(2)
            },
            "facts": facts,
        });
        let line = snapshot(number, 1, MAX_GPUS, &fields);
        assert!(line.to_string().len() <= LINE_BYTES, "the largest line is allowed");
        output.send(&line);
    });
}

/// Lists with as many of the smallest entries as a line holds.
fn long_lists(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    let list = |entry: &str| vec![entry; (LINE_BYTES - 600) / (entry.len() + 1)].join(",");
    let lines = [
        format!(r#"{{"snapshot":{{"generation":1,"notes":[{}]}}}}"#, list(r#""""#)),
        format!(r#"{{"snapshot":{{"generation":1,"host":{{"filesystems":[{}]}}}}}}"#, list("{}")),
        format!(r#"{{"snapshot":{{"generation":1,"host":{{"slurm_allocated_gpus":[{}]}}}}}}"#, list("1")),
        format!(r#"{{"snapshot":{{"generation":1,"recent_past":[{}]}}}}"#, list("{}")),
        format!(r#"{{"snapshot":{{"generation":1,"recent_past":[{{"power_watts":[{}]}}]}}}}"#, list("1")),
        format!(r#"{{"snapshot":{{"generation":1,"facts":[{{"pid":5,"argv":[{}]}}]}}}}"#, list(r#""""#)),
        format!(r#"{{"snapshot":{{"generation":1,"facts":[{{"pid":6,"ancestors":[{}]}}]}}}}"#, list("{}")),
        format!(
            r#"{{"snapshot":{{"generation":1,"xid_events":[{}]}}}}"#,
            list(r#"{"gpu":0,"xid":79,"monotonic_seconds":1}"#)
        ),
        format!(r#"{{"snapshot":{{"generation":1,"gpus":{{"fan_percent":[{}]}}}}}}"#, list("1")),
        format!(r#"{{"reply":{{"id":1,"outcome":{{"environment":[{}]}}}}}}"#, list(r#""""#)),
    ];
    at_intervals(INTERVAL, |number| output.write(format!("{}\n", lines[number as usize % lines.len()]).as_bytes()));
}

/// New processes in each snapshot, while the driver fails so that the earlier ones are kept.
fn growing_facts(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    at_intervals(INTERVAL, |number| {
        let pids: Vec<u64> =
            (0..u64::from(MAX_PROCESSES)).map(|place| number * u64::from(MAX_PROCESSES) + place).collect();
        let facts: Vec<Value> = pids
            .iter()
            .map(|pid| json!({"pid": pid, "start_ticks": pid, "argv": ["python", format!("train{pid}.py"), "--out", format!("/tmp/{pid}")]}))
            .collect();
        let fields = json!({
            "facts": facts,
            "gpu_processes": {"rows": MAX_PROCESSES, "pid": pids, "gpu": 0, "kind": "C", "gpu_memory_bytes": 1},
            "processes": {"rows": MAX_PROCESSES, "pid": pids, "start_ticks": pids, "presence": "visible", "state": "R"},
            "driver_error": if number % 2 == 0 { json!({"kind": "blocked", "message": "no answer"}) } else { Value::Null },
        });
        output.send(&snapshot(number, 1, 1, &fields));
    });
}

/// Another host, other GPUs and other processes each time.
fn changing(output: &mut Output) {
    at_intervals(INTERVAL, |number| {
        output.send(&hello(number));
        output.send(&inventory(number, MAX_GPUS, &format!("GPU of generation {number}")));
        let fields = json!({
            "facts": [{"pid": number, "start_ticks": number, "user": format!("user{number}"), "argv": ["python"]}],
            "gpu_processes": {"rows": MAX_GPUS, "pid": number, "gpu": (0..MAX_GPUS).collect::<Vec<_>>(), "gpu_memory_bytes": 1},
            "processes": {"rows": 1, "pid": [number], "start_ticks": [number], "presence": "visible"},
        });
        output.send(&snapshot(number, number, MAX_GPUS, &fields));
    });
}

/// Answers to requests that nobody sent, as fast as possible.
fn uninvited_replies(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    output.send(&snapshot(1, 1, 1, &json!({})));
    let line = |message: Value| format!("{message}\n");
    let environment = vec!["NAME=value".repeat(40); 160];
    let lines: String = (0..40)
        .flat_map(|id| {
            [
                line(json!({"echo": {"id": id}})),
                line(json!({"reply": {"id": id, "outcome": "sent"}})),
                line(json!({"reply": {"id": id, "outcome": {"environment": environment}}})),
                line(json!({"reply": {"id": u64::MAX - id, "outcome": {"log_tail": {"path": "/x", "lines": environment}}}})),
                line(json!({"reply": {"id": id, "outcome": "granted"}})),
                line(json!({"farewell": {"reason": "not yet"}})),
                line(json!({"unheard_of": {"id": id}})),
            ]
        })
        .collect();
    output.repeat(lines.as_bytes(), usize::MAX);
}

/// The ends of the ranges of all numbers. JSON has no NaN; a number beyond the range of its type becomes an infinity.
fn extreme_numbers(output: &mut Output) {
    output.send(&inventory(u64::from(u32::MAX), 2, "NVIDIA H100"));
    let extremes = ["1e308", "-1e308", "5e-324", "-0.0", "1e39", "4294967295"];
    let integers = ["0", "1", "127", "255", "65535", "4294967295", "18446744073709551615"];
    at_intervals(INTERVAL, |number| {
        let (float, integer) = (extremes[number as usize % extremes.len()], integers[number as usize % integers.len()]);
        let percent = ["0", "255"][number as usize % 2];
        let celsius = ["-2147483648", "2147483647"][number as usize % 2];
        output.write(
            format!(
                "{{\"snapshot\":{{\"sequence\":{integer},\"generation\":4294967295,\"monotonic_seconds\":{float},\
                 \"wall_unix_ms\":{sign}9223372036854775807,\"interval_seconds\":{float},\
                 \"host\":{{\"cpu_percent\":{float},\"load_1\":{float},\"memory_total_bytes\":{integer},\
                 \"memory_available_bytes\":18446744073709551615,\"uptime_seconds\":{float},\
                 \"network_receive_bytes_per_second\":{float},\"oom_kills\":{integer}}},\
                 \"gpus\":{{\"rows\":2,\"utilization_percent\":{percent},\"memory_used_bytes\":{integer},\
                 \"temperature_celsius\":{celsius},\"power_watts\":{float},\"power_mean_watts\":{float},\
                 \"energy_joules\":{float},\"clock_graphics_mhz\":4294967295,\"fan_percent\":65535,\
                 \"clocks_event_reasons\":{integer},\"pcie_receive_bytes_per_second\":{float},\
                 \"blocked_seconds\":{float},\"sm_activity_percent\":{float}}},\
                 \"health\":{{\"rows\":2,\"ecc_uncorrectable_volatile\":{integer},\"nvlinks_active\":{integer}}},\
                 \"xid_events\":[{{\"gpu\":65535,\"xid\":{integer},\"monotonic_seconds\":{float}}}],\
                 \"recent_past\":[{{\"gpu\":65535,\"end_monotonic_seconds\":{float},\"power_watts\":[{float}]}}],\
                 \"gpu_processes\":{{\"rows\":2,\"pid\":[4294967295,7],\"gpu\":[65535,1],\"gpu_memory_bytes\":{integer},\
                 \"sm_percent\":{percent}}},\
                 \"processes\":{{\"rows\":2,\"pid\":[4294967295,7],\"start_ticks\":{integer},\"cpu_percent\":{float},\
                 \"cpu_seconds\":{float},\"age_seconds\":{float},\"rss_bytes\":{integer},\"blocked_seconds\":{float},\
                 \"descendants\":4294967295}},\
                 \"facts\":[{{\"pid\":7,\"start_ticks\":{integer},\"start_unix_seconds\":{sign}9223372036854775807,\
                 \"uid\":4294967295,\"argv\":[\"python\"]}}],\
                 \"processes_left_out\":4294967295,\
                 \"cost\":{{\"cpu_seconds\":{float},\"rss_bytes\":{integer},\"sample_ms\":{float}}}}}}}\n",
                sign = if number % 2 == 0 { "-" } else { "" },
            )
            .as_bytes(),
        );
    });
}

/// One byte of a valid snapshot each second.
fn trickle(output: &mut Output) {
    output.send(&inventory(1, 1, "NVIDIA H100"));
    output.send(&snapshot(1, 1, 1, &json!({})));
    let line = snapshot(2, 1, 1, &json!({})).to_string();
    at_intervals(Duration::from_secs(1), |number| output.write(&line.as_bytes()[number as usize % line.len()..][..1]));
}

/// Nothing after the hello.
fn silent(_: &mut Output) {}

/// Control characters, bidirectional overrides and escape sequences in every text and in the names of fields.
fn control_characters(output: &mut Output) {
    let mut index = 0;
    let mut text = move || {
        index += 1;
        format!("{}987{}", ESCAPES[index % ESCAPES.len()], ESCAPES[(index / 7) % ESCAPES.len()])
    };
    output.send(&json!({"hello": {
        "protocol": 1, "probe_version": text(), "boot_id": text(), "host_name": text(), "login_user": text(),
        "kernel": text(), "arch": text(), "source": text(), text(): text()
    }}));
    at_intervals(INTERVAL, |number| {
        // A new inventory now and then.
        let generation = 1 + (number - 1) / 5;
        if number % 5 == 1 {
            output.send(&json!({"inventory": {
                "generation": generation, "driver_version": text(), "cuda_version": text(), "nvml_path": text(),
                "gpus": [{"index": 0, "uuid": text(), "name": text(), "pci_bus_id": text(), "memory_total_bytes": 1_u64 << 37}],
            }}));
        }
        let error = json!({"kind": text(), "code": 15, "message": text()});
        let fields = json!({
            "notes": [text(), text()],
            "host": {"filesystems": [{"mount_point": text(), "kind": text()}], "slurm_cluster": text()},
            "gpu_processes": {"rows": 1, "pid": [7], "gpu": [0], "kind": text(), "gpu_memory_bytes": 1 << 20},
            "processes": {"rows": 1, "pid": [7], "start_ticks": [1], "state": "D", "wait_channel": text()},
            "facts": [{
                "pid": 7, "start_ticks": 1, "user": text(), "full_name": text(), "name": text(), "argv": [text(), text()],
                "working_directory": text(), "log_path": text(), "container_name": text(), "runs_in": text(),
                "ancestors": [{"pid": 2, "name": text(), "argv": [text()]}], "owner": {"service": text()}
            }],
            "driver_error": if number % 4 == 0 { error.clone() } else { Value::Null },
        });
        let mut message = snapshot(number, generation, 1, &fields);
        if number % 3 == 0 {
            message["snapshot"]["gpus"]["error"] = json!([error]);
        }
        output.send(&message);
        output.send(&json!({"reply": {"id": number, "outcome": {"refused": text()}}}));
    });
}

/// An honest host with endless errors, with escape sequences.
fn stderr(output: &mut Output) {
    std::thread::spawn(|| {
        let mut errors = Output(File::from(std::io::stderr().as_fd().try_clone_to_owned().unwrap()));
        errors.repeat(ESCAPES.concat().as_bytes(), usize::MAX);
    });
    honest(output);
}

/// Lists within lists.
fn nested(output: &mut Output) {
    let deep = format!("{{\"snapshot\":{{\"from_the_future\":{}", "[".repeat(LINE_BYTES - 100));
    output.write(format!("{deep}\n").as_bytes());
}

/// Directories without end that are not usable.
fn endless_skip(output: &mut Output, nonce: &str) {
    let place = "/somewhere".repeat(400);
    let lines = format!("{nonce} try {place}\n{nonce} skip {place}: {}\n", ESCAPES.concat().replace('\n', ""));
    output.repeat(lines.as_bytes(), usize::MAX);
}

/// Answers each request of the controller to the nvidia-smi script.
fn requests(input: impl BufRead, output: &mut Output, nonce: &str, sample: ShellAttack) {
    for line in input.lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("echo", id) => output.write(format!("\n{nonce} echo {id}\n").as_bytes()),
            ("host", _) => output.write(format!("\n{nonce} host /proc/loadavg 1 1 1\n\n{nonce} host\n").as_bytes()),
            ("gpus", fields) if fields.split(',').count() > 14 => {
                // The rows below have the basic fields.
                output.write(format!("\n{nonce} gpus\nInvalid\n\n{nonce} status 2\n\n{nonce} end\n").as_bytes());
            }
            _ => sample(output, nonce),
        }
    }
    exit(0);
}

/// Lists of 8 MB in each section of a sample.
fn nvidia_smi(output: &mut Output, nonce: &str) {
    for section in ["gpus", "apps", "processes", "users"] {
        output.write(format!("\n{nonce} {section}\n").as_bytes());
        let line = match section {
            "apps" => "GPU-1, 77, 1200\n",
            _ => "0, GPU-1, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0\n",
        };
        output.repeat(line.as_bytes(), 8 << 20);
        output.write(format!("\n{nonce} status 0\n").as_bytes());
    }
    output.write(format!("\n{nonce} end\n").as_bytes());
}

/// As many new processes in each sample as a section holds.
fn nvidia_smi_processes(output: &mut Output, nonce: &str) {
    static SAMPLES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    let first = 8192 * SAMPLES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let gpus = "0, GPU-1, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0";
    let per_process = |line: &dyn Fn(usize) -> String| (first..first + 8192).map(line).collect::<String>();
    let apps = per_process(&|pid| format!("GPU-1, {pid}, 1\n"));
    let processes = per_process(&|pid| format!("{pid} (python) R 1 1 1 0 -1 0 0 0 0 0 9 9 0 0 20 0 1 0 {pid} 1 1\n"));
    let users = per_process(&|pid| format!("{pid} 1000 bob python train{pid}.py {}\n", "--flag ".repeat(10)));
    output.write(
        format!(
            "\n{nonce} gpus\n{gpus}\n\n{nonce} status 0\n\n{nonce} apps\n{apps}\n{nonce} status 0\n\n{nonce} \
             processes\n{processes}\n{nonce} users\n{users}\n{nonce} end\n"
        )
        .as_bytes(),
    );
}
