"""A lab of real sshd "hosts" on loopback: the fake driver, real processes, and one host that can be made to fail.

The hosts are addresses of 127.0.0.0/8. Keys, logs and caches are in a temporary folder. target/benches/lab.json records all
started processes, so that the next run can end those that a killed run left behind.
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
TIMEOUT_SECONDS = 60
# The utilization of every GPU encodes the time of the reading: from 9 to 98 % and again from 9 %. A second is not a whole number
# of steps; otherwise a program that reads once a second would read at the same place of a step for as long as it runs.
FIRST, STEPS, RESTART_SECONDS = 9, 90, 17.3
STEP_SECONDS = RESTART_SECONDS / STEPS
# The faulty host has this constant utilization, which no other host can have.
FAULTY_HOST_UTILIZATION = 100
# The maximum number of listen addresses of one sshd.
ADDRESSES_A_DAEMON = 16
USERS = ["daemon", "bin", "games", "nobody"]

NVIDIA_SMI = r"""#!/bin/bash
# The nvidia-smi of the lab: the values of the fake driver, for the fields that monitors query. It is cheaper than a real one.
case "$1" in
    --version) echo "NVIDIA-SMI version  : 570.86.15"; exit ;;
    --query-gpu=*) ;;
    *) echo "this nvidia-smi supports only --query-gpu" >&2; exit 2 ;;
