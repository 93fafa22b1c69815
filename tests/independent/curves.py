"""Curves of the independent cases: parsing, evaluation, times. Python standard library only."""

import bisect
import math
import random
import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SCALE = {"k": 1e3, "M": 1e6, "G": 1e9}


class Invalid(Exception):
    pass


def seconds(text):
    """`90s`, `1h30m`, `-2d` or `0` in seconds."""
    body = text[1:] if text.startswith("-") else text
    if body == "0":
        return 0.0
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", body):
        raise Invalid(f"not a time: {text!r}")
    total = sum(float(n) * UNITS[u] for n, _, u in re.findall(r"(\d+(\.\d+)?)([smhd])", body))
    return -total if text.startswith("-") else total


def number(text):
    match = re.fullmatch(r"(-?\d+(\.\d+)?)([kMG]?)", text)
    if not match:
        raise Invalid(f"not a number: {text!r}")
    return float(match[1]) * SCALE.get(match[3], 1)


def is_time(text):
    try:
        seconds(text)
    except Invalid:
        return False
    return True


class Value:
    """A constant, a ramp, a word or unknown (`-`), with its noise."""

    def __init__(self, text, words):
        self.unknown = text == "-"
        self.word = text if words and not self.unknown else None
        self.first = self.last = self.deviation = self.correlation = 0.0
        if self.unknown:
            return
        if words:
            for word in text.split("+"):
                if word not in words and "*" not in words:
                    raise Invalid(f"{word!r} is not one of {', '.join(sorted(words))}")
            return
        body, _, noise = text.partition("~")
        first, dots, last = body.partition("..")
        self.first = number(first)
        self.last = number(last) if dots else self.first
        if noise:
            deviation, _, correlation = noise.partition("@")
            self.deviation = number(deviation)
            self.correlation = seconds(correlation) if correlation else 0.0

    def at(self, share):
        if self.unknown:
            return None
        if self.word is not None:
            return self.word
        return self.first + (self.last - self.first) * min(max(share, 0.0), 1.0)


