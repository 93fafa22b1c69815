"""CPU, memory and descriptors of process trees, from /proc, and bytes of connections, from ss."""

import os
import pathlib
import re
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """A list of all current processes with their parents."""

    def __init__(self):
        self.stat, self.children = {}, {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    text = pathlib.Path(entry.path, "stat").read_text()
                except OSError:
                    continue
                name, fields = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
                self.stat[int(entry.name)] = (name, fields)
                self.children.setdefault(int(fields[1]), []).append(int(entry.name))

    def tree(self, roots):
        """The descendants of these processes, including themselves."""
        found, waiting = [], [pid for pid in roots if pid in self.stat]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += self.children.get(pid, [])
        return found

    def cpu(self, roots):
        """CPU seconds of these processes and their descendants, including ended ones."""
        seconds = 0.0
        for pid in self.tree(roots):
            try:
                seconds += process_cpu(pid)
            except OSError:
                # The process has ended since the list was made.
                seconds += sum(int(field) for field in self.stat[pid][1][11:13]) / TICKS
            seconds += sum(int(field) for field in self.stat[pid][1][13:15]) / TICKS
        return seconds

    def rss(self, roots, without=()):
        """Resident bytes of these processes and their descendants, except programs with the names in `without`."""
        return sum(PAGE * int(self.stat[pid][1][21]) for pid in self.tree(roots) if self.stat[pid][0] not in without)


def process_cpu(pid):
    """CPU seconds of one process, including its ended threads, from its CPU clock (clock_getcpuclockid(3)).

    /proc/PID/stat has a resolution of 10 ms only."""
    return time.clock_gettime(~pid << 3 | 2)


def status(pid, *names):
    """Values in kB of lines of /proc/PID/status, such as VmRSS and RssAnon."""
    lines = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(lines[name].split()[0]) for name in names]


def written(pid):
    """Bytes that a process has written (wchar)."""
    return int(re.search(r"wchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text()).group(1))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def connections(port):
    """Bytes sent and received by each open connection of the sshds, by the address of the client."""
    output = subprocess.run(["ss", "-Htino", f"( sport = :{port} )"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            text=True).stdout
    found = {}
    for peer, facts in re.findall(r"^\S+\s+\d+\s+\d+\s+\S+\s+(\S+)[^\n]*\n\s+([^\n]*)", output, re.M):
        found[peer] = sum(int(number) for number in re.findall(r"bytes_(?:sent|received):(\d+)", facts))
    return found
