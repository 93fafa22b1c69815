//! Xid events.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::Probe;
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{Availability, XidEvent};
use serde_json::{Value, json};

fn heard(index: u32) -> Value {
    gpu_with(index, &json!({"xid_events": true}))
}

fn with_xids(gpus: &[Value], xids: &Value) -> Value {
    let mut scenario = devices(gpus);
    scenario["xids"] = xids.clone();
    scenario
}

#[test]
fn an_xid_arrives_with_its_gpu_and_those_before_do_not() {
    let gpus = [gpu(0), heard(1)];
    let driver = FakeDriver::new(&with_xids(&gpus, &json!([{"gpu": 1, "xid": 13}])));
    let mut probe = Probe::on(&driver);
    let before = probe.snapshot();
    assert_eq!(
        (probe.inventory().gpus[0].xid_events, probe.inventory().gpus[1].xid_events),
        (None, Some(Availability::Available))
    );
    driver.set(&with_xids(&gpus, &json!([{"gpu": 1, "xid": 13}, {"gpu": 0, "xid": 31}, {"gpu": 1, "xid": 79}])));
    let snapshot = probe.wait_for("an Xid", |snapshot| !snapshot.xid_events.is_empty());
    let [XidEvent { gpu, xid, monotonic_seconds }] = snapshot.xid_events[..] else {
        panic!("{:?}", snapshot.xid_events)
    };
    assert_eq!((gpu, xid), (Some(1), 79));
    assert!((before.monotonic_seconds..=snapshot.monotonic_seconds).contains(&monotonic_seconds));
    assert_eq!(probe.snapshot().xid_events, []);
}

#[test]
fn an_xid_of_an_instance_belongs_to_it() {
    let instance = json!({"uuid": "MIG-1", "memory_total_bytes": 9, "memory_used_bytes": 1, "gpu_instance_id": 3});
    let gpus = [gpu_with(0, &json!({"xid_events": true, "mig_enabled": true, "mig": [null, instance]}))];
    let driver = FakeDriver::new(&devices(&gpus));
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    let xids = json!([{"gpu": 0, "xid": 94, "gpu_instance_id": 3}, {"gpu": 0, "xid": 95, "gpu_instance_id": 8}]);
    driver.set(&with_xids(&gpus, &xids));
    let mut seen = Vec::new();
    probe.wait_for("both", |snapshot| {
        seen.extend(snapshot.xid_events.iter().map(|event| (event.gpu, event.xid)));
        seen.len() >= 2
    });
    assert_eq!(seen, [(Some(1), 94), (Some(0), 95)]);
}

#[test]
fn a_device_that_is_not_there_and_a_flood_are_survived() {
    let gpus = [heard(0)];
    let mut scenario = with_xids(&gpus, &json!([]));
    scenario["quirks"] = json!(["stray_events"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    scenario["xids"] = (0..500).map(|number| json!({"gpu": 0, "xid": u64::MAX - number})).collect();
    driver.set(&scenario);
    let mut seen = Vec::new();
    let mut dropped = 0;
    probe.wait_for("all of them", |snapshot| {
        assert!(snapshot.xid_events.len() <= 64);
        seen.extend(snapshot.xid_events.iter().map(|event| (event.gpu, event.xid)));
        let more = snapshot.notes.iter().filter_map(|note| note.split_once(" more Xid events were left out"));
        dropped += more.map(|(number, _)| number.parse::<usize>().expect("a number")).sum::<usize>();
        seen.len() + dropped >= 500
    });
    assert_eq!(seen.len() + dropped, 500);
    assert_eq!(seen[0], (None, u64::MAX));
}

#[test]
fn a_driver_that_refuses_events_is_told_apart_from_one_that_has_none() {
    for (code, offer) in [(4, Some(Availability::NotPermitted)), (3, None), (999, Some(Availability::Refused))] {
        let mut scenario = devices(&[heard(0)]);
        scenario["errors"] = json!({"nvmlDeviceRegisterEvents": code});
        let driver = FakeDriver::new(&scenario);
        let mut probe = Probe::on(&driver);
        probe.snapshot();
        assert_eq!(probe.inventory().gpus[0].xid_events, offer, "code {code}");
    }
}
