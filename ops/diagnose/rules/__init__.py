"""Rules: pure functions from evidence to findings, by what they know about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import Finding
from ops.diagnose.rules import (
    capacity,
    collectives,
    nodes,
    pods,
    ray_jobs,
    scheduling,
    stacks,
    storage,
    teardown,
    trainer,
    wire,
)

RULES: Sequence[Callable[[Evidence], list[Finding]]] = (
    capacity.findings, nodes.findings, scheduling.findings, pods.findings, storage.findings, trainer.findings,
    wire.findings, collectives.findings, ray_jobs.findings, teardown.findings, stacks.findings)
