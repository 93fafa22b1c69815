//! Tests of [`super`], with a script in the place of py-spy.

use super::super::recorded_hangs::recorded_stacks;
use super::super::test_process::TestProcess;
use super::*;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

/// Output of `py-spy dump --json` 0.4.3 for a process of Python 3.11, with fewer frames, other paths and other lines.
const DUMP: &str = r#"[
  {
    "pid": 29756, "thread_id": 139899441370816, "thread_name": "watchdog", "os_thread_id": 29758,
    "active": false, "owns_gil": false,
    "frames": [
      {
        "name": "watch", "filename": "/home/alice/job/train.py", "module": null, "short_filename": "train.py",
        "line": 6, "locals": null, "is_entry": true, "is_shim_entry": false
      }
    ],
    "process_info": null
  },
  {
    "pid": 29756, "thread_id": 139899452439424, "thread_name": "MainThread", "os_thread_id": 29756,
    "active": true, "owns_gil": true,
    "frames": [
      {
        "name": "load_batch", "filename": "/home/alice/job/data.py", "module": null, "short_filename": "data.py",
        "line": 211, "locals": null, "is_entry": false, "is_shim_entry": false
      },
      {
        "name": "<module>", "filename": "/opt/job/train.py", "module": null, "short_filename": "train.py",
        "line": 0, "locals": null, "is_entry": true, "is_shim_entry": true
      }
    ],
    "process_info": null
  }
]"#;

fn parsed(json: &str) -> Vec<PySpyThread> {
    serde_json::from_str(json).unwrap()
}

fn dump(json: &str) -> StackDump {
    stack_dump(Path::new("/home/alice/venv/bin/py-spy"), parsed(json), 29756, "/home/alice/")
}

#[test]
fn the_main_thread_comes_first_and_the_home_directory_is_a_tilde() {
    let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
    let expected = StackDump {
        tool: "~/venv/bin/py-spy".into(),
        threads: vec![
            ThreadStack {
                name: "MainThread".into(),
                is_active: true,
                owns_gil: true,
                frames: vec![
                    frame("load_batch", "~/job/data.py", Some(211)),
                    frame("<module>", "/opt/job/train.py", None),
                ],
                frames_left_out: 0,
            },
            ThreadStack {
                name: "watchdog".into(),
                frames: vec![frame("watch", "~/job/train.py", Some(6))],
                ..ThreadStack::default()
            },
        ],
        threads_left_out: 0,
    };
    assert_eq!(dump(DUMP), expected);
    let without_ids = DUMP.replace("\"os_thread_id\": 29756", "\"os_thread_id\": null");
    assert_eq!(dump(&without_ids), expected, "the name is the second choice");
}

