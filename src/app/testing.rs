//! A small simulated fleet for the tests of app and ui. All values follow from the number of the host.

use crate::app::{App, DisplaySettings, Event};
use crate::config::HostConfig;
use crate::diagnosis::Engine;
use crate::fleet::{ConnectPhase, Fleet, HostId, HostUpdate, LinkError, LinkErrorKind, Moment};
use crate::sim::builder::{self, ProcessSample};
use crate::sim::gpu_model::MODELS;
use crate::wire::{
    DriverError, DriverErrorKind, GpuHealth, GpuHealthColumns, GpuReading, Hello, HostReading, Inventory, ProbeCost,
    ProcessState, Snapshot,
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const USERS: [&str; 7] = ["alice", "bob", "carol", "dmitri", "erika", "fumi", "gustav"];
const COMMANDS: [&str; 5] = [
    "python eval.py --split test",
    "vllm serve qwen --tp 1",
    "python gan.py --res 1024",
    "python probe.py --layer 12",
    "python render.py --scene city",
];

/// Returns a time that many seconds after the start. [`NOW`] is 14:02:31.
pub(crate) fn at(seconds: u64) -> Moment {
    Moment {
        elapsed: Some(Duration::from_secs(seconds)),
        unix: Duration::from_secs(1_763_000_000 / 86_400 * 86_400 + 50_551 - 400 + seconds),
    }
}

/// The time at which tests draw screens.
pub(crate) const NOW: u64 = 400;

/// Returns an app that has monitored `hosts` hosts with `gpus` GPUs each for `NOW` seconds.
pub(crate) fn app(hosts: usize, gpus: usize, size: (u16, u16)) -> App {
    let mut app = connecting(&(1..=hosts).map(|host| format!("hgx-{host:02}")).collect::<Vec<_>>(), size);
    for seconds in report_times() {
        for host in 0..hosts {
            send(&mut app, host, gpus, seconds);
        }
        app.refresh_derived_state();
    }
    app
}

/// Returns the times at which the hosts report: long enough to find idle GPUs, and dense at the end.
fn report_times() -> impl Iterator<Item = u64> {
    (0..NOW - 100).step_by(50).chain((NOW - 100..=NOW).step_by(5))
}

/// The time up to which [`app_with_hung_jobs`] runs.
pub(crate) const LATER: u64 = 1500;

/// Returns an app that has run long enough to find the hung jobs. The last host goes down at the end.
pub(crate) fn app_with_hung_jobs(hosts: usize, size: (u16, u16)) -> App {
    let mut app = connecting(&(1..=hosts).map(|host| format!("hgx-{host:02}")).collect::<Vec<_>>(), size);
    // The screens show the last minutes in detail.
    for seconds in (0..LATER - 120).step_by(10).chain((LATER - 120..=LATER).step_by(5)) {
        let leaves = seconds > LATER - 60;
        for host in 0..hosts - usize::from(leaves) {
            send(&mut app, host, 8, seconds);
        }
        if seconds == LATER - 30 {
            let error = LinkError::new(LinkErrorKind::Network, "no route to host (tcp 22)");
            update(&mut app, hosts - 1, HostUpdate::Down { error, retry_at: None, attempt: 3 }, seconds);
        }
        app.update(Event::Ticked, at(seconds));
    }
    app.refresh_derived_state();
    app
}

/// Returns an app whose hosts have reported once.
pub(crate) fn reported_once(hosts: usize, gpus: usize, size: (u16, u16)) -> App {
    let mut app = connecting(&(1..=hosts).map(|host| format!("hgx-{host:02}")).collect::<Vec<_>>(), size);
    for host in 0..hosts {
        report(&mut app, host, gpus, NOW);
    }
    app
}

/// Returns an app whose hosts are not connected yet.
pub(crate) fn connecting(names: &[String], size: (u16, u16)) -> App {
    let configs: Vec<_> = names.iter().map(|name| Arc::new(HostConfig::named(name.as_str()))).collect();
    let mut app = App::new(Fleet::new(&configs, false, at(0)), DisplaySettings::default(), Engine::default(), at(0));
    app.update(Event::Resized(size.0, size.1), at(0));
    app
}

/// Sends a snapshot of a host, with hello and inventory before the first one.
pub(crate) fn report(app: &mut App, host: usize, gpus: usize, seconds: u64) {
    send(app, host, gpus, seconds);
    app.refresh_derived_state();
}

/// As [`report`], but totals and lists are as before.
fn send(app: &mut App, host: usize, gpus: usize, seconds: u64) {
    let id = HostId(host as u32);
    if app.fleet().host(id).is_some_and(|host| host.hello.is_none()) {
        update(app, host, HostUpdate::Hello(Box::new(hello())), seconds);
        update(app, host, HostUpdate::Inventory(Box::new(inventory(gpus))), seconds);
        update(app, host, HostUpdate::RoundTrip(Duration::from_millis(23)), seconds);
    }
    let update = HostUpdate::Snapshot(Box::new(snapshot(host, gpus, seconds)));
    app.update(Event::Host(id, Box::new(update)), at(seconds));
}

pub(crate) fn update(app: &mut App, host: usize, update: HostUpdate, seconds: u64) {
    app.update(Event::Host(HostId(host as u32), Box::new(update)), at(seconds));
    app.refresh_derived_state();
}

pub(crate) fn press(app: &mut App, keys: &str) -> Vec<crate::app::Effect> {
    let now = if app.now.elapsed > at(NOW).elapsed { app.now } else { at(NOW) };
    keys.chars()
        .flat_map(|character| {
            let code = match character {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '↑' => KeyCode::Up,
                '↓' => KeyCode::Down,
                '←' => KeyCode::Left,
                '→' => KeyCode::Right,
                other => KeyCode::Char(other),
            };
            app.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), now)
        })
        .collect()
}

