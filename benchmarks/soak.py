"""Train while things break, at random, and end with the losses of the run that nothing disturbed.

    python -m benchmarks.soak [--minutes 30] [--seed 1] [--out out/soak]

Two ranks, each a Ray node of its own, learn real text on this machine's CPUs: first undisturbed, then for about
`--minutes` while ranks, nodes, driver, cluster, storage and checkpoints fail (soak_faults.py). All that is chosen
follows from the seed and the pace of the machine. Writes report.md and report.json. Exit code 1 if the run failed,
a loss differs, or a fault was not felt. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import soak_report
from benchmarks.local_job import JobStuckError
from benchmarks.soak_faults import KINDS, NODES, Stage
from benchmarks.soak_report import Survived
from ops.corpus import write_corpus
from ops.errors import CommandError

VOCABULARY = 512
EVERY_STEPS = 20
_ARCHITECTURE = {
    "model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
_SECONDS_BETWEEN = 30
"""Of a soak for each fault: about 20 to get over it (two idle cores; more on a busy machine), and 10 to train."""
_SECONDS_LOST = 20
_CALM_SECONDS = 30
"""Before the last step: a fault there might find no training any more."""
_PACE_STEPS = 60
_LONGEST_RECOVERY_S = 420


@dataclass(frozen=True)
class Fault:
    """What happens when this many steps are done."""

    kind: str
    step: int


def plan(seed: int, count: int, steps: int, step_seconds: float) -> list[Fault]:
    """`count` faults at random steps of a run of `steps`; no kind comes again before all have come."""
    dice, kinds = random.Random(seed), []
    while len(kinds) < count:
        kinds += dice.sample(list(KINDS), len(KINDS))
    last = max(3 * EVERY_STEPS, steps - round(_CALM_SECONDS / step_seconds))
    at = sorted(dice.choices(range(2 * EVERY_STEPS, last), k=count))
    return [Fault(kind, step) for kind, step in zip(kinds, at, strict=False)]


def job(name: str, text: Path, tokenizer: Path, steps: int, faults: int) -> dict[str, Any]:
    """train.json without its storage: a run on text that survives `faults`, and three more that nobody planned."""
    return {
        "name": name,
        "training": {
            "model": {"weights": "random", "architecture": _ARCHITECTURE},
            "data": {"kind": "text", "path": str(text), "tokenizer": str(tokenizer)},
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 10},
            "checkpoint": {"every_steps": EVERY_STEPS, "keep": 3, "retry_minutes": 1},
            "hang": {"step_minutes": 0.4, "checkpoint_minutes": 2.5, "start_minutes": 5},
            "fabric": {"seconds": 0}, "max_failures": faults + 3,
            "steps": steps, "sequence_length": 64, "micro_batch": 4, "accumulation": 8,
        },
        "placement": {"nodes": NODES, "workers_per_node": 1, "device": "cpu", "backend": "gloo"},
    }


def train_undisturbed(stage: Stage, one: dict[str, Any]) -> dict[str, Any]:
    """Run a job to its end; its summary.

    Raises:
        JobStuckError: if it failed.
    """
    training = stage.begin(one)
    if training.wait(4 * 3600):
        raise JobStuckError(f"the undisturbed run failed: {training.last_line()}")
    return training.summary()


def survive(stage: Stage, fault: Fault, step_seconds: float) -> Survived:
    """Wait for a fault's step, make it, and wait until the training is further than it was.

    Raises:
        JobStuckError: if it does not get there, or the run did not feel the fault.
    """
    kind, training = KINDS[fault.kind], stage.training
    training.wait_for(f"step {fault.step}", lambda: training.steps() >= fault.step, 4 * 3600)
    felt, starts, done = kind.felt(stage), stage.starts(), training.steps()
    began, highest = time.monotonic(), done
    kind.make(stage)

    def goes_on() -> bool:
        nonlocal highest
        if kind.restarts and stage.starts() == starts:
            highest = max(highest, training.steps())  # the start will drop those after its checkpoint
            return False
        return kind.felt(stage) > felt

    training.wait_for(f"sign of the fault ({fault.kind})", goes_on, _LONGEST_RECOVERY_S)
    repeated = max(0, highest - stage.resumed_at()) if kind.restarts else 0
    training.wait_for(f"new step after the fault ({fault.kind})", lambda: training.steps() > highest,
                      _LONGEST_RECOVERY_S)
    gained = (training.steps() - done) * step_seconds
    return Survived(fault.kind, done, repeated, max(0.0, time.monotonic() - began - gained))


def soak(stage: Stage, one: dict[str, Any], faults: Sequence[Fault], undisturbed: soak_report.Losses,
         step_seconds: float, seconds: float) -> tuple[list[Survived], str | None]:
    """Train the job `one` while the faults come, those that are due within `seconds`.

    Returns:
        What was survived, and what went wrong.
    """
    survived: list[Survived] = []
    deadline = time.monotonic() + seconds
    try:
        training = stage.begin(one)
        for fault in faults:
            if time.monotonic() > deadline:
                break
            survived.append(survive(stage, fault, step_seconds))
            print(f"step {survived[-1].step}: {fault.kind}; {survived[-1].seconds_lost:.0f} s lost, "
                  f"{survived[-1].steps_repeated} steps repeated", flush=True)
        if training.wait(4 * 3600):
            return survived, f"the run failed: {training.last_line()}"
        return survived, soak_report.difference(undisturbed, training.losses())
    except (JobStuckError, CommandError) as error:
        print(error, file=sys.stderr, flush=True)
        return survived, str(error).partition("\n")[0].rstrip(":")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {"cpus": os.cpu_count(), "system": platform.platform(), "load_before": round(os.getloadavg()[0], 1)}


def soak_for(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """The whole soak in `folder`; the report."""
    here, count = machine(), max(1, round(60 * minutes / _SECONDS_BETWEEN))
    data = write_corpus(folder / "corpus", VOCABULARY)
    with Stage(folder, seed) as stage:
        pace = train_undisturbed(stage, job("pace", *data, _PACE_STEPS, 0))["step_seconds"]["p50"]
        steps = max(4 * EVERY_STEPS, round((60 * minutes - count * _SECONDS_LOST) / pace))
        faults = plan(seed, count, steps, pace)
        print(f"{steps:,} steps of {pace:.2f} s, first undisturbed, then with {count} faults", flush=True)
        quiet = train_undisturbed(stage, job("undisturbed", *data, steps, 0))
        undisturbed, step_seconds = stage.training.losses(), quiet["step_seconds"]["p50"]
        began = time.monotonic()
        survived, failure = soak(stage, job("soaked", *data, steps, count), faults, undisturbed, step_seconds,
                                 60 * minutes)
        starts = stage.starts()
    explained = sum(KINDS[one.kind].restarts for one in survived)
    return soak_report.report(
        survived, failure, seed=seed, minutes=(time.monotonic() - began) / 60, steps=steps, planned=count,
        step_seconds=step_seconds, restarts_without_a_fault=max(0, starts - 1 - explained),
        machine={**here, "load_after": round(os.getloadavg()[0], 1), "versions": quiet["versions"]})


def main() -> None:
    """Soak, and write the report."""
    options = argparse.ArgumentParser(description="Train while things break; compare the losses with a calm run's.")
    options.add_argument("--minutes", type=float, default=30, help="of the disturbed run, about (default 30)")
    options.add_argument("--seed", type=int, default=1, help="of the faults (default 1)")
    options.add_argument("--out", type=Path, default=Path("out/soak"), help="for the report (default out/soak)")
    chosen = options.parse_args()
    if not 2 <= chosen.minutes <= 24 * 60:
        options.error(f"--minutes {chosen.minutes:g}: use 2 (a fault takes about one to get over) to 1440")
    folder = Path(tempfile.mkdtemp(prefix="eagleray-soak-"))
    try:
        found = soak_for(chosen.minutes, chosen.seed, folder)
    except (JobStuckError, CommandError) as error:
        sys.exit(f"soak failed before its first fault: {error}\nlogs: {folder}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    (chosen.out / "report.md").write_text(soak_report.markdown(found))
    print(f"\n{soak_report.markdown(found)}\n{chosen.out / 'report.md'}")
    if found["reason"] is not None:
        sys.exit(f"soak failed: {found['reason']}\nlogs and storage: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
