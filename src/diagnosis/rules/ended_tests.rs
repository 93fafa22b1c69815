use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{gpus, process};
use crate::wire::XidEvent;

fn works(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

fn empty(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] }
}

#[test]
fn a_job_that_ends_is_mentioned_for_ten_minutes() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(900.0, |tester, _| works(tester));
    tester.run(20.0, |tester, _| empty(tester));
    assert_eq!((tester.firing(), tester.notified()), (vec![("job-ended", "info")], 0));
    assert!(
        tester.finding("job-ended").sentence.ends_with("GPU 0 is free of it, 40 GiB were held")
            || tester.finding("job-ended").sentence.contains("train.py (alice, pid 7) ended after 3 h"),
        "{}",
        tester.finding("job-ended").sentence
    );
    tester.run(600.0, |tester, _| empty(tester));
    assert_eq!(tester.firing(), []);
}

#[test]
fn one_that_ends_with_an_error_of_its_gpu_or_a_reboot_warns() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(900.0, |tester, _| works(tester));
    tester.run_edited(
        20.0,
        |tester, _| empty(tester),
        |snapshot, _| {
            snapshot.xid_events = vec![XidEvent { gpu: Some(0), xid: 31, monotonic_seconds: 0.0 }];
        },
    );
    assert_eq!(tester.firing(), [("job-ended", "warn"), ("xid-seen", "info")]);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(900.0, |tester, _| works(tester));
    tester.reboot(0);
    tester.run(20.0, |tester, _| empty(tester));
    assert_eq!(tester.firing(), [("job-ended", "warn")]);
    assert!(tester.finding("job-ended").sentence.ends_with("; the host was rebooted"));
}

#[test]
fn short_small_and_partial_ends_are_not_told() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut small = process(7, "python a.py", &[(0, 0)]);
    small.gpus[0].gpu_memory_bytes = Some(100 << 20);
    tester.run(900.0, |tester, _| TestSample { processes: vec![small.clone()], ..empty(tester) });
    tester.run(20.0, |tester, _| empty(tester));
    assert_eq!(tester.fired(), []);
}

#[test]
fn what_ended_while_nobody_looked_is_told_at_the_next_start() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(900.0, |tester, _| works(tester));
    let memory = tester.engine.memory(&tester.fleet, tester.now());
    let mut next = RuleTester::new(gpus(0..1));
    next.t = tester.t + 7200.0;
    next.engine.restore(memory, next.now());
    next.run(20.0, |tester, _| empty(tester));
    assert_eq!(next.firing(), [("job-ended", "info")]);
    let sentence = next.finding("job-ended").sentence.to_string();
    assert!(sentence.contains("ended some time in the 2 h before it was missed"), "{sentence}");
}

#[test]
fn a_log_that_stands_still_is_mentioned() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 20.0;
    let logging = |age: f64| {
        move |tester: &mut RuleTester, _: f64| {
            let mut test_sample = works(tester);
            test_sample.processes[0].facts.log_path = Some("/home/alice/run.log".into());
            test_sample.processes[0].reading.log_age_seconds = Some(age);
            test_sample
        }
    };
    for _ in 0..60 {
        tester.run(20.0, logging(2.0));
        tester.run(20.0, logging(22.0));
    }
    assert_eq!(tester.fired(), []);
    let begin = tester.t;
    tester.run(1900.0, |tester, _| {
        let age = 22.0 + tester.t - begin;
        logging(age)(tester, 0.0)
    });
    assert_eq!(tester.firing(), [("log-silent", "info")]);
    tester.run(20.0, logging(1.0));
    assert_eq!(tester.firing(), []);
}

#[test]
fn an_age_that_is_told_again_is_no_write() {
    // As a probe tells it: looked at in every tenth sample, and the same in between.
    let looked = |written_every: f64, stops_at: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 2.0;
        let begin = tester.t;
        tester.run(4000.0, move |tester, passed| {
            let mut test_sample = works(tester);
            let look = (passed / 20.0).floor() * 20.0;
            let age = if look < stops_at { look % written_every } else { look - stops_at };
            test_sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            test_sample
        });
        (tester.fired(), tester.t - begin)
    };
    assert_eq!(looked(1e9, 1e9).0, [], "one that was never written");
    assert_eq!(looked(7.3, 1e9).0, [], "one that is written");
    assert_eq!(looked(7.3, 1500.0).0, [("log-silent", "info")], "one that stops");
}
