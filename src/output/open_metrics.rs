//! The metrics of `gpufleet collect --metrics`: the fleet and its findings as text for Prometheus. docs/metrics.md
//! describes them.
//!
//! ```text
//! # HELP gpufleet_gpu_utilization_ratio Share of time in which a kernel ran.
//! # TYPE gpufleet_gpu_utilization_ratio gauge
//! gpufleet_gpu_utilization_ratio{host="hgx-01",gpu="0",uuid="GPU-5d1e...",model="NVIDIA H100 80GB HBM3"} 0.97
//! ```
//!
//! An unknown value has no line, and so have the readings of a host that are not current: Prometheus then shows a gap.

use super::report::{GpuView, Report};
use crate::config::Sharing;
use crate::diagnosis::{Finding, FindingPhase};
use crate::fleet::{GpuState, Host, HostId, JobKey, Process, host_users, program_name};
use crate::wire::{GpuHealth, GpuReading, HostReading, SafeText};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

/// Maximum number of characters of a label value.
const MAX_LABEL_CHARACTERS: usize = 120;
/// Maximum number of users of a host, because hosts choose the names.
const MAX_USERS: usize = 100;
/// Maximum number of series of the processes of a host.
const MAX_PROCESS_SERIES: usize = 200;
/// Maximum number of series of findings.
const MAX_FINDINGS: usize = 5000;

/// The two text formats that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format, version 0.0.4.
    Prometheus,
}

impl TextFormat {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The choices of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsOptions {
    /// The text format.
    pub format: TextFormat,
    /// Adds the metrics of processes and Slurm jobs, whose labels change with every job.
    pub per_process: bool,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    /// Its name ends with `_total`.
    Counter,
    /// A gauge that is always 1; its name ends with `_info`.
    Info,
}

/// A metric: its name, its documentation, and where its samples come from.
struct Metric {
    name: &'static str,
    kind: Kind,
    about: &'static str,
    /// The name in DCGM exporter; empty if it has none.
    dcgm: &'static str,
    /// The name in nvidia_gpu_exporter, without `nvidia_smi_`; empty if it has none.
    nvidia_gpu_exporter: &'static str,
    samples: Samples,
}

enum Samples {
    /// One sample per host, with the label `host`.
    PerHost(fn(&HostSample<'_>) -> Option<f64>),
    /// One sample per GPU, with the labels `host`, `gpu`, `uuid` and `model`.
    PerGpu(fn(&GpuSample<'_>) -> Option<f64>),
    /// Samples with these labels; `written` lists `{...}` and value.
    Labelled(&'static str, fn(&Scrape<'_>) -> Vec<(Labels, f64)>),
    /// Like `Labelled`, only with `--per-process`.
    PerProcess(&'static str, fn(&Scrape<'_>) -> Vec<(Labels, f64)>),
}

/// Everything that the samples are computed from.
struct Scrape<'a> {
    report: &'a Report<'a>,
    options: MetricsOptions,
    hosts: Vec<HostSample<'a>>,
}

struct HostSample<'a> {
    host: &'a Host,
    labels: Labels,
    /// Seconds since the last readings.
    age_seconds: Option<f64>,
    is_fresh: bool,
    /// The readings of the host itself; `None` if they are not current.
    reading: Option<&'a HostReading>,
    states: Vec<GpuState>,
    gpus: Vec<GpuSample<'a>>,
    /// With `--per-process`, the processes by their labels, most memory first.
    process_sums: Vec<(Labels, ProcessSum)>,
}

struct GpuSample<'a> {
    host: &'a Host,
    position: usize,
    labels: Labels,
    view: GpuView<'a>,
    /// The readings; `None` if those of the host are not current.
    reading: Option<&'a GpuReading>,
    health: Option<&'a GpuHealth>,
}

/// The labels of a sample, as they are written between the braces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Labels(String);

impl Labels {
    /// Adds a label. An empty value is the same as no label.
    fn with(mut self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0 += name;
        self.0 += "=\"";
        let mut characters = value.chars();
        for character in characters.by_ref().take(MAX_LABEL_CHARACTERS) {
            match character {
                '\\' => self.0 += "\\\\",
                '"' => self.0 += "\\\"",
                '\n' => self.0 += "\\n",
                other => self.0.push(other),
            }
        }
        if characters.next().is_some() {
            self.0.push('…');
        }
        self.0.push('"');
        self
    }

