//! `benches/guard` as it judges counts; the counting itself runs in `tests/run --all`.

use std::process::{Command, Output};

/// Judges counts against a baseline: Python dictionaries of steps.
fn judge(baseline: &str, counts: &str, rustc: &str) -> Output {
    let script = format!(
        "import importlib.machinery, importlib.util, sys\n\
         sys.dont_write_bytecode = True\n\
         loader = importlib.machinery.SourceFileLoader('guard', 'benches/guard')\n\
         guard = importlib.util.module_from_spec(importlib.util.spec_from_loader('guard', loader))\n\
         loader.exec_module(guard)\n\
         guard.verdict({{'rustc': 'rustc 1', 'instructions': {baseline}}}, {counts}, '{rustc}')\n"
    );
    let python = Command::new("python3").args(["-c", &script]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    python.expect("these tests need python3: apt-get install python3")
}

#[test]
fn a_step_that_grew_by_more_than_a_tenth_fails_and_is_named() {
    let output = judge("{'draw': 1000, 'list': 1000}", "{'draw': 1101, 'list': 1100}", "rustc 1");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "benches/guard: more instructions than benches/baseline.json allows:\n  draw: 1,101, 10 % above 1,000\n\
         mend it, or, where it is worth it: benches/guard --update, and say why in the commit\n"
    );
    let output = judge("{'draw': 1000, 'list': 1000}", "{'draw': 1100, 'list': 10}", "rustc 1");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 steps, none 10 % above the baseline\n");
}

#[test]
fn a_step_that_one_side_does_not_know_fails_and_another_compiler_is_told() {
    let output = judge("{'draw': 1000, 'gone': 1}", "{'draw': 2000, 'new': 1}", "rustc 2");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "benches/guard: more instructions than benches/baseline.json allows:\n  draw: 2,000, 100 % above 1,000\n  \
         gone: only in the baseline\n  new: only counted now\n\
         the baseline is of rustc 1, this is rustc 2: that alone may explain it\n\
         mend it, or, where it is worth it: benches/guard --update, and say why in the commit\n"
    );
}
