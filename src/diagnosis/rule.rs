//! The table of rules: their ids, and the text that `gpufleet explain` prints and docs/diagnosis.md is generated from.
//!
//! The conditions are in `rules`, one file per family.

/// The documentation of a rule.
#[derive(Debug, Clone, Copy)]
pub struct RuleInfo {
    /// The id, as in `[diagnosis]` of hosts.toml and in JSON.
    pub word: &'static str,
    /// The subject of the rule, in a few words.
    pub title: &'static str,
    /// The finding in at most five words, for lists. Figures follow it.
    pub short: &'static str,
    /// The section of its findings in lists.
    pub topic: RuleTopic,
    /// When the rule fires, with the built-in thresholds.
    pub fires: &'static str,
    /// The usual cause.
    pub means: &'static str,
    /// The next action or check.
    pub next: &'static str,
    /// Similar situations that are harmless and do not fire.
    pub not: &'static str,
    /// Cases that the rule cannot detect.
    pub limits: &'static str,
    /// Where the rule or its thresholds come from.
    pub source: &'static str,
}

/// The subject of a rule, in the order in which lists show them: first the jobs of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleTopic {
    /// A job that makes no progress.
    StuckJob,
    /// Another problem of a job, or of the GPUs that it holds.
    Job,
    /// CPUs, memory, filesystems or connection of a host.
    Host,
    /// GPUs, links and the driver.
    Hardware,
}

macro_rules! rules {
    ($($Rule:ident { word: $word:literal, title: $title:literal, short: $short:literal, topic: $Topic:ident, $($field:ident: $text:literal),* $(,)? })*) => {
        /// The id of a rule, in the order of [`crate::config::RULES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RuleId { $(#[doc = concat!("`", $word, "`: ", $title, ".")] $Rule,)* }

        impl RuleId {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$Rule),*];

            /// The documentation of this rule.
            pub fn info(self) -> &'static RuleInfo {
                match self { $(Self::$Rule => &RuleInfo {
                        word: $word,
                        title: $title,
                        short: $short,
                        topic: RuleTopic::$Topic,
                        $($field: $text),* },)* }
            }
        }
    };
}