#[test]
fn long_stacks_are_cut_and_counted() {
    let long = "x".repeat(2000);
    let frame = format!(r#"{{"name":"{long}","filename":"/home/alice/{long}/train.py","line":1}}"#);
    let frames = vec![&*frame; 100].join(",");
    let thread = format!(r#"{{"thread_name":"{long}","frames":[{frames}]}}"#);
    let dump = dump(&format!("[{}]", vec![&*thread; 40].join(",")));
    assert_eq!((dump.threads.len(), dump.threads_left_out), (limits::MAX_STACKS, 24));
    let first = &dump.threads[0];
    assert_eq!((first.frames.len(), first.frames_left_out), (limits::MAX_FRAMES, 76));
    let Frame { function, file, .. } = &first.frames[0];
    assert!(function.len() <= MAX_NAME_BYTES && first.name.len() <= MAX_NAME_BYTES);
    assert!(file.len() <= MAX_PATH_BYTES && file.starts_with('…') && file.ends_with("/train.py"), "{file}");
}

#[test]
fn only_a_whole_directory_is_a_home() {
    for (path, home, expected) in [
        ("/home/alice/x.py", "/home/alice", "~/x.py"),
        ("/home/alice2/x.py", "/home/alice", "/home/alice2/x.py"),
        ("/usr/lib/x.py", "/", "/usr/lib/x.py"),
        ("/usr/lib/x.py", "", "/usr/lib/x.py"),
    ] {
        assert_eq!(with_tilde(path, home), expected);
    }
}

#[test]
fn py_spy_is_searched_beside_the_interpreter_then_in_the_environment_then_in_the_login_path() {
    let environment = b"PATH=/usr/bin:bin:\0VIRTUAL_ENV=/v\0CONDA_PREFIX=/c\0";
    let folders = |program: &str| -> Vec<String> {
        let folders = folders_of(program.as_bytes(), b"/jobs", environment, b"/login/bin:/bin");
        folders.iter().map(|folder| folder.to_string_lossy().into_owned()).collect()
    };
    let rest = ["/v/bin", "/c/bin", "/usr/bin", "/login/bin", "/bin"];
    assert_eq!(folders("/opt/env/bin/python3"), [&["/opt/env/bin"], &rest[..]].concat());
    assert_eq!(folders("env/bin/python3"), [&["/jobs/env/bin"], &rest[..]].concat());
    assert_eq!(folders("python3"), rest);
    assert_eq!(folders_of(b"python", b"", b"", b""), Vec::<PathBuf>::new());
    let job = TestProcess::sleep();
    let found = search_folders(job.pid(), b"/login/bin", &mut FileReader::default());
    assert_eq!(found.last(), Some(&PathBuf::from("/login/bin")));
    assert!(found.len() > 1, "the environment of the process has a PATH: {found:?}");
}

/// A directory with a `py-spy` that is this shell script. A shell writes it: a file written by the test itself cannot be
/// executed while a child of another test has inherited its descriptor.
fn py_spy(script: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("py-spy");
    let write = "cat >\"$0.new\" && chmod 755 \"$0.new\" && mv \"$0.new\" \"$0\"";
    let mut shell = Command::new("sh").args(["-c", write]).arg(&program).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    (directory, program)
}

fn find(folder: &tempfile::TempDir) -> Result<TrustedProgram, ExaminationRefusal> {
    find_py_spy(&["/nonexistent".into(), folder.path().into()])
}

#[test]
fn a_script_is_run_without_an_environment() {
    let (folder, path) = py_spy("echo \"$* HOME=$HOME\"; echo no error >&2");
    let program = find(&folder).unwrap();
    assert_eq!(program.path, path.canonicalize().unwrap());
    let output = program.run(42, Duration::from_secs(30));
    assert_eq!(output.as_deref(), Ok(b"dump --json --nonblocking --pid 42 HOME=\n".as_slice()));
}

#[test]
fn another_file_in_its_place_is_not_run() {
    let (folder, path) = py_spy("echo checked");
    let program = find(&folder).unwrap();
    let (_other, replacement) = py_spy("echo replaced");
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(replacement, &path).unwrap();
    assert_eq!(program.run(42, Duration::from_secs(30)).as_deref(), Ok(b"checked\n".as_slice()));
}

#[test]
fn a_program_that_others_may_change_is_not_run() {
    let (folder, path) = py_spy("echo");
    let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let expected = |path: &Path| {
        let path = end(&path.canonicalize().unwrap().to_string_lossy(), MAX_PATH_BYTES);
        refusal(
            format!("other accounts may change {path}, so it is not run"),
            "let only its owner, you or root, write to it and to its directory: `chmod go-w`",
        )
    };
    for mode in [0o775, 0o757] {
        set(&path, mode);
        assert_eq!(find(&folder).unwrap_err(), expected(&path), "{mode:o}");
    }
    set(&path, 0o755);
    set(folder.path(), 0o1777);
    assert_eq!(find(&folder).unwrap_err(), expected(&path));
    let (link, _) = py_spy("echo");
    std::fs::remove_file(link.path().join("py-spy")).unwrap();
    std::os::unix::fs::symlink(&path, link.path().join("py-spy")).unwrap();
    assert_eq!(find(&link).unwrap_err(), expected(&path), "the target of a link counts");
    set(folder.path(), 0o755);
    assert!(find(&folder).is_ok() && find(&link).is_ok());
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert_eq!(find(&folder).unwrap_err(), expected(&path), "of another user");
    }
}

#[test]
fn a_missing_program_has_a_remedy() {
    let expected = ExaminationRefusal {
        part: ExaminationPart::Stacks,
        reason: "py-spy is not installed".into(),
        remedy: "`pip install py-spy` in the Python environment of the job, which may keep running".into(),
        is_risk: false,
    };
    assert_eq!(find_py_spy(&["/nonexistent".into()]).unwrap_err(), expected);
    let (folder, path) = py_spy("echo");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(find(&folder).unwrap_err(), expected, "it cannot be executed");
}

fn failure(script: &str, limit: Duration) -> ExaminationRefusal {
    let (folder, _) = py_spy(script);
    find(&folder).unwrap().run(42, limit).unwrap_err().refusal(42)
}

#[test]
fn failures_have_reasons_and_remedies() {
    let soon = Duration::from_secs(30);
    let at_host = "run `py-spy dump --nonblocking --pid 42` on the host";
    let as_root = "run `sudo py-spy dump --pid 42` on the host";
    let upgrade = "if it does not know this version of Python: `pip install --upgrade py-spy`";
    for (script, limit, reason, remedy) in [
        ("exec sleep 600", Duration::from_millis(50), "py-spy did not end within 3 s", at_host),
        ("exec 1>&-; exec sleep 600", Duration::from_millis(50), "py-spy did not end within 3 s", at_host),
        ("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxx; done", soon, "the stacks have more than 256 KiB", at_host),
        (
            "echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1",
            soon,
            "the kernel does not permit reading its memory, as in some containers",
            as_root,
        ),
        (
            "echo 'Error: Failed to find python version from target process' >&2; exit 1",
            soon,
            "it is not a Python process",
            "",
        ),
        (
            "printf '\\nError: no symbols in token=abc\\033[0m\\nStack backtrace:\\n' >&2; exit 1",
            soon,
            "py-spy could not read the stacks: no symbols in token=***␛[0m",
            upgrade,
        ),
        ("exit 1", soon, "py-spy could not read the stacks: it gave no reason", upgrade),
        ("kill -9 $$", soon, "py-spy could not read the stacks: it gave no reason", upgrade),
    ] {
        assert_eq!(failure(script, limit), refusal(reason, remedy), "{script}");
    }
    let error = serde_json::from_str::<Vec<PySpyThread>>("Thread 1").err().unwrap();
    let refused = other_output(&error);
    assert_eq!(&*refused.reason, "the output of py-spy is not understood: expected value at line 1 column 1");
    assert_eq!(&*refused.remedy, "`pip install --upgrade py-spy`");
    let refused = RunFailure::NotStarted("Exec format error (os error 8)".to_owned()).refusal(42);
    assert_eq!(&*refused.reason, "py-spy does not start: Exec format error (os error 8)");
    assert_eq!(&*refused.remedy, "install it again: `pip install --force-reinstall py-spy`");
}

#[test]
fn each_scope_of_yama_has_a_remedy() {
    let sudo = "run `sudo py-spy dump --pid 42` on the host";
    let open = format!("{sudo}, or an administrator sets `sysctl kernel.yama.ptrace_scope=0`");
    for (scope, reason, remedy) in [
        (Some("1"), "only its parent may read its memory (kernel.yama.ptrace_scope is 1)", &*open),
        (Some("2"), "only root may read its memory (kernel.yama.ptrace_scope is 2)", &open),
        (
            Some("3"),
            "nobody may read its memory (kernel.yama.ptrace_scope is 3)",
            "an administrator removes the setting and restarts the host",
        ),
        (Some("0"), "the kernel does not permit reading its memory, as in some containers", sudo),
        (None, "the kernel does not permit reading its memory, as in some containers", sudo),
    ] {
        assert_eq!(not_permitted(42, scope.map(str::as_bytes)), refusal(reason, remedy));
    }
}

#[test]
fn a_process_that_runs_no_python_is_recognised() {
    let job = TestProcess::sleep();
    assert_eq!(is_python(job.pid(), &mut FileReader::default()), Some(false));
    assert_eq!(is_python(u32::MAX, &mut FileReader::default()), None);
    for (name, expected) in [("python3.11", true), ("python", true), ("pypy3", true), ("ipython-viewer", false)] {
        assert_eq!(is_interpreter(name.as_bytes()), expected, "{name}");
    }
    assert_eq!(examine_stacks(job.pid()), Err(refusal("it is not a Python process", "")));
}

/// The places of the main thread in a recording of `tests/gloo_hangs`, as `function file`, innermost first.
fn recorded_places(kind: &str, rank: u32) -> Vec<String> {
    let dump = recorded_stacks(kind, rank);
    assert_eq!(dump.threads_left_out, 0);
    let main = &dump.threads[0];
    assert_eq!((&*main.name, main.frames_left_out), ("MainThread", 0));
    let place = |frame: &Frame| format!("{} {}", frame.function, frame.file.rsplit('/').next().unwrap());
    main.frames.iter().map(place).collect()
}

#[test]
fn recorded_hangs_show_where_each_rank_waits() {
    let end = ["main train.py", "<module> train.py"];
    let waits =
        ["all_reduce distributed_c10d.py", "_exception_logger.<locals>.wrapper c10d_logger.py", "train_step train.py"];
    for kind in ["sleep", "mismatch", "data"] {
        for rank in [0, 2] {
            assert_eq!(recorded_places(kind, rank), [&waits[..], &end].concat(), "{kind}");
        }
    }
    assert_eq!(recorded_places("sleep", 1), ["train_step train.py", end[0], end[1]]);
    let gather = ["all_gather distributed_c10d.py", waits[1], "evaluate train.py", waits[2]];
    assert_eq!(recorded_places("mismatch", 1), [&gather[..], &end].concat());
    let loader = recorded_places("data", 1);
    assert_eq!(loader[0], "_PollLikeSelector.select selectors.py");
    assert!(loader.contains(&"_MultiProcessingDataLoaderIter._next_data dataloader.py".to_owned()), "{loader:?}");
}
