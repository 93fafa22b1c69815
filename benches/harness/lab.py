"""A lab of real sshd "hosts" on loopback: the fake driver, real processes, and one host that can be made to fail.

The hosts are addresses of 127.0.0.0/8. Keys, logs and caches are in a temporary folder; what is started is written down
in target/benches/lab.json, so that the next run ends what a killed one has left.
"""

import json
import os
import pathlib
import platform
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from . import usage

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPUS, PROCESSES = 8, 40
PATIENCE_SECONDS = 60
# The utilisation of every GPU tells when it was read: from 9 to 98 %, five steps a second, then from the start.
FIRST, STEPS_PER_SECOND, RESTART_SECONDS = 9, 5, 18
# The host that is made to fail has this one, so that its old figures are not taken for another host's.
ODD_UTILIZATION = 100
# sshd takes at most so many addresses.
ADDRESSES_A_DAEMON = 16
USERS = ["daemon", "bin", "games", "nobody"]

NVIDIA_SMI = r"""#!/bin/bash
# nvidia-smi of the lab: what the fake driver says, for the fields that monitors ask for. It costs less than any real one.
case "$1" in
    --version) echo "NVIDIA-SMI version  : 570.86.15"; exit ;;
    --query-gpu=*) ;;
    *) echo "this nvidia-smi knows --query-gpu only" >&2; exit 2 ;;
esac
read -r up _ </proc/uptime
now=$(((10#${up/./} + @DELTA@) % 1800))
IFS=, read -ra fields <<<"${1#--query-gpu=}"
for gpu in 0 1 2 3 4 5 6 7; do
    line=
    for field in "${fields[@]}"; do
        case $field in
            index) value=$gpu ;;
            uuid) value=GPU-00000000-0000-4000-8000-00000000000$gpu ;;
            name) value="NVIDIA H100 80GB HBM3" ;;
            driver_version) value=570.86.15 ;;
            utilization.gpu) value=@UTILIZATION@ ;;
            memory.used) value=$((61440 - 4 * gpu)) ;;
            memory.total) value=81559 ;;
            temperature.gpu) value=$((64 + gpu % 3)) ;;
            clocks.current.graphics) value=1755 ;;
            power.draw) value=$((480 + now / 12)).25 ;;
            *) echo "Field \"$field\" is not a valid field to query."; exit 2 ;;
        esac
        line+="${line:+, }$value"
    done
    echo "$line"
done
"""


def age(utilization, now):
    """Seconds since a GPU had this utilisation, by the clock of this machine; None for the host that fails."""
    if utilization >= ODD_UTILIZATION or utilization < FIRST:
        return None
    seconds = (now % RESTART_SECONDS - (utilization - FIRST) / STEPS_PER_SECOND) % RESTART_SECONDS
    # What was read within this step may seem to come from the future.
    return 0.0 if seconds > RESTART_SECONDS - 0.5 else seconds


