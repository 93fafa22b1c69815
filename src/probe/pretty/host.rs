//! The host: who speaks, its load, its filesystems, and what the probe costs it.

use super::report_writer::{ReportWriter, bytes, or_dash, rate, time, used_of, with_affixes};
use crate::wire::{Filesystem, Hello, HostReading, Inventory, ProbeCost, Scope, Snapshot};

pub(super) fn write(report: &mut ReportWriter, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) {
    let host = &snapshot.host;
    report.line(format!(
        "{}  Linux {} {}  up {}",
        or_dash(hello.host_name.as_ref()),
        or_dash(hello.kernel.as_ref()),
        or_dash(hello.arch.as_ref()),
        or_dash(host.uptime_seconds.map(time)),
    ));
    match &hello.scope {
        Some(Scope::SlurmJob(job)) => {
            report.line(format!("seen from inside Slurm job {job}: only its part of the host"));
        }
        Some(Scope::Container(name)) => {
            report.line(format!("seen from inside a container ({name}): only its part of the host"));
        }
        Some(Scope::Host | Scope::Unknown) | None => {}
    }
    load(report, hello, host);
    for filesystem in &host.filesystems {
        report.optional_field(Some(describe(filesystem)));
        report.end_line("filesystem");
    }
    report.optional_field(with_affixes("cluster ", host.slurm_cluster.as_ref(), ""));
    report.optional_field(host.slurm_allocated_gpus.as_ref().map(|gpus| {
        let gpus: Vec<_> = gpus.iter().map(ToString::to_string).collect();
        format!("GPUs given to jobs: {}", if gpus.is_empty() { "none".to_owned() } else { gpus.join(" ") })
    }));
    report.end_line("Slurm");
    report.optional_field(with_affixes("", inventory.driver_version.as_ref(), ""));
    report.optional_field(with_affixes("CUDA ", inventory.cuda_version.as_ref(), ""));
    report.optional_field(with_affixes("", inventory.nvml_path.as_ref(), ""));
    report.optional_field(with_affixes("", host.nvidia_pci_devices, " GPUs on the PCI bus"));
    report.end_line("driver");
    cost(report, hello, snapshot.cost.as_ref());
    report.end_section();
    for error in [&inventory.error, &snapshot.driver_error].into_iter().flatten() {
        let code = error.code.map_or_else(String::new, |code| format!(" (NVML error {code})"));
        report.line(format!("no GPU readings: {}{code}", error.message));
    }
}

fn load(report: &mut ReportWriter, hello: &Hello, host: &HostReading) {
    report.field("CPU use", used_of("", host.cpu_percent.map(|share| format!("{share} %")), hello.cpu_count, ""));
    report.optional_field(with_affixes("waiting for I/O ", host.io_wait_percent, " %"));
    let load = [host.load_1, host.load_5, host.load_15];
    report
        .field("load", load[0].map(|_| format!("load {} {} {}", or_dash(load[0]), or_dash(load[1]), or_dash(load[2]))));
    report.end_line("CPU");
    report.field("memory", used_of("", host.memory_used_bytes().map(bytes), host.memory_total_bytes.map(bytes), ""));
    let swap_used = host.swap_total_bytes.zip(host.swap_free_bytes).map(|(total, free)| total.saturating_sub(free));
    report.optional_field(used_of("swap ", swap_used.map(bytes), host.swap_total_bytes.map(bytes), ""));
    report.end_line("memory");
    report.field("pressure", with_affixes("CPU ", host.pressure_cpu_percent, " %"));
    report.optional_field(with_affixes("memory ", host.pressure_memory_percent, " %"));
    report.optional_field(with_affixes("I/O ", host.pressure_io_percent, " % of the last minute"));
    report.end_line("pressure");
    report.field("network", with_affixes("in ", host.network_receive_bytes_per_second.map(rate), ""));
    report.optional_field(with_affixes("out ", host.network_transmit_bytes_per_second.map(rate), ""));
    report.end_line("network");
    report.field("disks", with_affixes("read ", host.disk_read_bytes_per_second.map(rate), ""));
    report.optional_field(with_affixes("written ", host.disk_write_bytes_per_second.map(rate), ""));
    report.end_line("disks");
    report.optional_field(with_affixes("", host.tasks_blocked, " in uninterruptible sleep"));
    report.optional_field(with_affixes("", host.oom_kills, " killed for want of memory since boot"));
    report.end_line("tasks");
}

fn describe(filesystem: &Filesystem) -> String {
    let Filesystem { mount_point, kind, total_bytes, available_bytes, silent_seconds, .. } = filesystem;
    let state = match silent_seconds {
        Some(seconds) => format!("no answer for {}", time(f64::from(*seconds))),
        None => format!("{} free of {}", or_dash(available_bytes.map(bytes)), or_dash(total_bytes.map(bytes))),
    };
    format!("{mount_point} ({kind}): {state}")
}

fn cost(report: &mut ReportWriter, hello: &Hello, cost: Option<&ProbeCost>) {
    let Some(cost) = cost else { return };
    report.optional_field(with_affixes("process ", hello.probe_pid, ""));
    report.optional_field(Some(format!("{} s of CPU", cost.cpu_seconds)));
    report.optional_field(cost.rss_bytes.map(bytes));
    report.optional_field(Some(format!("{} ms for this snapshot", cost.sample_ms)));
    report.optional_field(with_affixes("", cost.probes_on_host, " probes on this host"));
    report.end_line("probe");
}
