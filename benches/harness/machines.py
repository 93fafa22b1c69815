"""The probe on servers of several sizes, with every reading that a driver can give, and a connection like the controller's.

The hosts of the lab share 40 sleeping processes of one thread each. The servers here have more processes, which can run.
"""

import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import time

from . import usage
from .lab import GPUS, USERS, known_user

# The values of the controller (src/collect/session.rs).
HEARTBEAT_SECONDS = 2
SNAPSHOT_LATE_SECONDS = 0.5
TIMEOUT_SECONDS = 60
# After this time the probe treats a process as old. Real jobs are hours old.
AGE_SECONDS = 62
# After this time a probe has read each process once, even with thousands of them.
SETTLE_SECONDS = 15
# Title, processes on the GPUs, threads of each, other processes of the server, seconds between two runs of a process.
SIZES = [
    ("40 processes that sleep", 40, 1, 0, 3600),
    ("40 processes that run", 40, 1, 0, 0.2),
    ("40 processes of 100 threads that sleep", 40, 100, 0, 3600),
    ("40 processes of 100 threads that run", 40, 100, 0, 0.2),
    ("200 processes that run, 9,800 others", 200, 1, 9800, 0.2),
]

# Arguments: processes, threads of each, others, seconds, users. Prints the pids. All processes end with its standard input.
# The first thread of each GPU process runs periodically, so that its CPU time advances; all other threads sleep.
PROCESSES_SCRIPT = r"""
import os, select, sys, threading
processes, threads, others = map(int, sys.argv[1:4])
seconds = float(sys.argv[4])
users = [int(user) for user in sys.argv[5:]]
end = os.dup(0)
def run_process(number):
    if users:
        os.setgroups([])
        os.setuid(users[number % len(users)])
    if number < processes:
        for _ in range(threads - 1):
            threading.Thread(target=select.select, args=([end], [], []), daemon=True).start()
        while not select.select([end], [], [], seconds)[0]:
            sum(range(500))
    else:
        select.select([end], [], [])
    os._exit(0)
threading.stack_size(64 * 1024)
pids = []
for number in range(processes + others):
    pid = os.fork()
    if pid == 0:
        run_process(number)
    pids.append(pid)
print(*pids[:processes], flush=True)
select.select([end], [], [])
for pid in pids:
    os.waitpid(pid, 0)
"""


class Machine:
    """A server: a fake driver with a scenario, and processes. Callers must call `stop`."""

    def __init__(self, folder, driver, processes, threads, others, seconds, python=sys.executable, users=USERS,
                 script=PROCESSES_SCRIPT):
        self.folder = folder
        folder.mkdir()
        shutil.copy(driver, folder / "libnvidia-ml.so.1")
        users = [str(pwd.getpwnam(user).pw_uid) for user in users if os.geteuid() == 0 and known_user(user)]
        sizes = [str(size) for size in (processes, threads, others, seconds)]
        # A script in a file, like that of a job: its text must not become part of the command line.
        (folder / "train.py").write_text(script)
        self.processes = subprocess.Popen([python, folder / "train.py", *sizes, *users], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True)
        pids = [int(word) for word in self.processes.stdout.readline().split()]
        if len(pids) != processes:
            raise SystemExit(f"{len(pids)} of {processes} processes could be started: `ulimit -u` or the memory is too small")
        self.pids = pids
        each = processes // GPUS
        devices = [device(index, pids[index * each:(index + 1) * each]) for index in range(GPUS)]
        (folder / "fake_nvml.json").write_text(json.dumps({"is_final": True, "devices": devices}))

    def age(self):
        """Waits until the probe treats all processes as old."""
        time.sleep(AGE_SECONDS)

    def stop(self):
        self.processes.stdin.close()
        self.processes.wait()
        self.processes.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def device(index, pids):
    """A GPU with every reading that the driver supports."""
    wave = lambda low, high, seconds: {"from": low, "to": high, "period_seconds": seconds + index}
    return {
        "name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-00000000-0000-4000-8000-{index:012}",
        "pci_bus_id": f"00000000:{0x1b + 8 * index:02X}:00.0", "minor_number": index, "mig_enabled": False,
        "memory_total_bytes": 85520809984, "memory_used_bytes": wave(60e9, 70e9, 30), "memory_reserved_bytes": 655360000,
        "bar1_total_bytes": 137438953472, "bar1_used_bytes": 2097152, "utilization_percent": wave(70, 100, 7),
        "memory_utilization_percent": wave(30, 60, 9), "encoder_percent": 3, "decoder_percent": 4,
        "temperature_celsius": wave(60, 70, 60), "memory_temperature_celsius": wave(70, 80, 60),
        "temperature_slowdown_celsius": 87, "temperature_shutdown_celsius": 92, "memory_temperature_max_celsius": 95,
        "power_watts": wave(480, 640, 20), "power_limit_watts": 700, "power_limit_max_watts": 700, "energy_joules": 1000,
        "clock_graphics_mhz": wave(1700, 1980, 5), "clock_sm_mhz": wave(1700, 1980, 5), "clock_memory_mhz": 2619,
        "clock_graphics_max_mhz": 1980, "clock_sm_max_mhz": 1980, "clock_memory_max_mhz": 2619, "fan_percent": 30,
        "performance_state": 0, "clocks_event_reasons": 4, "persistence_mode": True, "compute_mode": 0,
        "pcie_generation": 5, "pcie_width": 16, "pcie_receive_bytes_per_second": wave(2e9, 3e9, 8),
        "pcie_transmit_bytes_per_second": wave(1e8, 2e8, 8), "nvlinks": [True] * 18,
        "nvlink_receive_bytes_per_second": wave(5e10, 9e10, 6), "nvlink_transmit_bytes_per_second": wave(5e10, 9e10, 6),
        "gpm": {"sm_activity_percent": wave(50, 90, 7), "sm_occupancy_percent": wave(20, 40, 7),
                "tensor_activity_percent": wave(30, 60, 7), "dram_bandwidth_percent": wave(30, 70, 7),
                "pcie_receive_bytes_per_second": wave(2e9, 3e9, 8), "pcie_transmit_bytes_per_second": wave(1e8, 2e8, 8),
                "nvlink_receive_bytes_per_second": wave(5e10, 9e10, 6), "nvlink_transmit_bytes_per_second": wave(5e10, 9e10, 6)},
        "power_violation_seconds": 12.5, "thermal_violation_seconds": 0.3, "power_brake_seconds": 7, "power_smoothing": False,
        "ecc_corrected_volatile": 1, "ecc_uncorrectable_volatile": 0, "ecc_corrected_aggregate": 30,
        "ecc_uncorrectable_aggregate": 0, "recovery_action": 0, "past_seconds": 30, "xid_events": True,
        "remapped_rows": {"correctable": 5, "uncorrectable": 0, "pending": False, "failed": False},
        "processes": [{"pid": pid, "memory_bytes": (12 << 30) - (7 * index + place << 21),
                       "sm_percent": wave(10 + place % 20, 30 + place % 20, 11), "memory_percent": 2 + place % 30}
                      for place, pid in enumerate(pids)],
    }


