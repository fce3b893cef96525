"""How far a run is: what it left in its storage, and what its log says since."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ops import run_storage
from ops.deployed_run import DeployedRun
from ops.errors import CommandError
from ops.run_cost import so_far

# training/metrics.py for_people: `step   20/200  loss 5.8123  grad 1.20  …  12,345 tokens/s  0.21 s  MFU 47.1 %`
_STEP = re.compile(r"step\s+(?P<step>\d+)/(?P<steps>\d+)\s+"
                   r"(?:loss (?P<loss>[\d.e+-]+)|SKIPPED: (?P<skipped>[^(]+))"
                   r"(?:.*?\s(?P<rate>[\d,]+) tokens/s)?(?:.*?MFU (?P<mfu>[\d.]+) %)?")
_METRICS_TAIL = 64 * 1024
"""Bytes of metrics.jsonl that are read: its last steps."""


@dataclass(frozen=True)
class RunState:
    """The newest that is known of a run; None for what is not known.

    `verdict` is that of its wire, `status` running, succeeded or failed (`reason`); `trouble` says what of it
    could not be read; `billed` is what its cost is worked out from (ops/run_cost.py).
    """

    run: DeployedRun
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    skipped: str | None = None
    verdict: str | None = None
    restarts: int | None = None
    status: str | None = None
    reason: str | None = None
    trouble: str | None = None
    billed: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        kept = ("step", "steps", "loss", "tokens_per_second", "mfu", "skipped", "verdict", "restarts", "status",
                "reason", "trouble")
        return {"name": self.run.name, "uri": self.run.uri, **{key: getattr(self, key) for key in kept}}


def run_state(run: DeployedRun, log: str, until: datetime) -> RunState:
    """State of a run.

    Args:
        log: the newest lines of its submitter; on S3 they are ahead of the metrics file.
        until: now, or when its job ended.
    """
    state = RunState(run, steps=run.steps)
    try:
        state = _stored(run, state, until)
    except CommandError as error:
        state = replace(state, trouble=str(error))
    return _logged(state, log.splitlines()) if state.status == "running" or state.trouble else state


def _stored(run: DeployedRun, state: RunState, until: datetime) -> RunState:
    started, wire = _json(run, "run.json"), _json(run, "transport.json")
    summary = _json(run, "summary.json") or {}
    rows = run_storage.read(run.uri, "metrics.jsonl", _METRICS_TAIL) or b""
    row = _last_row(rows.decode(errors="replace").splitlines())
    starts = (started or {}).get("starts")
    return replace(
        state,
        step=row.get("step"), loss=row.get("loss"), tokens_per_second=row.get("tokens_per_second"),
        mfu=row.get("mfu"), skipped=row.get("reason") if row.get("skipped") else None,
        verdict=(wire or {}).get("verdict"), restarts=None if starts is None else max(0, starts - 1),
        status=summary.get("status") or "running", reason=summary.get("reason"),
        billed=summary if "hours" in summary else so_far(started or {}, until.timestamp()) | row)


def _json(run: DeployedRun, name: str) -> dict[str, Any] | None:
    text = run_storage.read(run.uri, name)
    try:
        found = None if text is None else json.loads(text)
    except ValueError:  # being written
        return None
    return found if isinstance(found, dict) else None


def _last_row(lines: Iterable[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:  # cut off at the front, or being written
            continue
        row = found if isinstance(found, dict) else row
    return row


def _logged(state: RunState, lines: Iterable[str]) -> RunState:
    """The state with the last step of the log, if that is further."""
    found = [match for line in lines if (match := _STEP.search(line))]
    if not found or int(found[-1]["step"]) < (state.step or 0):
        return state
    last, rate, mfu, loss = (found[-1], found[-1]["rate"], found[-1]["mfu"], found[-1]["loss"])
    return replace(
        state, step=int(last["step"]), steps=int(last["steps"]), loss=float(loss) if loss else None,
        skipped=(last["skipped"] or "").strip() or None,
        tokens_per_second=float(rate.replace(",", "")) if rate else state.tokens_per_second,
        mfu=float(mfu) / 100 if mfu else state.mfu)