pub(crate) fn hello() -> Hello {
    builder::hello("boot".into(), "erika", 1004)
}

pub(crate) fn inventory(gpus: usize) -> Inventory {
    let gpu = |index| builder::gpu_info(&MODELS[0], index, format!("GPU-8f3a1c2e-{index:04}").into());
    Inventory {
        generation: 1,
        driver_version: Some("570.86.15".into()),
        cuda_version: Some("12.8".into()),
        gpus: (0..gpus as u32).map(gpu).collect(),
        ..Inventory::default()
    }
}

/// The work of one GPU.
#[derive(Clone, Copy)]
enum Work {
    /// Part of a job over several GPUs.
    Job,
    /// A single process.
    Single {
        percent: u8,
    },
    /// A notebook that holds memory without work.
    Idle,
    /// Busy by the counter, with the power of an idle GPU.
    Spinning,
    /// Slowed down by heat.
    Hot,
    Free,
}

fn work(host: usize, gpu: usize) -> Work {
    match (host % 4, (host * 3 + gpu * 5) % 8) {
        (1, _) => Work::Job,
        (3, slot) if gpu == 4 || gpu == 5 || (slot == 9) => Work::Spinning,
        (3, _) if gpu < 4 => Work::Job,
        (_, 0) => Work::Free,
        (_, 3) => Work::Idle,
        (2, 5) => Work::Hot,
        (_, slot) => Work::Single { percent: [22, 48, 63, 76, 88, 93, 97, 99][slot] },
    }
}

