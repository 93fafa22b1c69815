use super::pretty;
use crate::wire::{
    Ancestor, Availability, ComputeMode, DeviceError, DriverError, DriverErrorKind, Filesystem, GpuColumns, GpuHealth,
    GpuHealthColumns, GpuInfo, GpuProcessColumns, GpuProcessKind, GpuProcessReading, GpuReading, Hello, HostReading,
    Inventory, Owner, PROTOCOL, Presence, ProbeCost, ProcessColumns, ProcessFacts, ProcessReading, ProcessState,
    RecentPast, RecoveryAction, Scope, SlurmJob, Snapshot, XidEvent,
};

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        probe_version: "0".into(),
        boot_id: None,
        host_name: Some("hgx-01".into()),
        login_user: None,
        login_uid: None,
        kernel: Some("6.1".into()),
        arch: Some("x86_64".into()),
        cpu_count: Some(112),
        memory_total_bytes: None,
        scope: Some(Scope::Host),
        source: None,
        probe_pid: Some(811),
        probe_sha256: None,
    }
}

fn host() -> HostReading {
    HostReading {
        cpu_percent: Some(13.5),
        io_wait_percent: Some(0.4),
        load_1: Some(2.25),
        load_5: Some(2.1),
        load_15: Some(1.9),
        memory_total_bytes: Some(2048 << 30),
        memory_available_bytes: Some(1836 << 30),
        swap_total_bytes: Some(8 << 30),
        swap_free_bytes: Some(7 << 30),
        uptime_seconds: Some(1_062_720.0),
        pressure_io_percent: Some(3.2),
        pressure_memory_percent: Some(0.0),
        oom_kills: Some(2),
        pressure_cpu_percent: Some(0.1),
        tasks_blocked: Some(3),
        network_receive_bytes_per_second: Some(1_300_000.0),
        network_transmit_bytes_per_second: Some(900.0),
        disk_read_bytes_per_second: Some(220_000_000.0),
        disk_write_bytes_per_second: Some(0.0),
        nvidia_pci_devices: Some(8),
        filesystems: vec![
            Filesystem {
                mount_point: "/home".into(),
                kind: "nfs4".into(),
                total_bytes: Some(10 << 40),
                available_bytes: Some(1230 << 30),
                ..Filesystem::default()
            },
            Filesystem {
                mount_point: "/scratch".into(),
                kind: "lustre".into(),
                silent_seconds: Some(34.0),
                ..Filesystem::default()
            },
        ],
        slurm_allocated_gpus: Some(vec![0, 1, 5]),
        slurm_ends: Vec::new(),
        slurm_jobs: Some(vec![SlurmJob { job: "3385".into(), user: Some("ann".into()), gpus: vec![0, 1] }]),
        slurm_cluster: Some("lab".into()),
    }
}

fn info() -> GpuInfo {
    GpuInfo {
        index: 3,
        uuid: Some("GPU-00000000-0000-4000-8000-000000000003".into()),
        name: Some("NVIDIA H100 80GB HBM3".into()),
        pci_bus_id: Some("00000000:9B:00.0".into()),
        memory_total_bytes: Some(80 << 30),
        power_limit_watts: Some(650.0),
        power_limit_max_watts: Some(700.0),
        clock_graphics_max_mhz: Some(1980),
        clock_sm_max_mhz: Some(1980),
        clock_memory_max_mhz: Some(2619),
        temperature_slowdown_celsius: Some(87),
        temperature_shutdown_celsius: Some(92),
        mig_enabled: Some(false),
        memory_temperature_max_celsius: Some(95),
        bar1_total_bytes: Some(128 << 30),
        pcie_generation_max: Some(5),
        pcie_width_max: Some(16),
        minor_number: Some(3),
        nvlink_count: Some(18),
        gpm: Some(Availability::Available),
        xid_events: Some(Availability::Available),
        ..GpuInfo::default()
    }
}