rules! {
    StuckSpin {
        word: "stuck-spin",
        title: "GPUs read as busy but draw little power and access no memory",
        short: "busy at idle power",
        topic: StuckJob,
        fires: "Every GPU involved reads at least 90 % busy (median 95 %), draws less than its spin power, leaves its \
                memory idle (median at most 1 %, never above 3 %) and has steady power (within 5 % or 2 W), after at \
                least 5 min of healthy work at twice that power above an idle context. Or its power is constant \
                (within 2 %) at no more than 85 % of the power that the same job drew at work for 5 min, with at most \
                a quarter of its memory accesses, for 15 min on a single GPU with a power limit; at no more than 75 % \
                if memory accesses are not reported, or if the log has stopped. Or, at 95 % busy, its steady power is \
                at most half of that at work above an idle context for 10 min, whatever the memory, after its launcher \
                ended; for 26 min if its log is silent or the workers that fed it rest since then. Boards without \
                power: memory accesses fell to 1 %. Warn after 5 min, critical after 10 min; later if the job waited \
                that long before without a rank at work and went on by itself; after 11 and 20 min for a job on a \
                single GPU if nothing but the GPU tells. While another rank works (it computes, reads, writes, uses \
                the CPU or shows signs of life, also on a host that certainly runs the same job), the others may be \
                waiting for it: the finding is then info after 10 min, and counting starts again when that work ends. \
                While the job's log grows, warn after 20 min. Info if the GPU is only partly busy at a constant level, \
                or beside a lost GPU. A GPU that moves data over NVLink (200 MB/s) or PCIe (500 MB/s), reads its \
                memory (5 % of the bandwidth) or uses its tensor cores (2 %) works. Where these counters (GPM) showed \
                work for 5 min before, a GPU that is 90 % busy for 5 min with tensor cores at 1 %, memory at 2 %, \
                links at 100 MB/s and half of its SMs at most spins, whatever its power; with more SMs after 20 min at \
                a steady power. On a board without a power limit, the threshold is half of the median power at work. \
                If memory accesses and log show nothing, constant power below it for 15 min is info, while the GPU is \
                at least 90 % busy or as busy as at work. The confidence is \"certain\" if at least two GPUs, all of \
                the job, spin and its log has stopped.",
        means: "A collective (NCCL) or a kernel waits for something that never comes: a rank died, hangs in its data \
               loader or took a different code path. The driver counts the waiting kernel as 100 % busy.",
        next: "Press W, or run `gpufleet why HOST:PID`: it compares all ranks and names the one for which the others wait. \
              Check `dmesg` for Xid errors. If PyTorch's NCCL timeout is set, it ends the job after 10 min.",
        not: "a long step, a checkpoint (memory and power change), small launch-bound kernels (no healthy phase), an \
             idle context (0 % busy)",
        limits: "Needs power, or memory utilisation. Does not judge MIG instances, or GPUs whose power is held up by power smoothing. A \
                 rank that uses the CPU while its GPU rests is believed to work for 22 min, and for 45 min while its log grows, it uses \
                 more than 1.1 cores for each of its GPUs, or the memory of the host fills steadily. A job that somebody debugs is at most \
                 info, also if the debugger runs another process of the user and the same script. An equal command on another host explains \
                 nothing unless Slurm, the rendezvous address, a wait that began in the same minute, or a GPU there that works while others \
                 there wait shows that it is the same job. A job that was seen only while it hangs, and the ranks of a model server, are \
                 reported as stuck-spin-suspect.",
        source: "NVIDIA-NeMo/Speech#9291, NVIDIA/nccl#1550, #199, #968 (H100 104 to 152 of 700 W, V100 44 of 250 W, \
               A100-PCIe 69 of 300 W); arXiv 2605.23918; telemetry of 306 public training runs (signs of life, \
               constant power)",
    }
    StuckSpinSuspect {
        word: "stuck-spin-suspect",
        title: "looks stuck; no heavier work was seen before",
        short: "busy at idle power",
        topic: StuckJob,
        fires: "As stuck-spin, for a job that gpufleet has not observed at work, by power or by the counters of GPM, or at a constant power \
                of up to a quarter of the range above an idle context without any memory access; if its log has stopped, at up to 65 % of \
                the limit and at any memory utilisation. Warn after 10 min, critical after 30 min if at least two GPUs of the job are flat \
                at the same time. Info for a job on a single GPU, which has no peer to wait for (it warns after half an hour if its log has \
                been silent and its memory at rest for so long), while a rank or another GPU of the job works, and while its log grows. A \
                model server is info, since ranks spin while they wait for requests; unless the kernel tells that no client waits, it warns \
                after 12 min if it began to spin on all of its GPUs, or if all of them rested between earlier requests, or if two or more \
                ranks hold 2 GiB at most, since they have not loaded the model, or have never listened on a port and their log has been \
                silent for 15 min; on a single GPU, if the power at work was seen and the log has stopped, or the counters of GPM rest, or \
                if its log stopped before it was ever at work and it has spun for 20 min; and in any case if at least two clients have \
                waited for an answer for that long. So does any server whose GPU is busy at any power without an access to its memory, \
                which the job accessed for a minute or more before, while clients wait for 12 min, of whom two or more came since. After \
                waits that ended by themselves, several times the longest of them (5 after one, 1.5 after eight or more); after an hour \
                beside a server of the same user that computes. The confidence is \"likely\" when at least two GPUs of the job are flat at \
                the same time.",
        means: "Usually the same as stuck-spin. A job made of tiny kernels looks like this from the start.",
        next: "Press W, or run `gpufleet why HOST:PID`: it examines every rank twice, a minute apart.",
        not: "batch-1 decoding and communication-heavy work (higher memory utilisation or varying power)",
        limits: "Without a healthy phase to compare with, launch-bound work cannot be distinguished from a hang.",
        source: "as stuck-spin; launch-bound work: 96 % busy at 16 of 140 W on a GB10 (prismaquant#283)",
    }
    MissingRank {
        word: "missing-rank",
        title: "some ranks wait for ranks that never arrived",
        short: "a rank never arrived",
        topic: StuckJob,
        fires: "Within one job and for 5 min, at least one GPU spins as in stuck-spin, and at least one is at 5 % or \
               less while it holds at least half of the job's median memory. All of them worked before. Critical \
               after 10 min.",
        means: "The spinning ranks wait in a collective that the idle ranks did not enter. The cause is in the idle \
               ranks.",
        next: "Press W, or run `gpufleet why HOST:PID`, for a process on one of the GPUs that the finding names as missing.",
        not: "a pipeline whose stages take turns (all of them make progress), a job that is starting (some ranks \
             were never active)",
        limits: "Ranks on different hosts are matched by their Slurm job, otherwise only by user and command.",
        source: "NVIDIA/nccl#1550",
    }
    JobStalled {
        word: "job-stalled",
        title: "a job worked before and does nothing now",
        short: "stopped working",
        topic: StuckJob,
        fires: "The job was at 20 % or more for at least 5 min. Now all its GPUs are at 1 % or less, or at 10 % or less in one of the \
                performance states P4 to P15, in which only a desktop draws; each of its processes uses at most 0.06 CPU cores or 15 % of \
                its usage at work (0.18 at most), it starts no child process, reads and writes nothing, and still holds its memory. Warn \
                after 15 min (20 min for a single process), critical after 30 min if it was at sustained work before. A Slurm job or \
                several ranks of a launcher warn in any case; another process is info, since it may wait for requests, and warns after 35 \
                min if its log has stopped and the workers that fed it rest, or after 40 min if it wrote its log also while it paused \
                before. If the job paused before and resumed without help, it must be idle for 1.5 times that pause (warn) or 3 times \
                (critical), and for an hour if it is a service that paused for 5 min or more. A batch job that was first seen idle counts \
                if its CPU time shows earlier work; it warns after 40 min. On MIG instances and beside other jobs only the CPU is judged, \
                and whether the workers rest: info, or warn after 40 min if the job was at sustained work before and its log has stopped \
                (26 min if its workers rest as well), or if Slurm or a launcher with several ranks runs it and it uses no CPU, or if its \
                log stopped while it started. Ranks of a batch job that worked for 2 min or more (30 s if there are several), use one core \
                each, and whose log stopped at least 20 min ago, warn after 40 min (70 min if it is a single process), or 30 min if those \
                on other hosts do so, too. A server that was busy for long is info after 30 min; a worker of Ray, Dask or Celery as well. \
                Two or more workers of Ray in one job that were at sustained work and whose log has stopped, or whose inference engines \
                have ended, warn after 45 min. Workers of Ray in the middle of a task, as their titles tell (`ray::Class.method`), are info \
                after 15 min and warn after 35 min, and after 30 min if engines of a model server that they feed rest as well. A single \
                process that computed and logged without a pause of a minute warns after 30 min in which it only uses whole CPU cores and \
                its log has stopped. A server whose clients wait for an answer while its GPUs are idle is info after 5 min. If at least two \
                of them asked since then, it warns after 12 min and is critical after 30 min; with one client, or while it reads, writes or \
                computes on the CPU, it warns after 20 min; if all asked in the last 2 min before, after 40 min, or after 20 min if its log \
                has stopped as well. Where connections stay open while it works, as those for events do, new clients count after 12 min. \
                For a server that only answers requests (vLLM, SGLang, TGI, llama.cpp), eight clients or more count after 20 min, however \
                long ago they asked, if its GPUs were half busy before. If it was idle before while clients waited, and went on by itself, \
                it must be idle for 1.5 times that long, at most an hour. A job that never used its GPUs, wrote a log, and has no \
                connection and no listening port, is info after 20 min and warns after 40 min, or after 35 min if it holds nothing but \
                contexts; a single process of Slurm also if it uses one core in a loop; a model server that never loaded more than a \
                context is info after 30 min and warns after 45 min. While the log of the job grows, also with even pauses of up to 10 min, \
                it is info and warns after 45 min, or after 75 min if it is a single process. The engine of a server on a MIG instance may \
                poll: it counts as idle once a client has waited for 20 min, if none did in the first 10 min.",
        means: "The job waits for something that never comes: a lock, a socket, a rank on another host, a process \
               pool that has ended, or an unnoticed prompt.",
        next: "Press W, or run `gpufleet why HOST:PID`: it compares threads, Python stacks and logs of all ranks.",
        not: "a notebook (see idle-hog), a model server that waits for requests, a job that uses the CPU, a job that \
             somebody stopped or debugs",
        limits: "Reads, writes and clients are visible only for your own processes, clients inside a container only to \
                 root. A client waits if its connection received data after the last data were sent, so clients that \
                 gave up or whose answer has begun are not counted. A job that was seen only while it is idle is \
                 reported as idle-hog.",
        source: "gpufleet; the durations are two and three times common barrier timeouts",
    }
    InputStall {
        word: "input-stall",
        title: "GPUs wait for input data",
        short: "waits for input data",
        topic: Job,
        fires: "The mean utilisation over 10 min is below 20 %, and the job's median, or its mean if it works in phases, was 50 % or \
                more before. The finding names the cause: \
                CPU (the workers use 80 % of a core each, or the CPUs of the host are 90 % busy), few cores (four or more workers share at \
                most 0.3 cores each while the PSI value `cpu some avg60` is 50 or more and half of the CPUs are free), storage (a worker is \
                in disk sleep in 30 % of the samples, or the PSI value `io some avg60` is 20 or more), or unknown. A job that stopped at \
                once is info first and warns after half an hour, since it may evaluate or prepare data; later if it paused that long \
                before. So does a single process that uses one core while its workers rest and its log grows. A job whose workers compute \
                while its log rests for 5 min may evaluate: it is info, and warns after 40 min. Info at less than half of the earlier \
                utilisation for 20 min, or for 35 min if the cause is unknown; it warns 10 min later if less than 40 % is left and the PSI \
                value is 35 or more, or if it is 60 or more. Info while tasks wait for memory (a PSI value `memory some avg60` of 10 or \
                more) or less than 5 % of it is available, while twice as many tasks as CPUs want to run (see host-overloaded), while the \
                GPUs do nothing at all and the workers use the CPU, or its only process a whole core: they finish something, and while the \
                log is written as often as before: it validates, for instance.",
        means: "The data loader cannot keep up: too few workers, slow storage, a cold cache, or another job on the \
               same disks.",
        next: "Check the workers with `top -p PID` and the disks with `iostat -x`. Use more workers, or copy the \
              data to a local disk.",
        not: "the first 10 min of a process, dips under 10 min (an evaluation, a checkpoint), a job that does \
             nothing (see job-stalled)",
        limits: "Needs 5 min of earlier work, and GPUs that no other job uses. While the finding lasts, the earlier use that it \
                 is compared with stays as it was. Without earlier work, a job below 35 % (above 3 %, or 1 % if \
                 its storage is the cause, 0.5 % if its only process prepares each batch on half of a core or more, or at any if its \
                 workers use little CPU at a PSI value of 60 or more) is info after 25 min if its workers or its storage are the cause, or \
                 after 35 min if it works in short bursts, its workers use 60 % of a core each, or its main process uses a whole core. \
                 Below 10 %, or below 25 % if too few cores are the cause, it warns half an hour later if the PSI value is 60 or more, if \
                 too few cores are the cause, or if the job works in short bursts and takes 80 % of all CPUs itself, unless its workers \
                 rest while its GPUs work, as simulations do. Below 65 % it is info after 35 min if the workers use 95 % of a core each, on \
                 average, while the main process waits.",
        source: "gpufleet; PSI: Documentation/accounting/psi.rst",
    }
    DstateHang {
        word: "dstate-hang",
        title: "a thread is in uninterruptible sleep",
        short: "hangs in disk sleep",
        topic: StuckJob,
        fires: "The same thread is in uninterruptible sleep (state D) in 90 % of the samples and gains no CPU time. Warn after 2 min, \
                critical after 5 min if the process holds GPU memory. Info while the process writes or reads: it waits for slow storage, \
                which warns after 25 min if tasks wait for storage in 60 % of the time or more.",
        means: "The kernel waits for storage or for a driver. No signal, not even KILL, ends the process before the \
               wait ends.",
        next: "Run `cat /proc/PID/stack` as root to see what it waits for. Check `dmesg` and the network \
              filesystems.",
        not: "a job that reads from disks: it enters and leaves state D, and gains CPU time in between",
        limits: "The kernel function it waits in (wchan) is visible only for your own processes.",
        source: "proc(5); Documentation/scheduler",
    }
    StoppedHoldingGpu {
        word: "stopped-holding-gpu",
        title: "a stopped process holds GPU memory",
        short: "stopped, holds GPU memory",
        topic: Job,
        fires: "A process in state T holds at least 500 MiB for 5 min. Info for a Slurm job while another Slurm job \
                uses its GPUs, and for 5 min after it, and while the CPUs of the host are at 80 % or more: Slurm \
                suspends jobs for more urgent ones. Info for a job of HTCondor, which suspends it while the owner of \
                the machine uses it. Info after 30 min if a debugger holds it (state t).",
        means: "Somebody pressed Ctrl-Z or suspended a job, and forgot it.",
        next: "Run `fg` in its shell, or `kill -CONT PID`. To end it: `kill PID; kill -CONT PID`.",
        not: "a process that is stopped briefly, a short debugger session",
        limits: "Does not show who stopped the process.",
        source: "proc(5)",
    }
    ZombieHoldingGpu {
        word: "zombie-holding-gpu",
        title: "a process has ended but its GPU memory is not free",
        short: "ended, memory not released",
        topic: Job,
        fires: "A process is in state Z while the driver still lists it, often because one of its threads is still \
               alive. Warn after 60 s, critical after 5 min.",
        means: "A thread hangs in the driver or in uninterruptible sleep, so the kernel cannot clean up the process.",
        next: "Run `ls /proc/PID/task` to find the remaining threads, and `cat /proc/PID/task/TID/stack` as root to \
              see what they wait for. Often only a GPU reset or a reboot helps.",
        not: "a child process that was not reaped and holds no GPU",
        limits: "Relies on the driver's list of processes.",
        source: "proc(5); nvtop#110",
    }
    OrphanHoldingGpu {
        word: "orphan-holding-gpu",
        title: "workers outlived their job",
        short: "workers outlived their job",
        topic: Job,
        fires: "For 10 min, a worker (multiprocessing, torchrun rank, Ray, vLLM) has init as its parent, or was seen to lose its launcher \
                or its step of Slurm to a shell, and its GPUs are at 1 % or less, or spin. For a worker that lost its launcher, power as \
                low as that of a spin is enough; and a worker that lost its launcher more than 5 min after its start counts whatever its \
                GPUs do once its log has been silent for 20 min, while it listens on a port to which nobody is connected, beside a later \
                run of its program on its GPU, if it is one of several ranks of a notebook whose kernel is gone, or if Slurm no longer \
                lists its job and has freed its GPUs or given one to a later job. Workers below the engine of a model server count once its \
                front end has ended.",
        means: "The launcher died or was killed without ending its workers.",
        next: "Their owner can end them with `kill PID`.",
        not: "nohup, tmux, screen, systemd services and containers, whose processes outlive their parent on purpose",
        limits: "Recognises a worker by its command line, or because gpufleet saw it lose its parent. In a service or a \
                 container only a loss more than 5 min after its start counts.",
        source: "gpufleet; PyTorch's advice on leftover workers",
    }
    GhostMemory {
        word: "ghost-memory",
        title: "GPU memory in use that no visible process accounts for",
        short: "memory without a process",
        topic: Job,
        fires: "Used memory minus the memory of visible processes and of the driver exceeds 500 MiB and 2 % for 5 min. Info if the holder is \
                hidden or unknown, warn if the holder is gone or a process ended on this GPU (info if as much was in use before, as by a \
                desktop), critical if the GPU is at 90 % or more without a process, with any amount of memory; info if it draws the power of \
                work and the driver has never listed a process on this host, as under WSL.",
        means: "A process died and the driver did not release its memory, or the memory belongs to a container or a \
               user whose processes are not visible. Not while the GPU memory of a rank grows.",
        next: "Run `fuser -v /dev/nvidiaN` as root to see which processes have the device open. If there is no \
              process, reset the GPU.",
        not: "the seconds after a process ends, MIG, MPS, unified memory",
        limits: "Does not judge GPUs on which a process does not report its memory. Always info inside a container.",
        source: "gpufleet; nvmlDeviceGetMemoryInfo_v2",
    }
    IdleHog {
        word: "idle-hog",
        title: "GPU memory held for hours without work",
        short: "memory held, no work",
        topic: Job,
        fires: "The job holds at least 1 GiB and 5 % of a GPU, all its GPUs are at 1 % or less (a moment of use within \
                10 min does not count), and it uses at most 0.05 CPU cores for each process; a notebook or a server \
                0.15. Info after 1 h. Warn after 4 h and critical after 12 h for a notebook, a debugger, a batch job, \
                and a job that was at sustained work; any other program may wait for requests and warns after 12 h. A \
                notebook that holds 85 % of a GPU warns after 2 h. Always info for a known model server, for a worker \
                of Ray, Dask or Celery, for a single process that listens on a TCP port and was not seen training, and \
                for a job of which each process rests or polls on one core without reads or writes.",
        means: "A forgotten notebook or debugger, or a job that finished but did not exit.",
        next: "Ask its owner. The memory is released when the process ends.",
        not: "a model server that waits for requests (`model_servers`, or `role = \"serving\"` in hosts.toml), a \
             notebook between two cells",
        limits: "The time before gpufleet started counts (as \"at least\") only if the process's CPU time proves \
                that it was idle.",
        source: "gpufleet",
    }
    JobEnded {
        word: "job-ended",
        title: "a job left its GPUs",
        short: "job ended",
        topic: Job,
        fires: "A job that held at least 500 MiB for its last 10 min has no process left. Warn if it is your job and, within 60 s, the \
                kernel killed a process because memory ran out, or the host went down for a reboot (except jobs of Slurm, which lets them end before it reboots a node), or if Slurm says that it failed, was preempted or reached its \
                limit. Also when a program ends for the fourth time after runs of about the same length, within half an hour or six times \
                that length, or within 3 h in a pod, whose orchestrator waits longer after each end (with other arguments too, if each run \
                ends on a GPU that it and another job have filled, or if Slurm started each as a job and none computed within 3 min); warn \
                from the eighth time (not if its GPUs were 20 % busy or more while it ran alone: a script works through a list), from the \
                fourth if memory ran out at the end, or from the fifth, after runs of any length up to 7 min or all of the same length, for \
                a model server in a pod, a container or a service, for any program of a pod that ends so often within half an hour, and for \
                any program that a container engine or systemd starts again within 90 s each time, if it is your job or gpufleet logs in as \
                root. Runs that end before they use a GPU count, too, if the program was on one within the last 3 h and does not try now \
                and then by itself.",
        means: "The job finished or died.",
        next: "Read the end of its log.",
        not: "one process that ends while others of the same job continue",
        limits: "Shows the state and the exit status of Slurm jobs only, and only while slurmctld knows an ended job (5 \
                 min). The end is known only to lie between two samples.",
        source: "gpufleet",
    }
    CpuFallback {
        word: "cpu-fallback",
        title: "a program that was on a GPU runs again without one",
        short: "runs without its GPU",
        topic: Job,
        fires: "A program left the GPUs while gpufleet watched, and a new run of the same program and script by the same user has been on \
                no GPU for 15 min and uses half a CPU core: info. Warn for the same command after three times the time after which the last \
                run used a GPU, but not before 15 min and at latest after 75 min, also if that time is unknown. Warn after 25 min for a process that uses 3 cores itself, \
                unless a word after the script differs (`main.py prepare`) that is no number, and after 15 min if it is a model server. If \
                none of the GPUs that it had is free (or shared with the same programs as before, and at most half full), or it may do \
                other work, it stays info, after 45 min.",
        means: "CUDA does not work there any more and the program goes on without it: the driver was updated, the container lost its GPUs \
                at `systemctl daemon-reload`, or the machine slept.",
        next: "Run `nvidia-smi` where the program runs, in its container. Start the container again, or reboot after an update.",
        not: "a program with an argument that asks for the CPU (`--device cpu`, `--no_cuda`, `-ngl 0`), a notebook, another run of it on \
              a GPU, a model server that rests",
        limits: "Knows only programs that were on a GPU within the last 3 h of the connection. Looks for new runs every 10 s. A long \
                 preparation of data before the GPU is used looks the same. Not judged where command lines are not shared.",
        source: "NVIDIA/nvidia-container-toolkit#48, #1227",
    }
    LogSilent {
        word: "log-silent",
        title: "a job works but its log does not grow",
        short: "log does not grow",
        topic: Job,
        fires: "For your own processes, for root all: the GPU is busy, or its utilisation is unknown, and the file behind \
                stdout or stderr was not written for 30 min and for ten times its median gap between writes, after at \
                least 10 observed writes. A server on a MIG instance must use the CPU for 5 min. A model server that was \
                seen only in this state counts if it has been at least 90 % busy for 30 min with clients connected, and \
                wrote to its log for half an hour before. Warn after 40 min, and five times the longest gap, if all GPUs \
                have been 97 % busy at one level since then and the process writes and reads nothing else, unless \
                the log has not grown since the GPUs began to work.",
        means: "The job may have stopped making progress, or only stopped reporting it.",
        next: "Read the log with `tail`. If it is your job, press W, or run `gpufleet why HOST:PID`.",
        not: "a program that rarely writes",
        limits: "Only regular files, and only your own processes, unless gpufleet logs in as root.",
        source: "gpufleet; vLLM logs its throughput every 10 s while it serves requests",
    }
    LowPowerHighUtil {
        word: "low-power-high-util",
        title: "busy, but far below the power that heavy work draws",
        short: "busy, but little power",
        topic: Job,
        fires: "For 30 min, the mean utilisation is at least 90 %, the mean power is between the spin power and 40 % \
               of the limit, and the memory utilisation is below 40 %.",
        means: "Small kernels, much communication (FSDP over a slow link) or too small a batch: the GPU is occupied \
               but poorly used.",
        next: "Profile a few steps (`nsys profile`). Try larger batches, CUDA graphs, or overlapping communication.",
        not: "a hang (power below the spin power), memory-bound work such as decoding (high memory utilisation)",
        limits: "Points at inefficiency, not at a fault.",
        source: "gpufleet; arXiv 2312.02741 on the meaning of power readings",
    }
    GpuImbalance {
        word: "gpu-imbalance",
        title: "one GPU of a job does less than the others",
        short: "one GPU lags behind",
        topic: Job,
        fires: "The GPUs of a job were balanced for 10 min. Now one of them is 15 percentage points less busy and \
                draws 25 % less power than the median of the others, or runs at 85 % of their clock or less, for 10 \
                min. Warn at 70 % of their clock, otherwise info. Warn also if it is 30 points less busy, without a \
                rest, and the others draw at most 75 % of their earlier power: its kernels are launched late. Or the \
                GPUs of one host run at 85 % or less of the clock of those on the other hosts that certainly run the \
                same job on the same model, all of them busy; or they became less busy than 80 %, by 15 points below \
                the other hosts, which are at least 95 % busy (info; warn after 25 min if those draw at most 85 % of \
                their power at work). The finding adds a PCIe link, a number of active NVLinks or repeated packets \
                that differ from the other GPUs.",
        means: "A straggler: a slow data shard, a throttled or degraded GPU or link, or a rank with extra work on the host.",
        next: "Compare its clocks, temperature and PCIe link with the other GPUs, and read the log of that rank.",
        not: "a pipeline, whose stages were never balanced",
        limits: "Only GPUs of one model that no other job uses. Power is not compared between hosts.",
        source: "gpufleet",
    }
    GpuMemPressure {
        word: "gpu-mem-pressure",
        title: "GPU memory is nearly full and still growing",
        short: "GPU memory nearly full",
        topic: Job,
        fires: "Free memory is below 1 GiB or 2 %, and usage grew by 256 MiB within 30 min and still grows, or the \
               memory would be full in under 15 min. Memory allocated in the first 10 min of a process does not \
               count. One finding per job.",
        means: "The next larger batch or sequence may fail with CUDA out of memory. A caching allocator fills the \
               memory, too, and runs on for hours: the finding is always info.",
        next: "Use a smaller batch, call `torch.cuda.empty_cache()` at a suitable point, or set \
              `expandable_segments:True`.",
        not: "a program that allocates nearly all memory at its start and stays there (JAX, TensorFlow, vLLM)",
        limits: "Memory that an allocator reserves inside the process looks used.",
        source: "gpufleet",
    }
    GpuMemLeak {
        word: "gpu-mem-leak",
        title: "the GPU memory of a process grows for hours",
        short: "GPU memory grows steadily",
        topic: Job,
        fires: "Over two hours (at least 96 min of data), memory grows by at least 1 GiB and 2 % with a steady trend (Mann-Kendall z of \
                3.3): it grows in every third, in the last at least 0.6 times as much as in the first, in 8 or more steps, with no step \
                above 40 % of the growth and falls of at most 10 %. Warn if the memory is full within 14 h at this rate (Theil-Sen). A \
                slower leak, from half of this growth on, is info until the memory is full within 20 min. The memory must still grow in the \
                last 10 min, and the job must have used its GPUs for a fifth of that time. Memory that grows in each of 15 min, by a tenth \
                of the GPU in all, and is full within 20 min, warns if it does not slow down, unless a server loads it. So does memory that \
                grows in each 3 of 30 min, by 8 % in all, and is full within 15 min, or in each 3 of 60 min, by a quarter in all, and is \
                full within 45 min, also that of a server. So does memory that rose by three equal steps of at least 4 % at equal intervals \
                if at most one and a half such steps are left. Memory that grows in each 5 of 45 min, by three tenths of the GPU in all, \
                and is full within 40 min, warns for a server and is info for any other job, which may have seen its largest batches. A \
                leak is info while the GPUs draw 12 % more power than before: the work became larger. One finding per job. The leak of a \
                program that only draws warns if the memory is full within 90 min.",
        means: "The program keeps tensors that it should release: losses with their graphs, a list of outputs, an \
               unbounded cache.",
        next: "Print `torch.cuda.memory_summary()`, or record a memory snapshot \
              (`torch.cuda.memory._record_memory_history`).",
        not: "weights that are loaded slowly, warm-up, a sawtooth (memory that fell back twice from such a level), a random walk, a single \
              jump, a curriculum with a few steps up",
        limits: "Needs 96 min of data, or 16, 31 or 46 min of fast growth, and a driver that reports memory per process.",
        source: "Mann (1945), Kendall (1975), Theil (1950), Sen (1968)",
    }
    ProbeBlocked {
        word: "probe-blocked",
        title: "the host answers but its driver does not",
        short: "GPU driver does not answer",
        topic: Hardware,
        fires: "A call into NVML has not returned for 15 s (warn) or 60 s (critical), while the other readings of \
               the host continue.",
        means: "The driver or a GPU hangs, and `nvidia-smi` hangs on that host as well. The readings of its GPUs are \
               outdated.",
        next: "Check `dmesg` for Xid errors and hung tasks. Often only a reboot helps.",
        not: "the first call after boot without persistence mode, which takes seconds",
        limits: "gpufleet never starts a second probe beside a blocked one, so it cannot find out more.",
        source: "gpufleet; nvmlInit can block in the kernel",
    }
    GpuLost {
        word: "gpu-lost",
        title: "a GPU disappeared",
        short: "GPU lost",
        topic: Hardware,
        fires: "In 2 samples in a row, the driver reports that the GPU is lost or needs a reset, or there are fewer \
               GPUs than before or than NVIDIA devices on the PCI bus. Warn if the driver answers questions about a \
               GPU with an unknown error for 2 min, or for 10 min if it does so for all GPUs and nobody uses them.",
        means: "The GPU fell off the bus (Xid 79) or failed. Work that ran on it is lost.",
        next: "Check `dmesg`, drain the host, and run `nvidia-smi -r` or power-cycle it. If it happens again, \
              suspect the GPU, its slot or its power supply.",
        not: "a single failed reading, a GPU that an administrator detached from the driver",
        limits: "Inside a container or a Slurm job only the assigned GPUs are visible, so a missing GPU is not \
                detected.",
        source: "nvml.h GPU_IS_LOST (15), RESET_REQUIRED (16); NVIDIA Xid catalogue",
    }
    GpuNeedsAction {
        word: "gpu-needs-action",
        title: "the driver asks for a recovery action",
        short: "driver asks for recovery",
        topic: Hardware,
        fires: "NVML reports a recovery action other than NONE: drain (warn), reset the GPU or reboot (critical).",
        means: "The driver contained an error, and the GPU stays restricted until the action is done.",
        next: "Do what the finding says.",
        not: "an error that the driver recovered from",
        limits: "Needs driver R560 or newer.",
        source: "nvml.h NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    }
    XidSeen {
        word: "xid-seen",
        title: "the driver reported an error (Xid)",
        short: "driver error",
        topic: Hardware,
        fires: "Critical: 46 48 64 74 79 95 110 119 120 136 140 143 158 167 169. Warn: 54 62 94 109 144 to 151 157, and 13 31 43 on one GPU \
                in three programs of at least two users that had run for a minute, while no other GPU of the host reports them: the GPU may \
                be faulty. Info: all others, such as 13 31 43 45 68, which a program usually causes, and 63 (see row-remap). The same Xid \
                on the same GPU is one finding until 10 min after the last one (info) or an hour after it, and Xid 45 is not reported beside another Xid.",
        means: "46: the GPU stopped processing; 48, 63, 64, 94, 95: memory errors; 74, 136: NVLink; 79: fell off the bus; 119, \
               120: the GPU system processor (GSP) failed; 13, 31: a fault in a program.",
        next: "Run `dmesg | grep Xid` for the details. NVIDIA's Xid catalogue lists what to do for each number.",
        not: "an error from before gpufleet started: only new ones are reported",
        limits: "Needs a driver that reports events to ordinary users.",
        source: "NVIDIA Xid catalogue",
    }
    DriverMismatch {
        word: "driver-mismatch",
        title: "the versions of the driver's library and kernel module differ",
        short: "driver versions do not match",
        topic: Hardware,
        fires: "NVML returns LIB_RM_VERSION_MISMATCH. Critical at once if a program used a GPU within the last 10 min, \
                or if the mismatch is older than the first sample; otherwise info, and critical after 10 min, since an \
                administrator may be updating the driver.",
        means: "The driver was updated on a running system: no new program can use the GPUs, running ones continue.",
        next: "Reboot, or reload the nvidia modules while no program uses the GPUs.",
        not: "a missing driver, or one that does not answer",
        limits: "No known limits: the driver reports it.",
        source: "nvml.h NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)",
    }
    DriverSkew {
        word: "driver-skew",
        title: "hosts with the same GPUs run different drivers",
        short: "different drivers on equal GPUs",
        topic: Hardware,
        fires: "Info when hosts with the same GPU model have different driver versions.",
        means: "An update skipped a host, or a host is ahead of the others: the same container may behave \
               differently there.",
        next: "Update them to one version when they are drained next.",
        not: "hosts with different GPU models",
        limits: "Compares only hosts that have answered.",
        source: "nvmlSystemGetDriverVersion",
    }
    ThermalThrottle {
        word: "thermal-throttle",
        title: "heat slows a GPU down",
        short: "slowed down by heat",
        topic: Hardware,
        fires: "The hardware thermal slowdown was active for more than 5 % (warn) or 30 % (critical) of 5 min, according to the violation \
                time counter, or to reason bit 0x40 if there is no counter. When the software thermal slowdown (0x20) is active for 10 min: \
                info, or warn at half of the clock or less, at two thirds where three or more GPUs of the host or all are that hot, at 70 % \
                of the clock of an equal one at work, or after 20 min if the other GPUs of its job run at clocks a third higher.",
        means: "Cooling is insufficient: air flow, a fan, dust, hot air from a neighbour, or a hot room.",
        next: "Run `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`, and compare with the other GPUs of the host.",
        not: "the power cap (0x4), which is normal under full load, and short blips of bit 0x8",
        limits: "The software thermal slowdown costs some clock and protects the GPU; its cost is not measured.",
        source: "nvml.h nvmlClocksEventReasonHwThermalSlowdown, NVML_PERF_POLICY_THERMAL",
    }
    PowerBrake {
        word: "power-brake",
        title: "the external power brake slows a GPU down",
        short: "slowed down by power brake",
        topic: Hardware,
        fires: "The power brake was active for more than 1 % of 2 min. Info; critical above 10 %, or if it was active \
                in three of the four half minutes.",
        means: "The chassis requests a lower power draw: a power supply failed, or the power budget is exceeded.",
        next: "Check the power supplies (`ipmitool sdr type \"Power Supply\"`).",
        not: "the ordinary power cap (0x4)",
        limits: "Needs a board with the power brake signal.",
        source: "nvml.h nvmlClocksEventReasonHwPowerBrakeSlowdown (0x80)",
    }
    Temperature {
        word: "temperature",
        title: "a GPU is near its slowdown temperature",
        short: "close to slowdown temperature",
        topic: Hardware,
        fires: "The GPU is within 3 C of the temperature at which the hardware slows it down, for 5 min. Clears at 6 \
                C.",
        means: "The GPU will slow down soon, or already does.",
        next: "As for thermal-throttle.",
        not: "a warm GPU far from its own slowdown temperature",
        limits: "Needs the slowdown temperature, which not every board reports.",
        source: "nvmlDeviceGetTemperatureThreshold",
    }
    EccUncorrectable {
        word: "ecc-uncorrectable",
        title: "memory errors that could not be corrected",
        short: "uncorrectable memory errors",
        topic: Hardware,
        fires: "The number of uncorrectable errors since the driver was loaded rises. The first sample is the \
               baseline.",
        means: "Results computed since then may be wrong, or the program was ended (Xid 48, 94, 95).",
        next: "Run `nvidia-smi -q -d ECC,ROW_REMAPPER`, and reset the GPU so that the row is remapped.",
        not: "corrected errors, and old errors in the lifetime count",
        limits: "Needs ECC memory.",
        source: "nvmlDeviceGetTotalEccErrors, volatile",
    }
    EccCorrected {
        word: "ecc-corrected",
        title: "many memory errors were corrected",
        short: "many corrected memory errors",
        topic: Hardware,
        fires: "Within one hour, ECC corrected at least 100 errors (info) or 10,000 (warn).",
        means: "A memory cell or a link to it is failing. The results are still right.",
        next: "Run `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT` and watch whether uncorrectable errors follow. \
               Ask the vendor if the rate stays.",
        not: "a few corrected errors per day, and the errors counted before gpufleet started",
        limits: "Needs ECC memory, and an hour of history for the full window.",
        source: "nvmlDeviceGetTotalEccErrors, volatile, corrected; NVIDIA GPU Memory Error Management. The numbers are \
                gpufleet's",
    }
    RowRemap {
        word: "row-remap",
        title: "memory rows or pages wait to be replaced, or cannot be",
        short: "GPU memory needs repair",
        topic: Hardware,
        fires: "Info when a row waits for a GPU reset to be remapped, or pages wait for a reboot to be retired. Critical \
               when remapping failed.",
        means: "Pending rows and pages are harmless until the next reset. After a failed remapping the GPU has to be \
               replaced.",
        next: "Reset the GPU when no program uses it. If remapping failed, ask the vendor for a replacement.",
        not: "rows that are already remapped, pages that are already retired",
        limits: "Ampere and newer remap rows; older GPUs retire pages.",
        source: "nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus",
    }
    PowerLimitLow {
        word: "power-limit-low",
        title: "a GPU has a lower power limit than the same GPUs beside it",
        short: "power limit below the others",
        topic: Hardware,
        fires: "For 5 min, the power limit of a GPU is below 90 % of the median of the other GPUs of its model on the \
                host, and fewer than half of them are as low. Info; warn after 20 min while a job on several GPUs runs \
                into this limit.",
        means: "Somebody lowered the limit and forgot it, or the board lowered it itself. A job on all GPUs runs at the \
               speed of the slowest.",
        next: "Run `nvidia-smi -q -d POWER -i GPU`, and `sudo nvidia-smi -i GPU -pl WATTS` to set the limit.",
        not: "a host on which every GPU, or half of them, has the lower limit",
        limits: "Needs three GPUs of one model on the host.",
        source: "nvmlDeviceGetEnforcedPowerLimit",
    }
    ClockStuck {
        word: "clock-stuck",
        title: "a busy GPU stays at a low clock without a reason",
        short: "clock stays low",
        topic: Hardware,
        fires: "For 5 min, a GPU is at least 90 % busy while its SM clock is at most half of its maximum, and the \
                driver gives no reason such as heat, the power cap or application clocks. Warn in performance state P5 \
                or slower, or if another GPU of its model on the host works at 80 % of the maximum; otherwise info, \
                and warn after 15 min if its clock under load was twice as high before. Info if for 15 min the power \
                cap is the only reason for a clock of at most three quarters of the maximum, while the GPU draws at \
                most three quarters of its limit: its server caps it. Warn also if the memory of a busy GPU runs at 70 \
                % of its maximum clock or less, and that of another one of its model, at least 50 % busy, at 90 %.",
        means: "The driver did not leave a low performance state, often after a driver error or a change of the power \
               supply.",
        next: "Run `nvidia-smi -q -d CLOCK,PERFORMANCE -i GPU`. End the job and reset the GPU, or reboot.",
        not: "an idle GPU, clocks that heat, the power cap or a setting limits, a spinning GPU at its full clock",
        limits: "Needs the clocks and the reasons for which they are limited. Locked clocks (`nvidia-smi -lgc`) may have \
                no reason.",
        source: "nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo, nvmlDeviceGetCurrentClocksEventReasons",
    }
    PcieDegraded {
        word: "pcie-degraded",
        title: "a PCIe link is slower than both ends support",
        short: "slow PCIe link",
        topic: Hardware,
        fires: "Under load (50 % or more, or traffic of 60 % of what the link can carry) for 4 min, the link has fewer lanes or an older \
                generation than both ends support. Warn if the link was faster before, or is faster on two other GPUs of the model on the \
                host, or if such traffic fills it; otherwise info.",
        means: "A riser, a slot or a bad contact: copies between host and GPU are slow.",
        next: "Run `nvidia-smi -q -d PCI` and `lspci -vv`. Reseat the GPU.",
        not: "an idle GPU, whose link drops to generation 1, GPUs with unified memory, and boards on which two slots \
              share their lanes",
        limits: "No known limits.",
        source: "nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth",
    }
    NvlinkDown {
        word: "nvlink-down",
        title: "an NVLink is down",
        short: "NVLink down",
        topic: Hardware,
        fires: "A link that was active before is down for 60 s (critical), or a GPU has fewer active links than the \
                others of its model on the host (info; warn after 20 min if some of its links are active), or fewer \
                than before a reboot, but not none (warn). If all of four or more GPUs have the same number of links and all of as many \
                GPUs of the same model on another host have more, one finding says so (info; warn after 20 min).",
        means: "Traffic between GPUs takes another path or fails: collectives are slow, or abort with Xid 74.",
        next: "Run `nvidia-smi nvlink -s`. On NVSwitch systems check the log of the fabric manager.",
        not: "links that were never up (not connected on that board)",
        limits: "A link that was already down at the first sample is found only beside two other GPUs of the model, or another host \
                 with as many.",
        source: "nvmlDeviceGetNvLinkState",
    }
    PcieErrors {
        word: "pcie-errors",
        title: "a GPU sends many packets again over PCIe",
        short: "PCIe errors",
        topic: Hardware,
        fires: "Over 10 min, the replay counter of the GPU rises by at least 8 per minute (info) or 80 (warn).",
        means: "A riser, cable, slot or board is bad or not seated. Transfers to the host are slower, and the link may fall \
                back to a lower speed, or the GPU off the bus (Xid 79).",
        next: "Reseat the GPU or its riser, and check `dmesg` for AER messages of its PCIe address.",
        not: "single replays, and those counted before gpufleet started",
        limits: "Some virtual machines report no counter.",
        source: "NVML_FI_DEV_PCIE_REPLAY_COUNTER; 8 per minute is the limit of DCGM's health check \
                 (DCGM_LIMIT_MAX_PCIREPLAY_RATE)",
    }
    NvlinkErrors {
        word: "nvlink-errors",
        title: "an NVLink of a GPU has errors",
        short: "NVLink errors",
        topic: Hardware,
        fires: "Within one hour, NVLinks of the GPU sent packets again or were trained again (info, warn from 100 times), \
                or they counted 100 CRC errors per second over 10 min (warn).",
        means: "A link or an NVSwitch port is failing: collectives between GPUs slow down, and may abort with Xid 74.",
        next: "Run `nvidia-smi nvlink -e` to find the link, and `dmesg | grep NVRM`. Ask the vendor if the number goes on \
               rising.",
        not: "a low rate of CRC errors, and errors counted before gpufleet started",
        limits: "NVLink 5 (Blackwell) counts its errors elsewhere: the driver reports none here.",
        source: "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL and those of replay and recovery; the limits of DCGM's \
                 health check (DCGM_LIMIT_MAX_NVLINK_ERROR, DCGM_LIMIT_MAX_NVLINK_CRC_ERROR)",
    }
    PersistenceOff {
        word: "persistence-off",
        title: "persistence mode is off",
        short: "persistence mode is off",
        topic: Hardware,
        fires: "Once per boot, when the persistence mode of a GPU is off.",
        means: "The driver unloads whenever no program uses the GPU: the next start takes seconds, and settings and \
               error counts are lost.",
        next: "Run `sudo systemctl enable --now nvidia-persistenced`, or `sudo nvidia-smi -pm 1`.",
        not: "a fault",
        limits: "No known limits.",
        source: "nvmlDeviceGetPersistenceMode; NVIDIA driver persistence guide",
    }
    RendezvousStuck {
        word: "rendezvous-stuck",
        title: "the ranks of a job wait for each other and never begin",
        short: "ranks never began",
        topic: StuckJob,
        fires: "Several ranks of a launcher or of a Slurm job, or workers of Ray in the middle of a task, or several processes that hold a \
                context each (2 GiB at most), or a single rank that was started for several hosts (`--nnodes`, `--world-size`, \
                `--ps_hosts`), or pods or containers with one command and no port that were started within 2 min and hold a context each, \
                were seen soon after their start. Their GPUs have never been busy, and for 20 min no rank uses CPU time, reads or writes: \
                info, and warn after 25 min. Ranks that wait in a loop on one core, without workers, reads or writes, count as well; they \
                stay info if their reads and writes are not visible, or if the host wrote 50 MB/s or more to its disks within the last 5 \
                min, or a fifth of its memory was filled lately: another process loads the data. The ranks of a model server count if they \
                hold a context each, or if neither they nor their front end listen (except those of TGI). While ranks on another host read, \
                write or work, the others wait for them.",
        means: "A rank did not start, or cannot reach the others: a wrong address or port, a firewall, a wrong number of \
               ranks.",
        next: "Read the log of every rank, and check MASTER_ADDR, MASTER_PORT and WORLD_SIZE. Press W, \
               or run `gpufleet why HOST:PID`: it shows where each rank waits.",
        not: "ranks that load data or a model, which use the CPU, the disk or the network; a host that still pulls an \
              image",
        limits: "Reads and writes are visible only for your own processes. Traffic of one process on the network is not \
                visible.",
        source: "gpufleet; torch.distributed waits 10 to 30 min by default",
    }
    GpuShared {
        word: "gpu-shared",
        title: "two jobs compute on one GPU",
        short: "two jobs on one GPU",
        topic: Job,
        fires: "For 15 min, two jobs on one GPU use at least 20 % of its SM time each: info. Warn if they belong to different users, or \
                were started with one command line, or the earlier one uses several GPUs, and one of them had 70 % or more of the GPU for \
                10 min before the other came, and has at most 65 % of that left. If the driver does not say which process uses the GPU, a \
                job counts if it holds 256 MiB or more and uses half a core per process while the GPU is at 90 % or more; it warns only if \
                one command was started twice. Jobs of Slurm are info while no allocated GPU of the host is unused: Slurm gave them shares. \
                They warn once one that Slurm has allocated to them has been unused for 15 min: one of them computes on the wrong GPU. \
                Without readings of processes, it also warns if a job of another user is outside of Slurm, on a GPU that Slurm has \
                allocated, or if the other GPUs of the earlier job were 70 % busy and have at most 65 % of that left.",
        means: "Both take about twice as long. Often somebody chose the GPU without looking.",
        next: "Ask both owners; `gpufleet free` lists free GPUs.",
        not: "MPS, MIG instances, a job beside an idle notebook",
        limits: "Needs the SM time of processes, which the driver reports only on some boards and to some users.",
        source: "nvmlDeviceGetProcessUtilization",
    }
    StrayContexts {
        word: "stray-contexts",
        title: "a job holds GPUs that it does not use",
        short: "holds GPUs without using them",
        topic: Job,
        fires: "For 15 min, two or more ranks of a job have a small context on a GPU beside the one they work on, or four or more \
               workers of a rank have one on its GPU and compute nothing there; or a \
               single process holds memory on several GPUs of which some have been idle for 30 min while another is \
               busy, or was so within half an hour. Info; warn after two hours if 85 % of the memory of an idle GPU is held \
                and the job is no server.",
        means: "The ranks did not choose their device before they created a context (`torch.cuda.set_device`), or a \
               framework takes every GPU (TensorFlow), or each data loader worker touches CUDA.",
        next: "Set CUDA_VISIBLE_DEVICES for the job, or `set_device` in each rank. Workers that prepare data need no CUDA: keep tensors \
               on the CPU in the data set and in `collate_fn`.",
        not: "a pipeline whose GPUs take turns, ranks that use several GPUs",
        limits: "Needs the memory of each process.",
        source: "PyTorch's advice on torch.cuda.set_device; TensorFlow's on limiting GPU memory growth",
    }
    SlurmUnused {
        word: "slurm-unused",
        title: "allocated by Slurm, but no process uses the GPU",
        short: "allocated by Slurm, unused",
        topic: Job,
        fires: "Slurm has allocated the GPU to a job, and it has had no process and no work for 30 min (info) or 4 h (warn), or for 40 min \
                (warn) if this holds for all allocated GPUs of the host and its CPUs rest, below 5 % on average (60 min while a Slurm job, perhaps the \
                same one, works on another host), or for 80 min if it holds for half of them, or for 2 h if it holds for \
                half of them and the CPUs work. Also warn after 60 min if a job computes on some of its GPUs and most are unused (at least \
                half of the GPUs that were allocated together, or three quarters of all allocated GPUs if only one job runs and Slurm does \
                not list jobs), after 75 min (65 min for several GPUs) if three more CPU cores are busy than before the allocation (without \
                those of jobs that came later), after 117 min if fewer are and the GPU was never used, and 80 min after the last use if all \
                GPUs that were allocated together are unused, or held by a job that does nothing, and the CPUs are no busier than before. \
                Where a process holds a context on one of them, its own finding says more. A process counts from 1.5 GiB on; below, it \
                holds a context and no data. The time before a reboot does not count. One finding per host, with the jobs and their users; \
                if Slurm does not tell them, with the only job of Slurm whose processes are on the GPUs.",
        means: "The job prepares data, asked for more GPUs than it uses, or has ended inside its allocation.",
        next: "Run `squeue -w HOST` and ask the owner; `scancel JOB` releases the GPUs.",
        not: "a job that loads its data first, GPUs that are free; ranks in reserve, whose job computes on other hosts while they write \
              to their logs, are info",
        limits: "Needs `scontrol` on the host, and `squeue` for the names of jobs and users. MIG instances are not judged.",
        source: "scontrol -d show node, GresUsed; squeue -w; scontrol -d show job, GRES",
    }
    HostOverloaded {
        word: "host-overloaded",
        title: "too many programs want the CPUs",
        short: "CPUs overloaded",
        topic: Host,
        fires: "For 10 min the CPUs are at 90 % or more, now or on average over the last minutes, and the load average \
               is at least 1.5 times the number of CPUs: info. It warns after 20 min if the load is twice the number \
               of CPUs and the GPUs of a job, or of a server with waiting clients, are, for 20 min, less than 75 % \
                as busy as before.",
        means: "Data loaders and launch threads of GPU jobs wait for a CPU: the GPUs rest.",
        next: "Run `top` and see who uses the CPUs. Use fewer data loader workers, or `nice`.",
        not: "a high load of programs that wait for a disk, a short compile",
        limits: "In a container the load average is that of the whole host.",
        source: "/proc/loadavg, /proc/stat",
    }
    HostThrashing {
        word: "host-thrashing",
        title: "the host swaps so much that work stops",
        short: "swapping slows the host",
        topic: Host,
        fires: "For 3 min, tasks wait for memory in 20 % of the time (PSI `memory some avg60`) while at least 1 GiB of \
               swap is in use. Warn.",
        means: "The programs need more memory than the host has. Everything on it becomes slow, also logins.",
        next: "Run `ps aux --sort -rss | head`, and end the largest program before the kernel does.",
        not: "swap that is in use but rarely read",
        limits: "Needs PSI (Linux 4.20 and newer).",
        source: "Documentation/accounting/psi.rst",
    }
    HostRebooted {
        word: "host-rebooted",
        title: "a host was rebooted",
        short: "host was rebooted",
        topic: Host,
        fires: "The boot id of a host changed while gpufleet watched it, also if no job was lost, and the host booted after \
                the last sample. Listed for an hour: info, or warn if a job computed in the last 5 min before.",
        means: "An administrator rebooted the host, or it lost power or crashed. A power supply that is too weak trips \
                when a GPU starts to work.",
        next: "Run `journalctl -b -1 -e` for the last messages before the reboot, and look at the log of the BMC.",
        not: "a host that was not reachable for a while and kept its boot id, a name that leads to another machine now",
        limits: "Does not know whether somebody wanted the reboot. Your jobs that ended with it warn (job-ended).",
        source: "/proc/sys/kernel/random/boot_id",
    }
    HostUnreachable {
        word: "host-unreachable",
        title: "a host cannot be reached",
        short: "host not reachable",
        topic: Host,
        fires: "There has been no data for 90 s (warn) or 5 min (critical). A host on which no program used a GPU is \
                info first and warns after 7.5 min, unless Slurm had allocated none of its GPUs: Slurm may have switched it \
                off. Three or more hosts, or all hosts, that are lost within 10 s of \
                each other are one finding.",
        means: "The host, its network or something in between is down. If many are lost at once: a bastion, a \
               switch, or the network of this computer.",
        next: "Try `ssh HOST`, the console or the BMC.",
        not: "a host that waits for a password or a code, a laptop that just woke up",
        limits: "Its other findings keep their last state, because nothing is known about the host meanwhile.",
        source: "gpufleet",
    }
    HostRamLow {
        word: "host-ram-low",
        title: "the memory of a host is nearly full",
        short: "host memory nearly full",
        topic: Host,
        fires: "90 % (warn; 95 % if a GPU shares the memory, or if 16 GiB or more are left, which is info until then) or 98 % (critical) of \
                the memory is unavailable for 30 s. Info if it has not become less by more than 1 % since the first sample and nothing \
                waits for it (a PSI value `memory some avg60` below 0.5): it was set aside for virtual machines. Clears below 80 %. Also \
                warn if the available memory fell without a pause for 90 min, by three tenths of the memory in all, and lasts for at most \
                110 min at this rate, or fell by three equal steps of at least 4 % at equal intervals and at most one and a half such steps \
                are left.",
        means: "The kernel will soon kill a process, usually the largest one: a training job.",
        next: "Find the largest processes with `ps aux --sort -rss`. Use fewer data loader workers, or avoid pinned \
              copies.",
        not: "memory that the kernel or ZFS uses as a cache: it is available",
        limits: "Does not see the memory limits of containers and Slurm jobs.",
        source: "/proc/meminfo MemAvailable, /proc/spl/kstat/zfs/arcstats",
    }
    OomKill {
        word: "oom-kill",
        title: "the kernel killed a process because memory ran out",
        short: "process killed, memory full",
        topic: Host,
        fires: "The kernel's count of such kills rises. The finding names GPU processes that disappeared at the same \
                time.",
        means: "The host, a container or a Slurm job ran out of memory.",
        next: "Run `dmesg | grep -i 'killed process'` for the process, its size and its cgroup.",
        not: "an out-of-memory error on a GPU, which the program reports",
        limits: "Only the kernel log names the killed process.",
        source: "/proc/vmstat oom_kill",
    }
    DiskFull {
        word: "disk-full",
        title: "a filesystem is nearly full",
        short: "filesystem nearly full",
        topic: Host,
        fires: "The filesystem of the home directory or of a GPU process's working directory is 95 % (warn) or 98 % (critical) full. Clears \
                below 93 %. Also warn if it lost a tenth of its size or more within an hour, without a pause and below 80 MB/s, and will be \
                full within an hour at this rate, or if it lost three equal parts of at least 4 % at equal intervals and at most two such \
                parts are left.",
        means: "The next checkpoint may not fit, and a job dies while it writes.",
        next: "Run `du -xhd1` there. Old checkpoints are a common cause.",
        not: "a filesystem that was already that full when its host first told of it: it is listed, but sends no notification",
        limits: "Does not see quotas.",
        source: "statvfs(3) f_bavail",
    }
    NfsHang {
        word: "nfs-hang",
        title: "a filesystem does not answer",
        short: "filesystem does not answer",
        topic: Host,
        fires: "The filesystem has not answered for 5 s (info), 3 min (warn) or 5 min (critical); if no GPU process of the host is in disk sleep, \
                for 5 min (warn) or more than 8 min (critical). Hosts that mount it at the same path (network filesystems only) are \
                one finding.",
        means: "The file server or the network to it is down. Processes that access it stay in state D until it is \
               back.",
        next: "Run `findmnt PATH`, `ping` the server, and run `nfsstat -m`. `dmesg` shows \"server not responding\".",
        not: "a slow filesystem that answers",
        limits: "Checks only the home directory and the working directories of GPU processes.",
        source: "statvfs(3) in a child process, one at a time per mount",
    }
}

impl RuleId {
    /// The id, as in `[diagnosis]` of hosts.toml and in JSON.
    pub fn word(self) -> &'static str {
        self.info().word
    }

    /// Whether the rule finds jobs that hang while their GPUs read busy at the power of an idle GPU.
    pub fn is_hang_at_low_power(self) -> bool {
        matches!(self, Self::StuckSpin | Self::StuckSpinSuspect | Self::MissingRank)
    }

    /// Whether the rule finds jobs that hang.
    pub fn is_hang(self) -> bool {
        self.is_hang_at_low_power() || self == Self::JobStalled
    }

    /// Whether the rule is about the progress of a job: evidence of work ends its findings at once.
    pub fn is_about_progress(self) -> bool {
        matches!(
            self,
            Self::StuckSpin | Self::StuckSpinSuspect | Self::MissingRank | Self::JobStalled | Self::InputStall
        )
    }

    /// Whether the rule compares a job with its own past.
    pub(super) fn compares_a_job_with_its_past(self) -> bool {
        self.is_about_progress() || matches!(self, Self::GpuImbalance | Self::GpuMemLeak | Self::LogSilent)
    }

    /// The rule with this id.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RULES;

    #[test]
    fn a_short_title_has_at_most_five_words_and_fits_a_small_screen() {
        for rule in RuleId::ALL {
            let short = rule.info().short;
            let words = short.split_whitespace().count();
            assert!((1..=5).contains(&words) && short.len() <= 32, "{}: {short}", rule.word());
            assert!(!short.ends_with('.') && !short.contains(':'), "{}: {short}", rule.word());
        }
    }

    #[test]
    fn rules_have_the_ids_and_the_order_of_the_thresholds() {
        let words: Vec<&str> = RuleId::ALL.iter().map(|rule| rule.word()).collect();
        assert_eq!(words, RULES);
        for (index, rule) in RuleId::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, index);
            assert_eq!(RuleId::from_word(rule.word()), Some(*rule));
        }
    }

    #[test]
    fn every_rule_is_fully_documented() {
        for rule in RuleId::ALL {
            let info = rule.info();
            for text in [info.title, info.fires, info.means, info.next, info.not, info.limits, info.source] {
                assert!(text.len() > 3, "{}: {text:?}", info.word);
                assert!(!text.contains("TODO"), "{}", info.word);
            }
            for sentence in [info.fires, info.means, info.next, info.limits] {
                assert!(sentence.ends_with('.'), "{}: {sentence:?}", info.word);
            }
        }
    }
}