pub(crate) fn snapshot(host: usize, gpus: usize, seconds: u64) -> Snapshot {
    let mut readings = Vec::new();
    let mut processes = Vec::new();
    let launcher = 5000 + host as u32 * 100;
    for gpu in 0..gpus {
        let wave = ((seconds / 5 + gpu as u64) % 4) as u8;
        let (percent, used, watts, celsius) = match work(host, gpu) {
            Work::Job => (94 + wave, 62, 640.0, 72),
            Work::Single { percent } => (percent.saturating_sub(wave), 20 + gpu as u64 * 7, 455.0, 64),
            Work::Idle => (0, 31, 88.0, 40),
            Work::Spinning => (100, 70, 104.0 + gpu as f32, 45),
            Work::Hot => (99, 71, 690.0, 86),
            Work::Free => (0, 0, 64.0, 31),
        };
        readings.push(GpuReading {
            utilization_percent: Some(percent),
            // A hung GPU moves no memory.
            memory_utilization_percent: Some(if matches!(work(host, gpu), Work::Spinning) { 0 } else { percent / 3 }),
            memory_used_bytes: Some(used * GIB),
            temperature_celsius: Some(celsius),
            power_watts: Some(watts),
            energy_joules: Some(4.2e9),
            clock_graphics_mhz: Some(1980),
            clock_sm_mhz: Some(if celsius > 80 { 1410 } else { 1980 }),
            clock_memory_mhz: Some(2619),
            performance_state: Some(0),
            clocks_event_reasons: Some(match percent {
                0 => 0x1,
                99 if celsius > 80 => 0x40,
                97.. => 0x4,
                _ => 0,
            }),
            pcie_generation: Some(5),
            pcie_width: Some(16),
            ..GpuReading::default()
        });
        let user = match work(host, gpu) {
            Work::Free => continue,
            Work::Job => "erika",
            Work::Spinning => "dmitri",
            _ => USERS[(host + gpu) % USERS.len()],
        };
        let pid = launcher + 1 + gpu as u32;
        let (argv, parent) = match work(host, gpu) {
            Work::Job => ("python pretrain.py --bf16 --data /scratch/c4", Some(launcher)),
            Work::Spinning => ("python sft.py --fsdp --resume ckpt/last", Some(launcher + 50)),
            Work::Idle => ("ipykernel_launcher -f kernel-8f3a.json", None),
            _ => (COMMANDS[(host + gpu) % COMMANDS.len()], None),
        };
        processes.push(process(pid, user, argv, parent, gpu, used * GIB - GIB / 2, percent));
        // A second user's interactive session beside the main process.
        if gpu == 3 && host.is_multiple_of(4) {
            processes.push(process(pid + 20, "fumi", "python -i scratch.py", None, gpu, GIB / 2, 0));
        }
    }
    let health = GpuHealth { ecc_uncorrectable_volatile: Some(0), ..GpuHealth::default() };
    Snapshot {
        health: GpuHealthColumns::from_rows(&vec![health; gpus]),
        sequence: seconds / 5 + 1,
        monotonic_seconds: seconds as f64,
        interval_seconds: Some(2.0),
        host: HostReading {
            cpu_percent: Some(13.0 + host as f32 * 7.0 % 80.0),
            io_wait_percent: Some(3.0),
            load_1: Some(18.0 + host as f32 * 11.0 % 90.0),
            load_5: Some(17.0),
            load_15: Some(15.5),
            memory_total_bytes: Some(1007 * GIB),
            memory_available_bytes: Some((900 - host as u64 * 31 % 800) * GIB),
            uptime_seconds: Some(3_600_000.0),
            ..HostReading::default()
        },
        cost: Some(ProbeCost { cpu_seconds: 0.4, rss_bytes: Some(3 << 20), sample_ms: 0.4, probes_on_host: Some(1) }),
        ..builder::snapshot(&readings, &processes)
    }
}

