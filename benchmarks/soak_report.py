"""What a soak says: whether the losses are those of the undisturbed run, and what each fault cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Losses = Sequence[tuple[int, float]]
"""(step, loss), one a line of metrics.jsonl."""


@dataclass(frozen=True)
class Survived:
    """A fault that the training got over."""

    kind: str
    step: int
    """Steps done when it came."""
    steps_repeated: int
    """Steps that were trained, lost, and trained again."""
    seconds_lost: float
    """From the fault until a step that had not been done before, without the time of the steps gained meanwhile."""


def difference(undisturbed: Losses, soaked: Losses) -> str | None:
    """How the losses of the soaked run differ, in one line; None: they are the same to the last bit."""
    for (step, loss), (other_step, other) in zip(undisturbed, soaked, strict=False):
        if step != other_step:
            return f"the record of step {step} is missing: that of step {other_step} is in its place"
        if loss != other:
            apart = sum(a != b for a, b in zip(undisturbed, soaked, strict=False))
            return (f"step {step}: loss {other} where the undisturbed run has {loss} "
                    f"({apart} of {len(undisturbed)} steps differ)")
    if len(undisturbed) != len(soaked):
        return f"{len(soaked)} steps where the undisturbed run has {len(undisturbed)}"
    return None


def by_kind(survived: Sequence[Survived]) -> dict[str, dict[str, float]]:
    """For each kind of fault: how often it came, medians of what it cost, and the worst."""
    found = {}
    for kind in sorted({one.kind for one in survived}):
        seconds = [one.seconds_lost for one in survived if one.kind == kind]
        repeated = [one.steps_repeated for one in survived if one.kind == kind]
        found[kind] = {
            "times": len(seconds), "seconds_lost": round(statistics.median(seconds), 1),
            "most_seconds_lost": round(max(seconds), 1), "steps_repeated": statistics.median(repeated),
            "most_steps_repeated": max(repeated),
        }
    return found


def report(survived: Sequence[Survived], failure: str | None, **facts: Any) -> dict[str, Any]:
    """The contents of report.json.

    Args:
        survived: in the order in which they came.
        failure: what went wrong, in one line.
        facts: about the run and the machine.
    """
    if failure is None and not survived:
        failure = "no fault came, so nothing is proven"
    return {
        "status": "survived" if failure is None else "failed", "reason": failure, **facts,
        "by_kind": by_kind(survived),
        "faults": [{**asdict(one), "seconds_lost": round(one.seconds_lost, 1)} for one in survived],
    }


def markdown(found: dict[str, Any]) -> str:
    """The report for people."""
    verdict = ("The losses are those of the undisturbed run, to the last bit" if found["reason"] is None
               else f"**FAILED**: {found['reason']}")
    machine = found["machine"]
    lines = [
        f"# Soak: {found['minutes']:.1f} minutes, {len(found['faults'])} faults", "",
        f"{verdict}. {found['steps']:,} steps of about {found['step_seconds']:.2f} s; seed {found['seed']}, "
        f"{found['planned']} faults planned, {found['restarts_without_a_fault']} restarts that no fault explains.",
        "",
        "| fault | times | seconds lost: median | most | steps repeated: median | most |",
        "|---|---|---|---|---|---|",
    ]
    for kind, one in found["by_kind"].items():
        lines.append(f"| {kind} | {one['times']} | {one['seconds_lost']:.1f} | {one['most_seconds_lost']:.1f} | "
                     f"{one['steps_repeated']:g} | {one['most_steps_repeated']} |")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines += ["", f"{machine['cpus']} CPU cores, load {machine['load_before']} before and {machine['load_after']} "
                  f"after; {machine['system']}; {versions}. Seconds lost: from the fault until a step that had not "
                  "been done before, without the steps gained meanwhile. Two ranks, each a Ray node of its own, a "
                  "tiny model on CPUs: figures of a rehearsal, not of GPUs.", ""]
    return "\n".join(lines)