class Overlay:
    """`every P [from T] for D: V`, `at T for D: V` or `random N/h for D: V`."""

    FORM = re.compile(r"(?:every (\S+)(?: from (\S+))?|at (\S+)|random (\S+)/h) for (\S+): (\S+)")

    def __init__(self, text, words):
        match = self.FORM.fullmatch(text.strip())
        if not match:
            raise Invalid(f"not an overlay: {text!r}")
        period, start, moment, rate, duration, value = match.groups()
        self.period = seconds(period) if period else None
        self.start = seconds(start or moment or "0")
        self.rate = number(rate) if rate else None
        self.duration = seconds(duration)
        self.value = Value(value, words)
        if self.period is not None and self.period <= self.duration:
            raise Invalid(f"period not above duration: {text!r}")

    def covers(self, time, begin, seed):
        if self.rate is not None:
            hour = int(time // 3600)
            for h in (hour - 1, hour):
                generator = random.Random(f"{seed}:{h}:{self.rate}")
                count = int(self.rate) + (generator.random() < self.rate % 1)
                if any(0 <= time - h * 3600 - generator.random() * 3600 < self.duration for _ in range(count)):
                    return True
            return False
        origin = self.start if self.start > begin else begin
        if self.period is None:
            return self.start <= time < self.start + self.duration
        if self.start == 0:
            origin = begin + self.period - self.duration
        return time >= origin and (time - origin) % self.period < self.duration


class Curve:
    """Segments separated by `;`, each `[TIME[>TIME]] VALUE [| OVERLAY]...`."""

    def __init__(self, text, words=None):
        self.segments = []
        for part in str(text).split(";"):
            head, *overlays = [piece.strip() for piece in part.split("|")]
            tokens = head.split()
            if len(tokens) == 1:
                times, value = "0", tokens[0]
            elif len(tokens) == 2:
                times, value = tokens
            else:
                raise Invalid(f"not a segment: {part.strip()!r}")
            begin, _, end = times.partition(">")
            start = seconds(begin)
            if self.segments and start <= self.segments[-1][0]:
                raise Invalid(f"times do not ascend: {text!r}")
            stop = seconds(end) if end else None
            if stop is not None and stop <= start:
                raise Invalid(f"ramp ends before it begins: {part.strip()!r}")
            self.segments.append((start, stop, Value(value, words), [Overlay(o, words) for o in overlays]))
        if self.segments[0][0] > 0:
            raise Invalid(f"no value at time 0: {text!r}")
        self.starts = [segment[0] for segment in self.segments]

    def times(self):
        return [t for start, stop, _, overlays in self.segments
                for t in [start, stop or 0] + [o.start for o in overlays if o.period is None and o.rate is None]]

    def has_lost_overlay(self, length):
        """Whether an overlay with `at` lies outside of its segment."""
        ends = self.starts[1:] + [length]
        return any(overlay.period is None and overlay.rate is None
                   and not (start < overlay.start + overlay.duration and overlay.start < end)
                   for (start, _, _, overlays), end in zip(self.segments, ends) for overlay in overlays)

    def at(self, time, length, seed=None, subject=""):
        """The value at `time`; with a seed, noise (different per subject) and random overlays are added."""
        index = bisect.bisect_right(self.starts, max(time, 0)) - 1
        start, stop, value, overlays = self.segments[index]
        following = self.segments[index + 1][0] if index + 1 < len(self.segments) else length
        end = stop if stop is not None else following
        begin = start
        for overlay in overlays:
            if (overlay.rate is None or seed is not None) and overlay.covers(time, begin, seed):
                value, start, end = overlay.value, time, time + 1
        result = value.at((time - start) / max(end - start, 1e-9))
        if seed is None or not isinstance(result, float) or not value.deviation:
            return result
        step = value.correlation or 0.001
        return result + random.Random(f"{seed}:{subject}:{int(time / step)}").gauss(0, value.deviation)


class Log:
    """The writes to a log: `every 5s`, `steps 40s`, `stops 20m` or `none`, then `; TIME every 5s` or `; TIME stops`."""

    def __init__(self, text):
        first, *later = [part.split() for part in str(text).split(";")]
        if not first or any(len(part) < 2 for part in later):
            raise Invalid(f"not a log: {text!r}")
        # (begin, seconds between writes); None: it is not written. Writes of an unknown rhythm are at most 10 s apart.
        self.is_absent = first == ["none"] and not later
        self.segments = []
        if first[0] == "stops":
            self.segments = [(-math.inf, 10.0), (self.time(first), None)]
        elif first[0] in ("every", "steps"):
            self.segments = [(-math.inf, max(self.time(first), 1.0))]
        elif not self.is_absent:
            raise Invalid(f"log is none, every TIME, steps TIME or stops TIME: {text!r}")
        for begin, word, *rest in later:
            start = seconds(begin)
            if start <= self.segments[-1][0] or word not in ("every", "steps", "stops"):
                raise Invalid(f"not a change of a log: {begin} {word}")
            self.segments.append((start, None if word == "stops" else max(self.time([word, *rest]), 1.0)))

    @staticmethod
    def time(words):
        if len(words) < 2:
            raise Invalid(f"no time after {words[0]}")
        return seconds(words[1])

    def times(self):
        return [begin for begin, _ in self.segments if begin > -math.inf]

    def age(self, time):
        """Seconds since the last write at `time`; None without a log."""
        if self.is_absent:
            return None
        begin, gap = [segment for segment in self.segments if segment[0] <= time][-1]
        return time - begin if gap is None else (time - max(begin, 0.0)) % gap


def indexes(text):
    """`0-3,6` as [0, 1, 2, 3, 6]; `none` as []."""
    if text in ("none", ""):
        return []
    result = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise Invalid(f"not a list of GPUs: {text!r}")
        result += range(int(first), int(last or first) + 1)
    return result