fn process(
    pid: u32,
    user: &str,
    command: &str,
    parent: Option<u32>,
    gpu: usize,
    bytes: u64,
    percent: u8,
) -> ProcessSample {
    let uid = 1000 + USERS.iter().position(|known| *known == user).unwrap_or(0) as u32;
    let mut process = ProcessSample::new(pid, (user, uid), command, &[(gpu as u16, 0)]);
    if let Some(parent) = parent {
        process = process.under(parent, &format!("torchrun --nproc_per_node 8 {}", &command[7..]));
    }
    process = process.under(400, "-bash");
    process.facts.full_name = Some(format!("{} Example", user[..1].to_uppercase() + &user[1..]).into());
    process.facts.name = Some("python".into());
    process.gpus[0].gpu_memory_bytes = Some(bytes);
    process.gpus[0].sm_percent = Some(percent);
    process.reading.state = Some(if percent > 0 { ProcessState::Running } else { ProcessState::Sleeping });
    process.reading.cpu_percent = Some(f32::from(percent));
    process.reading.rss_bytes = Some((3 + u64::from(pid) % 40) * GIB);
    process.reading.age_seconds = Some(f64::from(pid % 97) * 1200.0);
    process
}

/// Returns an app with hosts in different states: connecting, down, stale, an unknown host key, a locked key, no driver.
pub(crate) fn host_states(size: (u16, u16)) -> App {
    use crate::ssh::prompt::{Prompt, PromptId, PromptKind};
    let names: Vec<String> = (6..=12).map(|host| format!("hgx-{host:02}")).collect();
    let mut app = connecting(&names, size);
    for seconds in report_times() {
        report(&mut app, 0, 8, seconds);
    }
    update(&mut app, 1, HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::KeyExchange }, NOW - 3);
    report(&mut app, 2, 8, 100);
    let error =
        LinkError::new(LinkErrorKind::Network, "no route to host (tcp 22)").with_hint("is the VPN up? ping -c1 hgx-08");
    let retry_at = Some(at(NOW + 27));
    update(&mut app, 2, HostUpdate::Down { error, retry_at, attempt: 4 }, NOW - 252);
    for seconds in (0..NOW - 20).step_by(50) {
        report(&mut app, 3, 4, seconds);
    }
    report(&mut app, 3, 4, NOW - 14);
    update(&mut app, 3, HostUpdate::Silent, NOW - 5);
    let error = LinkError::new(LinkErrorKind::HostKeyUnknown, "the host key is not known");
    update(&mut app, 4, HostUpdate::NeedsUser(error), NOW - 20);
    let kind = PromptKind::HostKey {
        target: "hgx-10.lab (10.2.0.20:22)".into(),
        key_type: "ssh-ed25519".into(),
        fingerprint: "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDmLRTCKq1TXMsU2c8".into(),
        known_hosts: "~/.ssh/known_hosts".into(),
        also_known_as: Vec::new(),
    };
    app.update(Event::Prompted(Prompt { id: PromptId(1), hosts: vec!["hgx-10".into()], kind }), at(NOW - 20));
    let kind = PromptKind::Passphrase {
        path: "~/.ssh/id_ed25519".into(),
        fingerprint: Some("SHA256:3kJq1TXMsU2c8uNiVztksCsDhcc0u9e8BgrJXVGDm9fA".into()),
        failures: 1,
    };
    let hosts = ["hgx-11", "hgx-13", "hgx-14"].map(str::to_owned).to_vec();
    app.update(Event::Prompted(Prompt { id: PromptId(2), hosts, kind }), at(NOW - 20));
    update(&mut app, 6, HostUpdate::Hello(Box::new(hello())), NOW - 1);
    let message = "Failed to initialize NVML: Driver/library version mismatch (kernel module 570.86, library 575.12)";
    let error = DriverError { kind: DriverErrorKind::VersionMismatch, code: Some(18), message: message.into() };
    let inventory = Inventory { generation: 1, error: Some(error), ..Inventory::default() };
    update(&mut app, 6, HostUpdate::Inventory(Box::new(inventory)), NOW - 1);
    update(&mut app, 6, HostUpdate::Snapshot(Box::new(snapshot(6, 0, NOW))), NOW - 1);
    app.update(Event::Ticked, at(NOW));
    app.refresh_derived_state();
    app
}
