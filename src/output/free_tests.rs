use super::*;
use crate::config::HostConfig;
use crate::fleet::{Fleet, GpuState, HostId, HostUpdate, Link, Moment};
use crate::output::fixture::moment;
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

/// One host that can be seen, with a note, and one that is being connected.
fn with_offer(found: Option<&[FreeHost]>, check: impl FnOnce(&FreeReport<'_>)) {
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
    check(&FreeReport { report: &Report { fleet: &fleet, states: &states, findings: &[], now: moment(0.5) }, found });
}

#[test]
fn what_is_found_is_ready_to_be_typed() {
    let found = [FreeHost { host: HostId(0), gpus: vec![gpu(0, Some("GPU-8f3a")), gpu(7, Some("GPU-91bc"))] }];
    with_offer(Some(&found), |offer| {
        let expected = "\
hgx-01  2 free  GPU 0,7  NVIDIA H100 80GB HBM3, 80G  cpu 21%  note: ask Bob first
  ssh -p 2222 alice@10.0.0.11
  export CUDA_VISIBLE_DEVICES=GPU-8f3a,GPU-91bc
not seen: hgx-02; `gpufleet status` tells why
";
        assert_eq!(text(offer), expected);
    });
}

#[test]
fn nothing_found_is_said_with_the_hosts_that_were_not_seen() {
    with_offer(None, |offer| {
        assert_eq!(text(offer), "no GPU is free that suits\nnot seen: hgx-02; `gpufleet status` tells why\n");
        let json: serde_json::Value = serde_json::from_str(&json_line(offer).expect("writes")).expect("reads");
        assert_eq!((&json["found"], &json["hosts"]), (&false.into(), &serde_json::json!([])));
        assert_eq!(json["unseen"][0]["state"], "connecting");
    });
}

#[test]
fn the_document_names_every_field_of_the_json() {
    const DOCUMENT: &str = include_str!("../../docs/free-json.md");
    let found = [FreeHost { host: HostId(0), gpus: vec![gpu(0, Some("GPU-8f3a"))] }];
    with_offer(Some(&found), |offer| {
        let json: serde_json::Value = serde_json::from_str(&json_line(offer).expect("writes")).expect("reads");
        let mut fields = Vec::new();
        let mut add = |prefix: &str, value: &serde_json::Value| {
            fields.extend(value.as_object().expect("an object").keys().map(|key| format!("{prefix}{key}")));
        };
        add("", &json);
        add("hosts[].", &json["hosts"][0]);
        add("hosts[].gpus[].", &json["hosts"][0]["gpus"][0]);
        add("unseen[].", &json["unseen"][0]);
        fields.sort();
        let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let mut documented: Vec<String> = rows.map(|(path, _)| path.to_owned()).collect();
        documented.sort();
        assert_eq!(documented, fields);
    });
}

#[test]
fn lines_are_safe_to_paste_whatever_a_host_calls_its_gpus() {
    let hostile = [gpu(0, Some("GPU-1;rm -rf ~")), gpu(1, Some("$(x)'y"))];
    assert_eq!(cuda_environment(&hostile), r"CUDA_VISIBLE_DEVICES='GPU-1;rm -rf ~,$(x)'\''y'");
    assert_eq!(
        cuda_environment(&[gpu(0, None), gpu(7, Some("GPU-1"))]),
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,7"
    );
}
