use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{gpus, process};
use crate::wire::XidEvent;

fn works(lab: &mut Lab) -> Shot {
    Shot { gpus: vec![lab.gpu(97, 500.0, 40, 40)], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

fn empty(lab: &mut Lab) -> Shot {
    Shot { gpus: vec![lab.gpu(0, 70.0, 0, 0)], processes: vec![] }
}

#[test]
fn a_job_that_ends_is_mentioned_for_ten_minutes() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(900.0, |lab, _| works(lab));
    lab.play(20.0, |lab, _| empty(lab));
    assert_eq!((lab.firing(), lab.notified()), (vec![("job-ended", "info")], 0));
    assert!(
        lab.finding("job-ended").sentence.ends_with("GPU 0 is free of it, 40 GiB were held")
            || lab.finding("job-ended").sentence.contains("train.py (alice, pid 7) ended after 3 h"),
        "{}",
        lab.finding("job-ended").sentence
    );
    lab.play(600.0, |lab, _| empty(lab));
    assert_eq!(lab.firing(), []);
}

#[test]
fn one_that_ends_with_an_error_of_its_gpu_or_a_reboot_warns() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(900.0, |lab, _| works(lab));
    lab.play_edited(
        20.0,
        |lab, _| empty(lab),
        |snapshot, _| {
            snapshot.xid_events = vec![XidEvent { gpu: Some(0), xid: 31, monotonic_seconds: 0.0 }];
        },
    );
    assert_eq!(lab.firing(), [("job-ended", "warn"), ("xid-seen", "info")]);
    let mut lab = Lab::new(gpus(0..1));
    lab.play(900.0, |lab, _| works(lab));
    lab.reboot(0);
    lab.play(20.0, |lab, _| empty(lab));
    assert_eq!(lab.firing(), [("job-ended", "warn")]);
    assert!(lab.finding("job-ended").sentence.ends_with("; the host was rebooted"));
}

#[test]
fn short_small_and_partial_ends_are_not_told() {
    let mut lab = Lab::new(gpus(0..1));
    let mut small = process(7, "python a.py", &[(0, 0)]);
    small.gpus[0].gpu_memory_bytes = Some(100 << 20);
    lab.play(900.0, |lab, _| Shot { processes: vec![small.clone()], ..empty(lab) });
    lab.play(20.0, |lab, _| empty(lab));
    assert_eq!(lab.fired(), []);
}

#[test]
fn what_ended_while_nobody_looked_is_told_at_the_next_start() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(900.0, |lab, _| works(lab));
    let memory = lab.engine.memory(&lab.fleet, lab.now());
    let mut next = Lab::new(gpus(0..1));
    next.t = lab.t + 7200.0;
    next.engine.recall(memory, next.now());
    next.play(20.0, |lab, _| empty(lab));
    assert_eq!(next.firing(), [("job-ended", "info")]);
    let sentence = next.finding("job-ended").sentence.to_string();
    assert!(sentence.contains("ended some time in the 2 h before it was missed"), "{sentence}");
}

#[test]
fn a_log_that_stands_still_is_mentioned() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 20.0;
    let logging = |age: f64| {
        move |lab: &mut Lab, _: f64| {
            let mut shot = works(lab);
            shot.processes[0].facts.log_path = Some("/home/alice/run.log".into());
            shot.processes[0].reading.log_age_seconds = Some(age);
            shot
        }
    };
    for _ in 0..60 {
        lab.play(20.0, logging(2.0));
        lab.play(20.0, logging(22.0));
    }
    assert_eq!(lab.fired(), []);
    let begin = lab.t;
    lab.play(1900.0, |lab, _| {
        let age = 22.0 + lab.t - begin;
        logging(age)(lab, 0.0)
    });
    assert_eq!(lab.firing(), [("log-silent", "info")]);
    lab.play(20.0, logging(1.0));
    assert_eq!(lab.firing(), []);
}

#[test]
fn an_age_that_is_told_again_is_no_write() {
    // As a probe tells it: looked at in every tenth sample, and the same in between.
    let looked = |written_every: f64, stops_at: f64| {
        let mut lab = Lab::new(gpus(0..1));
        lab.every = 2.0;
        let begin = lab.t;
        lab.play(4000.0, move |lab, passed| {
            let mut shot = works(lab);
            let look = (passed / 20.0).floor() * 20.0;
            let age = if look < stops_at { look % written_every } else { look - stops_at };
            shot.processes[0].reading.log_age_seconds = Some(age.trunc());
            shot
        });
        (lab.fired(), lab.t - begin)
    };
    assert_eq!(looked(1e9, 1e9).0, [], "one that was never written");
    assert_eq!(looked(7.3, 1e9).0, [], "one that is written");
    assert_eq!(looked(7.3, 1500.0).0, [("log-silent", "info")], "one that stops");
}