fn reading() -> GpuReading {
    GpuReading {
        utilization_percent: Some(97),
        memory_utilization_percent: Some(41),
        memory_used_bytes: Some(40 << 30),
        memory_reserved_bytes: Some(625 << 20),
        temperature_celsius: Some(63),
        memory_temperature_celsius: Some(70),
        power_watts: Some(612.5),
        power_mean_watts: Some(601.2),
        energy_joules: Some(4_320_000.0),
        clock_graphics_mhz: Some(1755),
        clock_sm_mhz: Some(1740),
        clock_memory_mhz: Some(2619),
        performance_state: Some(0),
        clocks_event_reasons: Some(0x44),
        encoder_percent: Some(3),
        decoder_percent: Some(4),
        pcie_generation: Some(4),
        pcie_width: Some(16),
        pcie_receive_bytes_per_second: Some(1.3e9),
        pcie_transmit_bytes_per_second: Some(2.5e6),
        nvlink_receive_bytes_per_second: Some(41e9),
        nvlink_transmit_bytes_per_second: Some(40e9),
        sm_activity_percent: Some(96.1),
        sm_occupancy_percent: Some(40.2),
        tensor_activity_percent: Some(71.0),
        dram_bandwidth_percent: Some(55.5),
        thermal_violation_seconds: Some(0.0),
        power_violation_seconds: Some(812.0),
        power_brake_seconds: Some(0.0),
        ..GpuReading::default()
    }
}

fn health() -> GpuHealth {
    GpuHealth {
        ecc_corrected_volatile: Some(1),
        ecc_uncorrectable_volatile: Some(0),
        ecc_corrected_aggregate: Some(7),
        ecc_uncorrectable_aggregate: Some(0),
        remapped_rows_correctable: Some(1),
        remapped_rows_uncorrectable: Some(0),
        row_remap_pending: Some(true),
        row_remap_failed: Some(false),
        recovery_action: Some(RecoveryAction::DrainAndReset),
        persistence_mode: Some(true),
        compute_mode: Some(ComputeMode::Default),
        nvlinks_active: Some(0x3_FFFB),
        power_smoothing: Some(false),
        bar1_used_bytes: Some(2 << 20),
        ..GpuHealth::default()
    }
}

fn on_gpu(pid: u32, memory_bytes: u64) -> GpuProcessReading {
    GpuProcessReading {
        pid: Some(pid),
        gpu: Some(0),
        kind: Some(GpuProcessKind::Compute),
        gpu_memory_bytes: Some(memory_bytes),
        ..GpuProcessReading::default()
    }
}

fn training() -> (ProcessReading, ProcessFacts) {
    let process = ProcessReading {
        pid: Some(4312),
        presence: Some(Presence::Visible),
        state: Some(ProcessState::Running),
        cpu_percent: Some(101.5),
        rss_bytes: Some(12 << 30),
        threads: Some(64),
        age_seconds: Some(11_520.0),
        threads_blocked: Some(1),
        blocked_thread: Some(4330),
        blocked_seconds: Some(31.0),
        descendants: Some(4),
        descendants_cpu_percent: Some(310.0),
        descendants_blocked: Some(1),
        write_bytes: Some(5 << 30),
        read_characters: Some(700 << 30),
        wait_channel: Some("rpc_wait_bit_killable".into()),
        log_age_seconds: Some(3.0),
        established_connections: Some(5),
        ..ProcessReading::default()
    };
    let parent = |pid, name: &str| Ancestor { pid, name: name.into(), ..Ancestor::default() };
    let facts = ProcessFacts {
        pid: 4312,
        uid: Some(1000),
        user: Some("dmitri".into()),
        full_name: Some("Dmitri Petrov".into()),
        argv: ["python", "train.py", "--token=***", "--data", "/scratch/a/very/long/path/to/the/data"]
            .map(Into::into)
            .to_vec(),
        ancestors: vec![parent(4300, "torchrun"), parent(4200, "bash")],
        ignores_hangup: Some(true),
        working_directory: Some("/home/dmitri/run".into()),
        log_path: Some("/home/dmitri/run/train.log".into()),
        listening_ports: vec![6006, 8000],
        runs_in: Some("tmux".into()),
        owner: Some(Owner::Slurm { job: "3385".into(), step: Some("0".into()) }),
        ..ProcessFacts::default()
    };
    (process, facts)
}

