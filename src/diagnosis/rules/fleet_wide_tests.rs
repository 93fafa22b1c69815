use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::gpus;
use crate::fleet::{HostUpdate, LinkError, LinkErrorKind};
use crate::hosts::Thresholds;
use crate::wire::GpuInfo;

fn fleet(count: usize) -> Lab {
    Lab::of((0..count).map(|_| gpus(0..1)).collect(), Thresholds::default())
}

/// Every host but those in `silent` sends a sample every ten seconds.
fn talk(lab: &mut Lab, seconds: f64, silent: std::ops::Range<usize>) {
    let end = lab.t + seconds;
    while lab.t < end {
        for id in 0..lab.fleet.hosts().len() {
            if !silent.contains(&id) {
                let shot = Shot { gpus: vec![lab.gpu(0, 70.0, 0, 0)], processes: vec![] };
                lab.send(id, &shot, |_| {});
            }
        }
        lab.pass(10.0);
    }
}

fn drop_link(lab: &mut Lab, id: usize) {
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    lab.update(id, HostUpdate::Down { error, retry_at: None, attempt: 1 });
}

#[test]
fn a_host_that_goes_warns_then_is_critical_and_comes_back() {
    let mut lab = fleet(2);
    talk(&mut lab, 60.0, 0..0);
    lab.update(1, HostUpdate::Silent);
    talk(&mut lab, 10.0, 1..2);
    drop_link(&mut lab, 1);
    assert_eq!(lab.fired(), []);
    talk(&mut lab, 40.0, 1..2);
    assert_eq!(lab.firing(), [("host-unreachable", "warn")]);
    assert!(lab.finding("host-unreachable").sentence.contains("no answer within 10 s"));
    talk(&mut lab, 300.0, 1..2);
    assert_eq!(lab.firing(), [("host-unreachable", "crit")]);
    lab.greet(1);
    talk(&mut lab, 30.0, 0..0);
    assert_eq!(lab.firing(), []);
    assert_eq!(lab.notified(), 2);
}

#[test]
fn a_bastion_under_thirty_hosts_is_one_finding() {
    let mut lab = fleet(32);
    talk(&mut lab, 60.0, 0..0);
    for id in 0..30 {
        lab.update(id, HostUpdate::Silent);
    }
    talk(&mut lab, 10.0, 0..30);
    for id in 0..30 {
        drop_link(&mut lab, id);
    }
    talk(&mut lab, 60.0, 0..30);
    assert_eq!(lab.firing(), [("host-unreachable", "warn")]);
    let finding = lab.finding("host-unreachable");
    assert_eq!(finding.hosts.len(), 30);
    assert!(
        finding.sentence.starts_with("30 hosts were lost within 10 s of each other, no data for 1 min")
            || finding.sentence.starts_with("30 hosts were lost within 10 s of each other, no data for "),
        "{}",
        finding.sentence
    );
    assert!(
        finding.sentence.ends_with("(hgx-00, hgx-01, hgx-02 and 27 more): what they share: a bastion, a switch, power")
    );
    for id in 0..30 {
        lab.greet(id);
    }
    talk(&mut lab, 30.0, 0..0);
    assert_eq!((lab.firing(), lab.notified()), (vec![], 1));
}

#[test]
fn a_laptop_that_slept_says_nothing() {
    let mut lab = fleet(4);
    talk(&mut lab, 300.0, 0..0);
    // Eight hours in which no tick came, and then the old connections are gone.
    lab.t += 28_800.0;
    lab.pass(3.0);
    for id in 0..4 {
        lab.update(id, HostUpdate::Silent);
    }
    lab.pass(10.0);
    for id in 0..4 {
        drop_link(&mut lab, id);
    }
    lab.pass(5.0);
    for id in 0..4 {
        lab.greet(id);
    }
    talk(&mut lab, 120.0, 0..0);
    assert_eq!(lab.fired(), []);
    // The same where a recording plays the night second by second.
    lab.pass(28_800.0);
    talk(&mut lab, 120.0, 0..0);
    assert_eq!(lab.fired(), []);
}

#[test]
fn a_connection_that_stands_and_is_silent_while_others_talk() {
    let mut lab = fleet(2);
    talk(&mut lab, 60.0, 0..0);
    talk(&mut lab, 120.0, 1..2);
    assert_eq!(lab.fired(), [], "a gap of two minutes");
    talk(&mut lab, 240.0, 1..2);
    assert_eq!(lab.firing(), [("host-unreachable", "warn")]);
}

#[test]
fn drivers_that_differ_are_mentioned_once() {
    let named = || vec![GpuInfo { name: Some("NVIDIA H100".into()), ..gpus(0..1).remove(0) }];
    let mut lab = Lab::of(vec![named(), named(), named()], Thresholds::default());
    for (id, driver) in ["550.54", "550.54", "570.12"].into_iter().enumerate() {
        let inventory = crate::wire::Inventory {
            generation: 1,
            driver_version: Some(driver.into()),
            gpus: named(),
            ..crate::wire::Inventory::default()
        };
        lab.update(id, HostUpdate::Inventory(Box::new(inventory)));
    }
    talk(&mut lab, 130.0, 0..0);
    assert_eq!(lab.fired(), [("driver-skew", "info")]);
    assert_eq!(
        lab.finding("driver-skew").sentence,
        "hosts with NVIDIA H100 run different drivers: 550.54 on hgx-00, hgx-01; 570.12 on hgx-02"
    );
}