esac
read -r up _ </proc/uptime
now=$(((10#${up/./} + @DELTA@) % @RESTART@))
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
    """Seconds since a GPU had this utilization, by the clock of this machine; None for the faulty host."""
    if utilization >= FAULTY_HOST_UTILIZATION or utilization < FIRST:
        return None
    # A reading was in the middle of its step, on average.
    seconds = (now % RESTART_SECONDS - (utilization - FIRST + 0.5) * STEP_SECONDS) % RESTART_SECONDS
    # A reading of the current step may seem to come from the future.
    return 0.0 if seconds > RESTART_SECONDS - 0.5 else seconds


class Lab:
    """Hosts, of which the last one is the faulty one. Callers must call `stop`, also if `start` fails."""

    def __init__(self, sshd, hosts, driver, tools=None):
        self.sshd, self.driver, self.tools = sshd, driver, tools
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
        self.addresses = [f"127.0.{1 + number // 200}.{1 + number % 200}" for number in range(hosts)]
        self.names = [f"gpu{number + 1:02}" for number in range(hosts)]
        self.port = free_port()
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.daemons, self.sleepers, self.faulty, self.listener, self.login = [], [], None, None, None
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
        self.save_record()
        for name, is_faulty in (("driver", False), ("faulty-driver", True)):
            self.install_driver(self.folder / name, is_faulty)
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        ordinary = self.addresses[:-1]
        for first in range(0, len(ordinary), ADDRESSES_A_DAEMON):
            self.daemons.append(self.daemon(f"{first}", ordinary[first:first + ADDRESSES_A_DAEMON]))
        self.set_faulty_host("healthy")

    def install_driver(self, folder, is_faulty):
        """Installs the fake driver as libnvidia-ml.so.1 with a scenario, and an nvidia-smi with equal values."""
        folder.mkdir()
        shutil.copy(self.driver, folder / "libnvidia-ml.so.1")
        per_gpu = PROCESSES // GPUS
        last = FIRST + STEPS
        # `age` ignores the utilization of the faulty host.
        busy = FAULTY_HOST_UTILIZATION if is_faulty else {"from": FIRST, "to": last, "restart_seconds": RESTART_SECONDS}
        devices = []
        for index in range(GPUS):
            # Figures differ between GPUs, as on real ones: the wire sends equal values only once.
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
        # /proc/uptime may include suspended time, which the monotonic clock excludes.
        up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
        script = NVIDIA_SMI.replace("@DELTA@", str(round(100 * (time.monotonic() - up))))
        restart = round(100 * RESTART_SECONDS)
        script = script.replace("@RESTART@", str(restart)).replace(
            "@UTILIZATION@", str(FAULTY_HOST_UTILIZATION) if is_faulty else f"$(({FIRST} + now * {STEPS} / {restart}))")
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)

    def daemon(self, name, addresses, more=(), is_faulty=False):
        driver = self.folder / ("faulty-driver" if is_faulty else "driver")
        log = self.folder / f"sshd-{name}.log"
        path = ":".join([str(driver)] + ([str(self.tools)] if self.tools else []) + ["/usr/local/bin:/usr/bin:/bin"])
        lines = [f"ListenAddress {address}:{self.port}" for address in addresses] + [
            f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/authorized_keys", "PidFile none",
            "StrictModes no", "UsePAM no", "PermitRootLogin yes", "MaxStartups 400", "MaxSessions 40", "LogLevel VERBOSE",
            # With SHLVL above 1, bash does not read .bashrc, which may be slow.
            f"SetEnv SHLVL=5 XDG_CACHE_HOME={self.folder}/cache LD_LIBRARY_PATH={driver} PATH={path}", *more,
        ]
        configuration = self.folder / f"sshd-{name}.conf"
        configuration.write_text("\n".join(lines) + "\n")
        daemon = subprocess.Popen([self.sshd, "-D", "-f", configuration, "-E", log], stdin=subprocess.DEVNULL)
        self.save_record(daemon)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(listens(address, self.port) for address in addresses):
            if daemon.poll() is not None or time.monotonic() > deadline:
                daemon.kill()
                raise SystemExit(f"sshd failed to start:\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.05)
        return daemon

    def set_faulty_host(self, fault):
        """`healthy`; `mute`: accepts connections and sends nothing; `slow`: every command starts 10 s late."""
        self.remove_faulty_host()
        address = self.addresses[-1]
        if fault == "mute":
            self.listener = socket.socket()
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((address, self.port))
            self.listener.listen(64)
        else:
            late = ['ForceCommand sleep 10; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'] if fault == "slow" else []
            self.faulty = self.daemon("faulty", [address], late, is_faulty=True)

    def stop_faulty_host(self):
        """Stops all processes of the faulty host without closing connections, like a loss of power."""
        for pid in usage.Processes().tree([self.faulty.pid]):
            send_signal(pid, signal.SIGSTOP)

    def remove_faulty_host(self):
        if self.listener:
            self.listener.close()
            self.listener = None
        if self.faulty:
            for pid in reversed(usage.Processes().tree([self.faulty.pid])):
                send_signal(pid, signal.SIGKILL)
            self.faulty.wait()
            self.faulty = None

    def servers(self):
        """The pids of the sshds, whose descendants are all processes of the hosts."""
        return [daemon.pid for daemon in self.daemons + [self.faulty] if daemon]

    def logins(self):
        """The number of logins in the logs of the sshds."""
        return sum(log.read_text(errors="replace").count("Accepted publickey") for log in self.folder.glob("sshd-*.log"))

    def bytes_of_login(self, command):
        """Bytes in both directions of one OpenSSH connection that runs this command."""
        if self.login is None:
            done = subprocess.run(["ssh", "-v", "-F", self.folder / "ssh_config", self.names[0], command], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
            found = re.search(r"Transferred: sent (\d+), received (\d+) bytes", done.stderr)
            self.login = int(found.group(1)) + int(found.group(2)) if found else 0
        return self.login

    def probes(self):
        """The pids of gpufleet probes that run from the cache of this lab."""
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
        """The environment of a client: a separate home, and no variables of the current session."""
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
                lines.append(f'nvml_library = "{self.folder}/faulty-driver/libnvidia-ml.so.1"')
        path = self.folder / f"hosts-{hosts}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def warm_up(self, gpufleet, hosts):
        """Installs the probe in the cache of the hosts. Exits with the output of gpufleet if a host cannot be reached."""
        done = subprocess.run([gpufleet, "status", self.hosts_toml(hosts)], env=self.environment(), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
        if done.returncode:
            raise SystemExit(f"the hosts of the lab do not answer; gpufleet status printed:\n{done.stdout[-1500:]}")

    def hosts(self, count):
        """The first `count` hosts; the faulty one is the last of all."""
        return list(zip(self.names, self.addresses))[:count]

    def save_record(self, *more):
        self.record.parent.mkdir(parents=True, exist_ok=True)
        mine = [process.pid for process in [*self.sleepers, *self.daemons, *more, *([self.faulty] if self.faulty else [])]]
        text = json.dumps({"owner": identity(os.getpid()), "folder": str(self.folder),
                           "started": [identity(pid) for pid in mine]})
        replace(self.record, text)

    def stop(self):
        self.remove_faulty_host()
        for pid in reversed(usage.Processes().tree([daemon.pid for daemon in self.daemons])):
            send_signal(pid, signal.SIGKILL)
        for process in self.daemons + self.sleepers:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.record.unlink(missing_ok=True)


def interrupt_on_signals():
    """Makes SIGINT and SIGTERM raise KeyboardInterrupt, also in the background, where a shell ignores SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def remove_stale_lab():
    """Ends the processes that an earlier, killed run left behind. Another run in progress is an error."""
    record = ROOT / "target/benches/lab.json"
    try:
        left = json.loads(record.read_text())
    except (OSError, ValueError):
        return
    if alive(left["owner"]):
        raise SystemExit(f"another lab is running (process {left['owner'][0]}): wait for it, or end it")
    mine = [process[0] for process in left["started"] if alive(process)]
    pids = usage.Processes().tree(mine)
    for pid in reversed(pids):
        send_signal(pid, signal.SIGKILL)
    folder = pathlib.Path(left["folder"])
    if folder.name.startswith("gpufleet-bench-"):
        shutil.rmtree(folder, ignore_errors=True)
    record.unlink(missing_ok=True)
    print(f"ended {len(pids)} processes that an earlier run had left", flush=True)


def identity(pid):
    """Identifies a process by pid, start time and boot id, because the kernel reuses pids."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [pid, "", ""]
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [pid, text[text.rindex(")") + 2:].split()[19], boot]


def alive(process):
    return bool(process[1]) and identity(process[0]) == process


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def replace(path, text):
    """Replaces a file atomically."""
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
