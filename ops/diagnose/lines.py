"""One line of evidence: what it says, who said it, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07)")
_KUBECTL = re.compile(r"^\[pod/(?P<pod>[\w.-]+)/[\w.-]+\]\s?")
_RAY = re.compile(r"^\((?P<actor>[\w:.-]+)(?: pid=\d+)?(?:, ip=(?P<ip>[\d.a-f:]+))?\)\s?")
_RANK = re.compile(r"\[?\brank[ :_=]?(?P<rank>\d{1,5})\b\]?", re.IGNORECASE)
_TORCHRUN = re.compile(r"^\[(?:default|rank)?(?P<rank>\d{1,5})\]:\s?")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")

_DATED = re.compile(r"\b(?:20\d\d-)(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
_KLOG = re.compile(r"\[?\b[EWIF](?P<month>\d\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
_WORDED = re.compile(r"\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* +(?P<day>\d{1,2})(?: "
                     r"20\d\d)?,? (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
_DAY_FIRST = re.compile(r"\b(?P<day>\d{1,2}) (?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) 20\d\d "
                        r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
_CLOCK = re.compile(r"(?<![\d:.])(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)(?: (?P<half>[AP]M))?(?![\d:])")
_MONTHS: Sequence[str] = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = 86400
_HALF_YEAR = 183 * _DAY
_LONGEST = 400  # characters of a line that is quoted


@dataclass(frozen=True)
class Line:
    """A line of a document. `raw` is as it stands there, `number` counts from 1."""

    source: str
    number: int
    raw: str

    @cached_property
    def text(self) -> str:
        """What was said: without colours and the prefixes of kubectl and Ray."""
        text = _REPEATED.sub("", _ANSI.sub("", self.raw))
        for prefix in (_KUBECTL, _RAY, _TORCHRUN):
            text = prefix.sub("", text, count=1)
        return text

    @cached_property
    def rank(self) -> int | None:
        """The rank that said it, or of which it speaks first."""
        found = _RANK.search(_ANSI.sub("", self.raw))
        if found is None:
            found = _TORCHRUN.match(_KUBECTL.sub("", _RAY.sub("", self.raw)))
        return int(found["rank"]) if found else None

    @cached_property
    def place(self) -> str:
        """The node's address or the pod before the line, "" where none stands there."""
        plain = _ANSI.sub("", self.raw)
        ray, kubectl = _RAY.match(plain), _KUBECTL.match(plain)
        return (ray["ip"] or "" if ray else "") or (kubectl["pod"] if kubectl else "")

    @cached_property
    def moment(self) -> Moment | None:
        """When it was written, where it says so."""
        return moment(self.raw[:200]) or moment(self.raw[200:600])

    @property
    def quote(self) -> str:
        """The line as evidence, cut where it is very long."""
        plain = _ANSI.sub("", self.raw).strip()
        return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"

    @property
    def is_note(self) -> bool:
        """A person's remark or the command that was typed: no evidence of a fault."""
        return self.raw.startswith(("# ", "$ ", "> "))


@dataclass(frozen=True)
class Moment:
    """A point in time: seconds of the year (`dated`), or of the day only."""

    seconds: int
    dated: bool

    def minutes_after(self, other: Moment) -> float | None:
        """Minutes from `other` to this; None where one lacks its day and the other does not matter."""
        if self.dated and other.dated:
            between = self.seconds - other.seconds
            return (between + 365 * _DAY if between < -_HALF_YEAR else between) / 60
        between = self.seconds % _DAY - other.seconds % _DAY
        return (between + _DAY if between < -_DAY // 2 else between) / 60


def moment(text: str) -> Moment | None:
    """The first point in time that a text names. Years do not matter: evidence is of one run."""
    for pattern in (_DATED, _KLOG, _WORDED, _DAY_FIRST):
        if found := pattern.search(text):
            parts = found.groupdict()
            month = int(parts["month"]) if "month" in parts else _MONTHS.index(parts["name"]) + 1
            days = (month - 1) * 31 + int(parts["day"])
            return Moment(days * _DAY + _seconds(found), dated=True)
    found = _CLOCK.search(text)
    return Moment(_seconds(found), dated=False) if found else None


def _seconds(found: re.Match[str]) -> int:
    hours, half = int(found["h"]), found.groupdict().get("half")
    if half:
        hours = hours % 12 + (12 if half == "PM" else 0)
    return hours * 3600 + int(found["m"]) * 60 + int(found["s"])


_AGE = re.compile(r"(\d+)(d|h|m|s)")
_UNITS = {"d": _DAY, "h": 3600, "m": 60, "s": 1}


def age_seconds(text: str) -> int | None:
    """Seconds of kubectl's `2m50s` or `14m`; of `3m (x11 over 25m)` the first."""
    found = _AGE.findall(text.split("(")[0])
    return sum(int(number) * _UNITS[unit] for number, unit in found) if found else None
