"""What process trees have used, from /proc: CPU, memory, descriptors; and bytes of connections, from ss and sshd."""

import os
import pathlib
import re
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """All processes as they are now, with their parents."""

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
        """The processes below these, themselves included."""
        found, waiting = [], [pid for pid in roots if pid in self.stat]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += self.children.get(pid, [])
        return found

    def cpu(self, roots):
        """CPU seconds of these and all below them, with those of descendants that have ended."""
        seconds = 0.0
        for pid in self.tree(roots):
            try:
                seconds += process_cpu(pid)
            except OSError:
                # It has ended since it was listed.
                seconds += sum(int(field) for field in self.stat[pid][1][11:13]) / TICKS
            seconds += sum(int(field) for field in self.stat[pid][1][13:15]) / TICKS
        return seconds

    def rss(self, roots, without=()):
        """Resident bytes of these and all below them, without programs of these names."""
        return sum(PAGE * int(self.stat[pid][1][21]) for pid in self.tree(roots) if self.stat[pid][0] not in without)


def process_cpu(pid):
    """CPU seconds of one process, of its threads that have ended, too, in nanoseconds of resolution: /proc/PID/stat counts in
    hundredths of a second. It is the process's clock, as clock_getcpuclockid(3) makes it."""
    return time.clock_gettime(~pid << 3 | 2)


def status(pid, *names):
    """Kilobytes of lines of /proc/PID/status, such as VmRSS and RssAnon."""
    lines = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(lines[name].split()[0]) for name in names]


def written(pid):
    """Bytes that a process has written."""
    return int(re.search(r"wchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text()).group(1))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def connections(port):
    """Bytes sent and received by each connection that our sshd holds now, by the client's end."""
    output = subprocess.run(["ss", "-Htino", f"( sport = :{port} )"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            text=True).stdout
    found = {}
    for peer, facts in re.findall(r"^\S+\s+\d+\s+\d+\s+\S+\s+(\S+)[^\n]*\n\s+([^\n]*)", output, re.M):
        found[peer] = sum(int(number) for number in re.findall(r"bytes_(?:sent|received):(\d+)", facts))
    return found
