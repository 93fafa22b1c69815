"""The measured programs: how to install each one, start it and read its screen."""

import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request

from .lab import GPUS, ROOT, free_port

CACHE = ROOT / "target/benches"
PACKAGES = ["nvidb==1.9.2", "gpustat-web==0.3.0", "ClusterShell==1.10.1", "gpustat==1.1.1", "nvitop==1.7.2"]
# Without this change gpustat-web would listen on all interfaces.
GPUSTAT_WEB = "from gpustat_web import app; run = app.web.run_app; " \
    "app.web.run_app = lambda web, host, **more: run(web, host='127.0.0.1', **more); app.main()"
QUERY = "nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw " \
    "--format=csv,noheader,nounits"


class Program:
    """A measured program. `command` starts it, and `figures` returns the utilization on its screen."""

    name = title = note = ""
    # The key that opens the help, a text in the help, and the key that closes it.
    help = None

    def version(self):
        return ""

    def command(self, lab, hosts):
        raise NotImplementedError

    def environment(self, lab):
        return lab.environment()

    def figures(self, terminal):
        return [int(float(number)) for number in self.pattern.findall(terminal.screen.text())]

    def all_shown(self, terminal, hosts):
        return len(self.figures(terminal)) >= hosts * GPUS

    def after_read(self, terminal):
        """Called after each read while the program runs."""


class Gpufleet(Program):
    name = title = "gpufleet"
    pattern = re.compile(r"(\d+)%\s+\d+/\d+G")
    help = (b"?", "━ Keys: ", b"q")

    def __init__(self, program):
        self.program = program

    def version(self):
        return first_line([self.program, "--version"])

    def command(self, lab, hosts):
        return [self.program, lab.hosts_toml(hosts)]

    def all_shown(self, terminal, hosts):
        text = terminal.screen.text()
        return f"{hosts * GPUS} GPUs" in text and " of " not in text[:terminal.screen.columns]


class AllSmi(Program):
    name, title = "all-smi", "all-smi view --ssh"
    note = "asks nvidia-smi on the host (it has no all-smi); no processes"
    pattern = re.compile(r"Util:\s*([\d.]+)%")
    help = (b"h", "Navigation Keys:", b"h")

    def __init__(self, program):
        self.program = program

    def version(self):
        return first_line([self.program, "--version"])

    def command(self, lab, hosts):
        targets = lab.folder / f"all-smi-{hosts}.txt"
        targets.write_text("".join(f"{lab.user}@{address}:{lab.port}\n" for _, address in lab.hosts(hosts)))
        home = lab.folder / "home/.ssh"
        return [self.program, "view", "--ssh-hostfile", targets, "--ssh-key", home / "id_ed25519", "--ssh-known-hosts",
                home / "known_hosts", "--interval", "1", "--ssh-concurrency", "64"]

    def all_shown(self, terminal, hosts):
        # Not all GPUs fit on the screen; the table above them counts hosts and GPUs.
        return re.search(rf"{hosts}/{hosts} .*│ {hosts * GPUS} ", terminal.screen.text()) is not None


class Nvidb(Program):
    name = title = "nvidb"
    note = "a Python agent on the host reads NVML; `c` is typed, so that all hosts fit on the screen"
    pattern = re.compile(r"gpu\d+\s+\d+ GPUs · \d+ idle ·\s+(\d+)%")
    help = (b"?", "Close help", b"?")

    def __init__(self, tools):
        self.tools, self.collapsed = tools, None

    def after_read(self, terminal):
        if self.collapsed is not terminal and "Servers" in terminal.screen.text():
            self.collapsed = terminal
            terminal.type(b"c")

    def all_shown(self, terminal, hosts):
        return len(self.figures(terminal)) >= hosts

    def version(self):
        return first_line([self.tools / "nvidb", "--version"])

    def command(self, lab, hosts):
        folder = lab.folder / f"nvidb-{hosts}"
        folder.mkdir(exist_ok=True)
        lines = ["servers:"]
        for name, address in lab.hosts(hosts):
            lines += [f"  - hostname: \"{address}\"", f"    port: {lab.port}", f"    username: \"{lab.user}\"",
                      f"    nickname: \"{name}\"", "    auth: \"key\"",
                      f"    identityfile: \"{lab.folder}/home/.ssh/id_ed25519\""]
        (folder / "config.yml").write_text("\n".join(lines) + "\n")
        return ["/usr/bin/env", f"NVIDB_HOME={folder}", self.tools / "nvidb", "--remote"]


