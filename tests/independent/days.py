#!/usr/bin/env python3
"""Expands a day of ordinary-days.toml with a seed into a case. Usage: tests/independent/days.py NAME SEED"""

import json
import pathlib
import random
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from curves import Invalid, seconds  # noqa: E402

PROCESS_COLUMNS = ("cpu", "children", "children_cpu", "reads", "writes", "state", "sm", "connections")


def clock(value):
    """Seconds as a time of the case format."""
    return f"{round(value)}s" if round(value) else "0"


def plain(value):
    return f"{value:.1f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


class Draw:
    """Draws once per activity: a list [low, high] becomes one number, everything else stays."""

    def __init__(self, generator):
        self.generator = generator

    def number(self, value):
        return self.generator.uniform(*value) if isinstance(value, list) else value

    def time(self, value):
        if isinstance(value, list):
            return self.generator.uniform(seconds(value[0]), seconds(value[1]))
        return seconds(value)


class Track:
    """Collects the segments of one curve; equal neighbours are joined."""

    def __init__(self, first="0"):
        self.segments = [(0.0, first)]

    def set(self, time, value):
        time = round(max(time, 0.0))
        while self.segments and self.segments[-1][0] >= time:
            self.segments.pop()
        if not self.segments or self.segments[-1][1] != value:
            self.segments.append((time, value))

    def text(self):
        return "; ".join(f"{clock(t)} {v}" if t else v for t, v in self.segments)


def watts(card, value):
    limit = card["power"][1] or 100
    return card["context"] if value == "context" else min(max(value * limit, card["idle"]), card["power"][2] or 140)


def with_overlay(base, overlay, column, low, draw, scale=1.0, floor=0.0):
    """Adds a burst or dip of the phase to the text of one column."""
    if not overlay or column not in overlay:
        return base
    value = max(draw.number(overlay[column]) * scale, floor)
    length = clock(max(draw.time(overlay["for"]), 1))
    if "rate" in overlay:
        return f"{base} | random {plain(draw.number(overlay['rate']))}/h for {length}: {plain(value)}"
    return f"{base} | every {clock(max(draw.time(overlay['every']), seconds(length) + 2))} for {length}: {plain(value)}"


def phases(shape, length, fault_after, draw):
    """The sequence of (start, end, phase) that fills an activity."""
    time, result = 0.0, []
    stuck = [p for p in shape["phase"] if p["part"] == "stuck"]
    limit = min(length, fault_after) if fault_after is not None else length
    for phase in (p for p in shape["phase"] if p["part"] == "begin"):
        end = min(time + draw.time(phase["for"]), limit)
        if end > time:
            result.append((time, end, phase))
        time = end
    loop = [p for p in shape["phase"] if p["part"] == "loop"]
    while time < limit - 2 and loop:
        for phase in loop:
            end = min(time + (draw.time(phase["for"]) if "for" in phase else limit), limit)
            if end - time >= 2:
                result.append((time, end, phase))
                time = end
    if fault_after is not None:
        result.append((limit, length, stuck[0]))
    return result


