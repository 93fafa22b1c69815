use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{gpus, process};
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuHealth, GpuHealthColumns, GpuReading, RecoveryAction, Snapshot,
    XidEvent,
};

fn quiet(tester: &mut RuleTester, count: u16) -> TestSample {
    TestSample { gpus: (0..count).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(), processes: vec![] }
}

fn broken(kind: DriverErrorKind) -> GpuReading {
    GpuReading { error: Some(DeviceError { kind, code: None, message: "".into() }), ..GpuReading::default() }
}

#[test]
fn a_call_that_does_not_come_back_warns_then_is_critical() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.interval = 2.0;
    let hanging = |tester: &mut RuleTester, t: f64| {
        let mut test_sample = quiet(tester, 2);
        test_sample.gpus[1] = GpuReading { blocked_seconds: Some(t as f32), ..GpuReading::default() };
        test_sample
    };
    tester.run(6.0, hanging);
    assert_eq!(tester.fired(), [], "a first call of 4 s");
    tester.run(2.0, |tester, _| quiet(tester, 2));
    tester.run(20.0, hanging);
    assert_eq!(tester.firing(), [("probe-blocked", "warn")]);
    tester.run(60.0, |tester, t| hanging(tester, 20.0 + t));
    assert_eq!(tester.firing(), [("probe-blocked", "crit")]);
    tester.run(10.0, |tester, _| quiet(tester, 2));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_lost_gpu_needs_two_readings() {
    let mut tester = RuleTester::new(gpus(0..2));
    let lost = |tester: &mut RuleTester, _: f64| {
        let mut test_sample = quiet(tester, 2);
        test_sample.gpus[1] = broken(DriverErrorKind::GpuLost);
        test_sample
    };
    tester.run(10.0, lost);
    tester.run(10.0, |tester, _| quiet(tester, 2));
    assert_eq!(tester.fired(), [], "one failed reading");
    tester.run(20.0, lost);
    assert_eq!(tester.firing(), [("gpu-lost", "crit")]);
}

#[test]
fn seven_gpus_where_there_were_eight() {
    for on_bus in [None, Some(8)] {
        let mut tester = RuleTester::new(gpus(0..8));
        let edit = move |snapshot: &mut Snapshot, _: f64| snapshot.host.nvidia_pci_devices = on_bus;
        tester.run_edited(60.0, |tester, _| quiet(tester, 8), edit);
        tester.inventory(0, gpus(0..7));
        tester.run_edited(10.0, |tester, _| quiet(tester, 7), edit);
        assert_eq!(tester.fired(), []);
        tester.run_edited(10.0, |tester, _| quiet(tester, 7), edit);
        assert_eq!(tester.firing(), [("gpu-lost", "crit")]);
        assert_eq!(tester.finding("gpu-lost").sentence, "7 GPUs are left of 8: 1 fell out of the driver");
    }
    // What an administrator took away is not on the driver's bus either.
    let mut tester = RuleTester::new(gpus(0..8));
    tester.run_edited(60.0, |tester, _| quiet(tester, 8), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(8));
    tester.inventory(0, gpus(0..7));
    tester.run_edited(60.0, |tester, _| quiet(tester, 7), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(7));
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_mismatch_is_told_once_and_nothing_beside_it() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run_edited(
        60.0,
        |_, _| TestSample::default(),
        |snapshot, _| {
            let kind = DriverErrorKind::VersionMismatch;
            snapshot.driver_error = Some(DriverError { kind, code: Some(18), message: "".into() });
        },
    );
    assert_eq!(tester.firing(), [("driver-mismatch", "crit")]);
    assert_eq!(tester.notified(), 1);
}

#[test]
fn what_the_driver_asks_for_is_passed_on() {
    for (action, fired) in [
        (RecoveryAction::None, vec![]),
        (RecoveryAction::DrainP2p, vec![("gpu-needs-action", "warn")]),
        (RecoveryAction::GpuReset, vec![("gpu-needs-action", "crit")]),
    ] {
        let mut tester = RuleTester::new(gpus(0..1));
        let health = GpuHealth { recovery_action: Some(action), ..GpuHealth::default() };
        tester.run_edited(
            20.0,
            |tester, _| quiet(tester, 1),
            move |snapshot, _| {
                snapshot.health = GpuHealthColumns::from_rows(std::slice::from_ref(&health));
            },
        );
        assert_eq!(tester.firing(), fired);
    }
}

fn xids(numbers: &'static [u64]) -> impl Fn(&mut Snapshot, f64) {
    move |snapshot, _| {
        let event = |xid: &u64| XidEvent { gpu: Some(0), xid: *xid, monotonic_seconds: snapshot.monotonic_seconds };
        snapshot.xid_events = numbers.iter().map(event).collect();
    }
}

#[test]
fn fifty_errors_in_a_minute_are_one_finding() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 1.2;
    let test_sample = |tester: &mut RuleTester, _: f64| TestSample {
        processes: vec![process(7, "python a.py", &[(0, 4)])],
        ..quiet(tester, 1)
    };
    tester.run_edited(60.0, test_sample, xids(&[31]));
    assert_eq!(tester.fired(), [("xid-seen", "info")]);
    let sentence = tester.finding("xid-seen").sentence.to_string();
    assert_eq!(
        sentence,
        "GPU 0 reported Xid 31 50 times (a program touched memory that is not its own); pid 7 is on it"
    );
    tester.interval = 10.0;
    tester.run(620.0, test_sample);
    assert_eq!(tester.firing(), []);
}

#[test]
fn the_number_decides_and_cleanup_folds() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(10.0, |tester, _| quiet(tester, 1), xids(&[79, 45]));
    assert_eq!(tester.fired(), [("xid-seen", "crit")]);
    assert_eq!(tester.notified(), 1);
}
