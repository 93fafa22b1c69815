use crate::config::Thresholds;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::gpus;
use crate::fleet::{HostUpdate, LinkError, LinkErrorKind};
use crate::wire::GpuInfo;

fn fleet(count: usize) -> RuleTester {
    RuleTester::of((0..count).map(|_| gpus(0..1)).collect(), Thresholds::default())
}

/// Every host but those in `silent` sends a sample every ten seconds.
fn send_samples(tester: &mut RuleTester, seconds: f64, silent: std::ops::Range<usize>) {
    let end = tester.t + seconds;
    while tester.t < end {
        for id in 0..tester.fleet.hosts().len() {
            if !silent.contains(&id) {
                let test_sample = TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] };
                tester.send(id, &test_sample, |_| {});
            }
        }
        tester.wait(10.0);
    }
}

fn drop_link(tester: &mut RuleTester, id: usize) {
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    tester.update(id, HostUpdate::Down { error, retry_at: None, attempt: 1 });
}

#[test]
fn a_host_that_goes_warns_then_is_critical_and_comes_back() {
    let mut tester = fleet(2);
    send_samples(&mut tester, 60.0, 0..0);
    tester.update(1, HostUpdate::Silent);
    send_samples(&mut tester, 10.0, 1..2);
    drop_link(&mut tester, 1);
    assert_eq!(tester.fired(), []);
    send_samples(&mut tester, 40.0, 1..2);
    assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
    assert!(tester.finding("host-unreachable").sentence.contains("no answer within 10 s"));
    send_samples(&mut tester, 300.0, 1..2);
    assert_eq!(tester.firing(), [("host-unreachable", "crit")]);
    tester.connect(1);
    send_samples(&mut tester, 30.0, 0..0);
    assert_eq!(tester.firing(), []);
    assert_eq!(tester.notified(), 2);
}

#[test]
fn a_bastion_under_thirty_hosts_is_one_finding() {
    let mut tester = fleet(32);
    send_samples(&mut tester, 60.0, 0..0);
    for id in 0..30 {
        tester.update(id, HostUpdate::Silent);
    }
    send_samples(&mut tester, 10.0, 0..30);
    for id in 0..30 {
        drop_link(&mut tester, id);
    }
    send_samples(&mut tester, 60.0, 0..30);
    assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
    let finding = tester.finding("host-unreachable");
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
        tester.connect(id);
    }
    send_samples(&mut tester, 30.0, 0..0);
    assert_eq!((tester.firing(), tester.notified()), (vec![], 1));
}

#[test]
fn a_laptop_that_slept_says_nothing() {
    let mut tester = fleet(4);
    send_samples(&mut tester, 300.0, 0..0);
    // Eight hours in which no tick came, and then the old connections are gone.
    tester.t += 28_800.0;
    tester.wait(3.0);
    for id in 0..4 {
        tester.update(id, HostUpdate::Silent);
    }
    tester.wait(10.0);
    for id in 0..4 {
        drop_link(&mut tester, id);
    }
    tester.wait(5.0);
    for id in 0..4 {
        tester.connect(id);
    }
    send_samples(&mut tester, 120.0, 0..0);
    assert_eq!(tester.fired(), []);
    // The same where a recording plays the night second by second.
    tester.wait(28_800.0);
    send_samples(&mut tester, 120.0, 0..0);
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_connection_that_stands_and_is_silent_while_others_talk() {
    let mut tester = fleet(2);
    send_samples(&mut tester, 60.0, 0..0);
    send_samples(&mut tester, 120.0, 1..2);
    assert_eq!(tester.fired(), [], "a gap of two minutes");
    send_samples(&mut tester, 240.0, 1..2);
    assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
}

#[test]
fn drivers_that_differ_are_mentioned_once() {
    let named = || vec![GpuInfo { name: Some("NVIDIA H100".into()), ..gpus(0..1).remove(0) }];
    let mut tester = RuleTester::of(vec![named(), named(), named()], Thresholds::default());
    for (id, driver) in ["550.54", "550.54", "570.12"].into_iter().enumerate() {
        let inventory = crate::wire::Inventory {
            generation: 1,
            driver_version: Some(driver.into()),
            gpus: named(),
            ..crate::wire::Inventory::default()
        };
        tester.update(id, HostUpdate::Inventory(Box::new(inventory)));
    }
    send_samples(&mut tester, 130.0, 0..0);
    assert_eq!(tester.fired(), [("driver-skew", "info")]);
    assert_eq!(
        tester.finding("driver-skew").sentence,
        "hosts with NVIDIA H100 run different drivers: 550.54 on hgx-00, hgx-01; 570.12 on hgx-02"
    );
}