class Lab:
    """Hosts, of which the last one is the odd one. `start`, and in any case `stop`."""

    def __init__(self, sshd, hosts, driver, tools=None):
        self.sshd, self.driver, self.tools = sshd, driver, tools
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
        self.addresses = [f"127.0.{1 + number // 200}.{1 + number % 200}" for number in range(hosts)]
        self.names = [f"gpu{number + 1:02}" for number in range(hosts)]
        self.port = free_port()
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.daemons, self.sleepers, self.odd, self.listener, self.login = [], [], None, None, None
        self.record = ROOT / "target/benches/lab.json"

    def start(self):
        self.folder.chmod(0o755)
        home = self.folder / "home/.ssh"
        home.mkdir(parents=True, mode=0o700)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "id_ed25519")
        shutil.copy(home / "id_ed25519.pub", self.folder / "authorized_keys")
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        known = [f"[{address}]:{self.port} {key}\n" for address in self.addresses]
        (home / "known_hosts").write_text("".join(known))
        lines = [f"Host {name}\nHostName {address}" for name, address in zip(self.names, self.addresses)]
        lines += ["Host *", f"Port {self.port}", f"IdentityFile {home}/id_ed25519", "IdentitiesOnly yes",
                  f"UserKnownHostsFile {home}/known_hosts", "BatchMode yes", "ConnectTimeout 10"]
        (self.folder / "ssh_config").write_text("\n".join(lines) + "\n")
        users = [user for user in USERS if os.geteuid() == 0 and known_user(user)] or [None]
        for number in range(PROCESSES):
            self.sleepers.append(subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, cwd="/",
                                                  user=users[number % len(users)]))
        self.users = len(users)
        self.write_down()
        for name, odd in (("driver", False), ("odd-driver", True)):
            self.install_driver(self.folder / name, odd)
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        ordinary = self.addresses[:-1]
        for first in range(0, len(ordinary), ADDRESSES_A_DAEMON):
            self.daemons.append(self.daemon(f"{first}", ordinary[first:first + ADDRESSES_A_DAEMON]))
        self.odd_is("well")

    def install_driver(self, folder, odd):
        """The fake driver as libnvidia-ml.so.1 with its script, and an nvidia-smi that says the same."""
        folder.mkdir()
        shutil.copy(self.driver, folder / "libnvidia-ml.so.1")
        per_gpu = PROCESSES // GPUS
        last = FIRST + STEPS_PER_SECOND * RESTART_SECONDS
        # The mark of 100 tells nothing of other hosts, whatever the age.
        busy = ODD_UTILIZATION if odd else {"from": FIRST, "to": last, "restart_seconds": RESTART_SECONDS}
        devices = []
        for index in range(GPUS):
            # Each has figures of its own, as real ones have: equal ones would be sent as one.
            mine = self.sleepers[index * per_gpu:(index + 1) * per_gpu]
            processes = [{"pid": sleeper.pid, "memory_bytes": (12 << 30) - (7 * index + place << 21),
                          "sm_percent": 10 + 3 * place + index, "memory_percent": 2 + place}
                         for place, sleeper in enumerate(mine)]
            devices.append({
                "name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-00000000-0000-4000-8000-{index:012}",
                "memory_total_bytes": 85520809984, "memory_used_bytes": 64424509440 - (index << 22),
                "memory_reserved_bytes": 655360000, "utilization_percent": busy,
                "memory_utilization_percent": 40, "temperature_celsius": 64 + index % 3,
                "power_watts": {"from": 480, "to": 640, "period_seconds": 20}, "power_limit_watts": 700,
                "power_limit_max_watts": 700, "energy_joules": 0, "clock_graphics_mhz": 1755, "clock_sm_mhz": 1755,
                "clock_memory_mhz": 2619, "clock_sm_max_mhz": 1980, "performance_state": 0, "compute_mode": 0,
                "persistence_mode": True, "pci_bus_id": f"00000000:{0x1b + 8 * index:02X}:00.0", "fan_percent": 30,
                "clocks_event_reasons": 4, "mig_enabled": False, "processes": processes,
            })
        (folder / "fake_nvml.json").write_text(json.dumps({"devices": devices}))
        # /proc/uptime may count a time asleep that the monotonic clock leaves out.
        up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
        script = NVIDIA_SMI.replace("@DELTA@", str(round(100 * (time.monotonic() - up))))
        script = script.replace("@UTILIZATION@", str(ODD_UTILIZATION) if odd else f"$(({FIRST} + now / 20))")
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)

    def daemon(self, name, addresses, more=(), odd=False):
        driver = self.folder / ("odd-driver" if odd else "driver")
        log = self.folder / f"sshd-{name}.log"
        path = ":".join([str(driver)] + ([str(self.tools)] if self.tools else []) + ["/usr/local/bin:/usr/bin:/bin"])
        lines = [f"ListenAddress {address}:{self.port}" for address in addresses] + [
            f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/authorized_keys", "PidFile none",
            "StrictModes no", "UsePAM no", "PermitRootLogin yes", "MaxStartups 400", "MaxSessions 40", "LogLevel VERBOSE",
            # A nested shell does not read a .bashrc that may be slow.
            f"SetEnv SHLVL=5 XDG_CACHE_HOME={self.folder}/cache LD_LIBRARY_PATH={driver} PATH={path}", *more,
        ]
        configuration = self.folder / f"sshd-{name}.conf"
        configuration.write_text("\n".join(lines) + "\n")
        daemon = subprocess.Popen([self.sshd, "-D", "-f", configuration, "-E", log], stdin=subprocess.DEVNULL)
        self.write_down(daemon)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(listens(address, self.port) for address in addresses):
            if daemon.poll() is not None or time.monotonic() > deadline:
                daemon.kill()
                raise SystemExit(f"sshd does not start:\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.05)
        return daemon

    def odd_is(self, what):
        """`well`; `mute`: takes connections and says nothing; `slow`: every command begins 10 s late."""
        self.end_odd()
        address = self.addresses[-1]
        if what == "mute":
            self.listener = socket.socket()
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((address, self.port))
            self.listener.listen(64)
        else:
            late = ['ForceCommand sleep 10; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'] if what == "slow" else []
            self.odd = self.daemon("odd", [address], late, odd=True)

    def odd_dies(self):
        """It stops in the middle of everything and closes nothing, as a host that has lost power."""
        for pid in usage.Processes().tree([self.odd.pid]):
            stop_or_end(pid, signal.SIGSTOP)

    def end_odd(self):
        if self.listener:
            self.listener.close()
            self.listener = None
        if self.odd:
            for pid in reversed(usage.Processes().tree([self.odd.pid])):
                stop_or_end(pid, signal.SIGKILL)
            self.odd.wait()
            self.odd = None

    def servers(self):
        """The pids of the sshds: below them is all that runs on the hosts."""
        return [daemon.pid for daemon in self.daemons + [self.odd] if daemon]

    def logins(self):
        """How many connections have been let in, as the sshds wrote them down."""
        return sum(log.read_text(errors="replace").count("Accepted publickey") for log in self.folder.glob("sshd-*.log"))

    def bytes_of_login(self, command):
        """What one connection of OpenSSH carries, both ways, to run this command."""
        if self.login is None:
            done = subprocess.run(["ssh", "-v", "-F", self.folder / "ssh_config", self.names[0], command], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
            found = re.search(r"Transferred: sent (\d+), received (\d+) bytes", done.stderr)
            self.login = int(found.group(1)) + int(found.group(2)) if found else 0
        return self.login

    def probes(self):
        """The pids of gpufleet's probes that run from this lab's cache."""
        pids = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    if os.readlink(entry.path + "/exe").startswith(str(self.folder)):
                        pids.append(int(entry.name))
                except OSError:
                    continue
        return pids

    def environment(self):
        """Of a client: a home of its own, and nothing of this session."""
        path = os.environ["PATH"]
        return {"HOME": str(self.folder / "home"), "PATH": path, "LANG": "C.UTF-8", "TERM": "xterm-256color",
                "XDG_STATE_HOME": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder / "config")}

    def hosts_toml(self, hosts, interval="1s"):
        key = self.folder / "home/.ssh"
        lines = [
            "[defaults]", f'user = "{self.user}"', f"port = {self.port}", f'identity_file = "{key}/id_ed25519"',
            f'known_hosts = "{key}/known_hosts"', f'nvml_library = "{self.folder}/driver/libnvidia-ml.so.1"',
            f'interval = "{interval}"',
        ]
        for name, address in self.hosts(hosts):
            lines += ["[[hosts]]", f'name = "{name}"', f'address = "{address}"']
            if address == self.addresses[-1]:
                lines.append(f'nvml_library = "{self.folder}/odd-driver/libnvidia-ml.so.1"')
        path = self.folder / f"hosts-{hosts}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def warm_up(self, gpufleet, hosts):
        """Has the probe put into the hosts' cache; an error where a host cannot be reached, as people would see it."""
        done = subprocess.run([gpufleet, "status", self.hosts_toml(hosts)], env=self.environment(), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS)
        if done.returncode:
            raise SystemExit(f"the lab's hosts do not answer; gpufleet status says:\n{done.stdout[-1500:]}")

    def hosts(self, count):
        """So many hosts, the odd one last where all are asked for."""
        return list(zip(self.names, self.addresses))[:count]

    def write_down(self, *more):
        self.record.parent.mkdir(parents=True, exist_ok=True)
        mine = [process.pid for process in [*self.sleepers, *self.daemons, *more, *([self.odd] if self.odd else [])]]
        text = json.dumps({"owner": identity(os.getpid()), "folder": str(self.folder),
                           "started": [identity(pid) for pid in mine]})
        replace(self.record, text)

    def stop(self):
        self.end_odd()
        for pid in reversed(usage.Processes().tree([daemon.pid for daemon in self.daemons])):
            stop_or_end(pid, signal.SIGKILL)
        for process in self.daemons + self.sleepers:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.record.unlink(missing_ok=True)


def heed_signals():
    """An interruption, or being told to end, cleans up: also in the background, where a shell has the first ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def clear_stale():
    """Ends what an earlier run that was killed has left, and says so. Another run that still goes on is an error."""
    record = ROOT / "target/benches/lab.json"
    try:
        left = json.loads(record.read_text())
    except (OSError, ValueError):
        return
    if alive(left["owner"]):
        raise SystemExit(f"a lab is running already, of process {left['owner'][0]}: wait for it, or end it")
    mine = [process[0] for process in left["started"] if alive(process)]
    pids = usage.Processes().tree(mine)
    for pid in reversed(pids):
        stop_or_end(pid, signal.SIGKILL)
    folder = pathlib.Path(left["folder"])
    if folder.name.startswith("gpufleet-bench-"):
        shutil.rmtree(folder, ignore_errors=True)
    record.unlink(missing_ok=True)
    print(f"ended {len(pids)} processes that an earlier run had left", flush=True)


def identity(pid):
    """A process for good: its pid, when it started, and the boot. A pid alone is used again."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [pid, "", ""]
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [pid, text[text.rindex(")") + 2:].split()[19], boot]


def alive(process):
    return bool(process[1]) and identity(process[0]) == process


def stop_or_end(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def replace(path, text):
    """Writes a file in one step, so that an interruption leaves no half of one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def known_user(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listens(address, port):
    with socket.socket() as connection:
        return connection.connect_ex((address, port)) == 0


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