#[test]
fn a_full_snapshot() {
    let (process, facts) = training();
    let gone = ProcessReading { pid: Some(77), presence: Some(Presence::Gone), ..ProcessReading::default() };
    let serving = ProcessFacts {
        pid: 90,
        owner: Some(Owner::Container { runtime: "docker".into(), id: "4f0c8f5e6a1b".into() }),
        container_name: Some("serving".into()),
        ..ProcessFacts::default()
    };
    let inventory = Inventory {
        driver_version: Some("570.86.15".into()),
        cuda_version: Some("12.8".into()),
        nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
        gpus: vec![info()],
        ..Inventory::default()
    };
    let row = GpuProcessReading { sm_percent: Some(96), ..on_gpu(4312, 39 << 30) };
    let snapshot = Snapshot {
        monotonic_seconds: 10.0,
        host: host(),
        gpus: GpuColumns::from_rows(&[reading()]),
        health: GpuHealthColumns::from_rows(&[health()]),
        xid_events: vec![XidEvent { gpu: Some(0), xid: 79, monotonic_seconds: 9.5 }],
        recent_past: vec![RecentPast {
            utilization_percent: vec![Some(90), None, Some(100)],
            power_watts: vec![Some(600.0), Some(620.0)],
            ..RecentPast::default()
        }],
        gpu_processes: GpuProcessColumns::from_rows(&[row, on_gpu(77, 1 << 30), on_gpu(90, 300 << 20)]),
        processes: ProcessColumns::from_rows(&[process, gone]),
        facts: vec![facts, serving],
        processes_left_out: 2,
        notes: vec!["the NVIDIA driver returned an unterminated text: it was cut".into()],
        cost: Some(ProbeCost {
            cpu_seconds: 0.012,
            rss_bytes: Some(2_516_582),
            sample_ms: 3.2,
            probes_on_host: Some(2),
        }),
        ..Snapshot::default()
    };
    insta::assert_snapshot!(pretty(&hello(), &inventory, &snapshot));
}

#[test]
fn unknown_values_are_listed() {
    let bare = GpuInfo { index: 0, name: Some("NVIDIA GeForce".into()), ..GpuInfo::default() };
    let divided = GpuInfo { index: 1, mig_enabled: Some(true), ..GpuInfo::default() };
    let instance = GpuInfo {
        index: 0,
        name: Some("NVIDIA A100 MIG 1g.5gb".into()),
        memory_total_bytes: Some(5 << 30),
        mig_parent_uuid: Some("GPU-1".into()),
        gpu_instance_id: Some(7),
        compute_instance_id: Some(0),
        gpm: Some(Availability::NotPermitted),
        ..GpuInfo::default()
    };
    let shared =
        GpuInfo { index: 2, unified_memory: Some(true), xid_events: Some(Availability::Refused), ..GpuInfo::default() };
    let lost = GpuInfo { index: 3, ..GpuInfo::default() };
    let silent = GpuInfo { index: 4, ..GpuInfo::default() };
    let error = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: "the GPU is lost".into() };
    let inventory = Inventory { gpus: vec![bare, divided, instance, shared, lost, silent], ..Inventory::default() };
    let memory =
        GpuReading { memory_used_bytes: Some(1 << 30), processes_unknown: Some(true), ..GpuReading::default() };
    let none = GpuReading::default();
    let rows = [
        none.clone(),
        none.clone(),
        memory,
        none.clone(),
        GpuReading { error: Some(error), ..none.clone() },
        GpuReading { blocked_seconds: Some(2.5), ..none },
    ];
    let snapshot = Snapshot { gpus: GpuColumns::from_rows(&rows), ..Snapshot::default() };
    let job = Hello { scope: Some(Scope::SlurmJob("7".into())), ..hello() };
    insta::assert_snapshot!(pretty(&job, &inventory, &snapshot));
}

#[test]
fn without_a_driver_the_error_is_shown() {
    let error = DriverError { kind: DriverErrorKind::VersionMismatch, code: Some(18), message: "reboot".into() };
    let inventory = Inventory { error: Some(error), ..Inventory::default() };
    let text = pretty(&hello(), &inventory, &Snapshot::default());
    assert!(text.ends_with("no GPU readings: reboot (NVML error 18)\n"), "{text}");
}
