//! Numbers at the ends of their ranges in every field that a host sends. No calculation overflows on the way to rows,
//! findings, screens and exports: a debug build panics if one does.

use crate::app::testing::press;
use crate::app::{App, DisplaySettings, Event};
use crate::config::{HostConfig, Thresholds};
use crate::diagnosis::{Engine, Finding, SavedState};
use crate::fleet::recording::{self, Recorder};
use crate::fleet::{
    Fleet, GpuRequirements, Group, HostId, HostUpdate, ListOrder, Moment, RowCache, SortKey, Totals, UsageLedger,
    choose_gpus, free_gpus, host_users, users,
};
use crate::output::findings::FindingsReport;
use crate::output::free::FreeReport;
use crate::output::paint::Paint;
use crate::output::{Report, findings, free, json, status};
use crate::ui::draw_into;
use crate::wire::{Message, codec};
use fastrand::Rng;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The ends of all number types, numbers between them, and ones that an `f32` cannot hold. JSON has no NaN.
const NUMBERS: [&str; 27] = [
    "0",
    "1",
    "2",
    "100",
    "254",
    "255",
    "65535",
    "2147483647",
    "4294967294",
    "4294967295",
    "1125899906842624",
    "9223372036854775807",
    "18446744073709551614",
    "18446744073709551615",
    "-1",
    "-128",
    "-2147483648",
    "-9223372036854775808",
    "0.5",
    "-0.5",
    "1e-300",
    "3.4e38",
    "1e39",
    "1.7e308",
    "-1.7e308",
    "1e18",
    "1.8446744073709552e19",
];

const PROCESSES: usize = 3;

