//! Recognises model servers and notebooks by their command line: both hold memory while they wait.

use crate::config::Thresholds;
use crate::fleet::{Process, program_name};
use crate::wire::{Ancestor, Owner, ProcessFacts, SafeText};

/// Programs and Python modules that serve models, as named on a command line.
const SERVERS: [&str; 36] = [
    "vllm",
    "sglang",
    "tritonserver",
    "triton_python_backend_stub",
    "ollama",
    "text-generation-launcher",
    "text-generation-server",
    "text-generation-router",
    "text-embeddings-router",
    "llama-server",
    "llama-box",
    "mlc_llm",
    "lmdeploy",
    "trtllm-serve",
    "tabbyapi",
    "mii",
    // Web servers and frameworks.
    "uvicorn",
    "gunicorn",
    "hypercorn",
    "flask",
    "fastapi",
    "streamlit",
    "gradio",
    "torchserve",
    "bentoml",
    "litserve",
    "fastchat",
    "llama_cpp",
    "infinity_emb",
    "xinference",
    "aphrodite",
    "koboldcpp",
    "comfyui",
    "ComfyUI",
    "invokeai-web",
    "whisper-server",
];

/// The subcommands with which TRL serves a model to a trainer, and MMseqs2 a database to searches.
const SERVE_COMMANDS: [&str; 2] = ["vllm-serve", "gpuserver"];

/// Subcommands of these programs that work through a list and end: `vllm run-batch`, `vllm bench`.
const BATCH_COMMANDS: [&str; 2] = ["run-batch", "bench"];

/// Names of scripts, without `.py`, that people give to the servers that they write.
const SERVER_SCRIPTS: [&str; 10] =
    ["app", "api", "demo", "server", "serve", "serving", "webui", "web_ui", "gradio_app", "streamlit_app"];

/// Options of scripts that open a web server.
const SERVER_OPTIONS: [&str; 5] = ["--share", "--listen", "--server-port", "--server_port", "--server-name"];

/// Programs, console scripts and modules whose processes wait for tasks from a scheduler.
const TASK_WORKERS: [&str; 10] = [
    "raylet",
    "dask",
    "dask-worker",
    "dask-cuda-worker",
    "dask_cuda.cli",
    "celery",
    "flower-client-app",
    // Workers of queues in Redis or RabbitMQ.
    "rq",
    "dramatiq",
    "huey_consumer",
];

/// Words that start the ranks of a distributed job, of which one listens for the others.
const RANK_STARTERS: [&str; 9] = [
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "srun",
];

/// Options and variables of a distributed job, as part of an argument.
const RANK_OPTIONS: [&str; 6] = ["master_port", "master-port", "MASTER_PORT", "rdzv", "local_rank", "local-rank"];

/// The ports on which the ranks of PyTorch meet if nothing else is configured: `torchrun` and `torch.distributed`.
const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 29_400..=29_599;

/// Debuggers that run a Python program.
const DEBUGGERS: [&str; 6] = ["pdb", "ipdb", "pudb", "debugpy", "ptvsd", "pydevd.py"];

/// The titles that servers and frameworks give to workers. The kernel keeps 15 characters of a title: the last one is that of
/// `ray::ServeReplica`.
const WORKER_TITLES: [&str; 3] = ["VLLM::", "sglang::", "ray::ServeRepli"];

/// The titles of the engine and the workers of a model server, not of its front end.
const ENGINE_TITLES: [&str; 2] = ["VLLM::", "sglang::"];

/// Programs that execute notebooks, as words of their command line.
const NOTEBOOK_RUNNERS: [&str; 3] = ["papermill", "nbconvert", "jupyter-nbconvert"];

/// The title that Ray gives to its workers.
const RAY_TITLE: &str = "ray::";