    fn with_known(self, name: &str, value: Option<&SafeText>) -> Self {
        self.with(name, value.map_or("", SafeText::as_str))
    }
}

const fn metric(name: &'static str, kind: Kind, about: &'static str, samples: Samples) -> Metric {
    Metric { name, kind, about, dcgm: "", nvidia_gpu_exporter: "", samples }
}

impl Metric {
    /// Adds the names in the other exporters.
    const fn also(self, dcgm: &'static str, nvidia_gpu_exporter: &'static str) -> Self {
        Self { dcgm, nvidia_gpu_exporter, ..self }
    }
}

const fn host(name: &'static str, about: &'static str, value: fn(&HostSample<'_>) -> Option<f64>) -> Metric {
    metric(name, Kind::Gauge, about, Samples::PerHost(value))
}

const fn gpu(name: &'static str, about: &'static str, value: fn(&GpuSample<'_>) -> Option<f64>) -> Metric {
    metric(name, Kind::Gauge, about, Samples::PerGpu(value))
}

const fn gpu_counter(name: &'static str, about: &'static str, value: fn(&GpuSample<'_>) -> Option<f64>) -> Metric {
    metric(name, Kind::Counter, about, Samples::PerGpu(value))
}

/// A percentage as a ratio, without the digits that a conversion of `f32` adds.
fn ratio(percent: Option<impl Into<f64>>) -> Option<f64> {
    percent.map(|percent| (percent.into() * 1e4).round() / 1e6)
}

/// A value with three decimals, without the digits that a conversion of `f32` adds.
fn rounded(value: Option<f32>) -> Option<f64> {
    value.map(|value| (f64::from(value) * 1e3).round() / 1e3)
}

fn number(value: Option<impl Into<f64>>) -> Option<f64> {
    value.map(Into::into)
}

fn bytes(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn flag(value: Option<bool>) -> Option<f64> {
    value.map(|is_so| f64::from(u8::from(is_so)))
}

/// All metrics, in the order of the output and the documentation.
const METRICS: &[Metric] = &[
    metric(
        "gpufleet_build_info",
        Kind::Info,
        "The version of gpufleet.",
        Samples::Labelled("version", |_| vec![(Labels::default().with("version", env!("CARGO_PKG_VERSION")), 1.0)]),
    ),
    host("gpufleet_host_up", "1 if the host has sent current readings, else 0.", |host| flag(Some(host.is_fresh))),
    host("gpufleet_sample_age_seconds", "Time since the last readings of the host.", |host| host.age_seconds),
    metric(
        "gpufleet_host_info",
        Kind::Info,
        "Driver, CUDA, kernel and group of the host.",
        Samples::Labelled("host, driver_version, cuda_version, kernel, group", host_info),
    ),
    host("gpufleet_host_round_trip_seconds", "Round-trip time of the last heartbeat.", |host| {
        host.host.round_trip.filter(|_| host.is_fresh).map(|time| time.as_secs_f64())
    }),
    host("gpufleet_host_cpu_utilization_ratio", "CPU utilization over all CPUs.", |host| {
        ratio(host.reading?.cpu_percent)
    }),
    host("gpufleet_host_io_wait_ratio", "Share of CPU time spent waiting for I/O.", |host| {
        ratio(host.reading?.io_wait_percent)
    }),
    host("gpufleet_host_load1", "Load average of 1 minute.", |host| rounded(host.reading?.load_1)),
    host("gpufleet_host_load5", "Load average of 5 minutes.", |host| rounded(host.reading?.load_5)),
    host("gpufleet_host_load15", "Load average of 15 minutes.", |host| rounded(host.reading?.load_15)),
    host("gpufleet_host_memory_size_bytes", "Total memory of the host.", |host| {
        bytes(host.reading?.memory_total_bytes)
    }),
    host("gpufleet_host_memory_available_bytes", "Memory of the host that is available without swapping.", |host| {
        bytes(host.reading?.memory_available_bytes)
    }),
    metric(
        "gpufleet_host_oom_kills_total",
        Kind::Counter,
        "Processes killed by the out-of-memory killer since boot.",
        Samples::PerHost(|host| bytes(host.reading?.oom_kills)),
    ),
    metric(
        "gpufleet_gpu_info",
        Kind::Info,
        "PCI bus id and MIG parent of the GPU.",
        Samples::Labelled("host, gpu, uuid, model, pci_bus_id, mig_parent_uuid", gpu_info),
    )
    .also("", "gpu_info"),
    metric(
        "gpufleet_gpu_state",
        Kind::Gauge,
        "1 for the state of the GPU and 0 for each other state: free, unused, idle, waiting, in_use, hung, fault, unknown.",
        Samples::Labelled("host, gpu, uuid, model, state", gpu_states),
    ),
    gpu("gpufleet_gpu_utilization_ratio", "Share of time in which a kernel ran.", |gpu| {
        ratio(gpu.reading?.utilization_percent)
    })
    .also("DCGM_FI_DEV_GPU_UTIL", "utilization_gpu_ratio"),
    gpu("gpufleet_gpu_memory_utilization_ratio", "Share of time in which memory was read or written.", |gpu| {
        ratio(gpu.reading?.memory_utilization_percent)
    })
    .also("DCGM_FI_DEV_MEM_COPY_UTIL", "utilization_memory_ratio"),
    gpu("gpufleet_gpu_encoder_utilization_ratio", "Encoder utilization.", |gpu| ratio(gpu.reading?.encoder_percent))
        .also("DCGM_FI_DEV_ENC_UTIL", "utilization_encoder_ratio"),
    gpu("gpufleet_gpu_decoder_utilization_ratio", "Decoder utilization.", |gpu| ratio(gpu.reading?.decoder_percent))
        .also("DCGM_FI_DEV_DEC_UTIL", "utilization_decoder_ratio"),
    gpu("gpufleet_gpu_sm_activity_ratio", "Share of time in which an SM was busy, mean over all SMs.", |gpu| {
        ratio(gpu.reading?.sm_activity_percent)
    })
    .also("DCGM_FI_PROF_SM_ACTIVE", ""),
    gpu("gpufleet_gpu_sm_occupancy_ratio", "Resident warps, of the maximum.", |gpu| {
        ratio(gpu.reading?.sm_occupancy_percent)
    })
    .also("DCGM_FI_PROF_SM_OCCUPANCY", ""),
    gpu("gpufleet_gpu_tensor_activity_ratio", "Share of time in which tensor cores were busy.", |gpu| {
        ratio(gpu.reading?.tensor_activity_percent)
    })
    .also("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ""),
    gpu("gpufleet_gpu_dram_bandwidth_ratio", "Share of the memory bandwidth in use.", |gpu| {
        ratio(gpu.reading?.dram_bandwidth_percent)
    })
    .also("DCGM_FI_PROF_DRAM_ACTIVE", ""),
    gpu("gpufleet_gpu_memory_used_bytes", "GPU memory in use.", |gpu| bytes(gpu.reading?.memory_used_bytes))
        .also("DCGM_FI_DEV_FB_USED", "memory_used_bytes"),
    gpu("gpufleet_gpu_memory_reserved_bytes", "GPU memory that the driver reserves.", |gpu| {
        bytes(gpu.reading?.memory_reserved_bytes)
    })
    .also("DCGM_FI_DEV_FB_RESERVED", "memory_reserved_bytes"),
    gpu("gpufleet_gpu_memory_size_bytes", "Total GPU memory.", |gpu| bytes(gpu.view.info.memory_total_bytes))
        .also("", "memory_total_bytes"),
    gpu("gpufleet_gpu_temperature_celsius", "GPU temperature.", |gpu| number(gpu.reading?.temperature_celsius))
        .also("DCGM_FI_DEV_GPU_TEMP", "temperature_gpu"),
    gpu("gpufleet_gpu_memory_temperature_celsius", "Temperature of the GPU memory.", |gpu| {
        number(gpu.reading?.memory_temperature_celsius)
    })
    .also("DCGM_FI_DEV_MEMORY_TEMP", "temperature_memory"),
    gpu("gpufleet_gpu_slowdown_temperature_celsius", "Temperature at which the hardware slows down.", |gpu| {
        number(gpu.view.info.temperature_slowdown_celsius)
    }),
    gpu("gpufleet_gpu_power_watts", "Power draw.", |gpu| rounded(gpu.reading?.power_watts))
        .also("DCGM_FI_DEV_POWER_USAGE", "power_draw_watts"),
    gpu("gpufleet_gpu_power_limit_watts", "Power limit that the driver enforces.", |gpu| {
        rounded(gpu.reading.and_then(|reading| reading.power_limit_watts).or(gpu.view.info.power_limit_watts))
    })
    .also("", "enforced_power_limit_watts"),
    gpu_counter("gpufleet_gpu_energy_joules_total", "Energy since the driver was loaded.", |gpu| {
        gpu.reading?.energy_joules
    })
    .also("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total"),
    gpu("gpufleet_gpu_graphics_clock_hertz", "Graphics clock.", |gpu| megahertz(gpu.reading?.clock_graphics_mhz))
        .also("", "clocks_current_graphics_clock_hz"),
    gpu("gpufleet_gpu_sm_clock_hertz", "SM clock.", |gpu| megahertz(gpu.reading?.clock_sm_mhz))
        .also("DCGM_FI_DEV_SM_CLOCK", "clocks_current_sm_clock_hz"),
    gpu("gpufleet_gpu_memory_clock_hertz", "Memory clock.", |gpu| megahertz(gpu.reading?.clock_memory_mhz))
        .also("DCGM_FI_DEV_MEM_CLOCK", "clocks_current_memory_clock_hz"),
    gpu("gpufleet_gpu_clocks_event_reasons", "Reasons for reduced clocks, the bit mask of NVML.", |gpu| {
        bytes(gpu.reading?.clocks_event_reasons)
    })
    .also("", "clocks_event_reasons_active"),
    gpu_counter(
        "gpufleet_gpu_thermal_violation_seconds_total",
        "Time in which heat reduced the clocks, since the driver was loaded.",
        |gpu| gpu.reading?.thermal_violation_seconds,
    )
    .also("DCGM_FI_DEV_THERMAL_VIOLATION", "clocks_event_reasons_counters_sw_thermal_slowdown_seconds"),
    gpu_counter(
        "gpufleet_gpu_power_violation_seconds_total",
        "Time in which the power limit reduced the clocks, since the driver was loaded.",
        |gpu| gpu.reading?.power_violation_seconds,
    )
    .also("DCGM_FI_DEV_POWER_VIOLATION", "clocks_event_reasons_counters_sw_power_cap_seconds"),
    gpu_counter(
        "gpufleet_gpu_power_brake_seconds_total",
        "Time in which the external power brake reduced the clocks.",
        |gpu| gpu.reading?.power_brake_seconds,
    )
    .also("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "clocks_event_reasons_counters_hw_power_brake_slowdown_seconds"),
    gpu("gpufleet_gpu_fan_speed_ratio", "Speed of the fastest fan, of its maximum.", |gpu| {
        ratio(gpu.reading?.fan_percent)
    }),
    gpu("gpufleet_gpu_performance_state", "Performance state, 0 (fastest) to 15.", |gpu| {
        number(gpu.reading?.performance_state)
    })
    .also("", "pstate"),
    gpu("gpufleet_gpu_pcie_generation", "PCIe generation in use.", |gpu| number(gpu.reading?.pcie_generation))
        .also("", "pcie_link_gen_current"),
    gpu("gpufleet_gpu_pcie_lanes", "PCIe lanes in use.", |gpu| number(gpu.reading?.pcie_width))
        .also("", "pcie_link_width_current"),
    gpu("gpufleet_gpu_pcie_receive_bytes_per_second", "Data rate from the host over PCIe.", |gpu| {
        gpu.reading?.pcie_receive_bytes_per_second
    })
    .also("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_throughput_rx_bytes_per_second"),
    gpu("gpufleet_gpu_pcie_transmit_bytes_per_second", "Data rate to the host over PCIe.", |gpu| {
        gpu.reading?.pcie_transmit_bytes_per_second
    })
    .also("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_throughput_tx_bytes_per_second"),
    gpu("gpufleet_gpu_nvlink_receive_bytes_per_second", "Data rate from other GPUs over all NVLinks.", |gpu| {
        gpu.reading?.nvlink_receive_bytes_per_second
    }),
    gpu("gpufleet_gpu_nvlink_transmit_bytes_per_second", "Data rate to other GPUs over all NVLinks.", |gpu| {
        gpu.reading?.nvlink_transmit_bytes_per_second
    }),
    gpu_counter(
        "gpufleet_gpu_ecc_corrected_errors_total",
        "Corrected ECC errors since the driver was loaded.",
        |gpu| bytes(gpu.health?.ecc_corrected_volatile),
    )
    .also("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_errors_corrected_volatile_total"),
    gpu_counter(
        "gpufleet_gpu_ecc_uncorrectable_errors_total",
        "Uncorrectable ECC errors since the driver was loaded.",
        |gpu| bytes(gpu.health?.ecc_uncorrectable_volatile),
    )
    .also("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_errors_uncorrected_volatile_total"),
    gpu("gpufleet_gpu_retired_pages_single_bit", "Pages retired because of several single-bit errors.", |gpu| {
        number(gpu.health?.retired_pages_single_bit)
    })
    .also("DCGM_FI_DEV_RETIRED_SBE", ""),
    gpu("gpufleet_gpu_retired_pages_double_bit", "Pages retired because of a double-bit error.", |gpu| {
        number(gpu.health?.retired_pages_double_bit)
    })
    .also("DCGM_FI_DEV_RETIRED_DBE", ""),
    gpu("gpufleet_gpu_retired_pages_pending", "1 if pages will be retired at the next reboot.", |gpu| {
        flag(gpu.health?.retired_pages_pending)
    })
    .also("DCGM_FI_DEV_RETIRED_PENDING", ""),
    gpu("gpufleet_gpu_remapped_rows_correctable", "Rows remapped because of corrected errors.", |gpu| {
        number(gpu.health?.remapped_rows_correctable)
    })
    .also("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows_correctable"),
    gpu("gpufleet_gpu_remapped_rows_uncorrectable", "Rows remapped because of uncorrectable errors.", |gpu| {
        number(gpu.health?.remapped_rows_uncorrectable)
    })
    .also("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrectable"),
    gpu("gpufleet_gpu_row_remap_pending", "1 if a row will be remapped at the next reset.", |gpu| {
        flag(gpu.health?.row_remap_pending)
    })
    .also("", "remapped_rows_pending"),
    gpu("gpufleet_gpu_row_remap_failed", "1 if a row could not be remapped: the GPU must be replaced.", |gpu| {
        flag(gpu.health?.row_remap_failed)
    })
    .also("DCGM_FI_DEV_ROW_REMAP_FAILURE", "remapped_rows_failure"),
    gpu("gpufleet_gpu_processes", "Number of processes that compute on the GPU.", gpu_processes)
        .also("", "compute_apps"),
    gpu("gpufleet_gpu_slurm_allocated", "1 if Slurm has allocated the GPU to a job, else 0.", slurm_allocated),
    metric(
        "gpufleet_user_gpus",
        Kind::Gauge,
        "GPUs that a user holds on a host, by state; MIG instances count as their GPU.",
        Samples::Labelled("host, user, state", user_gpus),
    ),
    metric(
        "gpufleet_finding",
        Kind::Gauge,
        "Number of firing findings; one sample per GPU, or per host for a finding without GPUs.",
        Samples::Labelled("rule, severity, host, gpu, user", findings),
    ),
    metric(
        "gpufleet_process_gpu_memory_bytes",
        Kind::Gauge,
        "GPU memory of the processes of a user, program and Slurm job on a GPU.",
        Samples::PerProcess("host, gpu, uuid, model, user, program, slurm_job", |scrape| {
            process_samples(scrape, |sum| sum.memory_bytes)
        }),
    )
    .also("", "compute_app_used_memory_bytes"),
    metric(
        "gpufleet_process_sm_utilization_ratio",
        Kind::Gauge,
        "SM utilization of the processes of a user, program and Slurm job on a GPU.",
        Samples::PerProcess("host, gpu, uuid, model, user, program, slurm_job", |scrape| {
            process_samples(scrape, |sum| sum.sm_ratio)
        }),
    ),
    metric(
        "gpufleet_process_series_left_out",
        Kind::Gauge,
        "Number of series of processes of a host beyond the limit of 200.",
        Samples::PerProcess("host", |scrape| {
            let left_out = |host: &HostSample<'_>| host.process_sums.len().saturating_sub(MAX_PROCESS_SERIES) as f64;
            let fresh = scrape.hosts.iter().filter(|host| host.is_fresh);
            fresh.map(|host| (host.labels.clone(), left_out(host))).collect()
        }),
    ),
    metric(
        "gpufleet_slurm_job_gpus",
        Kind::Gauge,
        "GPUs of a host on which processes of a Slurm job compute.",
        Samples::PerProcess("host, slurm_job, user", slurm_job_gpus),
    ),
];

/// The metrics of the fleet as text.
pub fn text(report: &Report<'_>, options: MetricsOptions) -> String {
    let scrape = Scrape::new(report, options);
    let mut text = String::new();
    for metric in METRICS {
        let samples = metric.samples(&scrape);
        if !samples.is_empty() {
            metric.write(&samples, options.format, &mut text);
        }
    }
    if options.format == TextFormat::OpenMetrics {
        text += "# EOF\n";
    }
    text
}

/// The table of docs/metrics.md: each metric with its names in other exporters.
pub fn markdown_table() -> String {
    let mut table =
        "| metric | type | labels | meaning | DCGM exporter | nvidia_gpu_exporter |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for metric in METRICS {
        let labels = match metric.samples {
            Samples::PerHost(_) => "host",
            Samples::PerGpu(_) => "host, gpu, uuid, model",
            Samples::Labelled(labels, _) | Samples::PerProcess(labels, _) => labels,
        };
        let when = if matches!(metric.samples, Samples::PerProcess(..)) { " Only with `--per-process`." } else { "" };
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Info => "info",
        };
        let code = |name: &str| if name.is_empty() { String::new() } else { format!("`{name}`") };
        let other = if metric.nvidia_gpu_exporter.is_empty() {
            String::new()
        } else {
            code(&format!("nvidia_smi_{}", metric.nvidia_gpu_exporter))
        };
        let (name, about) = (metric.name, metric.about);
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| `{name}` | {kind} | {labels} | {about}{when} | {} | {other} |", code(metric.dcgm));
    }
    table
}

impl Metric {
    fn samples(&self, scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
        let mut samples = match self.samples {
            Samples::PerHost(value) => {
                scrape.hosts.iter().filter_map(|host| Some((host.labels.clone(), value(host)?))).collect()
            }
            Samples::PerGpu(value) => {
                let gpus = scrape.hosts.iter().flat_map(|host| &host.gpus);
                gpus.filter_map(|gpu| Some((gpu.labels.clone(), value(gpu)?))).collect()
            }
            Samples::Labelled(_, samples) => samples(scrape),
            Samples::PerProcess(_, samples) if scrape.options.per_process => samples(scrape),
            Samples::PerProcess(..) => Vec::new(),
        };
        samples.retain(|(_, value)| value.is_finite());
        // A hostile host may list a GPU twice; Prometheus rejects equal labels. A long name may be cut to that of another.
        let mut seen = HashSet::new();
        samples.retain(|(labels, _)| seen.insert(labels.clone()));
        samples
    }

    fn write(&self, samples: &[(Labels, f64)], format: TextFormat, text: &mut String) {
        let is_open = format == TextFormat::OpenMetrics;
        // The family of OpenMetrics has the name without the suffix of its samples.
        let (family, kind) = match self.kind {
            Kind::Counter if is_open => (self.name.trim_end_matches("_total"), "counter"),
            Kind::Counter => (self.name, "counter"),
            Kind::Info if is_open => (self.name.trim_end_matches("_info"), "info"),
            Kind::Gauge | Kind::Info => (self.name, "gauge"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {family} {}\n# TYPE {family} {kind}", self.about);
        for (Labels(labels), value) in samples {
            *text += self.name;
            if !labels.is_empty() {
                let _ = write!(text, "{{{labels}}}");
            }
            let _ = match value.abs() {
                ..1e15 => writeln!(text, " {value}"),
                _ => writeln!(text, " {value:e}"),
            };
        }
    }
}

impl<'a> Scrape<'a> {
    fn new(report: &'a Report<'a>, options: MetricsOptions) -> Self {
        let hosts = report.fleet.hosts().iter().map(|host| HostSample::new(report, options, host)).collect();
        Self { report, options, hosts }
    }

    /// The name of the user of a finding, if all its hosts share it.
    fn user_of<'f>(&self, finding: &'f Finding) -> &'f str {
        let is_shared = |(id, _): &(HostId, SafeText)| self.report.fleet.host(*id).is_some_and(shares_names);
        finding.user.as_ref().filter(|_| finding.hosts.iter().all(is_shared)).map_or("", SafeText::as_str)
    }

    fn name_of(&self, id: HostId) -> &str {
        self.report.fleet.host(id).map_or("", |host| host.name().as_str())
    }
}

impl<'a> HostSample<'a> {
    fn new(report: &'a Report<'a>, options: MetricsOptions, host: &'a Host) -> Self {
        let is_fresh = host.is_fresh(report.now);
        let labels = Labels::default().with("host", host.name());
        let gpus = report.gpus(host).into_iter().enumerate().map(|(position, view)| GpuSample {
            host,
            position,
            labels: labels
                .clone()
                .with("gpu", &view.info.index.to_string())
                .with_known("uuid", view.info.uuid.as_ref())
                .with_known("model", view.info.name.as_ref()),
            reading: Some(view.reading).filter(|_| is_fresh),
            health: view.health.filter(|_| is_fresh),
            view,
        });
        let gpus: Vec<_> = gpus.collect();
        let has_processes = options.per_process && is_fresh;
        let process_sums = if has_processes { process_sums(host, &gpus) } else { Vec::new() };
        Self {
            host,
            age_seconds: host.age(report.now).map(|age| (age.as_secs_f64() * 1e3).round() / 1e3),
            is_fresh,
            reading: host.snapshot.as_ref().map(|snapshot| &snapshot.host).filter(|_| is_fresh),
            states: gpus.iter().map(|gpu| gpu.view.state).collect(),
            process_sums,
            gpus,
            labels,
        }
    }
}

fn megahertz(clock: Option<u32>) -> Option<f64> {
    clock.map(|clock| f64::from(clock) * 1e6)
}

fn host_info(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let labels = |host: &HostSample<'_>| {
        let inventory = host.host.inventory.as_ref();
        let kernel = host.host.hello.as_ref().and_then(|hello| hello.kernel.as_ref());
        host.labels
            .clone()
            .with_known("driver_version", inventory.and_then(|inventory| inventory.driver_version.as_ref()))
            .with_known("cuda_version", inventory.and_then(|inventory| inventory.cuda_version.as_ref()))
            .with_known("kernel", kernel)
            .with_known("group", host.host.config.group.as_ref())
    };
    scrape.hosts.iter().map(|host| (labels(host), 1.0)).collect()
}

fn gpu_info(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let labels = |gpu: &GpuSample<'_>| {
        let info = gpu.view.info;
        gpu.labels
            .clone()
            .with_known("pci_bus_id", info.pci_bus_id.as_ref())
            .with_known("mig_parent_uuid", info.mig_parent_uuid.as_ref())
    };
    scrape.hosts.iter().flat_map(|host| &host.gpus).map(|gpu| (labels(gpu), 1.0)).collect()
}

fn gpu_states(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for gpu in scrape.hosts.iter().flat_map(|host| &host.gpus) {
        for state in GpuState::ALL {
            let value = f64::from(u8::from(gpu.view.state == state));
            samples.push((gpu.labels.clone().with("state", state.json_word()), value));
        }
    }
    samples
}

fn gpu_processes(gpu: &GpuSample<'_>) -> Option<f64> {
    let reading = gpu.reading.filter(|reading| reading.processes_unknown != Some(true) && reading.error.is_none());
    reading.map(|_| gpu.host.processes().filter(|process| process.computes_on(gpu.position)).count() as f64)
}

/// Slurm numbers MIG instances in a different order.
fn slurm_allocated(gpu: &GpuSample<'_>) -> Option<f64> {
    gpu.reading?;
    let info = gpu.view.info;
    let allocated = gpu.host.slurm_allocated_gpus().filter(|_| info.mig_parent_uuid.is_none())?;
    flag(Some(allocated.contains(&info.index)))
}

/// Whether names of users, programs and Slurm jobs on the host may be shown: the reader of the metrics is another account.
fn shares_names(host: &Host) -> bool {
    host.config.sharing != Sharing::None
}

fn user_gpus(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for host in scrape.hosts.iter().filter(|host| host.is_fresh && shares_names(host.host)) {
        let states: Vec<_> = host.states.iter().map(|state| (*state, None)).collect();
        let mut users = host_users(host.host, &states).users;
        users.sort_by_key(|user| std::cmp::Reverse(user.gpus));
        for user in users.iter().take(MAX_USERS) {
            for state in GpuState::ALL.into_iter().filter(|state| user.in_state(*state) > 0) {
                let labels = host.labels.clone().with("user", &user.who).with("state", state.json_word());
                samples.push((labels, f64::from(user.in_state(state))));
            }
        }
    }
    samples
}

fn findings(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let mut counts: BTreeMap<Labels, f64> = BTreeMap::new();
    let is_firing = |phase| matches!(phase, FindingPhase::Firing | FindingPhase::Resolving);
    for finding in scrape.report.findings.iter().filter(|finding| is_firing(finding.phase)) {
        let labels = |host: &str, gpu: &str| {
            Labels::default()
                .with("rule", finding.rule.word())
                .with("severity", finding.severity.word())
                .with("host", host)
                .with("gpu", gpu)
                .with("user", scrape.user_of(finding))
        };
        let gpus = finding.gpus.iter().map(|gpu| labels(scrape.name_of(gpu.host), &gpu.index.to_string()));
        let without_gpus = |id: &HostId| !finding.gpus.iter().any(|gpu| gpu.host == *id);
        let hosts = finding.hosts.iter().filter(|(id, _)| without_gpus(id)).map(|(_, name)| labels(name, ""));
        for labels in gpus.chain(hosts) {
            *counts.entry(labels).or_default() += 1.0;
        }
    }
    counts.into_iter().take(MAX_FINDINGS).collect()
}

/// The processes of a GPU with equal labels.
#[derive(Default)]
struct ProcessSum {
    memory_bytes: Option<f64>,
    sm_ratio: Option<f64>,
}

/// The sums of the processes of a host by their labels, most memory first.
fn process_sums(host: &Host, gpus: &[GpuSample<'_>]) -> Vec<(Labels, ProcessSum)> {
    let mut sums: BTreeMap<Labels, ProcessSum> = BTreeMap::new();
    for process in host.processes() {
        for usage in &process.gpus {
            let Some(gpu) = usage.gpu.and_then(|position| gpus.get(usize::from(position))) else { continue };
            let mut labels = gpu.labels.clone();
            // squeue names the user of a job.
            if shares_names(host) {
                labels = labels.with("user", &process.info.who).with("program", &program(process));
                labels = labels.with("slurm_job", slurm_job(process));
            }
            let sum = sums.entry(labels).or_default();
            let add = |sum: &mut Option<f64>, value: Option<f64>| {
                *sum = sum.zip(value).map(|(sum, value)| sum + value).or(*sum).or(value);
            };
            add(&mut sum.memory_bytes, bytes(usage.gpu_memory_bytes));
            add(&mut sum.sm_ratio, ratio(usage.sm_percent));
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    let memory = |sum: &ProcessSum| sum.memory_bytes.unwrap_or(-1.0);
    sums.sort_by(|(_, a), (_, b)| memory(b).total_cmp(&memory(a)));
    sums
}

fn program(process: &Process) -> SafeText {
    let facts = process.facts();
    let is_command = facts.is_some_and(|facts| !facts.argv.is_empty());
    let command = is_command.then(|| program_name(&process.info.command)).filter(|name| !name.is_empty());
    match command {
        Some(name) => SafeText::new(name),
        None => facts.and_then(|facts| facts.name.clone()).unwrap_or_default(),
    }
}

fn slurm_job(process: &Process) -> &str {
    match &process.info.job {
        JobKey::Slurm { job, .. } => job,
        _ => "",
    }
}

fn process_samples(scrape: &Scrape<'_>, value: fn(&ProcessSum) -> Option<f64>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for host in scrape.hosts.iter().filter(|host| host.is_fresh) {
        let sums = host.process_sums.iter().take(MAX_PROCESS_SERIES);
        samples.extend(sums.filter_map(|(labels, sum)| Some((labels.clone(), value(sum)?))));
    }
    samples
}

fn slurm_job_gpus(scrape: &Scrape<'_>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for host in scrape.hosts.iter().filter(|host| host.is_fresh && shares_names(host.host)) {
        let mut gpus: BTreeMap<Labels, HashSet<usize>> = BTreeMap::new();
        for process in host.host.processes().filter(|process| !slurm_job(process).is_empty()) {
            let labels = host.labels.clone().with("slurm_job", slurm_job(process));
            let labels = labels.with("user", &process.info.who);
            let positions = process.gpu_positions().filter(|position| process.computes_on(*position));
            gpus.entry(labels).or_default().extend(positions);
        }
        samples.extend(
            gpus.into_iter()
                .filter(|(_, gpus)| !gpus.is_empty())
                .take(MAX_PROCESS_SERIES)
                .map(|(labels, gpus)| (labels, gpus.len() as f64)),
        );
    }
    samples
}

#[cfg(test)]
#[path = "open_metrics_tests.rs"]
mod tests;