def measure(probe, machine, seconds, interval):
    """Measures the cost of the probe per refresh, after it has settled."""
    running = subprocess.Popen([probe, "--nvml-library", machine.folder / "libnvidia-ml.so.1",
                                "--interval", str(interval)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    connection = Connection(running, interval)
    try:
        connection.run_for(SETTLE_SECONDS)
        before, refreshes, size = usage.process_cpu(running.pid), connection.snapshots, connection.snapshot_bytes
        connection.run_for(seconds)
        refreshes, size = connection.snapshots - refreshes, connection.snapshot_bytes - size
        if not refreshes:
            raise SystemExit(f"{probe} sends no snapshot")
        rss, own = usage.status(running.pid, "VmRSS", "RssAnon")
        return {"cpu_ms": 1000 * (usage.process_cpu(running.pid) - before) / refreshes, "rss_mb": rss / 1000,
                "anonymous_mb": own / 1000, "snapshot_bytes": size / refreshes}
    finally:
        running.stdin.close()
        running.stdout.close()
        running.wait(TIMEOUT_SECONDS)


class Connection:
    """Reads the lines of the probe and sends heartbeats as the controller does: one for every other snapshot, and one
    every 2 s if snapshots are less frequent. The interval must be at least a second."""

    def __init__(self, running, interval):
        self.running, self.interval, self.rest = running, interval, b""
        self.snapshots = self.snapshot_bytes = self.heartbeats = self.sequence = self.acknowledged = 0
        self.next_heartbeat = time.monotonic()

    def run_for(self, seconds):
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if now >= self.next_heartbeat:
                self.beat()
            if select.select([self.running.stdout], [], [], max(0, min(end, self.next_heartbeat) - now))[0]:
                self.take(self.running.stdout.read(1 << 16))

    def beat(self):
        self.heartbeats += 1
        beat = {"id": self.heartbeats} | ({"last_sequence": self.sequence} if self.sequence else {})
        self.running.stdin.write(json.dumps({"heartbeat": beat}).encode() + b"\n")
        self.acknowledged, self.next_heartbeat = self.sequence, time.monotonic() + HEARTBEAT_SECONDS

    def take(self, read):
        if not read:
            raise SystemExit(f"the probe exited: {self.rest.decode(errors='replace')[-300:]}")
        *lines, self.rest = (self.rest + read).split(b"\n")
        for line in lines:
            if line.startswith(b'{"snapshot"'):
                self.snapshots += 1
                self.snapshot_bytes += len(line) + 1
                self.sequence = json.loads(line)["snapshot"]["sequence"]
                if self.sequence - self.acknowledged >= 2:
                    self.beat()
                if self.interval <= HEARTBEAT_SECONDS:
                    self.next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS + SNAPSHOT_LATE_SECONDS
