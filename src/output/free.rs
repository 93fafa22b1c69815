//! The output of `gpufleet free`: hosts, GPUs, and the two lines to type. docs/free-json.md describes the JSON.

use super::Report;
use super::json::{JsonError, rfc3339};
use crate::fleet::{FreeGpu, FreeHost, Host, cuda_environment, gpu_list};
use crate::wire::SafeText;
use serde::Serialize;
use std::fmt::Write as _;

/// The version of the JSON. It rises when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The result of `gpufleet free`.
pub struct FreeReport<'a> {
    /// The fleet.
    pub report: &'a Report<'a>,
    /// The chosen GPUs; `None` if not enough GPUs match.
    pub found: Option<&'a [FreeHost]>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JsonFreeReport {
    schema: u32,
    time: Option<String>,
    simulated: bool,
    found: bool,
    hosts: Vec<JsonFreeHost>,
    unseen: Vec<JsonUnseen>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonFreeHost {
    name: SafeText,
    ssh: Option<String>,
    environment: String,
    note: Option<SafeText>,
    cpu_percent: Option<f32>,
    gpus: Vec<JsonFreeGpu>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonFreeGpu {
    index: u32,
    uuid: Option<SafeText>,
    name: Option<SafeText>,
    memory_total_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    mig_instance: bool,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonUnseen {
    name: SafeText,
    state: &'static str,
    error: Option<JsonError>,
}

/// The result as one line of JSON, with its newline.
///
/// # Errors
/// Never with these types.
pub fn json_line(result: &FreeReport<'_>) -> Result<String, serde_json::Error> {
    let fleet = result.report.fleet;
    let hosts = result.found.unwrap_or_default().iter();
    let value = JsonFreeReport {
        schema: SCHEMA,
        time: rfc3339(result.report.now),
        simulated: fleet.simulated,
        found: result.found.is_some(),
        hosts: hosts.filter_map(|free| Some(json_host(fleet.host(free.host)?, free))).collect(),
        unseen: unseen(result)
            .map(|host| JsonUnseen {
                name: host.name().clone(),
                state: host.link.word(),
                error: JsonError::of_host(host, result.report.now),
            })
            .collect(),
    };
    Ok(serde_json::to_string(&value)? + "\n")
}

fn json_host(host: &Host, free: &FreeHost) -> JsonFreeHost {
    JsonFreeHost {
        name: host.name().clone(),
        ssh: host.config.ssh_line().map(|line| line.as_str().to_owned()),
        environment: cuda_environment(&free.gpus),
        note: host.config.note.clone(),
        cpu_percent: host.snapshot.as_ref().and_then(|snapshot| snapshot.host.cpu_percent),
        gpus: free
            .gpus
            .iter()
            .map(|gpu| JsonFreeGpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                name: gpu.name.clone(),
                memory_total_bytes: gpu.memory_total_bytes,
                memory_free_bytes: gpu.memory_free_bytes,
                mig_instance: gpu.is_instance,
            })
            .collect(),
    }
}

/// Hosts without current readings, which may have free GPUs as well.
fn unseen<'a>(result: &'a FreeReport<'_>) -> impl Iterator<Item = &'a Host> {
    result.report.fleet.hosts().iter().filter(|host| !host.is_fresh(result.report.now))
}

/// The result as text: one line per host, followed by the two lines to type.
pub fn text(result: &FreeReport<'_>) -> String {
    let mut out = String::new();
    let fleet = result.report.fleet;
    for free in result.found.unwrap_or_default() {
        let Some(host) = fleet.host(free.host) else { continue };
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{}", heading(host, free));
        if let Some(line) = host.config.ssh_line() {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "  export {}", cuda_environment(&free.gpus));
    }
    if result.found.is_none() {
        out.push_str("no free GPU matches\n");
    }
    let unseen: Vec<&str> = unseen(result).map(|host| host.name().as_str()).collect();
    if !unseen.is_empty() {
        let _ = writeln!(out, "no current readings: {} (see `gpufleet status`)", unseen.join(", "));
    }
    if fleet.simulated {
        out.push_str("SIMULATED\n");
    }
    out
}

/// `hgx-05  2 free  GPU 0,7  NVIDIA H100 80GB HBM3, 80G  cpu 21%  note: ask Bob first`.
fn heading(host: &Host, free: &FreeHost) -> String {
    let indexes: Vec<u32> = free.gpus.iter().map(|gpu| gpu.index).collect();
    let mut line = format!("{}  {} free  GPU {}", host.name(), free.gpus.len(), gpu_list(&indexes));
    let mut models: Vec<String> = Vec::new();
    for gpu in &free.gpus {
        let model = model(gpu);
        if !models.contains(&model) {
            models.push(model);
        }
    }
    let _ = write!(line, "  {}", models.join("; "));
    if let Some(cpu) = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.cpu_percent) {
        let _ = write!(line, "  cpu {cpu:.0}%");
    }
    if let Some(note) = &host.config.note {
        let _ = write!(line, "  note: {note}");
    }
    line
}