class GpustatWeb(Program):
    name, title = "gpustat-web", "gpustat-web"
    note = "gpustat on the host, every 5 s as it comes (1 s would take all of this machine); its page is asked for every 0.2 s"

    def __init__(self, tools):
        self.tools, self.port, self.page, self.asked = tools, None, "", 0.0

    def version(self):
        return f"gpustat-web {package_version(self.tools, 'gpustat-web')}"

    def command(self, lab, hosts):
        self.port, self.page = free_port(), ""
        targets = [f"{address}:{lab.port}" for _, address in lab.hosts(hosts)]
        return [self.tools / "python", "-c", GPUSTAT_WEB, "--port", self.port, *targets]

    def after_read(self, terminal):
        now = time.monotonic()
        if now < self.asked + 0.2:
            return
        self.asked = now
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/gpustat.txt", timeout=1) as answer:
                self.page = answer.read().decode(errors="replace")
        except OSError:
            pass

    def figures(self, terminal):
        return [int(number) for number in re.findall(r"\|\s*\d+.{1,2}C,\s*(\d+) %", self.page)]


class Lines(Program):
    """A loop that prints a line per GPU, of which the last one counts."""

    line = re.compile(r"gpu(\d+): (\d+), (\d+), \d+")

    def figures(self, terminal):
        found = {(host, gpu): int(value) for host, gpu, value in self.line.findall(terminal.screen.printed[-200_000:])}
        return list(found.values())


class Clush(Lines):
    name, title = "clush", "clush, nvidia-smi, every second"

    def __init__(self, tools):
        self.tools = tools

    def version(self):
        return first_line([self.tools / "clush", "--version"])

    def command(self, lab, hosts):
        names = ",".join(name for name, _ in lab.hosts(hosts))
        clush = [self.tools / "clush", "-f", "64", "-u", "30", "-w", names, "-O", f"ssh_options=-F {lab.folder}/ssh_config", QUERY]
        return ["/bin/sh", "-c", f"while :; do clear; {shlex.join(map(str, clush))}; sleep 1; done"]


