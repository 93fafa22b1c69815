//! What `gpufleet free` prints: hosts, GPUs, and the two lines to type. docs/free-json.md describes the JSON.

use super::Report;
use super::json::{JsonError, rfc3339};
use crate::fleet::{FreeGpu, FreeHost, Host, cuda_environment, gpu_list};
use crate::wire::SafeText;
use serde::Serialize;
use std::fmt::Write as _;

/// The version of the JSON. It rises when a field goes or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// What was found.
pub struct FreeReport<'a> {
    /// The fleet.
    pub report: &'a Report<'a>,
    /// The GPUs; `None` where none suit.
    pub found: Option<&'a [FreeHost]>,
}

#[derive(Debug, Serialize)]
struct JsonFreeReport {
    schema: u32,
    time: Option<String>,
    simulated: bool,
    found: bool,
    hosts: Vec<JsonFreeHost>,
    unseen: Vec<JsonUnseen>,
}

#[derive(Debug, Serialize)]
struct JsonFreeHost {
    name: SafeText,
    ssh: Option<String>,
    environment: String,
    note: Option<SafeText>,
    cpu_percent: Option<f32>,
    gpus: Vec<JsonFreeGpu>,
}

#[derive(Debug, Serialize)]
struct JsonFreeGpu {
    index: u32,
    uuid: Option<SafeText>,
    name: Option<SafeText>,
    memory_total_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    mig_instance: bool,
}

#[derive(Debug, Serialize)]
struct JsonUnseen {
    name: SafeText,
    state: &'static str,
    error: Option<JsonError>,
}

/// As one line of JSON.
///
/// # Errors
/// Never in practice: every field can be written.
pub fn json_line(offer: &FreeReport<'_>) -> Result<String, serde_json::Error> {
    let fleet = offer.report.fleet;
    let hosts = offer.found.unwrap_or_default().iter();
    let value = JsonFreeReport {
        schema: SCHEMA,
        time: rfc3339(offer.report.now),
        simulated: fleet.simulated,
        found: offer.found.is_some(),
        hosts: hosts.filter_map(|free| Some(json_host(fleet.host(free.host)?, free))).collect(),
        unseen: unseen(offer)
            .map(|host| JsonUnseen {
                name: host.name().clone(),
                state: host.link.word(),
                error: host.link.error().map(JsonError::new),
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

/// Hosts of which nothing fresh is known: they may have free GPUs, too.
fn unseen<'a>(offer: &'a FreeReport<'_>) -> impl Iterator<Item = &'a Host> {
    offer.report.fleet.hosts().iter().filter(|host| !host.is_fresh(offer.report.now))
}

/// For a person: a line a host, and below it the two lines to type.
pub fn text(offer: &FreeReport<'_>) -> String {
    let mut out = String::new();
    let fleet = offer.report.fleet;
    for free in offer.found.unwrap_or_default() {
        let Some(host) = fleet.host(free.host) else { continue };
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{}", heading(host, free));
        if let Some(line) = host.config.ssh_line() {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "  export {}", cuda_environment(&free.gpus));
    }
    if offer.found.is_none() {
        out.push_str("no GPU is free that suits\n");
    }
    let unseen: Vec<&str> = unseen(offer).map(|host| host.name().as_str()).collect();
    if !unseen.is_empty() {
        let _ = writeln!(out, "not seen: {}; `gpufleet status` tells why", unseen.join(", "));
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
#[path = "free_tests.rs"]
mod tests;