fn model(gpu: &FreeGpu) -> String {
    let name = gpu.name.as_deref().unwrap_or("unknown model");
    match gpu.memory_total_bytes {
        Some(bytes) => format!("{name}, {:.0}G", bytes as f64 / f64::from(1 << 30)),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::fleet::{Fleet, GpuState, HostId, HostUpdate, Link, Moment};
    use crate::output::fixture::{assert_documented, moment};
    use crate::wire::{GpuColumns, GpuInfo, GpuReading, Inventory, Snapshot};
    use std::sync::Arc;

    fn gpu(index: u32, uuid: Option<&str>) -> FreeGpu {
        FreeGpu {
            position: index as usize,
            index,
            uuid: uuid.map(Into::into),
            name: Some("NVIDIA H100 80GB HBM3".into()),
            memory_total_bytes: Some(80 << 30),
            memory_free_bytes: Some(79 << 30),
            is_instance: false,
        }
    }

    /// A host with current readings and a note, and one that is connecting.
    fn with_free_report(found: Option<&[FreeHost]>, check: impl FnOnce(&FreeReport<'_>)) {
        let mut first = HostConfig::named("hgx-01");
        first.address = Some("10.0.0.11".to_owned());
        first.user = Some("alice".to_owned());
        first.port = Some(2222);
        first.note = Some("ask Bob first".into());
        let configs = [Arc::new(first), Arc::new(HostConfig::named("hgx-02"))];
        let mut fleet = Fleet::new(&configs, false, moment(-10.0));
        let gpus = vec![GpuInfo { index: 0, ..GpuInfo::default() }];
        let inventory = Inventory { generation: 1, gpus, ..Inventory::default() };
        fleet.apply(HostId(0), HostUpdate::Inventory(Box::new(inventory)), moment(0.0));
        let mut snapshot =
            Snapshot { generation: 1, gpus: GpuColumns::from_rows(&[GpuReading::default()]), ..Snapshot::default() };
        snapshot.host.cpu_percent = Some(20.6);
        fleet.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshot)), moment(0.0));
        assert!(matches!(fleet.hosts()[0].link, Link::Live));
        let states = |_: HostId| Vec::<(GpuState, Option<Moment>)>::new();
        check(&FreeReport {
            report: &Report { fleet: &fleet, states: &states, findings: &[], now: moment(0.5) },
            found,
        });
    }

    #[test]
    fn the_text_has_the_commands_to_use_the_gpus() {
        let found = [FreeHost { host: HostId(0), gpus: vec![gpu(0, Some("GPU-8f3a")), gpu(7, Some("GPU-91bc"))] }];
        with_free_report(Some(&found), |result| {
            let expected = "\
hgx-01  2 free  GPU 0,7  NVIDIA H100 80GB HBM3, 80G  cpu 21%  note: ask Bob first
  ssh -p 2222 alice@10.0.0.11
  export CUDA_VISIBLE_DEVICES=GPU-8f3a,GPU-91bc
no current readings: hgx-02 (see `gpufleet status`)
";
            assert_eq!(text(result), expected);
        });
    }

    #[test]
    fn without_a_match_the_text_names_the_hosts_without_readings() {
        with_free_report(None, |result| {
            assert_eq!(text(result), "no free GPU matches\nno current readings: hgx-02 (see `gpufleet status`)\n");
            let json: serde_json::Value = serde_json::from_str(&json_line(result).expect("writes")).expect("reads");
            assert_eq!((&json["found"], &json["hosts"]), (&false.into(), &serde_json::json!([])));
            assert_eq!(json["unseen"][0]["state"], "connecting");
        });
    }

    #[test]
    fn the_document_names_every_json_field() {
        let found = [FreeHost { host: HostId(0), gpus: vec![gpu(0, Some("GPU-8f3a"))] }];
        with_free_report(Some(&found), |result| {
            let json = serde_json::from_str(&json_line(result).expect("writes")).expect("reads");
            assert_documented(include_str!("../../docs/free-json.md"), &[json]);
        });
    }

    #[test]
    fn gpu_names_are_quoted_for_the_shell() {
        let hostile = [gpu(0, Some("GPU-1;rm -rf ~")), gpu(1, Some("$(x)'y"))];
        assert_eq!(cuda_environment(&hostile), r"CUDA_VISIBLE_DEVICES='GPU-1;rm -rf ~,$(x)'\''y'");
        assert_eq!(
            cuda_environment(&[gpu(0, None), gpu(7, Some("GPU-1"))]),
            "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,7"
        );
    }
}