class Expansion:
    def __init__(self, document, day, seed, cards):
        self.cards = cards
        self.day = day
        self.shapes = {s["name"]: s for s in document["shape"]}
        self.draw = Draw(random.Random(f"{day['name']}:{seed}"))
        self.length = seconds(day["length"])
        self.hosts = {h: self.boards(text) for h, text in day["hosts"].items()}
        self.busy = {h: [[] for _ in boards] for h, boards in self.hosts.items()}
        self.spans = {}
        self.load = {h: [] for h in self.hosts}
        self.case = {
            "name": f"{day['name']}-{seed}", "source": day["source"], "say": day["say"], "length": day["length"],
            "interval": day.get("interval", "10s"), "observer": day.get("observer", "root"), "hosts": day["hosts"],
            "gpu": [], "process": [], "host": [], "expect": [], "allow": list(day.get("allow", [])),
        }

    @staticmethod
    def boards(text):
        return [card for part in text.split("+") for count, card in [re.fullmatch(r"\s*(\d+)x (\S+)\s*", part).groups()]
                for _ in range(int(count))]

    def free(self, host, count, begin, end, share):
        """The first `count` GPUs of the host without another activity in the span."""
        result = [i for i, spans in enumerate(self.busy[host]) if share or all(end + 60 <= b or e + 60 <= begin for b, e in spans)]
        return result[:count] if len(result) >= count else None

    def place(self, activity, number):
        shape = self.shapes[activity["shape"]]
        draw = self.draw
        first, _, last = activity.get("window", "0..0").partition("..")
        begin = draw.generator.uniform(seconds(first), seconds(last))
        end = min(begin + draw.time(activity["lasts"]) if "lasts" in activity else self.length, self.length)
        begin = 0.0 if begin < 60 else begin
        host = draw.generator.choice(activity.get("on", list(self.hosts)))
        count = activity.get("gpus", 1)
        chosen = self.free(host, count, begin, end, activity.get("share", False))
        if chosen is None or end - begin < 120:
            return
        for index in chosen:
            self.busy[host][index].append((begin, end))
        user = draw.generator.choice(activity.get("users", ["mei"]))
        job = f"{activity['shape']}-{number}"
        fault_after = None
        if "fault" in activity:
            fault_after = draw.time(activity["healthy"])
            if fault_after > end - begin - seconds(activity["within"]) - 300:
                fault_after = None
        spans = phases(shape, end - begin, fault_after, draw)
        if fault_after is not None:
            moment = begin + spans[-1][0]
            self.case["expect"].append({
                "fault": activity["fault"], "who": f"job:{job}", "from": clock(moment),
                "by": clock(moment + seconds(activity["within"])), "tells": activity.get("tells", "warn")})
            self.case["allow"] += activity.get("also", [])
        self.case["allow"] += [f"{fault} job:{job}" for fault in shape.get("allow", [])]
        memory = draw.number(activity.get("memory", shape.get("memory", [0.3, 0.9])))
        groups = [(chosen[:1], False), (chosen[1:], True)] if len(chosen) > 1 and not shape.get("one_process") else [(chosen, False)]
        for indexes, others in groups:
            self.emit(shape, host, indexes, others, spans, begin, end, user, job, memory, activity)

    def emit(self, shape, host, indexes, others, spans, begin, end, user, job, memory, activity):
        draw = self.draw
        process = {name: Track("0") for name in PROCESS_COLUMNS}
        memory_track = Track("0")
        drawn = {}
        cpu_sum = 0.0
        pieces = {index: [] for index in indexes}
        for start, stop, phase in spans:
            key = (id(phase), others)
            if key not in drawn:
                drawn[key] = self.values(phase, others)
            values = drawn[key]
            at = begin + start
            for index in indexes:
                card = self.cards[self.hosts[host][index]]
                pieces[index].append((at, values["utilization"], self.gpu_values(values, card)))
            for name in PROCESS_COLUMNS:
                if name in values["process"]:
                    process[name].set(at, values["process"][name])
            total = self.cards[self.hosts[host][indexes[0]]]["memory"] * 0.97
            memory_track.set(at, plain(max(total * memory * values["memory"], 300)))
            cpu_sum += values["cpu_mean"] * (stop - start)
        for index in indexes:
            self.spans.setdefault((host, index), []).append((begin, end, pieces[index]))
        places = f"{host}:" + ",".join(map(str, indexes))
        entry = {"job": job, "user": user, "argv": shape["argv"], "parents": activity.get("parents", shape.get("parents", "bash < tmux")),
                 "gpus" if shape.get("one_process") else "ranks": places, "memory": memory_track.text(),
                 "start": clock(begin) if begin >= 1 else "-3h", "end": clock(end)}
        for name, track in process.items():
            if len(track.segments) > 1 or track.segments[0][1] != "0":
                text = track.text()
                entry[name] = "S" + text[1:] if name == "state" and text.startswith("0") else text
        if "log" in shape and not others:
            stuck = [s for s, _, p in spans if p["part"] == "stuck"]
            entry["log"] = f"stops {clock(begin + stuck[0])}" if stuck else shape["log"]
        if "listens" in shape:
            entry["listens"] = shape["listens"]
        self.case["process"].append(entry)
        self.load[host].append((begin, end, cpu_sum / max(end - begin, 1) * (1 if shape.get("one_process") else len(indexes))))

    def values(self, phase, others):
        """Draws the figures of one phase for one activity."""
        draw = self.draw
        source = {**phase, **(phase.get("others", {}) if others else {})}
        result = {"phase": source, "utilization": draw.number(source.get("utilization", 0)), "spread": source.get("spread", 0),
                  "power": source.get("power", "context"), "memory": draw.number(source.get("memory", 1.0)), "process": {}}
        result["power"] = draw.number(result["power"])
        result["memory_utilization"] = draw.number(source.get("memory_utilization", [0, 0] if not result["utilization"] else [20, 60]))
        overlay = source.get("burst") or source.get("dip")
        result["overlay"] = overlay
        if overlay:  # one draw for all columns, so that they coincide
            fixed = {k: draw.number(v) for k, v in overlay.items() if k not in ("for", "every")}
            fixed["for"] = clock(draw.time(overlay["for"]))
            if "every" in overlay:
                fixed["every"] = clock(draw.time(overlay["every"]))
            result["overlay"] = fixed
        for name in PROCESS_COLUMNS:
            if name not in source:
                continue
            if name == "state":
                result["process"][name] = source[name]
                continue
            value = draw.number(source[name])
            text = f"{value:.0f}" if name == "children" or value == 0 else f"{plain(value)}~{plain(max(value * 0.05, 0.1))}"
            result["process"][name] = with_overlay(text, result["overlay"], name, 0, draw)
        result["cpu_mean"] = draw.number(source.get("cpu", 100)) + draw.number(source.get("children_cpu", 0))
        return result

    def gpu_values(self, values, card):
        """The texts of utilization, memory utilization and power of one phase on one GPU."""
        overlay, spread = values["overlay"], values["spread"]
        base = plain(values["utilization"]) + (f"~{plain(spread)}" if spread else "")
        busy = values["memory_utilization"]
        power = watts(card, values["power"])
        limit = card["power"][1] or 100
        noise = power * (0.006 if values["power"] == "context" or not spread else 0.04)
        room = (card["power"][2] or 140) * 1.03
        text = f"{plain(min(power, room))}~{plain(max(noise, 0.2))}"
        return (with_overlay(base, overlay, "utilization", 0, self.draw),
                plain(busy) + (f"~{plain(busy * 0.1)}" if busy else ""),
                with_overlay(text, overlay, "power", 0, self.draw, limit, card["context"]))

    def gpu_entry(self, host, index):
        """Joins the activities of one GPU; where several overlap, the one with the highest utilization shows."""
        card = self.cards[self.hosts[host][index]]
        spans = self.spans[host, index]
        tracks = (Track("0"), Track("0"), Track(plain(card["idle"])))
        moments = {round(at) for _, _, pieces in spans for at, _, _ in pieces} | {round(e) for _, e, _ in spans if e < self.length}
        for moment in sorted(moments):
            active = [[p for p in pieces if round(p[0]) <= moment][-1] for b, e, pieces in spans
                      if round(pieces[0][0]) <= moment < round(e)]
            texts = max(active, key=lambda p: p[1])[2] if active else ("0", "0", plain(card["idle"]))
            for track, text in zip(tracks, texts):
                track.set(moment, text)
        names = ("utilization", "memory_utilization", "power")
        return {"on": f"{host}:{index}", **{name: track.text() for name, track in zip(names, tracks)}}

    def finish(self):
        for host, index in sorted(self.spans):
            entry = self.gpu_entry(host, index)
            if "power" in self.cards[self.hosts[host][index]].get("missing", []):
                del entry["power"]
            self.case["gpu"].append(entry)
        for host in self.hosts:
            cores = self.day.get("cores", 64)
            cpu = Track("2")
            for moment in sorted({0.0, *[b for b, _, _ in self.load[host]], *[e for _, e, _ in self.load[host] if e < self.length]}):
                used = sum(mean for b, e, mean in self.load[host] if b <= moment < e) / 100
                cpu.set(moment, f"{plain(min(2 + used / cores * 100, 98))}~1.5")
            entry = {"on": host, "cores": cores, "cpu": cpu.text(), "memory_available": plain(self.draw.number([35, 85])) + "~1"}
            lost = []
            time = self.draw.generator.expovariate(1) * 3600 / max(self.day.get("lost_per_hour", 0.2), 1e-6)
            while time < self.length - 120:
                lost.append(f"{clock(time)}..{clock(time + self.draw.number([10, 55]))}")
                time += 60 + self.draw.generator.expovariate(1) * 3600 / max(self.day.get("lost_per_hour", 0.2), 1e-6)
            if lost:
                entry["lost"] = ", ".join(lost)
            self.case["host"].append(entry)
        for event in self.day.get("maintenance", []):
            for entry in self.case["host"]:
                if entry["on"] == event["host"]:
                    begin, end = seconds(event["at"]), seconds(event["at"]) + seconds(event["for"])
                    entry.update(reachable=f"yes; {clock(begin)} no; {clock(end)} yes", reboots=event["at"])
                    entry.pop("lost", None)
            self.case["allow"] += [f"host-down host:{event['host']} warn", f"host-rebooted host:{event['host']}"]
        self.case = {k: v for k, v in self.case.items() if v != []}
        return self.case


