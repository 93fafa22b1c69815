"""Formats the results as Markdown tables."""

import json
import statistics

from .lab import replace

PARTS = ["fleet", "faults", "alone"]
ROWS = [
    ("first_seconds", "first host on the screen", "s", 2), ("all_seconds", "all hosts", "s", 2),
    ("old_seconds", "age of the oldest figure shown, median", "s", 1),
    ("oldest_seconds", "the same, most", "s", 1),
    ("client_cpu_percent", "client CPU, of one core", "%", 2), ("client_rss_mb", "client RSS", "MB", 1),
    ("server_cpu_ms", "CPU on the server, a second", "ms", 1), ("server_rss_mb", "RSS on the server, most", "MB", 1),
    ("bytes_per_host_second", "bytes a host-second, as carried", "B", 0),
    ("terminal_bytes_per_second", "bytes to the terminal a second", "B", 0),
    ("key_to_frame_ms", "key to frame, median", "ms", 1), ("key_to_frame_p99_ms", "key to frame, p99", "ms", 1),
    ("probe_cpu_ms", "of the server's CPU, the probe's", "ms", 2), ("probe_rss_mb", "probe RSS", "MB", 1),
    ("probe_anonymous_mb", "of that its own", "MB", 1),
    ("probe_bytes_per_second", "bytes a host-second, before encryption", "B", 0),
]
ALONE_ROWS = [("cpu_ms", "CPU a second", "ms", 2), ("rss_mb", "RSS", "MB", 1)]


def write(results):
    """Writes fleet.md from the existing files of all parts, and returns its text."""
    parts = {name: json.loads((results / f"{name}.json").read_text()) for name in PARTS if (results / f"{name}.json").exists()}
    text = markdown(parts)
    replace(results / "fleet.md", text)
    return text


def markdown(parts):
    blocks = ["# gpufleet beside others\n"]
    for name in PARTS:
        if name in parts:
            blocks.append({"fleet": fleet, "faults": faults, "alone": alone}[name](parts[name]))
    return "\n".join(blocks)


def heading(title, part):
    about = part["about"]
    lines = [f"## {title}\n",
             f"{about['date']}: {about['cpus']} x {about['processor']}, Linux {about['kernel']}, load {about['load_1_at_end']:.1f} "
             f"at the end. Each host: {about['gpus']} GPUs of the fake driver, {about['processes']} processes of "
             f"{about['users']} users, on loopback; a refresh a second; terminal 200x60. Median of the rounds (least to most); "
             "*x* is the ratio to gpufleet's." + about.get("scheduling", "") + "\n"]
    used = {one["program"] for one in part["rounds"]}
    lines += ["- " + about["versions"][name] + (f": {about['notes'][name]}" if name in about["notes"] else "")
              for name in about["titles"] if name in used]
    lines += [f"- {name}: left out: {why}" for name, why in about["left_out"].items()]
    return "\n".join(lines) + "\n"


def values(rounds, key):
    if key == "key_to_frame_p99_ms":
        every = sorted(value for one in rounds for value in one.get("key_to_frame_ms") or [])
        return [every[min(len(every) - 1, int(0.99 * len(every)))]] if every else []
    found = []
    for one in rounds:
        value = one.get(key)
        found += value if isinstance(value, list) else [value]
    return found if any(key in one for one in rounds) else []


def cell(found, unit, digits, base=None):
    """Formats a cell like `0.27 s (0.25 to 0.29), 1.3 x`."""
    if not found:
        return ""
    known = [value for value in found if value is not None]
    if not known:
        return "never"
    middle = statistics.median(known)
    if middle < 0.05 and unit == "MB":
        return "ends too soon to see"
    text = f"{middle:.{digits}f} {unit}"
    if len(known) > 1:
        text += f" ({min(known):.{digits}f} to {max(known):.{digits}f})"
    if len(known) < len(found):
        text += f", {len(found) - len(known)} of {len(found)} never"
    if base:
        text += f", *{middle / base:.1f} x*" if middle / base < 10 else f", *{middle / base:.0f} x*"
    return text


def table(columns, rows, cells):
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for key, name, unit, digits in rows:
        line = cells(key, unit, digits)
        if any(line):
            lines.append(f"| {name} | " + " | ".join(line) + " |")
    return "\n".join(lines) + "\n"


def names_of(part, rounds):
    return [name for name in part["about"]["titles"] if any(one["program"] == name for one in rounds)]


def fleet(part):
    blocks = [heading("A fleet", part)]
    for hosts in sorted({one["hosts"] for one in part["rounds"]}):
        rounds = [one for one in part["rounds"] if one["hosts"] == hosts]
        names = names_of(part, rounds)

        def cells(key, unit, digits):
            line, base = [], None
            for name in names:
                found = values([one for one in rounds if one["program"] == name], key)
                line.append(cell(found, unit, digits, base))
                known = [value for value in found if value is not None]
                if name == "gpufleet" and known and statistics.median(known) > 0:
                    base = statistics.median(known)
            return line

        times = len(rounds) // len(names)
        blocks.append(f"### {hosts} host{'s' if hosts > 1 else ''}, {times} round{'s' if times > 1 else ''}\n\n" + table([part["about"]["titles"][name] for name in names], ROWS, cells))
    return "\n".join(blocks)


def faults(part):
    rounds, names = part["rounds"], names_of(part, part["rounds"])
    rows = [(fault, text, "s", 1) for fault, text in
            (("mute", "one mute from the start"), ("slow", "one 10 s late in each command"), ("dying", "one dies midway"))]

    def cells(fault, unit, digits):
        mine = lambda name: [one for one in rounds if one["program"] == name and one["fault"] == fault]
        return [cell(values(mine(name), "oldest_seconds"), unit, digits) for name in names]

    def first(fault, unit, digits):
        mine = lambda name: [one for one in rounds if one["program"] == name and one["fault"] == fault]
        return [cell(values(mine(name), "first_seconds"), unit, 2) for name in names]

    titles = [part["about"]["titles"][name] for name in names]
    hosts = rounds[0]["hosts"]
    return heading(f"One of {hosts} hosts fails", part) + "\nThe oldest figure of another host that stood on the screen (17 s " \
        "and more is shown as 17 s):\n\n" + table(titles, rows, cells) + "\nThe first host on the screen:\n\n" + \
        table(titles, rows[:2], first)


def alone(part):
    rounds, names = part["rounds"], names_of(part, part["rounds"])

    def cells(key, unit, digits):
        line, base = [], None
        for name in names:
            mine = [one for one in rounds if one["program"] == name]
            if name == "gpufleet":
                found = values(mine, {"cpu_ms": "probe_cpu_ms", "rss_mb": "probe_rss_mb"}[key])
            else:
                found = [10 * value for value in values(mine, "client_cpu_percent")] if key == "cpu_ms" else values(mine, "client_rss_mb")
            line.append(cell(found, unit, digits, base))
            if name == "gpufleet":
                base = statistics.median(found)
        return line

    titles = ["gpufleet's probe" if name == "gpufleet" else part["about"]["titles"][name] for name in names]
    return heading("On the host itself", part) + "\n" + table(titles, ALONE_ROWS, cells)
