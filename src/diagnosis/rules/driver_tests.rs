use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{gpus, process};
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuHealth, GpuHealthColumns, GpuReading, RecoveryAction, Snapshot,
    XidEvent,
};

fn quiet(lab: &mut Lab, count: u16) -> Shot {
    Shot { gpus: (0..count).map(|_| lab.gpu(0, 70.0, 0, 0)).collect(), processes: vec![] }
}

fn broken(kind: DriverErrorKind) -> GpuReading {
    GpuReading { error: Some(DeviceError { kind, code: None, message: "".into() }), ..GpuReading::default() }
}

#[test]
fn a_call_that_does_not_come_back_warns_then_is_critical() {
    let mut lab = Lab::new(gpus(0..2));
    lab.every = 2.0;
    let hanging = |lab: &mut Lab, t: f64| {
        let mut shot = quiet(lab, 2);
        shot.gpus[1] = GpuReading { blocked_seconds: Some(t as f32), ..GpuReading::default() };
        shot
    };
    lab.play(6.0, hanging);
    assert_eq!(lab.fired(), [], "a first call of 4 s");
    lab.play(2.0, |lab, _| quiet(lab, 2));
    lab.play(20.0, hanging);
    assert_eq!(lab.firing(), [("probe-blocked", "warn")]);
    lab.play(60.0, |lab, t| hanging(lab, 20.0 + t));
    assert_eq!(lab.firing(), [("probe-blocked", "crit")]);
    lab.play(10.0, |lab, _| quiet(lab, 2));
    assert_eq!(lab.firing(), []);
}

#[test]
fn a_lost_gpu_needs_two_readings() {
    let mut lab = Lab::new(gpus(0..2));
    let lost = |lab: &mut Lab, _: f64| {
        let mut shot = quiet(lab, 2);
        shot.gpus[1] = broken(DriverErrorKind::GpuLost);
        shot
    };
    lab.play(10.0, lost);
    lab.play(10.0, |lab, _| quiet(lab, 2));
    assert_eq!(lab.fired(), [], "one failed reading");
    lab.play(20.0, lost);
    assert_eq!(lab.firing(), [("gpu-lost", "crit")]);
}

#[test]
fn seven_gpus_where_there_were_eight() {
    for on_bus in [None, Some(8)] {
        let mut lab = Lab::new(gpus(0..8));
        let edit = move |snapshot: &mut Snapshot, _: f64| snapshot.host.nvidia_pci_devices = on_bus;
        lab.play_edited(60.0, |lab, _| quiet(lab, 8), edit);
        lab.inventory(0, gpus(0..7));
        lab.play_edited(10.0, |lab, _| quiet(lab, 7), edit);
        assert_eq!(lab.fired(), []);
        lab.play_edited(10.0, |lab, _| quiet(lab, 7), edit);
        assert_eq!(lab.firing(), [("gpu-lost", "crit")]);
        assert_eq!(lab.finding("gpu-lost").sentence, "7 GPUs are left of 8: 1 fell out of the driver");
    }
    // What an administrator took away is not on the driver's bus either.
    let mut lab = Lab::new(gpus(0..8));
    lab.play_edited(60.0, |lab, _| quiet(lab, 8), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(8));
    lab.inventory(0, gpus(0..7));
    lab.play_edited(60.0, |lab, _| quiet(lab, 7), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(7));
    assert_eq!(lab.fired(), []);
}

#[test]
fn a_mismatch_is_told_once_and_nothing_beside_it() {
    let mut lab = Lab::new(gpus(0..2));
    lab.play_edited(
        60.0,
        |_, _| Shot::default(),
        |snapshot, _| {
            let kind = DriverErrorKind::VersionMismatch;
            snapshot.driver_error = Some(DriverError { kind, code: Some(18), message: "".into() });
        },
    );
    assert_eq!(lab.firing(), [("driver-mismatch", "crit")]);
    assert_eq!(lab.notified(), 1);
}

#[test]
fn what_the_driver_asks_for_is_passed_on() {
    for (action, fired) in [
        (RecoveryAction::None, vec![]),
        (RecoveryAction::DrainP2p, vec![("gpu-needs-action", "warn")]),
        (RecoveryAction::GpuReset, vec![("gpu-needs-action", "crit")]),
    ] {
        let mut lab = Lab::new(gpus(0..1));
        let health = GpuHealth { recovery_action: Some(action), ..GpuHealth::default() };
        lab.play_edited(
            20.0,
            |lab, _| quiet(lab, 1),
            move |snapshot, _| {
                snapshot.health = GpuHealthColumns::from_rows(std::slice::from_ref(&health));
            },
        );
        assert_eq!(lab.firing(), fired);
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
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 1.2;
    let shot = |lab: &mut Lab, _: f64| Shot { processes: vec![process(7, "python a.py", &[(0, 4)])], ..quiet(lab, 1) };
    lab.play_edited(60.0, shot, xids(&[31]));
    assert_eq!(lab.fired(), [("xid-seen", "info")]);
    let sentence = lab.finding("xid-seen").sentence.to_string();
    assert_eq!(
        sentence,
        "GPU 0 reported Xid 31 50 times (a program touched memory that is not its own); pid 7 is on it"
    );
    lab.every = 10.0;
    lab.play(620.0, shot);
    assert_eq!(lab.firing(), []);
}

#[test]
fn the_number_decides_and_cleanup_folds() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play_edited(10.0, |lab, _| quiet(lab, 1), xids(&[79, 45]));
    assert_eq!(lab.fired(), [("xid-seen", "crit")]);
    assert_eq!(lab.notified(), 1);
}