/// Every field of a message with a number, in messages that fit together.
fn messages() -> [Value; 3] {
    let hello = json!({"hello": {"protocol": 1, "probe_version": "1", "boot_id": "boot", "login_user": "alice",
        "login_uid": 1000, "cpu_count": 8, "memory_total_bytes": 1, "probe_pid": 77}});
    let gpu = |index: u32| {
        json!({"index": index, "uuid": format!("GPU-{index}"), "name": "H100", "memory_total_bytes": 85_899_345_920_u64,
            "power_limit_watts": 700.0, "power_limit_max_watts": 700.0, "clock_graphics_max_mhz": 1980,
            "clock_sm_max_mhz": 1980, "clock_memory_max_mhz": 2619, "temperature_slowdown_celsius": 87,
            "temperature_shutdown_celsius": 92, "memory_temperature_max_celsius": 95, "bar1_total_bytes": 1,
            "pcie_generation_max": 5, "pcie_width_max": 16, "minor_number": 0, "nvlink_count": 18,
            "gpu_instance_id": 0, "compute_instance_id": 0})
    };
    let inventory = json!({"inventory": {"generation": 1, "driver_version": "570", "gpus": [gpu(0), gpu(1)]}});
    let gpus = columns(
        2,
        &[
            "utilization_percent",
            "memory_utilization_percent",
            "memory_used_bytes",
            "memory_reserved_bytes",
            "temperature_celsius",
            "memory_temperature_celsius",
            "power_watts",
            "power_mean_watts",
            "energy_joules",
            "power_limit_watts",
            "clock_graphics_mhz",
            "clock_sm_mhz",
            "clock_memory_mhz",
            "fan_percent",
            "performance_state",
            "clocks_event_reasons",
            "encoder_percent",
            "decoder_percent",
            "pcie_generation",
            "pcie_width",
            "pcie_receive_bytes_per_second",
            "pcie_transmit_bytes_per_second",
            "nvlink_receive_bytes_per_second",
            "nvlink_transmit_bytes_per_second",
            "sm_activity_percent",
            "sm_occupancy_percent",
            "tensor_activity_percent",
            "dram_bandwidth_percent",
            "thermal_violation_seconds",
            "power_violation_seconds",
            "power_brake_seconds",
            "blocked_seconds",
        ],
    );
    let health = columns(
        2,
        &[
            "ecc_corrected_volatile",
            "ecc_uncorrectable_volatile",
            "ecc_corrected_aggregate",
            "ecc_uncorrectable_aggregate",
            "retired_pages_single_bit",
            "retired_pages_double_bit",
            "remapped_rows_correctable",
            "remapped_rows_uncorrectable",
            "nvlinks_active",
            "bar1_used_bytes",
            "pcie_replays",
            "nvlink_crc_errors",
            "nvlink_replays",
            "nvlink_recoveries",
        ],
    );
    let mut gpu_processes =
        columns(PROCESSES, &["gpu_memory_bytes", "sm_percent", "memory_percent", "encoder_percent", "decoder_percent"]);
    gpu_processes["gpu"] = json!([0, 1, 1]);
    let mut processes = columns(
        PROCESSES,
        &[
            "start_ticks",
            "cpu_percent",
            "cpu_seconds",
            "rss_bytes",
            "threads",
            "age_seconds",
            "parent_pid",
            "threads_live",
            "blocked_thread",
            "blocked_seconds",
            "threads_blocked",
            "descendants",
            "descendants_cpu_percent",
            "descendants_blocked",
            "write_bytes",
            "read_characters",
            "log_age_seconds",
            "established_connections",
            "waiting_clients",
            "longest_wait_seconds",
        ],
    );
    processes["state"] = json!(["R", "S", "D"]);
    for columns in [&mut gpu_processes, &mut processes] {
        columns["pid"] = json!([1000, 1001, 1002]);
    }
    let facts = |pid: u32| {
        json!({"pid": pid, "start_ticks": 1, "start_unix_seconds": 1_763_000_000, "uid": 1000, "session": 1,
            "user": "alice", "argv": ["python", "train.py"], "listening_ports": [8000],
            "ancestors": [{"pid": 900, "start_ticks": 1, "uid": 1000, "name": "torchrun"}]})
    };
    let snapshot = json!({"snapshot": {
        "sequence": 1, "generation": 1, "monotonic_seconds": 1.0, "wall_unix_ms": 1_763_000_000_000_i64,
        "interval_seconds": 1.0, "processes_left_out": 0,
        "host": {
            "cpu_percent": 1.0, "io_wait_percent": 1.0, "load_1": 1.0, "load_5": 1.0, "load_15": 1.0,
            "memory_total_bytes": 1, "memory_available_bytes": 1, "swap_total_bytes": 1, "swap_free_bytes": 1,
            "uptime_seconds": 1.0, "pressure_io_percent": 1.0, "pressure_memory_percent": 1.0,
            "pressure_cpu_percent": 1.0, "oom_kills": 1, "tasks_blocked": 1,
            "network_receive_bytes_per_second": 1.0, "network_transmit_bytes_per_second": 1.0,
            "disk_read_bytes_per_second": 1.0, "disk_write_bytes_per_second": 1.0, "nvidia_pci_devices": 2,
            "filesystems": [{"mount_point": "/home", "kind": "nfs4", "total_bytes": 1, "available_bytes": 1,
                "silent_seconds": 1.0, "timeouts": 1}],
            "slurm_allocated_gpus": [1],
            "slurm_ends": [{"job": "3385", "state": "FAILED", "exit_status": 1, "signal": 9}]},
        "gpus": gpus, "health": health, "gpu_processes": gpu_processes, "processes": processes,
        "xid_events": [{"gpu": 0, "xid": 79, "monotonic_seconds": 1.0}],
        "recent_past": [{"gpu": 0, "end_monotonic_seconds": 1.0, "utilization_percent": [1, 2],
            "memory_utilization_percent": [1, 2], "power_watts": [1.0, 2.0]}],
        "facts": [facts(1000), facts(1001), facts(1002)],
        "driver_error": {"kind": "unknown", "code": 1, "message": ""},
        "cost": {"cpu_seconds": 1.0, "rss_bytes": 1, "sample_ms": 1.0, "probes_on_host": 1}}});
    [hello, inventory, snapshot]
}

fn columns(rows: usize, names: &[&str]) -> Value {
    let mut columns = json!({"rows": rows});
    for name in names {
        columns[*name] = json!(vec![1; rows]);
    }
    columns
}

#[test]
fn every_number_of_the_protocol_is_covered() {
    const SOURCES: [&str; 4] = [
        include_str!("../wire/gpu.rs"),
        include_str!("../wire/host.rs"),
        include_str!("../wire/message.rs"),
        include_str!("../wire/process.rs"),
    ];
    const TYPES: [&str; 8] = ["u8", "u16", "u32", "u64", "i32", "i64", "f32", "f64"];
    /// Fields of requests and replies.
    const OTHERS: [&str; 4] = ["id", "seconds", "shift_seconds", "last_sequence"];
    let text = messages().map(|message| message.to_string()).concat();
    let fields = SOURCES.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let (name, kind) = line.trim().trim_start_matches("pub ").strip_suffix(',')?.split_once(": ")?;
        let kind = kind.trim_start_matches("Vec<").trim_start_matches("Option<").trim_end_matches('>');
        (TYPES.contains(&kind) && !OTHERS.contains(&name)).then_some(name)
    });
    let fields: Vec<&str> = fields.collect();
    assert!(fields.len() > 100, "{}", fields.len());
    for field in fields {
        assert!(text.contains(&format!("\"{field}\":")), "{field}");
    }
}

