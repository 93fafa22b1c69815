use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};

fn job(count: u16) -> Vec<TestProcess> {
    let on: Vec<(u16, u64)> = (0..count).map(|gpu| (gpu, 60)).collect();
    vec![process(7, "python train.py", &on)]
}

#[test]
fn busy_at_little_power_is_mentioned_after_half_an_hour() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(3000.0, |tester, _| TestSample {
        gpus: (0..2).map(|_| tester.gpu(95, 250.0, 20, 60)).collect(),
        processes: job(2),
    });
    assert_eq!(tester.fired(), [("low-power-high-util", "info")]);
    let sentence = tester.finding("low-power-high-util").sentence.to_string();
    assert!(sentence.starts_with("GPUs 0,1: 95 % busy for 4"), "{sentence}");
    assert!(sentence.contains(" W of 700 W: train.py (alice, pid 7) could be faster"), "{sentence}");
}

#[test]
fn memory_bound_and_ordinary_work_is_not() {
    for (watts, memory) in [(250.0, 60), (560.0, 40)] {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(3600.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| tester.gpu(95, watts, memory, 60)).collect(),
            processes: job(2),
        });
        assert_eq!(tester.fired(), []);
    }
}

#[test]
fn a_straggler_is_mentioned_where_all_were_even_before() {
    let work = |tester: &mut RuleTester, odd: Option<(u8, f32)>| {
        let mut gpus: Vec<_> = (0..4).map(|_| tester.gpu(97, 560.0, 45, 60)).collect();
        if let Some((utilization, watts)) = odd {
            gpus[2] = tester.gpu(utilization, watts, 45, 60);
        }
        TestSample { gpus, processes: job(4) }
    };
    let mut tester = RuleTester::new(gpus(0..4));
    tester.run(1800.0, |tester, _| work(tester, None));
    tester.run(1200.0, |tester, _| work(tester, Some((70, 320.0))));
    assert_eq!(tester.fired(), [("gpu-imbalance", "info")]);
    assert!(tester.finding("gpu-imbalance").sentence.starts_with("GPU 2 does less than the others of train.py"));
    let mut tester = RuleTester::new(gpus(0..4));
    tester.run(3600.0, |tester, _| work(tester, Some((70, 320.0))));
    assert_eq!(tester.fired(), [], "a pipeline");
}
