//! Tests of the metrics.

use super::super::fixture;
use super::*;
use crate::config::HostConfig;
use crate::fleet::{Fleet, HostUpdate, Moment};
use crate::wire::{GpuColumns, GpuInfo, Inventory, Snapshot};
use std::sync::Arc;

const OPTIONS: MetricsOptions = MetricsOptions { format: TextFormat::OpenMetrics, per_process: true };

fn rendered(options: MetricsOptions) -> String {
    let mut written = String::new();
    fixture::with_report(|report| written = text(report, options));
    written
}

/// The lines of a metric without its name.
fn samples<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let samples = text.lines().filter_map(|line| line.strip_prefix(name));
    samples.filter(|rest| rest.starts_with(['{', ' '])).collect()
}

const GPU_0: &str = "{host=\"hgx-01\",gpu=\"0\",uuid=\"GPU-0\",model=\"NVIDIA H100 80GB HBM3\"}";

#[test]
fn the_readings_of_gpus_are_in_base_units() {
    let text = rendered(OPTIONS);
    let of_gpu_0 = |name: &str| {
        let all = samples(&text, name);
        let value =
            all.iter().find_map(|sample| sample.strip_prefix(GPU_0)).unwrap_or_else(|| panic!("{name}: {all:?}"));
        value.trim().to_owned()
    };
    assert_eq!(of_gpu_0("gpufleet_gpu_utilization_ratio"), "0.97");
    assert_eq!(of_gpu_0("gpufleet_gpu_memory_used_bytes"), "80530636800");
    assert_eq!(of_gpu_0("gpufleet_gpu_power_watts"), "512.4", "as f32 it has more digits");
    assert_eq!(of_gpu_0("gpufleet_gpu_temperature_celsius"), "71");
    assert_eq!(of_gpu_0("gpufleet_gpu_processes"), "2");
    assert_eq!(samples(&text, "gpufleet_host_cpu_utilization_ratio")[0], "{host=\"hgx-01\"} 0.336");
    assert_eq!(samples(&text, "gpufleet_sample_age_seconds")[0], "{host=\"hgx-01\"} 0.5");
}

#[test]
fn unknown_values_have_no_line() {
    let text = rendered(OPTIONS);
    // GPU 2 is lost, GPU 3 has no utilization, and the readings of gone-quiet are old.
    assert_eq!(samples(&text, "gpufleet_gpu_utilization_ratio").len(), 2, "{text}");
    assert_eq!(samples(&text, "gpufleet_gpu_processes").len(), 3);
    assert!(!text.contains("gpufleet_gpu_energy_joules"), "nor a heading without a line");
    let up = samples(&text, "gpufleet_host_up");
    assert_eq!(up.len(), 6);
    let is_up: Vec<_> = up.iter().filter(|sample| sample.ends_with(" 1")).collect();
    assert_eq!(is_up, [&"{host=\"hgx-01\"} 1", &"{host=\"no-driver\"} 1"]);
    assert_eq!(samples(&text, "gpufleet_sample_age_seconds").len(), 3, "three hosts have never reported");
    let unknown: Vec<_> = samples(&text, "gpufleet_gpu_state")
        .into_iter()
        .filter(|sample| sample.contains("gone-quiet") && sample.ends_with(" 1"))
        .collect();
    assert_eq!(unknown, ["{host=\"gone-quiet\",gpu=\"0\",model=\"NVIDIA RTX A6000\",state=\"unknown\"} 1"]);
}

#[test]
fn a_gpu_has_one_state() {
    let text = rendered(OPTIONS);
    let states: Vec<_> =
        samples(&text, "gpufleet_gpu_state").into_iter().filter(|sample| sample.contains("gpu=\"1\"")).collect();
    assert_eq!(states.len(), GpuState::ALL.len());
    let on: Vec<_> = states.iter().filter(|sample| sample.ends_with(" 1")).collect();
    assert!(on.len() == 1 && on[0].contains("state=\"hung\""), "{states:?}");
}

#[test]
fn firing_findings_have_a_sample_per_gpu() {
    let text = rendered(OPTIONS);
    assert_eq!(
        samples(&text, "gpufleet_finding"),
        [
            "{rule=\"stuck-spin\",severity=\"crit\",host=\"hgx-01\",gpu=\"0\",user=\"alice\"} 1",
            "{rule=\"stuck-spin\",severity=\"crit\",host=\"hgx-01\",gpu=\"1\",user=\"alice\"} 1"
        ]
    );
}