/// Whether this process or one of its ancestors is a known model server.
///
/// Checks the program, the script or module that an interpreter runs, and the titles that servers give their workers
/// (`VLLM::Worker`, `sglang::scheduler`). Later arguments do not count: a training run may name a server there.
pub(super) fn is_model_server(facts: &ProcessFacts) -> bool {
    let parents = || facts.ancestors.iter().map(|parent| (parent.argv.as_slice(), Some(&parent.name)));
    let all = || std::iter::once((facts.argv.as_slice(), facts.name.as_ref())).chain(parents());
    all().any(|(argv, name)| is_server_title(name) || is_server_command(argv)) && !all().any(|(argv, _)| is_batch(argv))
}

/// Whether this is the title of the engine or of a worker of a model server.
pub(super) fn is_engine_title(name: &SafeText) -> bool {
    ENGINE_TITLES.iter().any(|title| name.starts_with(title))
}

/// Servers without streams of events to which a browser subscribes: a client that waits has sent a request.
const API_SERVERS: [&str; 7] = [
    "vllm",
    "sglang",
    "text-generation-server",
    "text-generation-launcher",
    "text-embeddings-router",
    "lmdeploy",
    "llama-server",
];

/// Whether this is a worker or the front end of one of these servers.
pub(super) fn only_answers(facts: &ProcessFacts) -> bool {
    let is_api = |word: &SafeText| API_SERVERS.contains(&base_name(word).split('.').next().unwrap_or_default());
    let names_one = |argv: &[SafeText]| argv.iter().take(3).any(is_api);
    facts.name.as_ref().is_some_and(is_engine_title)
        || names_one(&facts.argv)
        || facts.ancestors.iter().any(|parent| names_one(&parent.argv))
}

/// Whether this command runs a known server's program for a list of prompts. A Python script may come before it.
fn is_batch(argv: &[SafeText]) -> bool {
    argv.iter()
        .take(3)
        .zip(argv.iter().skip(1))
        .any(|(program, command)| is_server_word(base_name(program)) && BATCH_COMMANDS.contains(&command.as_str()))
}

/// Whether systemd starts this program, perhaps through a launcher of ranks, and again if its unit says so. Below a shell or another
/// program, it may be one of a list of tasks.
pub(super) fn is_entry_of_service(facts: &ProcessFacts) -> bool {
    let starts_ranks = |ancestor: &Ancestor| {
        RANK_STARTERS.contains(&ancestor.name.as_str())
            || ancestor.argv.iter().take(3).any(|word| RANK_STARTERS.contains(&base_name(word)))
    };
    let is_entry = match facts.ancestors.split_last() {
        Some((top, launchers)) => *top.name == *"systemd" && launchers.iter().all(starts_ranks),
        None => false,
    };
    is_entry && matches!(facts.owner, Some(Owner::Service(_)))
}

/// Whether a service manager, a container engine or an orchestrator runs this process, and may start it again.
pub(super) fn is_supervised(facts: &ProcessFacts) -> bool {
    matches!(facts.owner, Some(Owner::Service(_) | Owner::Container { .. } | Owner::Pod { .. }))
}

/// Whether this process serves models: a known server, a program listed in `model_servers` of hosts.toml, or any
/// process on a host with `role = "serving"`.
pub(super) fn serves_models(process: &Process, limits: &Thresholds) -> bool {
    let is_named = || limits.model_servers.iter().any(|name| name.as_str() == program_name(&process.info.command));
    limits.is_serving || process.facts().is_some_and(is_model_server) || is_named()
}

/// Whether this process, or its parent, waits for tasks from a scheduler: a worker of Ray, Dask or Celery.
pub(super) fn waits_for_tasks(process: &Process) -> bool {
    process.facts().is_some_and(is_task_worker)
}

/// Whether this process, or its parent, is a worker of Ray, which may be a rank of a job. Tasks of Dask and Celery are
/// independent.
pub(super) fn is_ray_worker(facts: &ProcessFacts) -> bool {
    let lines = std::iter::once(&facts.argv).chain(facts.ancestors.first().map(|parent| &parent.argv));
    lines.filter_map(|argv| argv.first()).any(|program| program.starts_with(RAY_TITLE))
}

