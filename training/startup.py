"""How long a rank takes from the start of its process to its first optimizer step, by phase."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

PHASES = ("imports", "process_group", "wire", "inputs", "weights", "checkpoint", "first_step")
"""In their order. `imports`: from the start of the process until the job's own code runs; `process_group`: until
all ranks have found each other; `wire`: its proof; `inputs`: config and data; `weights`: the model, built, filled
and sharded; `checkpoint`: read where there is one; `first_step`: with compilation."""


class Startup:
    """A clock that began when this process did; each phase ends where the next begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Of each phase that has ended."""
        self._last = time.monotonic() - process_age()

    def ended(self, phase: str) -> None:
        """The phase ends now."""
        assert phase in PHASES
        now = time.monotonic()
        self.seconds[phase] = round(now - self._last, 2)
        self._last = now

    def record(self, resumed_at: int) -> dict[str, Any]:
        """What run.json keeps of a start. `resumed_at`: the step of the checkpoint, 0 without one."""
        return {"resumed_at": resumed_at, "total": round(sum(self.seconds.values()), 2), "seconds": self.seconds,
                "compiled": compiled_graphs()}


def for_people(record: dict[str, Any]) -> str:
    """`start-up 41.2 s: imports 9.1, …, first step 23.4 (4 graphs compiled, 0 taken from the cache)`."""
    phases = ", ".join(f"{phase.replace('_', ' ')} {seconds:.1f}" for phase, seconds in record["seconds"].items())
    line = f"start-up {record['total']:.1f} s: {phases}"
    if record["compiled"] is None:
        return line
    graphs = record["compiled"]
    return f"{line} ({graphs['anew']} graphs compiled, {graphs['from_cache']} taken from the cache)"


def process_age() -> float:
    """Seconds since this process started; since this module was imported where the system does not tell."""
    try:
        with open("/proc/self/stat") as stream:
            started = int(stream.read().rpartition(")")[2].split()[19])  # ticks after boot, proc(5) field 22
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def compiled_graphs() -> dict[str, int] | None:
    """Graphs that this process compiled `anew` and took `from_cache`; None where it compiled nothing.

    The cache lies in TORCHINDUCTOR_CACHE_DIR and outlives the process: a restarted worker finds it.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    found = dynamo.counters["inductor"] if dynamo else {}
    anew, cached = (found.get(f"fxgraph_cache_{how}", 0) for how in ("miss", "hit"))
    anew += found.get("fxgraph_cache_bypass", 0)
    return {"anew": anew, "from_cache": cached} if anew or cached else None


_IMPORTED = time.monotonic()