/// The place of every number in a message, as JSON pointers.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at.to_owned()),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| pointers(value, &format!("{at}/{name}"), found));
        }
        _ => {}
    }
}

/// The numbers that the protocol accepts at each place of a message.
fn choices(message: &Value) -> Vec<(String, Vec<Value>)> {
    let mut places = Vec::new();
    pointers(message, "", &mut places);
    let mut known: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let of_place = |place: String| {
        let field: Vec<&str> = place.split('/').filter(|part| part.parse::<usize>().is_err()).collect();
        let accepted = known.entry(field.join("/")).or_insert_with(|| {
            let numbers = NUMBERS.iter().filter_map(|number| serde_json::from_str(number).ok());
            let is_accepted = |number: &Value| {
                let mut changed = message.clone();
                if let Some(value) = changed.pointer_mut(&place) {
                    *value = number.clone();
                }
                codec::decode(changed.to_string().as_bytes()).is_ok()
            };
            numbers.filter(is_accepted).collect()
        });
        (place, accepted.clone())
    };
    places.into_iter().map(of_place).collect()
}

/// How often a number is replaced, in percent. Messages with other generations, rows and pids do not fit together.
fn frequency(place: &str) -> u8 {
    let field = place.split('/').rfind(|part| part.parse::<usize>().is_err()).unwrap_or_default();
    match field {
        "protocol" => 0,
        "generation" | "rows" | "pid" | "gpu" | "code" | "interval_seconds" => 4,
        "start_ticks" | "uid" | "memory_total_bytes" => 25,
        _ => 50,
    }
}

fn changed(message: &Value, choices: &[(String, Vec<Value>)], rng: &mut Rng) -> Value {
    let mut changed = message.clone();
    for (place, numbers) in choices {
        if rng.u8(..100) < frequency(place)
            && let (Some(value), Some(number)) = (changed.pointer_mut(place), rng.choice(numbers))
        {
            *value = number.clone();
        }
    }
    changed
}

fn update(message: &Value) -> Option<HostUpdate> {
    match codec::decode(message.to_string().as_bytes()).ok()? {
        Message::Hello(hello) => Some(HostUpdate::Hello(Box::new(hello))),
        Message::Inventory(inventory) => Some(HostUpdate::Inventory(Box::new(inventory))),
        Message::Snapshot(snapshot) => Some(HostUpdate::Snapshot(snapshot)),
        _ => None,
    }
}

fn at(seconds: u64) -> Moment {
    Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_763_000_000 + seconds))
}

/// A fleet of two hosts with its diagnosis and its screen.
struct Run {
    fleet: Fleet,
    engine: Engine,
    rows: RowCache,
    ledger: UsageLedger,
    recorder: Recorder,
    app: App,
}

const HOSTS: u32 = 2;
const AREA: Rect = Rect { x: 0, y: 0, width: 160, height: 50 };

impl Run {
    fn new() -> Self {
        let configs: Vec<_> = (0..HOSTS).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
        let fleet = Fleet::new(&configs, false, at(0));
        let engine = Engine::new(Arc::new(Thresholds::default()));
        let mut app = App::new(fleet.clone(), DisplaySettings::default(), engine.clone(), at(0));
        app.update(Event::Resized(AREA.width, AREA.height), at(0));
        let (rows, ledger) = (RowCache::default(), UsageLedger::default());
        Self { fleet, engine, rows, ledger, recorder: Recorder::new(at(0), None), app }
    }

    fn apply(&mut self, id: HostId, update: HostUpdate, now: Moment) {
        for line in self.recorder.take(id, &"hgx".into(), update.clone(), now) {
            let encoded = recording::encode(&line).expect("encodes");
            let _ = recording::decode(encoded.trim_ascii_end(), 2);
        }
        self.app.update(Event::Host(id, Box::new(update.clone())), now);
        self.fleet.apply(id, update, now);
        let transitions = self.engine.evaluate_host(&self.fleet, id, now);
        self.engine.notifications(&transitions);
        let host = self.fleet.host(id).expect("a host");
        self.rows.update(host, self.engine.states(id), now);
    }

