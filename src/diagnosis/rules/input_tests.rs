use crate::diagnosis::Confidence;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};

fn job(workers: u32, percent: f32, blocked: u32) -> Vec<TestProcess> {
    let mut job = process(7, "python train.py", &[(0, 60)]);
    job.reading.cpu_percent = Some(60.0);
    job.reading.descendants = Some(workers);
    job.reading.descendants_cpu_percent = Some(percent * workers as f32);
    job.reading.descendants_blocked = Some(blocked);
    vec![job]
}

fn works(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 550.0, 45, 60)], processes: job(8, 30.0, 0) }
}

fn starves(tester: &mut RuleTester, t: f64, percent: f32, blocked: u32) -> TestSample {
    let busy = ((t / 10.0) as u32).is_multiple_of(8);
    let gpu = if busy { tester.gpu(60, 380.0, 30, 60) } else { tester.gpu(3, 140.0, 0, 60) };
    TestSample { gpus: vec![gpu], processes: job(8, percent, blocked) }
}

#[test]
fn starved_jobs_warn_after_ten_minutes_and_name_the_cause() {
    for (percent, blocked, cause, confidence) in [
        (97.0, 0, "its 8 workers are at full CPU", Confidence::Likely),
        (10.0, 3, "its workers wait for storage", Confidence::Likely),
        (20.0, 0, "why cannot be seen", Confidence::Suspected),
    ] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(2400.0, |tester, _| works(tester));
        tester.run(580.0, |tester, t| starves(tester, t, percent, blocked));
        assert_eq!(tester.fired(), []);
        tester.run(300.0, |tester, t| starves(tester, t, percent, blocked));
        assert_eq!(tester.firing(), [("input-stall", "warn")], "{cause}");
        let finding = tester.finding("input-stall");
        assert!(finding.sentence.ends_with(cause), "{}", finding.sentence);
        assert_eq!(finding.confidence, confidence);
        tester.run(600.0, |tester, _| works(tester));
        assert_eq!(tester.firing(), []);
    }
}

#[test]
fn short_dips_and_a_job_that_was_never_busy_are_left_alone() {
    let mut tester = RuleTester::new(gpus(0..1));
    for _ in 0..4 {
        tester.run(2400.0, |tester, _| works(tester));
        tester.run(540.0, |tester, t| starves(tester, t, 97.0, 0));
    }
    assert_eq!(tester.fired(), [], "dips of nine minutes");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(7200.0, |tester, t| starves(tester, t, 97.0, 0));
    assert_eq!(tester.fired(), []);
}