def expand(document, day, seed, cards):
    expansion = Expansion(document, day, seed, cards)
    number = 0
    for activity in day["activity"]:
        more = day.get("more", 1) if "count" in activity else 1
        for _ in range(round(expansion.draw.number(activity.get("count", 1)) * more)):
            number += 1
            expansion.place(activity, number)
    return expansion.finish()


def write_case(case):
    """A case as TOML; strings and arrays of JSON are valid TOML."""
    lines = ["[[case]]"]
    for key, value in case.items():
        if key in ("gpu", "process", "host"):
            continue
        if key == "hosts":
            lines.append("hosts = { " + ", ".join(f"{h} = {json.dumps(b)}" for h, b in value.items()) + " }")
        elif key == "expect":
            lines.append("expect = [\n" + "".join(
                "  { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in entry.items()) + " },\n" for entry in value) + "]")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    for kind in ("gpu", "process", "host"):
        for entry in case.get(kind, []):
            lines.append(f"[[case.{kind}]]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in entry.items()]
    return "\n".join(lines) + "\n"


def main():
    name, seed = sys.argv[1], int(sys.argv[2])
    document = tomllib.loads((HERE / "ordinary-days.toml").read_text())
    cards = tomllib.loads((HERE / "cards.toml").read_text())
    for day in document["day"]:
        if day["name"] == name:
            print(f'family = "ordinary days"\nhalf = "{day["half"]}"\n')
            print(write_case(expand(document, day, seed, cards)), end="")
            return 0
    raise Invalid(f"no day {name!r}")


if __name__ == "__main__":
    sys.exit(main())
