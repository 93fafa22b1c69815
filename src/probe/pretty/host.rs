//! The host: who speaks, its load, its filesystems, and what the probe costs it.

use super::lines::{Lines, around, bytes, of, or_dash, rate, time};
use crate::wire::{Filesystem, Hello, HostReading, Inventory, ProbeCost, Scope, Snapshot};

pub(super) fn write(lines: &mut Lines, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) {
    let host = &snapshot.host;
    lines.line(format!(
        "{}  Linux {} {}  up {}",
        or_dash(hello.host_name.as_ref()),
        or_dash(hello.kernel.as_ref()),
        or_dash(hello.arch.as_ref()),
        or_dash(host.uptime_seconds.map(time)),
    ));
    match &hello.scope {
        Some(Scope::SlurmJob(job)) => {
            lines.line(format!("seen from inside Slurm job {job}: only its part of the host"));
        }
        Some(Scope::Container(name)) => {
            lines.line(format!("seen from inside a container ({name}): only its part of the host"));
        }
        Some(Scope::Host | Scope::Unknown) | None => {}
    }
    load(lines, hello, host);
    for filesystem in &host.filesystems {
        lines.rare_piece(Some(describe(filesystem)));
        lines.end("filesystem");
    }
    lines.rare_piece(around("cluster ", host.slurm_cluster.as_ref(), ""));
    lines.rare_piece(host.slurm_allocated_gpus.as_ref().map(|gpus| {
        let gpus: Vec<_> = gpus.iter().map(ToString::to_string).collect();
        format!("GPUs given to jobs: {}", if gpus.is_empty() { "none".to_owned() } else { gpus.join(" ") })
    }));
    lines.end("Slurm");
    lines.rare_piece(around("", inventory.driver_version.as_ref(), ""));
    lines.rare_piece(around("CUDA ", inventory.cuda_version.as_ref(), ""));
    lines.rare_piece(around("", inventory.nvml_path.as_ref(), ""));
    lines.rare_piece(around("", host.nvidia_pci_devices, " GPUs on the PCI bus"));
    lines.end("driver");
    cost(lines, hello, snapshot.cost.as_ref());
    lines.end_block();
    for error in [&inventory.error, &snapshot.driver_error].into_iter().flatten() {
        let code = error.code.map_or_else(String::new, |code| format!(" (NVML error {code})"));
        lines.line(format!("no GPU readings: {}{code}", error.message));
    }
}

fn load(lines: &mut Lines, hello: &Hello, host: &HostReading) {
    lines.piece("CPU use", of("", host.cpu_percent.map(|share| format!("{share} %")), hello.cpu_count, ""));
    lines.rare_piece(around("waiting for I/O ", host.io_wait_percent, " %"));
    let load = [host.load_1, host.load_5, host.load_15];
    lines
        .piece("load", load[0].map(|_| format!("load {} {} {}", or_dash(load[0]), or_dash(load[1]), or_dash(load[2]))));
    lines.end("CPU");
    lines.piece("memory", of("", host.memory_used_bytes().map(bytes), host.memory_total_bytes.map(bytes), ""));
    let swap_used = host.swap_total_bytes.zip(host.swap_free_bytes).map(|(total, free)| total.saturating_sub(free));
    lines.rare_piece(of("swap ", swap_used.map(bytes), host.swap_total_bytes.map(bytes), ""));
    lines.end("memory");
    lines.piece("pressure", around("CPU ", host.pressure_cpu_percent, " %"));
    lines.rare_piece(around("memory ", host.pressure_memory_percent, " %"));
    lines.rare_piece(around("I/O ", host.pressure_io_percent, " % of the last minute"));
    lines.end("pressure");
    lines.piece("network", around("in ", host.network_receive_bytes_per_second.map(rate), ""));
    lines.rare_piece(around("out ", host.network_transmit_bytes_per_second.map(rate), ""));
    lines.end("network");
    lines.piece("disks", around("read ", host.disk_read_bytes_per_second.map(rate), ""));
    lines.rare_piece(around("written ", host.disk_write_bytes_per_second.map(rate), ""));
    lines.end("disks");
    lines.rare_piece(around("", host.tasks_blocked, " in uninterruptible sleep"));
    lines.rare_piece(around("", host.oom_kills, " killed for want of memory since boot"));
    lines.end("tasks");
}

fn describe(filesystem: &Filesystem) -> String {
    let Filesystem { mount_point, kind, total_bytes, available_bytes, silent_seconds, .. } = filesystem;
    let state = match silent_seconds {
        Some(seconds) => format!("no answer for {}", time(f64::from(*seconds))),
        None => format!("{} free of {}", or_dash(available_bytes.map(bytes)), or_dash(total_bytes.map(bytes))),
    };
    format!("{mount_point} ({kind}): {state}")
}

fn cost(lines: &mut Lines, hello: &Hello, cost: Option<&ProbeCost>) {
    let Some(cost) = cost else { return };
    lines.rare_piece(around("process ", hello.probe_pid, ""));
    lines.rare_piece(Some(format!("{} s of CPU", cost.cpu_seconds)));
    lines.rare_piece(cost.rss_bytes.map(bytes));
    lines.rare_piece(Some(format!("{} ms for this snapshot", cost.sample_ms)));
    lines.rare_piece(around("", cost.probes_on_host, " probes on this host"));
    lines.end("probe");
}