    fn tick(&mut self, now: Moment) {
        self.app.update(Event::Ticked, now);
        self.engine.tick(&self.fleet, now);
        let usages: Vec<_> =
            self.fleet.hosts().iter().map(|host| host_users(host, self.engine.states(host.id))).collect();
        self.ledger.tick(usages.iter().map(|usage| usage.users.as_slice()), now);
        users(usages.iter().zip(0..).map(|(usage, id)| (HostId(id), usage.users.as_slice())), &self.ledger);
    }

    /// Lists, exports and draws everything.
    fn read_all(&mut self, now: Moment) {
        let mut totals = Totals::default();
        let mut free_hosts = Vec::new();
        for host in self.fleet.hosts() {
            let states = self.engine.states(host.id);
            totals.add(&Totals::of_host(host, states, now));
            free_hosts.extend(free_gpus(host, states, &GpuRequirements::default(), now));
        }
        for key in SortKey::ALL {
            for group in Group::ALL {
                for is_descending in [false, true] {
                    self.rows.rows(ListOrder { key, is_descending, group }, &HashSet::new(), |_| true, |_| None);
                }
            }
        }
        let all: Vec<&Finding> = self.engine.findings().collect();
        let states = |id| self.engine.states(id).to_vec();
        let report = Report { fleet: &self.fleet, states: &states, findings: &all, now };
        json::line(&report).expect("JSON");
        status::table(&report, Paint::OFF);
        for count in 1..4 {
            let found = choose_gpus(&free_hosts, count, false);
            let result = FreeReport { report: &report, found: found.as_deref() };
            free::text(&result);
            free::json_line(&result).expect("JSON");
        }
        let report = FindingsReport {
            fleet: &self.fleet,
            findings: &all,
            not_judged: &self.engine.not_judged(),
            too_little_history: &self.engine.rules_with_too_little_history(&self.fleet),
            observed: now.since_start(),
            now,
        };
        findings::list(&report, Paint::OFF);
        findings::line(&report).expect("JSON");
        let saved = serde_json::to_string(&self.engine.to_saved_state(&self.fleet, now)).expect("JSON");
        let mut restored = Engine::new(Arc::default());
        restored.restore(SavedState::parse(&saved).expect("a saved state"), now);
        restored.evaluate_host(&self.fleet, HostId(0), now);
        for keys in
            ["", "2", "3ttt", "4", "5", "H", "\u{1b}\u{1b}1\n", "G", "\n", "\u{1b}\u{1b}1L", "3\n", "\u{1b}\u{1b}1"]
        {
            press(&mut self.app, keys);
            self.app.refresh_derived_state();
            draw_into(&self.app, &mut Buffer::empty(AREA), AREA, now);
        }
    }
}

#[test]
fn no_number_overflows() {
    let messages = messages();
    let choices = messages.each_ref().map(choices);
    let unchanged: BTreeSet<&str> =
        choices.iter().flatten().filter(|(_, numbers)| numbers.len() < 3).map(|(place, _)| place.as_str()).collect();
    assert_eq!(unchanged, BTreeSet::from(["/hello/protocol"]), "every other number has several values");
    for case in 0..16 {
        eprintln!("case {case}");
        let mut rng = Rng::with_seed(case);
        let mut run = Run::new();
        let mut now = 1;
        for host in (0..HOSTS).map(HostId) {
            for index in 0..2 {
                run.apply(
                    host,
                    update(&changed(&messages[index], &choices[index], &mut rng)).expect("accepted"),
                    at(now),
                );
            }
        }
        for step in 0..24_u64 {
            // Conditions hold for a while only if the numbers stay.
            let mut snapshot = changed(&messages[2], &choices[2], &mut rng);
            if rng.bool() {
                snapshot["snapshot"]["driver_error"] = Value::Null;
            }
            let interval = rng.choice([1, 10, 60, 600]).unwrap_or(1);
            for repetition in 0..rng.u64(1..8) {
                if rng.bool() {
                    snapshot["snapshot"]["sequence"] = json!(step * 100 + repetition);
                    snapshot["snapshot"]["monotonic_seconds"] = json!(now as f64);
                }
                now += interval;
                for host in (0..HOSTS).map(HostId) {
                    run.apply(host, update(&snapshot).expect("accepted"), at(now));
                }
                run.tick(at(now));
            }
        }
        run.read_all(at(now));
    }
}