#[test]
fn a_finding_without_gpus_has_a_sample_per_host_and_equal_ones_are_counted() {
    fixture::with_report(|report| {
        let mut disk = fixture::hang();
        (disk.gpus, disk.user) = (Vec::new(), None);
        disk.hosts = vec![(HostId(0), "hgx-01".into()), (HostId(1), "no-driver".into())];
        let report = Report { findings: &[&disk, &disk], ..*report };
        assert_eq!(
            samples(&text(&report, OPTIONS), "gpufleet_finding"),
            [
                "{rule=\"stuck-spin\",severity=\"crit\",host=\"hgx-01\"} 2",
                "{rule=\"stuck-spin\",severity=\"crit\",host=\"no-driver\"} 2"
            ]
        );
    });
}

#[test]
fn processes_are_summed_by_user_program_and_job() {
    let all = rendered(OPTIONS);
    let memory = samples(&all, "gpufleet_process_gpu_memory_bytes");
    let labels = &GPU_0[..GPU_0.len() - 1];
    assert_eq!(
        memory[0],
        format!("{labels},user=\"alice\",program=\"train.py\",slurm_job=\"3385\"}} {}", 74_u64 << 30)
    );
    assert!(memory.iter().any(|sample| sample.contains("program=\"Xorg\"}")), "{memory:?}");
    assert_eq!(samples(&all, "gpufleet_slurm_job_gpus"), ["{host=\"hgx-01\",slurm_job=\"3385\",user=\"alice\"} 2"]);
    assert_eq!(samples(&all, "gpufleet_process_series_left_out")[0], "{host=\"hgx-01\"} 0");
    let without = rendered(MetricsOptions { per_process: false, ..OPTIONS });
    assert!(!without.contains("gpufleet_process_") && !without.contains("slurm_job"), "{without}");
    assert_eq!(samples(&without, "gpufleet_user_gpus")[0], "{host=\"hgx-01\",user=\"alice\",state=\"hung\"} 1");
}

#[test]
fn a_host_that_shares_nothing_shows_no_names() {
    assert!(rendered(OPTIONS).contains("user=\"alice\""));
    let mut hidden = String::new();
    fixture::with_sharing(Sharing::None, |report| hidden = text(report, OPTIONS));
    assert!(!hidden.contains("alice") && !hidden.contains("user=") && !hidden.contains("program="), "{hidden}");
    assert!(!samples(&hidden, "gpufleet_finding").is_empty());
    assert_eq!(samples(&hidden, "gpufleet_process_gpu_memory_bytes").len(), 2, "the sums of two GPUs");
    assert!(!hidden.contains("slurm_job"), "squeue names the user of a job: {hidden}");
}

#[test]
fn both_formats_name_their_families() {
    let open = rendered(OPTIONS);
    assert!(open.ends_with("\n# EOF\n") && open.contains("# TYPE gpufleet_build info\ngpufleet_build_info{"));
    let old = rendered(MetricsOptions { format: TextFormat::Prometheus, ..OPTIONS });
    assert!(!old.contains("EOF") && old.contains("# TYPE gpufleet_build_info gauge\ngpufleet_build_info{"));
    for metric in METRICS {
        assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
        assert_eq!(metric.kind == Kind::Info, metric.name.ends_with("_info"), "{}", metric.name);
    }
    let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), METRICS.len());
}

/// A host whose GPUs, in an inventory and a snapshot, have these names.
fn fleet_of(host: &str, gpus: Vec<GpuInfo>) -> Fleet {
    let now = fixture::moment(0.0);
    let mut fleet = Fleet::new(&[Arc::new(HostConfig::named(host))], false, now);
    let readings = vec![
        GpuReading { energy_joules: Some(1e300), power_watts: Some(f32::NAN), ..GpuReading::default() };
        gpus.len()
    ];
    let inventory = Inventory { generation: 1, gpus, ..Inventory::default() };
    fleet.apply(HostId(0), HostUpdate::Inventory(Box::new(inventory)), now);
    let snapshot = Snapshot { generation: 1, gpus: GpuColumns::from_rows(&readings), ..Snapshot::default() };
    fleet.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshot)), now);
    fleet
}

fn text_of(fleet: &Fleet) -> String {
    let states = |_: HostId| Vec::<(GpuState, Option<Moment>)>::new();
    text(&Report { fleet, states: &states, findings: &[], now: fixture::moment(0.0) }, OPTIONS)
}