/// Classes of Ray whose methods run for as long as their server does.
const RAY_SERVERS: [&str; 4] = ["Serve", "RayWorkerWrapper", "Engine", "LLM"];

/// Whether this process is a worker of Ray that is in the middle of a task. Its title names the method while it runs, as in
/// `ray::TrainWorker.setup`, and is `ray::TrainWorker` while the worker waits for a task (`execute_task` in Ray's
/// python/ray/_raylet.pyx).
pub(super) fn runs_ray_task(facts: &ProcessFacts) -> bool {
    let title = facts.argv.first().and_then(|program| program.strip_prefix(RAY_TITLE));
    title.is_some_and(|title| {
        let is_method = title.split_once('.').is_some_and(|(_, method)| !method.is_empty());
        (is_method || title.ends_with("__execute")) && !RAY_SERVERS.iter().any(|server| title.contains(server))
    })
}

fn is_task_worker(facts: &ProcessFacts) -> bool {
    let starts_worker = |argv: &[SafeText]| {
        let Some((program, arguments)) = argv.split_first() else { return false };
        if is_live_worker(arguments) {
            return true;
        }
        if program.starts_with(RAY_TITLE) || TASK_WORKERS.contains(&base_name(program)) {
            return true;
        }
        // The workers of a pool of MATLAB wait between two parallel loops, until the pool closes after its idle time.
        if base_name(program) == "MATLAB" {
            return arguments.iter().any(|argument| *argument == "-dmlworker");
        }
        let mut runs = arguments.iter().skip_while(|argument| argument.starts_with('-') && *argument != "-m");
        match (base_name(program).starts_with("python"), runs.next()) {
            (true, Some(flag)) if *flag == "-m" => runs.next().is_some_and(|module| {
                TASK_WORKERS.contains(&module.as_str()) || module.starts_with("distributed.cli.")
            }),
            // The console script of a package has no suffix, unlike a script of the user.
            (true, Some(script)) => TASK_WORKERS.contains(&base_name(script)),
            _ => false,
        }
    };
    starts_worker(&facts.argv) || facts.ancestors.first().is_some_and(|parent| starts_worker(&parent.argv))
}

/// Whether these arguments run a worker of a CryoSPARC Live session, which keeps its GPU while the microscope sends nothing
/// (https://guide.cryosparc.com/live/prerequisites-and-compute-resources-setup).
fn is_live_worker(arguments: &[SafeText]) -> bool {
    let names = |words: &[&str]| arguments.iter().any(|argument| words.iter().any(|word| argument.contains(*word)));
    let is_of_session = || arguments.windows(2).any(|pair| pair[0] == "--job" && pair[1].starts_with('S'));
    names(&["cryosparc_compute"]) && (names(&["rtp_worker", "streaming"]) || is_of_session())
}

/// The port on which this process listens, as a server that its user wrote does; `None` for ranks of a distributed job,
/// of which one listens for the others, for notebooks and for debugged programs, which listen for their front ends.
pub(super) fn served_port(process: &Process) -> Option<u16> {
    let facts = process.facts()?;
    let is_rank = |argv: &[SafeText]| {
        let starts = |word: &SafeText| RANK_STARTERS.contains(&base_name(word));
        let joins = |word: &SafeText| RANK_OPTIONS.iter().any(|option| word.contains(option));
        argv.iter().take(4).any(starts) || argv.iter().any(joins)
    };
    if is_notebook(process)
        || is_debugged(process)
        || is_rank(&facts.argv)
        || facts.ancestors.iter().any(|parent| RANK_STARTERS.contains(&parent.name.as_str()) || is_rank(&parent.argv))
    {
        return None;
    }
    facts.listening_ports.iter().copied().find(|port| !RENDEZVOUS_PORTS.contains(port))
}