class OpenSsh(Lines):
    name, title = "ssh", "a loop of OpenSSH, nvidia-smi, one host after another"

    def version(self):
        return subprocess.run(["ssh", "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.split(",")[0]

    def command(self, lab, hosts):
        names = " ".join(name for name, _ in lab.hosts(hosts))
        ssh = f"ssh -F {lab.folder}/ssh_config $host {shlex.quote(QUERY)} </dev/null | sed \"s/^/$host: /\""
        return ["/bin/sh", "-c", f"while :; do clear; for host in {names}; do {ssh}; done; sleep 1; done"]


class LocalMonitor(Program):
    """A monitor that runs on the host itself."""

    def environment(self, lab):
        return lab.environment() | {"LD_LIBRARY_PATH": str(lab.folder / "driver")}


class Nvtop(LocalMonitor):
    name = title = "nvtop"
    pattern = re.compile(r"GPU\[[| ]*(\d+)%")

    def __init__(self, program):
        self.program = program

    def version(self):
        return first_line([self.program, "--version"])

    def command(self, lab, hosts, seconds=1):
        return [self.program, "-d", str(10 * seconds)]


class Nvitop(LocalMonitor):
    name = title = "nvitop"
    pattern = re.compile(r"│\s+(\d+)%\s+Default")

    def __init__(self, tools):
        self.tools = tools

    def version(self):
        return first_line([self.tools / "nvitop", "--version"])

    def command(self, lab, hosts):
        return [self.tools / "nvitop", "--monitor", "full", "--interval", "1"]


class Gpustat(LocalMonitor):
    name, title = "gpustat", "gpustat -i 1"
    pattern = re.compile(r"\|\s*\d+.{1,2}C,\s*(\d+) %")

    def __init__(self, tools):
        self.tools = tools

    def version(self):
        return first_line([self.tools / "gpustat", "--version"])

    def command(self, lab, hosts):
        return [self.tools / "gpustat", "-cp", "-i", "1"]


def first_line(command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.strip().split("\n")[0])


def package_version(tools, package):
    return first_line([tools / "python", "-c", f"from importlib.metadata import version; print(version('{package}'))"])


def install(wanted):
    """Installs programs by name. Returns the installed ones and why the others are missing: (programs, {name: reason})."""
    programs, left_out = [], {}
    CACHE.mkdir(parents=True, exist_ok=True)
    python_programs = {"nvidb": Nvidb, "gpustat-web": GpustatWeb, "clush": Clush, "nvitop": Nvitop, "gpustat": Gpustat}
    tools, reason = python_tools() if set(wanted) & {*python_programs, "nvtop"} else (None, "")
    for name in wanted:
        if name == "all-smi":
            found, why = all_smi()
            program = found and AllSmi(found)
        elif name == "ssh":
            program, why = (OpenSsh(), "") if shutil.which("ssh") else (None, "ssh is missing")
        elif name == "nvtop":
            found, why = nvtop(tools) if tools else (None, reason)
            program = found and Nvtop(found)
        else:
            program, why = (python_programs[name](tools), "") if tools else (None, reason)
        if program:
            programs.append(program)
        else:
            left_out[name] = why
            print(f"{name}: left out: {why}", flush=True)
    return programs, left_out


def python_tools():
    """Installs the programs from PyPI once. Returns their folder, or None and the reason."""
    folder = CACHE / "venv"
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        print("installing " + ", ".join(PACKAGES), flush=True)
        for command in ([sys.executable, "-m", "venv", "--clear", folder],
                        [folder / "bin/python", "-m", "pip", "install", "--quiet", "--retries", "1", *PACKAGES]):
            why = step(command)
            if why:
                return None, why
        stamp.write_text(" ".join(PACKAGES))
    return folder / "bin", ""


def all_smi():
    """Builds the newest all-smi from crates.io that an installed Rust supports. Returns its path, or None and the reason."""
    program = CACHE / "cargo/bin/all-smi"
    if program.exists():
        return program, ""
    if not shutil.which(cargo()):
        return None, "cargo is missing: install Rust from https://rustup.rs"
    if not shutil.which("protoc"):
        return None, "its build needs protoc. On Debian: sudo apt-get install protobuf-compiler libprotobuf-dev"
    print("building all-smi (minutes)", flush=True)
    install = ["install", "--quiet", "--locked", "--root", CACHE / "cargo", "all-smi"]
    why = step([cargo(), *install], 1800)
    # The newest version may need another toolchain; otherwise cargo names the newest version that this one supports.
    if why and "requires rustc" in why and shutil.which("rustup"):
        for toolchain in first_words(["rustup", "toolchain", "list"]):
            if why:
                why = step([cargo(), f"+{toolchain}", *install], 1800)
    older = re.search(r"`all-smi ([\d.]+)` supports rustc", why or "")
    if older:
        why = step([cargo(), *install[:-1], f"all-smi@{older.group(1)}"], 1800)
    return (None, why) if why else (program, "")


def nvtop(tools):
    """Installs nvtop as tests/peers does."""
    path = ROOT / "tests/peers"
    loader = importlib.machinery.SourceFileLoader("peers", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    if not pathlib.Path("/usr/include/curses.h").exists() and not shutil.which("nvtop"):
        return None, "the headers of ncurses are missing. On Debian: sudo apt-get install libncurses-dev"
    program, why = module.nvtop(ROOT / "target", tools / "python")
    return (pathlib.Path(program), "") if program else (None, why)


def build(program, driver):
    """Builds the release program and the fake driver, except those that are given."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    for given, what in ((program, []), (driver, ["--example", "fake_nvml"])):
        if not given:
            print("building " + " ".join(what[1:] or ["gpufleet"]), flush=True)
            subprocess.run([cargo(), "build", "--release", "--locked", "--quiet", *what], cwd=ROOT, check=True)
    return program or target / "gpufleet", driver or target / "examples/libfake_nvml.so"


def embedded_probe(gpufleet):
    """Returns the probe that is embedded in this release program, from the output of its build script."""
    probe = gpufleet.parent / f"build/gpufleet-probe-nested/target/{platform.machine()}-unknown-linux-gnu/probe/gpufleet-probe"
    if not probe.is_file():
        raise SystemExit(f"{probe} does not exist: `gpufleet --version` says why no probe for this machine is embedded")
    return probe


def cargo():
    return os.environ.get("CARGO", "cargo")


def first_words(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def step(command, seconds=600):
    """Runs a step of an installation. Returns its error output if it fails."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.strip().splitlines() if line.strip()]
    # The lines that give the reason, without earlier output.
    reasons = [line for line in lines if line.lower().startswith("error") or "requires rustc" in line or "supports rustc" in line]
    return f"`{' '.join(map(str, command[:4]))}`: " + " ".join((reasons or lines)[-3:])[-300:]