/// Reads the labels of a sample as Prometheus does, and returns its value.
fn parse(sample: &str) -> (Vec<(String, String)>, f64) {
    let mut labels = Vec::new();
    let mut rest = sample;
    if let Some(inside) = sample.strip_prefix('{') {
        let mut characters = inside.char_indices().peekable();
        let mut end = 0;
        while let Some((_, first)) = characters.next() {
            if first == '}' {
                end = characters.peek().map_or(inside.len(), |(at, _)| *at);
                break;
            }
            let mut name = String::new();
            if first != ',' {
                name.push(first);
            }
            for (_, character) in characters.by_ref() {
                if character == '=' {
                    break;
                }
                name.push(character);
            }
            assert_eq!(characters.next().map(|(_, quote)| quote), Some('"'), "{sample}");
            let mut value = String::new();
            loop {
                match characters.next().expect("a quotation mark").1 {
                    '"' => break,
                    '\\' => value.push(match characters.next().expect("an escape").1 {
                        'n' => '\n',
                        escaped @ ('"' | '\\') => escaped,
                        other => panic!("\\{other} in {sample}"),
                    }),
                    character => value.push(character),
                }
            }
            labels.push((name, value));
        }
        rest = &inside[end..];
    }
    (labels, rest.strip_prefix(' ').expect("a space").parse().expect("a number"))
}

#[test]
fn hostile_text_stays_inside_its_label() {
    for hostile in [
        "\"} 1\ngpufleet_host_up{host=\"evil\"} 1\n#",
        "\\",
        "\\\"",
        "a\\nb",
        "line\r\nbreak\u{2028}\0",
        "{}=,# EOF",
        "\u{202e}abc\u{1f600}",
        "",
    ] {
        let info = GpuInfo { uuid: Some(hostile.into()), name: Some(hostile.into()), ..GpuInfo::default() };
        let written = text_of(&fleet_of(&format!("h{hostile}"), vec![info]));
        for line in written.lines().filter(|line| !line.starts_with('#')) {
            let at = line.find(['{', ' ']).expect("a name");
            assert!(METRICS.iter().any(|metric| metric.name == &line[..at]), "{line}");
            let (labels, _) = parse(&line[at..]);
            let value = |name: &str| labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str());
            if line.starts_with("gpufleet_gpu_") {
                assert_eq!(value("model").unwrap_or_default(), SafeText::new(hostile).as_str(), "{line}");
            }
        }
        assert_eq!(samples(&written, "gpufleet_host_up").len(), 1);
        assert_eq!(written.matches("# EOF\n").count(), 1, "{written}");
    }
}

#[test]
fn equal_labels_long_names_and_extreme_numbers_are_limited() {
    let long: SafeText = "x".repeat(4000).as_str().into();
    let gpus = vec![GpuInfo { name: Some(long), ..GpuInfo::default() }; 3];
    let written = text_of(&fleet_of("a", gpus));
    assert_eq!(samples(&written, "gpufleet_gpu_info").len(), 1, "three GPUs with equal labels");
    assert!(written.lines().all(|line| line.chars().count() < 400), "{written}");
    assert!(!written.lines().any(|line| line.ends_with("NaN") || line.ends_with("inf")), "{written}");
}

#[test]
fn the_series_of_the_processes_of_a_host_are_limited() {
    fixture::with_report(|report| {
        let scrape = Scrape::new(report, OPTIONS);
        let memory: Vec<_> =
            scrape.hosts[0].process_sums.iter().map(|(_, sum)| sum.memory_bytes.unwrap_or(-1.0)).collect();
        assert!(memory.len() == 4 && memory.is_sorted_by(|a, b| a >= b), "the largest stay: {memory:?}");
    });
}

#[test]
fn the_document_lists_every_metric() {
    const BEGIN: &str = "<!-- The table below is generated from src/output/open_metrics.rs: GPUFLEET_WRITE_DOCS=1 cargo test --lib the_document -->\n";
    let (head, old) = include_str!("../../docs/metrics.md").split_once(BEGIN).expect("the mark");
    let table = markdown_table();
    if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        std::fs::write(path, format!("{head}{BEGIN}\n{table}")).expect("writes");
        return;
    }
    assert_eq!(old.trim(), table.trim(), "write it anew as its comment says");
}

#[test]
fn the_dashboard_and_the_rules_use_only_metrics_that_exist() {
    for (file, content) in [
        ("grafana-dashboard.json", include_str!("../../packaging/grafana-dashboard.json")),
        ("prometheus-rules.yml", include_str!("../../packaging/prometheus-rules.yml")),
        ("prometheus-rules-test.yml", include_str!("../../packaging/prometheus-rules-test.yml")),
    ] {
        let mut used = 0;
        for word in content.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_')) {
            if word.starts_with("gpufleet_") {
                used += 1;
                assert!(METRICS.iter().any(|metric| metric.name == word), "{file}: {word}");
            }
        }
        assert!(used > 5, "{file}");
    }
}
