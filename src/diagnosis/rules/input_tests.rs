use crate::diagnosis::Confidence;
use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{TestProcess, gpus, process};

fn job(workers: u32, percent: f32, blocked: u32) -> Vec<TestProcess> {
    let mut job = process(7, "python train.py", &[(0, 60)]);
    job.reading.cpu_percent = Some(60.0);
    job.reading.descendants = Some(workers);
    job.reading.descendants_cpu_percent = Some(percent * workers as f32);
    job.reading.descendants_blocked = Some(blocked);
    vec![job]
}

fn works(lab: &mut Lab) -> Shot {
    Shot { gpus: vec![lab.gpu(97, 550.0, 45, 60)], processes: job(8, 30.0, 0) }
}

fn starves(lab: &mut Lab, t: f64, percent: f32, blocked: u32) -> Shot {
    let busy = ((t / 10.0) as u32).is_multiple_of(8);
    let gpu = if busy { lab.gpu(60, 380.0, 30, 60) } else { lab.gpu(3, 140.0, 0, 60) };
    Shot { gpus: vec![gpu], processes: job(8, percent, blocked) }
}

#[test]
fn starved_jobs_warn_after_ten_minutes_and_name_the_cause() {
    for (percent, blocked, cause, confidence) in [
        (97.0, 0, "its 8 workers are at full CPU", Confidence::Likely),
        (10.0, 3, "its workers wait for storage", Confidence::Likely),
        (20.0, 0, "why cannot be seen", Confidence::Suspected),
    ] {
        let mut lab = Lab::new(gpus(0..1));
        lab.play(2400.0, |lab, _| works(lab));
        lab.play(580.0, |lab, t| starves(lab, t, percent, blocked));
        assert_eq!(lab.fired(), []);
        lab.play(300.0, |lab, t| starves(lab, t, percent, blocked));
        assert_eq!(lab.firing(), [("input-stall", "warn")], "{cause}");
        let finding = lab.finding("input-stall");
        assert!(finding.sentence.ends_with(cause), "{}", finding.sentence);
        assert_eq!(finding.confidence, confidence);
        lab.play(600.0, |lab, _| works(lab));
        assert_eq!(lab.firing(), []);
    }
}

#[test]
fn short_dips_and_a_job_that_was_never_busy_are_left_alone() {
    let mut lab = Lab::new(gpus(0..1));
    for _ in 0..4 {
        lab.play(2400.0, |lab, _| works(lab));
        lab.play(540.0, |lab, t| starves(lab, t, 97.0, 0));
    }
    assert_eq!(lab.fired(), [], "dips of nine minutes");
    let mut lab = Lab::new(gpus(0..1));
    lab.play(7200.0, |lab, t| starves(lab, t, 97.0, 0));
    assert_eq!(lab.fired(), []);
}