/// Whether a debugger runs this process.
pub(super) fn is_debugged(process: &Process) -> bool {
    let Some(facts) = process.facts() else { return false };
    facts.argv.iter().take(4).any(|argument| DEBUGGERS.contains(&base_name(argument)))
}

/// Whether a person sits in front of this process: a notebook kernel, an interactive Python session, or a training that keeps its
/// viewer open when it is done (Nerfstudio).
pub(super) fn is_notebook(process: &Process) -> bool {
    let Some(facts) = process.facts() else { return false };
    let name = program_name(&process.info.command);
    // A program that executes the cells of a notebook works alone.
    let executes =
        |parent: &Ancestor| parent.argv.iter().take(4).any(|word| NOTEBOOK_RUNNERS.contains(&base_name(word)));
    if facts.ancestors.iter().any(executes) {
        return false;
    }
    let is_python = facts.argv.first().is_some_and(|program| base_name(program).starts_with("python"));
    let is_prompt = |argument: &&SafeText| argument.starts_with('-');
    let stays = || facts.argv.iter().skip(1).take_while(is_prompt).any(|option| *option == "-i");
    // Without an option for the background, Blender has a window.
    let is_background = |argument: &SafeText| matches!(argument.as_str(), "-b" | "--background");
    (is_python && stays())
        || (name == "blender" && !facts.argv.iter().any(is_background))
        || name == "ns-train"
        // The session of RStudio.
        || name == "rsession"
        || facts.runs_in.as_ref().is_some_and(|place| *place == "jupyter")
        || facts.argv.iter().any(|argument| argument.contains("ipykernel") || argument.contains("jupyter"))
        || name == "ipython"
        || name == "ipython3"
        || (facts.argv.len() == 1 && name.starts_with("python"))
}

/// Checks a title set by prctl(2) or setproctitle. The kernel keeps 15 characters of it.
fn is_server_title(name: Option<&SafeText>) -> bool {
    name.is_some_and(|name| is_server_word(name) || WORKER_TITLES.iter().any(|title| name.starts_with(title)))
}

fn is_server_command(argv: &[SafeText]) -> bool {
    let Some((program, arguments)) = argv.split_first() else { return false };
    if WORKER_TITLES.iter().any(|title| program.starts_with(title)) || is_server_word(base_name(program)) {
        return true;
    }
    // Options come before the script. Options with a separate value are rare.
    let is_interpreter = base_name(program).starts_with("python") || base_name(program) == "uv";
    let mut runs = arguments.iter().skip_while(|argument| argument.starts_with('-') && *argument != "-m");
    match (is_interpreter, runs.next()) {
        (true, Some(flag)) if *flag == "-m" => {
            runs.next().is_some_and(|module| is_server_word(module.split('.').next().unwrap_or_default()))
        }
        (true, Some(script)) => {
            arguments.iter().take(3).any(|argument| SERVE_COMMANDS.contains(&argument.as_str()))
                || is_server_word(base_name(script))
                || is_server_script(script)
                || runs.any(|argument| SERVER_OPTIONS.contains(&argument.split('=').next().unwrap_or_default()))
        }
        _ => arguments.first().is_some_and(|argument| SERVE_COMMANDS.contains(&argument.as_str())),
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_server_word(word: &str) -> bool {
    // A release of KoboldCpp is one file: `koboldcpp-linux-x64`.
    SERVERS.contains(&word) || word.starts_with("koboldcpp-")
}

/// Whether a script is named as a server, or lies in the folder of one (`ComfyUI/main.py`).
fn is_server_script(path: &str) -> bool {
    let stem = base_name(path).strip_suffix(".py").unwrap_or_default();
    let is_named = SERVER_SCRIPTS.contains(&stem)
        || stem.ends_with("_server")
        || stem.ends_with("_api")
        || stem.ends_with("_webui")
        || stem.starts_with("serve_");
    is_named || path.rsplit('/').nth(1).is_some_and(is_server_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, argv: &str) -> ProcessFacts {
        ProcessFacts {
            name: Some(name.into()),
            argv: argv.split_whitespace().map(SafeText::new).collect(),
            ..ProcessFacts::default()
        }
    }

    #[test]
    fn servers_are_recognised_by_program_script_module_and_title() {
        for (name, argv) in [
            ("vllm", "/opt/venv/bin/python3 /opt/venv/bin/vllm serve qwen --tp 4"),
            ("python", "python -m vllm.entrypoints.openai.api_server --model m"),
            ("python3", "python3 -u -m sglang.launch_server --tp 8"),
            ("VLLM::Worker_TP", "VLLM::Worker_TP0"),
            ("sglang::schedul", "sglang::scheduler_TP0"),
            ("tritonserver", "/opt/tritonserver/bin/tritonserver --model-repository=/models"),
            ("ollama", "/usr/local/bin/ollama runner --port 38211"),
            ("koboldcpp-linux", "./koboldcpp-linux-x64 model.gguf --skiplauncher"),
            ("text-generation", "/usr/local/bin/text-generation-server serve m"),
            ("llama-server", "./llama-server -m model.gguf"),
            ("python", "python -m uvicorn main:app --port 8000"),
            ("uvicorn", "/opt/venv/bin/python /opt/venv/bin/uvicorn main:app"),
            ("python", "python app.py --share"),
            ("python3", "python3 /srv/ComfyUI/main.py --listen"),
            ("python", "python generate.py --share"),
            ("python", "python model_server.py"),
            ("ray::ServeRepli", "ray::ServeReplica:app:Model"),
            ("trl", "/opt/venv/bin/python /opt/venv/bin/trl vllm-serve --model qwen"),
            ("trl", "trl vllm-serve --model qwen"),
            ("mmseqs", "mmseqs gpuserver /data/uniref30_2302_db"),
            ("python", "python -m mlc_llm serve HF://mlc-ai/Llama-3.2-1B"),
        ] {
            assert!(is_model_server(&facts(name, argv)), "{argv}");
        }
    }

    #[test]
    fn a_person_sits_in_front_of_notebooks_prompts_and_viewers() {
        let is_personal = |argv: &str, parent: &str| {
            let words = |line: &str| line.split_whitespace().map(SafeText::new).collect::<Vec<_>>();
            let ancestor = Ancestor { pid: 6, start_ticks: 1, uid: Some(1000), name: "a".into(), argv: words(parent) };
            let mut process = crate::fleet::fixture::process(7, argv, &[(0, 1)]);
            process.facts.ancestors = vec![ancestor];
            let fleet = crate::fleet::fixture::fleet(vec![vec![process]]);
            fleet.hosts().iter().flat_map(crate::fleet::Host::processes).all(is_notebook)
        };
        assert!(is_personal("python -m ipykernel_launcher -f k.json", "jupyter lab"));
        assert!(is_personal("python -i live.py", "bash"));
        assert!(is_personal("ns-train splatfacto --data yard", "bash"));
        assert!(is_personal("/usr/lib/rstudio-server/bin/rsession -u lena", "rserver"));
        assert!(is_personal("blender shot.blend", "gnome-shell"));
        assert!(!is_personal("blender -b shot.blend -a", "bash"));
        assert!(!is_personal("python live.py -i in.h5", "bash"), "an option of the program");
        assert!(!is_personal("python -m ipykernel_launcher -f k.json", "python -m papermill in.ipynb out.ipynb"));
        assert!(!is_personal("python -m ipykernel_launcher -f k.json", "python /opt/bin/jupyter-nbconvert --execute"));
    }

    #[test]
    fn batches_of_the_programs_of_servers_are_not_servers() {
        let batch = "/usr/bin/python3 /opt/venv/bin/vllm run-batch -i batch.jsonl -o results.jsonl --model m";
        for argv in [batch, "vllm bench throughput --model m"] {
            assert!(!is_model_server(&facts("vllm", argv)), "{argv}");
        }
        let argv = batch.split_whitespace().map(SafeText::new).collect();
        let parent = Ancestor { pid: 6, start_ticks: 1, uid: Some(1000), name: "vllm".into(), argv };
        let engine = ProcessFacts { ancestors: vec![parent], ..facts("VLLM::EngineCor", "VLLM::EngineCore") };
        assert!(!is_model_server(&engine));
    }

    #[test]
    fn other_programs_are_not_servers() {
        for (name, argv) in [
            ("python", "python train.py --backend vllm"),
            ("python", "python -m torch.distributed.run train.py"),
            ("python", "python bench.py vllm serve"),
            ("python", "python main.py"),
            ("python", "python observer.py"),
            ("python", "python train_app.py --server lab"),
            ("bash", "bash -c vllm"),
            ("python", ""),
            ("vim", "vim vllm.py"),
        ] {
            assert!(!is_model_server(&facts(name, argv)), "{argv}");
        }
    }

    #[test]
    fn a_worker_is_recognised_by_its_parent() {
        let parent = Ancestor {
            name: "python".into(),
            argv: ["python", "/usr/bin/vllm", "serve"].map(SafeText::new).to_vec(),
            ..Ancestor::default()
        };
        let worker = ProcessFacts { ancestors: vec![parent], ..facts("python", "python -c spawn_main()") };
        assert!(is_model_server(&worker));
    }

    #[test]
    fn a_worker_of_ray_with_the_name_of_a_method_is_in_a_task() {
        for (title, is_in_task) in [
            ("ray::WorkerDict.actor_rollout_generate_sequences", true),
            ("ray::ImplicitFunc.train", true),
            ("ray::_RayTrainWorker__execute", true),
            ("ray::WorkerDict", false),
            ("ray::IDLE", false),
            ("ray::ServeReplica:app:Model.handle_request", false),
            ("ray::RayWorkerWrapper.execute_method", false),
            ("python train.py", false),
        ] {
            assert_eq!(runs_ray_task(&facts("ray", title)), is_in_task, "{title}");
        }
    }

    #[test]
    fn workers_of_a_scheduler_are_recognised_by_program_console_script_and_module() {
        for argv in [
            "ray::WorkerDict.actor",
            "/opt/ray/raylet/raylet --node",
            "dask worker tcp://a:8786",
            "/opt/venv/bin/python /opt/venv/bin/celery -A tasks worker",
            "python3 -u -m distributed.cli.dask_worker tcp://a:8786",
            "/opt/venv/bin/python /opt/venv/bin/dask-cuda-worker tcp://a:8786",
            "python -m dask_cuda.cli worker tcp://a:8786",
            "/usr/bin/python3 /usr/local/bin/rq worker gpu",
            "python -m celery worker",
            "/opt/MATLAB/R2025a/bin/glnxa64/MATLAB -dmlworker -nodisplay -r distcomp_evaluate_filetask",
            "python -c import cryosparc_compute.run as run; run.run() --project P41 --job S3 rtp_worker",
            "python -c import cryosparc_compute.run as run; run.run() --project P31 --job J15 class_2D_streaming",
        ] {
            assert!(is_task_worker(&facts("python", argv)), "{argv}");
        }
        for argv in [
            "python distributed.py",
            "python -m distributed.train",
            "python train.py --mode distributed",
            "python -u train.py celery",
            "python celery.py",
            "/opt/MATLAB/R2025a/bin/glnxa64/MATLAB -desktop",
            "python -c import cryosparc_compute.run as run; run.run() --project P31 --job J212",
            "python -m torch.distributed.run train.py",
            "",
        ] {
            assert!(!is_task_worker(&facts("python", argv)), "{argv}");
        }
    }
}
